// Calls whose buffers lie on a GPU: the engine works on copies in pinned memory, which are filled when it is about to
// read them, and brought back when the round is over. So a round on GPU buffers is the same round, with the same bits,
// log and recovery, and the input is kept by itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "recovery/base/result.h"
#include "worker/device/device_combines.h"
#include "worker/device/device_copies.h"
#include "worker/device/device_exchange.h"
#include "worker/device/device_memory.h"
#include "worker/device/device_shares.h"
#include "worker/device/device_table.h"
#include "worker/device/pinned_arena.h"
#include "worker/device/snapshot.h"
#include "worker/device/streamed_call.h"
#include "worker/life/state_piece.h"
#include "worker/rounds/call.h"

namespace warren::worker {

// What is known of calls that are put together (worker/session/fusion.h) and of whose buffers some lie on GPUs.
class PartsOnGpu {
 public:
  [[nodiscard]] bool empty() const { return device_ == WARREN_DEVICE_HOST; }

 private:
  friend class Staging;
  std::int32_t device_ = WARREN_DEVICE_HOST;  // where the first one lies
  bool scattered_ = false;                    // and not all others
  // By part: behind what was on its stream when it was made; null: it does not lie on a GPU. All of them: a stream that
  // has the handle of an older one's may be another, made when that was destroyed.
  std::vector<std::unique_ptr<DeviceCopies::Event>> after_;
};

// One a session. Any thread may call; what it makes ends before it.
class Staging {
 public:
  // `pinned_bytes`, `snapshot_bytes`, `shared_bytes`: budgets of pinned memory, of memory of GPUs for snapshots, and of
  // that which the ranks of a host read in each other. `stall_ms`: how long 4 MiB may take to be copied.
  Staging(const warren_device_table& table, std::uint64_t pinned_bytes, std::uint64_t snapshot_bytes,
          std::uint64_t shared_bytes, std::int64_t stall_ms)
      : table_(table),
        stall_ms_(stall_ms),
        arena_(table, pinned_bytes),
        snapshots_(table, snapshot_bytes, arena_),
        scratch_(table, std::numeric_limits<std::uint64_t>::max(), arena_),
        shares_(table, shared_bytes, arena_),
        combines_(shares_, arena_, [this](std::int32_t device) -> DeviceCopies& { return copies_on(device); }) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Gives a validated call whose buffers are on a GPU copies of them, and itself as spec.prepare; leaves any other as
  // it is. With a wire type, and both buffers on the GPU, which has memory for it, the copies are of that type and the
  // call is one on them as narrow() makes it; else, and where shares end within blocks, it still has its wire type.
  // What is on spec.stream now, or what the program's prepare function puts there, is waited for before a buffer is
  // read or written. A send's buffer is read here. kInvalidArgument: buffers on two GPUs. kExhausted: the budget.
  [[nodiscard]] Status stage(Call& call, const GroupShape& group) { return stage(call, group, true, nullptr); }
  // Other ranks are on this host: the inputs of large allreduces may be lent to them on the GPU (shares()), which
  // stage() may prepare.
  void lend_inputs(bool lends) { lends_.store(lends, std::memory_order_relaxed); }
  [[nodiscard]] DeviceShares& shares() { return shares_; }
  [[nodiscard]] DeviceCombines& combines() { return combines_; }
  // NCCL is to move the bytes of large allreduces; before the first call, once.
  DeviceExchange& exchange_by(bool checksums, DeviceExchange::Roots roots, DeviceExchange::Tell tell) {
    exchange_ = std::make_unique<DeviceExchange>(
        table_, shares_, arena_, [this](std::int32_t device) -> DeviceCopies& { return copies_on(device); }, stall_ms_,
        checksums, std::move(roots), std::move(tell));
    return *exchange_;
  }
  // Null: it is not.
  [[nodiscard]] DeviceExchange* exchange() { return exchange_.get(); }
  // The same of one that others are part of: as a whole, before the round and after it.
  [[nodiscard]] Status stage_whole(Call& call, const GroupShape& group) { return stage(call, group, false, nullptr); }
  // The same of the `i`th of `parts`, or a copy of it, once: `alone`, or beside others, as a whole. What was on its
  // stream when it was made is waited for; the stream may be gone.
  [[nodiscard]] Status stage_part(PartsOnGpu& parts, std::size_t i, Call& call, const GroupShape& group, bool alone) {
    return stage(call, group, alone, std::move(parts.after_[i]));
  }

  // On which GPU its buffers lie, each of them, or WARREN_DEVICE_HOST.
  struct Lies {
    BufferBytes sizes;
    std::int32_t in = WARREN_DEVICE_HOST, out = WARREN_DEVICE_HOST;
    [[nodiscard]] std::int32_t device() const { return in != WARREN_DEVICE_HOST ? in : out; }
  };
  // Of a validated call. kInvalidArgument: on two GPUs. kUnavailable: the GPU.
  [[nodiscard]] Result<Lies> find(const CallSpec& spec, const GroupShape& group);
  // Behind what is on that stream now, if buffers that lie so are to be part of others; null: they are on the CPU. It
  // may wait for the GPU. kUnavailable: the GPU.
  [[nodiscard]] Result<std::unique_ptr<DeviceCopies::Event>> mark(const Lies& lies, void* stream);
  // An allreduce whose buffers lie so is the next one of `parts` from now on; `after`: of mark(). No call into the
  // driver.
  static void add(const Lies& lies, std::unique_ptr<DeviceCopies::Event> after, PartsOnGpu& parts);
  // Gives a call that stands for these allreduces, which `parts` knows, and has neither buffers nor a prepare function,
  // buffers: packed on the GPU, and staged, or still with its wire type, as above. False: some buffers lie elsewhere,
  // or the GPU has no memory for them within the budget of snapshots: each is to be staged.
  [[nodiscard]] Result<bool> pack(const PartsOnGpu& parts, std::span<const std::shared_ptr<Call>> calls,
                                  const GroupShape& group, Call& packed);

  // The same bytes in memory of the CPU.
  struct Copy {
    std::span<const std::byte> bytes;
    PinnedArena::Block memory;  // if they had to be copied
  };
  [[nodiscard]] Result<Copy> read(std::span<const std::byte> bytes, void* stream);
  // The same in memory of the program on the CPU or a GPU, in which it may be written to after the work on `stream`.
  [[nodiscard]] Status write(std::span<std::byte> to, std::span<const std::byte> from, void* stream);

  // Whether a GPU has some of these pieces. kInvalidArgument: two have.
  [[nodiscard]] Result<bool> holds(std::span<const StatePiece> pieces);
  // States of a checkpoint that lie in these pieces, as they are when the work on `stream` is done, which has come when
  // this returns. Copies what lies on the GPU there, within the budget; what does not
  // fit, or has no room there, and what lies on the CPU beside it, to memory of the CPU. Of one GPU at most,
  // as holds() has said. kExhausted: pinned memory. kUnavailable, kTimeout: the GPU. kClosed: end().
  [[nodiscard]] Result<std::unique_ptr<Snapshot>> snapshot(std::span<const StatePiece> pieces, void* stream);

  // Nobody wants the results any more: waits for GPUs end.
  void end() { ends_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t pinned_bytes() const { return arena_.pinned_bytes(); }
  [[nodiscard]] std::uint64_t snapshot_bytes() const { return snapshots_.bytes(); }
  [[nodiscard]] std::uint64_t scratch_bytes() const { return scratch_.bytes(); }

 private:
  // `after`: null: behind what is on the call's stream now.
  [[nodiscard]] Status stage(Call& call, const GroupShape& group, bool may_stream,
                             std::unique_ptr<DeviceCopies::Event> after);
  // Copies of a call's buffers in pinned memory; no bytes: of a buffer that lies on the CPU.
  struct Placed {
    Staged from, to;
    std::vector<PinnedArena::Block> memory;
  };
  [[nodiscard]] Result<Placed> place(const CallSpec& spec, const GroupShape& group, const Lies& lies, bool narrows);
  void stream(Call& call, const GroupShape& group, const Lies& lies, DeviceCopies& copies,
              std::unique_ptr<DeviceCopies::Event> after, Placed placed);
  [[nodiscard]] static Status stage_at_once(Call& call, DeviceCopies& copies,
                                            std::unique_ptr<DeviceCopies::Event> after, Placed placed);
  [[nodiscard]] Result<std::int32_t> device_of(const void* pointer);
  [[nodiscard]] Result<std::int32_t> where(const StatePiece& piece);
  [[nodiscard]] Status append(std::vector<std::byte>& to, std::span<const std::byte> from, void* stream);
  [[nodiscard]] Result<std::unique_ptr<DeviceCopies::Event>> mark(std::int32_t device, void* stream);
  DeviceCopies& copies_on(std::int32_t device);

  const warren_device_table& table_;
  const std::int64_t stall_ms_;
  std::atomic<bool> ends_{false}, lends_{false};
  PinnedArena arena_;
  DeviceMemory snapshots_;
  DeviceMemory scratch_;  // DeviceCopies::kScratchBytes of each GPU
  DeviceShares shares_;
  std::mutex mutex_;
  std::map<std::int32_t, std::unique_ptr<DeviceCopies>> copies_;  // by device
  DeviceCombines combines_;
  std::unique_ptr<DeviceExchange> exchange_;
};

}  // namespace warren::worker

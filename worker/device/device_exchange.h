// NCCL, as what moves turns of messages from GPU to GPU (docs/decisions/0024-nccl.md): one communicator of all ranks an
// generation, made while rounds go by way of the CPU, and aborted when the generation ends.
//
// A communicator has a thread, which joins, and which aborts: both may take long, or for ever. What NCCL reads and
// writes stays where it is until that thread is done. If it is not in time, the GPU is of no more use to this life.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/result.h"
#include "worker/device/device_copies.h"
#include "worker/device/device_shares.h"
#include "worker/device/device_table.h"
#include "worker/device/nccl_root.h"
#include "worker/device/pinned_arena.h"
#include "worker/rounds/gpu_exchange.h"

namespace warren::worker {

// Which NCCL the library has. kUnavailable: none that serves.
[[nodiscard]] Result<NcclLibrary> find_nccl(const warren_device_table& table);

class DeviceExchange final : public GpuExchange {
 public:
  // Makes what makes an id. Outside of locks.
  using Roots = std::function<Result<std::unique_ptr<NcclRoot>>()>;
  // For the log: a warning, or not. From any thread, under a lock of this object's.
  using Tell = std::function<void(bool warns, const std::string& text)>;
  // `timeout_ms`: for joining, for a turn, and for ending. `copies_on`: of a GPU; it ends after this. `checksums`: of
  // what is moved (Done::checksums).
  DeviceExchange(const warren_device_table& table, DeviceShares& shares, PinnedArena& arena,
                 std::function<DeviceCopies&(std::int32_t)> copies_on, std::int64_t timeout_ms, bool checksums,
                 Roots roots, Tell tell)
      : table_(table),
        shares_(shares),
        arena_(arena),
        copies_on_(std::move(copies_on)),
        timeout_(timeout_ms),
        checks_(checksums),
        roots_(std::move(roots)),
        tell_(std::move(tell)) {}
  // After close().
  ~DeviceExchange() override;
  DeviceExchange(const DeviceExchange&) = delete;
  DeviceExchange& operator=(const DeviceExchange&) = delete;

  // Before a call that may be exchanged, outside of locks: takes memory, and has an id made where a word has wanted one
  // in this generation. Most calls that come here are never exchanged: those of groups, and small ones.
  void prepare();
  // kTimeout: a communicator of a generation that is over has not ended in time, or cannot: this life is over, as
  // move() says, too, unless it is move() that does not come back. From any thread.
  [[nodiscard]] Status overdue() const;

  // GpuExchange; under the engine's lock.
  void open(Generation generation, std::int32_t rank, std::int32_t size) override;
  void close() override;
  // More than a piece: others are not copied while their rounds run.
  [[nodiscard]] std::uint64_t least_bytes() const override { return kDeviceChunkBytes; }
  [[nodiscard]] bool serves(DataType type, ReduceOp op, std::int32_t size) const override;
  [[nodiscard]] std::shared_ptr<std::byte> take_scratch(std::uint64_t bytes, std::uint64_t piece_bytes) override;
  [[nodiscard]] bool ready() const override;
  [[nodiscard]] Word word(bool could) override;
  void heard(std::span<const Word> words) override;
  void proved() override;
  void distrust(const std::string& why) override;
  [[nodiscard]] std::uint64_t begin(Turn turn) override;
  [[nodiscard]] bool busy() const override;
  [[nodiscard]] std::optional<Done> take_done() override;

  // Moves what can be moved without waiting; true if something is done. One thread at a time, outside of locks.
  // kUnavailable, kTimeout: the GPU, or a communicator that does not end. kExhausted: memory. After a failure
  // nothing moves any more.
  [[nodiscard]] Result<bool> move();

 private:
  using Clock = std::chrono::steady_clock;
  // So many bad ends one after the other, and this life goes by way of the CPU.
  static constexpr int kMostFailures = 3;
  static constexpr std::size_t kResultsAtOnce = 4;
  // Turns that NCCL has been given, or that are on their way to the CPU, and checksums of one of them: of blocks.
  static constexpr std::size_t kTurnsAtOnce = 8;
  static constexpr std::size_t kMostMessageBytes = 2 * WARREN_DEVICE_CHECKSUM_BLOCK;
  static constexpr std::size_t kChecksumsOfTurn =
      std::size_t{2} * WARREN_DEVICE_MAX_INPUTS * (kMostMessageBytes / WARREN_DEVICE_CHECKSUM_BLOCK);
  static constexpr std::size_t kChecksumBytes = kTurnsAtOnce * kChecksumsOfTurn * sizeof(std::uint64_t);

  // Of one generation; its thread has it, too, and outlives whoever does not wait for it.
  struct Communicator {
    enum class Stage : std::uint8_t { kJoins, kReady, kFailed };
    std::mutex posts;  // while something is asked of NCCL
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    void* handle = nullptr;
    void* stream = nullptr;  // that something was queued on
    Stage stage = Stage::kJoins, told = Stage::kJoins;
    Clock::time_point ready_since;
    std::string why;  // it has failed
    bool joined = false;
    bool ends = false, ended = false;
    bool lost = false;  // it does not end
    Clock::time_point ends_since;
    // What it reads and writes, by number of the turn.
    std::map<std::uint64_t, Turn> under_way;
  };
  using Holder = std::shared_ptr<Communicator>;
  static void live(const Holder& c, const warren_device_table& table, std::int32_t device, const Word::Id& id,
                   std::int32_t size, std::int32_t rank, std::chrono::milliseconds timeout);
  [[nodiscard]] static bool end(const warren_device_table& table, std::int32_t device, Communicator& c,
                                std::chrono::milliseconds timeout);

  // A turn that NCCL has been given.
  struct Job {
    enum class Stage : std::uint8_t { kPosted, kQueued, kCopies };
    std::uint64_t id = 0;
    std::uint64_t generation = 0;
    Holder communicator;
    Turn turn;
    Stage stage = Stage::kPosted;
    Clock::time_point since;                       // it has been the next one on the stream
    std::unique_ptr<DeviceCopies::Event> reached;  // behind it, and its checksums
    std::size_t place = 0;                         // of them, below kTurnsAtOnce
    std::vector<std::size_t> sums_at;              // by message: where the first of its blocks is among them
    std::vector<std::uint64_t> checksums;          // by message
    std::shared_ptr<PinnedArena::Block> pinned;
    std::shared_ptr<std::byte> memory;  // that, or not pinned
    struct Part {
      std::byte* to = nullptr;
      const std::byte* from = nullptr;
      std::size_t bytes = 0;
    };
    std::vector<Part> parts;  // to be copied to the CPU
    std::size_t begun = 0;    // of them
    std::size_t taken = 0;    // from where they land
    std::size_t ends = 0;     // it is done when so many copies have arrived
    std::vector<const std::byte*> on_cpu;
  };
  [[nodiscard]] Status open_streams();
  [[nodiscard]] Status post();
  [[nodiscard]] Status queue_checksums(Job& job);
  void take_checksums(Job& job);
  [[nodiscard]] Result<bool> advance(Job& job);
  [[nodiscard]] Result<bool> find_memory(Job& job);
  [[nodiscard]] Result<bool> copy(Job& job);
  void done_with(Job& job, const Status& status);
  void fail(Communicator& c, const std::string& why);
  void start_root();
  [[nodiscard]] Status take_memory(std::int32_t device);
  [[nodiscard]] bool may_take_part() const;
  void has_no_root(const Status& why);
  [[nodiscard]] bool is_overdue() const;
  [[nodiscard]] Status give_up(const Status& why);
  void tell_of(Communicator& c);

  const warren_device_table& table_;
  DeviceShares& shares_;
  PinnedArena& arena_;
  const std::function<DeviceCopies&(std::int32_t)> copies_on_;
  const std::chrono::milliseconds timeout_;
  const bool checks_;
  const Roots roots_;
  const Tell tell_;

  // Of whoever moves.
  std::unique_ptr<DeviceCopies::Stream> stream_;
  std::optional<DeviceCopies::Flow> flow_;
  std::size_t queued_ = 0;
  std::deque<Job> jobs_;
  std::uint64_t landing_for_ = 0;  // whose parts land there; 0: nobody's

  std::atomic<std::size_t> open_count_{0};  // begun and not done

  mutable std::mutex mutex_;  // guards what follows
  bool prepares_ = false, told_of_memory_ = false;
  // Pinned, beside the budget; what is given away waits for calls that may wait for what is exchanged. Stays. Behind
  // it, checksums, which are made in memory of the GPU.
  std::byte* landing_ = nullptr;
  std::uint64_t* checksums_on_gpu_ = nullptr;
  bool open_ = false, broken_ = false;
  std::uint64_t generation_ = 0, newest_ = 0;
  std::int32_t rank_ = 0, size_ = 1;
  int failures_ = 0;  // since a round was proved
  std::unique_ptr<NcclRoot> root_;
  std::optional<Word::Id> id_;
  bool wants_root_ = false, root_starts_ = false, root_failed_ = false;
  Holder current_;  // this generation's
  // When the generation ended that had the last one which was ready.
  std::optional<Clock::time_point> without_since_;
  std::vector<Holder> ending_;  // of earlier ones
  std::deque<std::pair<std::uint64_t, Turn>> waiting_;
  std::deque<Done> done_;
};

}  // namespace warren::worker

// Combining steps whose operands lie on a GPU, this rank's and others' (worker/device/device_shares.h): as one kernel
// there, if all of them do and it serves them; else those that do are brought to the CPU, which combines. The
// first one may lie on the CPU, as what came from another host does: it is brought to the GPU before. Beside them goes
// what is only to be brought there (worker/device/device_uploads.h).
//
// What comes to the CPU comes to pinned memory, where the budget has some. Where calls have all of it, which may end
// after this step alone, it comes piece by piece by way of memory that is there for that (DeviceShares::landing()).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "recovery/base/result.h"
#include "worker/device/device_copies.h"
#include "worker/device/device_shares.h"
#include "worker/device/device_table.h"
#include "worker/device/device_uploads.h"
#include "worker/device/pinned_arena.h"
#include "worker/rounds/gpu_work.h"

namespace warren::worker {

// Whether the GPU combines values of this type by this operation, and as what.
[[nodiscard]] std::optional<warren_type> reduced_as(DataType type, ReduceOp op);

class DeviceCombines final : public GpuWork {
 public:
  // `copies_on`: of a GPU; it ends after this.
  DeviceCombines(DeviceShares& shares, PinnedArena& arena, std::function<DeviceCopies&(std::int32_t)> copies_on)
      : shares_(shares), arena_(arena), copies_on_(std::move(copies_on)), uploads_(shares, copies_on_) {}
  // Nothing is under way (settle()), or the GPU has failed.
  ~DeviceCombines() override;
  DeviceCombines(const DeviceCombines&) = delete;
  DeviceCombines& operator=(const DeviceCombines&) = delete;

  // GpuWork; from any thread.
  [[nodiscard]] std::uint64_t begin(Work work) override;
  [[nodiscard]] bool busy() const override { return open_.load(std::memory_order_acquire) != 0; }
  [[nodiscard]] std::optional<Done> take_done() override;

  // Moves what can be moved without waiting; true if something is done. One thread at a time. kUnavailable, kTimeout:
  // the GPU. kExhausted: the process has no memory. After a failure nothing moves any more.
  [[nodiscard]] Result<bool> move();
  // Waits for what the GPU is at; nothing else is begun.
  void settle();

 private:
  // Something to be queued: a copy, or all of it as a kernel.
  struct Part {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  // What one launch makes is one job: of what was begun one after the other and lies side by side, too.
  struct Share {
    std::uint64_t id = 0;
    std::size_t operand_bytes = 0, made_bytes = 0;
  };
  struct Job {
    std::vector<Share> shares;
    Work work;                                                        // all of them as one
    std::vector<std::vector<std::shared_ptr<const void>>> keepers{};  // of the operands of those that have joined it
    std::shared_ptr<std::byte> made_at = nullptr;  // on the GPU, by this kernel, or copy; null: its operands are copied
    DeviceCopies::Flow::Reduction kernel{};
    std::shared_ptr<std::byte> upload_at = nullptr;  // where an operand comes to, if not to made_at
    std::uint64_t number = 0;                        // of what is made there
    std::shared_ptr<PinnedArena::Block> pinned = nullptr;
    std::shared_ptr<std::byte> landed = nullptr;  // where it comes to by way of the landing: it is the only one
    std::vector<Part> parts{};
    std::size_t bytes = 0;   // of all parts
    std::size_t queued = 0;  // of them
    std::size_t ends = 0;    // it is done when so many have arrived
    std::size_t taken = 0;   // parts, from the landing

    [[nodiscard]] std::byte* memory() const { return pinned != nullptr ? pinned->data() : landed.get(); }
  };
  // No job begins with as much under way: it lies in the ring of results, and in pinned memory. Where eight ranks share
  // a GPU, each has its turn there once in a millisecond, in which the bus takes 54 MB.
  static constexpr std::size_t kMostUnderWayBytes = std::size_t{16} << 20;
  // Jobs are joined up to this: a launch, and a copy behind it, cost some 12 µs of the CPU.
  static constexpr std::size_t kMostJoinedBytes = std::size_t{2} << 20;
  // So many parts land at once.
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kSlotBytes = DeviceShares::kLandingBytes / kSlots;
  [[nodiscard]] Result<bool> next_job();
  [[nodiscard]] Result<bool> find_memory(Job& job);
  [[nodiscard]] bool find_place(Job& job);
  static void cut(Job& job, std::byte* to, const std::byte* from, std::size_t bytes, std::size_t most_bytes);
  [[nodiscard]] Status queue(Job& job);
  [[nodiscard]] std::byte* slot(std::size_t part) const { return shares_.landing() + part % kSlots * kSlotBytes; }
  void take_landed(Job& job);
  void give_up();
  [[nodiscard]] bool conclude();
  [[nodiscard]] Status fail(const Status& why);
  [[nodiscard]] static std::optional<DeviceCopies::Flow::Reduction> kernel_for(const Work& work);
  [[nodiscard]] bool continues(const Job& job, const Work& next) const;
  static void join(Job& job, Job next);

  DeviceShares& shares_;
  PinnedArena& arena_;
  const std::function<DeviceCopies&(std::int32_t)> copies_on_;
  std::atomic<std::size_t> open_{0};  // begun and not done

  // Of whoever moves.
  std::optional<DeviceCopies::Flow> flow_;
  std::size_t queued_ = 0;
  std::deque<Job> jobs_;             // those that have begun
  std::size_t under_way_bytes_ = 0;  // of them
  DeviceUploads uploads_;

  std::mutex mutex_;  // guards what follows
  std::uint64_t newest_ = 0;
  bool failed_ = false;
  std::deque<Job> waiting_;
  std::deque<Done> done_;
};

}  // namespace warren::worker

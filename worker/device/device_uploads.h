// Finals that came from other hosts, brought from pinned memory of the CPU to where ranks of this host read results on
// the GPU (worker/device/device_shares.h): in their order, on a stream of their own, so that they pass by what comes
// the other way.
#pragma once

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
#include "worker/rounds/gpu_work.h"

namespace warren::worker {

class DeviceUploads {
 public:
  // `copies_on`: of a GPU; both end after this.
  DeviceUploads(DeviceShares& shares, const std::function<DeviceCopies&(std::int32_t)>& copies_on)
      : shares_(shares), copies_on_(copies_on) {}
  DeviceUploads(const DeviceUploads&) = delete;
  DeviceUploads& operator=(const DeviceUploads&) = delete;

  struct Upload {
    std::uint64_t id = 0;
    GpuWork::Operand from;
    std::size_t bytes = 0;
  };
  // From any thread.
  void begin(Upload upload);
  // Those that the GPU is not at.
  void drop();

  // The rest is one thread's at a time.
  // Moves what can be moved without waiting, and gives those that are done: where they lie, or that there was no room.
  // kUnavailable, kTimeout: the GPU.
  [[nodiscard]] Result<std::vector<GpuWork::Done>> move();
  // The GPU is at some.
  [[nodiscard]] bool under_way() const { return flow_ && flow_->under_way() != 0; }
  // Waits for what it is at; nothing else is begun.
  void settle();

 private:
  struct Job {
    Upload upload;
    std::shared_ptr<std::byte> to;  // in the ring of results
    std::uint64_t number = 0;
    std::size_t queued = 0;  // bytes
    std::size_t ends = 0;    // it is done when so many copies have arrived
  };
  [[nodiscard]] std::optional<Upload> take_waiting();

  DeviceShares& shares_;
  const std::function<DeviceCopies&(std::int32_t)>& copies_on_;
  std::optional<DeviceCopies::Flow> flow_;
  std::size_t queued_ = 0;  // copies
  std::deque<Job> jobs_;    // those that have begun

  std::mutex mutex_;  // guards what follows
  std::deque<Upload> waiting_;
};

}  // namespace warren::worker

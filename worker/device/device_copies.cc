#include "worker/device/device_copies.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "worker/device/device_library.h"

namespace warren::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Looks at an event without sleeping in between, each followed by a yield: a chunk takes about 100 µs.
constexpr int kLooks = 200;
constexpr auto kShortestSleep = std::chrono::microseconds(20);
constexpr auto kLongestSleep = std::chrono::microseconds(1000);

}  // namespace

DeviceCopies::~DeviceCopies() {
  // A GPU that does not answer is left as it is.
  for (const Lane& lane : lanes_) {
    for (void* event : lane.reached) (void)table_.end_event(device_, event);
    (void)table_.end_stream(device_, lane.stream);
  }
  for (void* event : events_) (void)table_.end_event(device_, event);
}

Status DeviceCopies::error(warren_device_code code, const char* what) const {
  return device_error(table_, code, std::string(what) + " on GPU " + std::to_string(device_));
}

Result<std::unique_ptr<DeviceCopies::Event>> DeviceCopies::make_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      void* const event = events_.back();
      events_.pop_back();
      return std::make_unique<Event>(*this, event);
    }
  }
  void* event = nullptr;
  if (const auto code = table_.make_event(device_, &event); code != WARREN_DEVICE_OK) {
    return error(code, "cannot make an event");
  }
  return std::make_unique<Event>(*this, event);
}

void DeviceCopies::keep(void* event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

Status DeviceCopies::record(const Event& event, void* stream) {
  const auto code = table_.record(device_, event.get(), stream);
  return code == WARREN_DEVICE_OK ? Status() : error(code, "cannot mark a place on the program's stream");
}

Result<DeviceCopies::Lane> DeviceCopies::take_lane() {
  {
    const std::lock_guard lock(mutex_);
    if (!lanes_.empty()) {
      const Lane lane = lanes_.back();
      lanes_.pop_back();
      return lane;
    }
  }
  Lane lane;
  auto code = table_.make_stream(device_, &lane.stream);
  if (code != WARREN_DEVICE_OK) return error(code, "cannot make a stream");
  for (void*& event : lane.reached) {
    code = table_.make_event(device_, &event);
    if (code != WARREN_DEVICE_OK) return error(code, "cannot make an event");
  }
  return lane;
}

Status DeviceCopies::wait(void* event, bool bounded) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(stall_ms_);
  auto pause = kShortestSleep;
  for (int looks = 0;; looks++) {
    const auto code = table_.query(device_, event);
    if (code == WARREN_DEVICE_OK) return {};
    if (code != WARREN_DEVICE_NOT_READY) return error(code, "a copy, or the program's work before it, has failed");
    if (ends_.load(std::memory_order_relaxed)) {
      return {Code::kClosed, "the communicator was destroyed during a copy on GPU " + std::to_string(device_)};
    }
    if (looks < kLooks) {
      sched_yield();
      continue;
    }
    if (bounded && Clock::now() >= deadline) {
      return {Code::kTimeout, "GPU " + std::to_string(device_) + " has not copied " +
                                  std::to_string(kDeviceChunkBytes) + " bytes in the round timeout of " +
                                  std::to_string(stall_ms_) + " ms"};
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, kLongestSleep);
  }
}

// A lane that has failed is not used again.
template <class Copy>
Status DeviceCopies::copy(std::size_t bytes, const Event& after, Copy copy_chunk) {
  if (bytes == 0) return {};
  auto taken = take_lane();
  if (!taken.ok()) return taken.status();
  const Lane lane = taken.value();
  auto code = table_.wait_for(device_, lane.stream, after.get());
  if (code != WARREN_DEVICE_OK) return error(code, "cannot wait for the program's stream");
  const std::size_t chunks = (bytes + kDeviceChunkBytes - 1) / kDeviceChunkBytes;
  // The first chunks are on the stream before the wait for the program's work, which they follow at once.
  for (std::size_t queued = 0, arrived = 0; arrived < chunks;) {
    for (; queued < chunks && queued - arrived < Lane::kChunks; queued++) {
      const std::size_t at = queued * kDeviceChunkBytes;
      code = copy_chunk(at, std::min(kDeviceChunkBytes, bytes - at), lane.stream);
      if (code == WARREN_DEVICE_OK) code = table_.record(device_, lane.reached[queued % Lane::kChunks], lane.stream);
      if (code != WARREN_DEVICE_OK) return error(code, "cannot copy");
    }
    Status status = arrived == 0 ? wait(after.get(), false) : Status();
    if (status.ok()) status = wait(lane.reached[arrived % Lane::kChunks], true);
    if (!status.ok()) return status;
    arrived++;
  }
  const std::lock_guard lock(mutex_);
  lanes_.push_back(lane);
  return {};
}

Status DeviceCopies::to_host(std::byte* to, const void* from, std::size_t bytes, const Event& after) {
  return copy(bytes, after, [&](std::size_t at, std::size_t size, void* stream) {
    return table_.to_host(device_, to + at, static_cast<const std::byte*>(from) + at, size, stream);
  });
}

Status DeviceCopies::to_device(void* to, const std::byte* from, std::size_t bytes, const Event& after) {
  return copy(bytes, after, [&](std::size_t at, std::size_t size, void* stream) {
    return table_.to_device(device_, static_cast<std::byte*>(to) + at, from + at, size, stream);
  });
}

}  // namespace warren::worker

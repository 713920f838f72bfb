#include "worker/device/device_copies.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "recovery/base/check.h"
#include "worker/device/device_library.h"

namespace warren::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Looks at an event without sleeping in between, each followed by a yield: a chunk takes about 100 µs.
constexpr int kLooks = 200;
constexpr auto kShortestSleep = std::chrono::microseconds(20);
constexpr auto kLongestSleep = std::chrono::microseconds(1000);

// Pieces that one launch packs, and where the first of them lies in what is packed.
struct PackLaunch {
  std::size_t at = 0;
  std::span<const warren_device_piece> pieces;
};
std::vector<PackLaunch> launches_of(std::span<const warren_device_piece> pieces) {
  std::vector<PackLaunch> launches;
  std::size_t at = 0;
  while (!pieces.empty()) {
    launches.push_back({at, pieces.first(std::min<std::size_t>(pieces.size(), WARREN_DEVICE_MAX_PIECES))});
    for (const warren_device_piece& piece : launches.back().pieces) at += piece.bytes;
    pieces = pieces.subspan(launches.back().pieces.size());
  }
  return launches;
}

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

bool DeviceCopies::reached(const Event& event) const {
  return table_.query(device_, event.get()) == WARREN_DEVICE_OK;
}

Result<std::unique_ptr<DeviceCopies::Stream>> DeviceCopies::make_stream() {
  const auto lane = take_lane();
  if (!lane.ok()) return lane.status();
  return std::make_unique<Stream>(*this, lane.value());
}

Status DeviceCopies::follow(const Stream& stream, const Event& event) {
  const auto code = table_.wait_for(device_, stream.get(), event.get());
  return code == WARREN_DEVICE_OK ? Status() : error(code, "cannot wait for the program's stream");
}

Status DeviceCopies::pack(const Stream& stream, void* packed, std::span<const warren_device_piece> pieces) {
  auto* to = static_cast<std::byte*>(packed);
  for (const PackLaunch& launch : launches_of(pieces)) {
    const auto code = table_.pack(device_, to + launch.at, launch.pieces.data(), launch.pieces.size(), stream.get());
    if (code != WARREN_DEVICE_OK) return error(code, "cannot pack buffers");
  }
  return {};
}

void DeviceCopies::keep(const Lane& lane) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back(lane);
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

Result<bool> DeviceCopies::converts(DeviceMemory& memory) {
  const std::lock_guard lock(scratch_mutex_);
  if (!asked_) {
    auto block = memory.take(device_, kScratchBytes);
    if (!block.ok()) return block.status();
    asked_ = true;
    scratch_ = std::move(block).value();
    for (std::size_t i = 0; i < kScratches && scratch_.data() != nullptr; i++) {
      idle_scratch_.push_back(scratch_.data() + i * kNarrowChunkBytes);
    }
  }
  return scratch_.data() != nullptr;
}

std::byte* DeviceCopies::take_scratch() {
  const std::lock_guard lock(scratch_mutex_);
  if (idle_scratch_.empty()) return nullptr;
  std::byte* const scratch = idle_scratch_.back();
  idle_scratch_.pop_back();
  return scratch;
}

void DeviceCopies::keep_scratch(std::byte* scratch) {
  const std::lock_guard lock(scratch_mutex_);
  idle_scratch_.push_back(scratch);
}

DeviceCopies::Flow::~Flow() {
  // What has failed is not used again.
  if (under_way() != 0) return;
  if (scratch_ != nullptr) copies_.keep_scratch(scratch_);
  if (lane_) copies_.keep(*lane_);
  if (makes_) copies_.keep(*makes_);
}

Status DeviceCopies::Flow::take(std::optional<Lane>& lane) {
  if (lane) return {};
  const auto taken = copies_.take_lane();
  if (!taken.ok()) return taken.status();
  if (after_ != nullptr) {
    const auto code = copies_.table_.wait_for(copies_.device_, taken.value().stream, after_->get());
    if (code != WARREN_DEVICE_OK) return copies_.error(code, "cannot wait for the program's stream");
  }
  lane = taken.value();
  return {};
}

bool DeviceCopies::Flow::has_room() {
  if (under_way() == window_) return false;
  if (wire_ == WARREN_F32 || scratch_ != nullptr) return true;
  if (began_) scratch_ = copies_.take_scratch();
  return scratch_ != nullptr;
}

void DeviceCopies::Flow::settle() {
  while (under_way() != 0) {
    const auto some = look();
    if (!some.ok()) return;
    if (!some.value()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

template <class Copy>
Status DeviceCopies::Flow::queue(Copy copy) {
  WARREN_CHECK(has_room(), "so many copies are under way at once");
  const warren_device_table& table = copies_.table_;
  if (const Status status = take(lane_); !status.ok()) return status;
  if (under_way() == 0) since_ = Clock::now();
  auto code = copy(lane_->stream);
  // Counted before it is known whether it can be seen to end: the lane is not to be used again if it cannot.
  queued_++;
  if (code == WARREN_DEVICE_OK) {
    code = table.record(copies_.device_, lane_->reached[(queued_ - 1) % Lane::kChunks], lane_->stream);
  }
  return code == WARREN_DEVICE_OK ? Status() : copies_.error(code, "cannot copy");
}

// What is converted uses the one scratch again and again: the stream carries all of it out in its order.
Status DeviceCopies::Flow::to_host(std::byte* to, const void* from, std::size_t bytes) {
  WARREN_CHECK(bytes <= kDeviceChunkBytes, "a chunk at most");
  const warren_device_table& table = copies_.table_;
  const std::int32_t device = copies_.device_;
  return queue([&](void* stream) {
    if (wire_ == WARREN_F32) return table.to_host(device, to, from, bytes, stream);
    const auto code = table.convert(device, scratch_, wire_, from, WARREN_F32, bytes / sizeof(float), stream);
    return code == WARREN_DEVICE_OK ? table.to_host(device, to, scratch_, bytes_on_cpu(wire_, bytes), stream) : code;
  });
}

Status DeviceCopies::Flow::to_device(void* to, const std::byte* from, std::size_t bytes) {
  WARREN_CHECK(bytes <= kDeviceChunkBytes, "a chunk at most");
  const warren_device_table& table = copies_.table_;
  const std::int32_t device = copies_.device_;
  return queue([&](void* stream) {
    if (wire_ == WARREN_F32) return table.to_device(device, to, from, bytes, stream);
    const auto code = table.to_device(device, scratch_, from, bytes_on_cpu(wire_, bytes), stream);
    if (code != WARREN_DEVICE_OK) return code;
    return table.convert(device, to, WARREN_F32, scratch_, wire_, bytes / sizeof(float), stream);
  });
}

Status DeviceCopies::Flow::within(void* to, const void* from, std::size_t bytes, warren_type wire) {
  return queue([&](void* stream) {
    if (wire == WARREN_F32) return copies_.table_.copy(copies_.device_, to, from, bytes, stream);
    return copies_.table_.convert(copies_.device_, to, wire, from, WARREN_F32, bytes / sizeof(float), stream);
  });
}

Status DeviceCopies::Flow::widened(void* to, const void* from, std::size_t bytes, warren_type wire) {
  return queue([&](void* stream) {
    if (wire == WARREN_F32) return copies_.table_.copy(copies_.device_, to, from, bytes, stream);
    return copies_.table_.convert(copies_.device_, to, WARREN_F32, from, wire, bytes / sizeof(float), stream);
  });
}

template <class Make>
Status DeviceCopies::Flow::made(std::byte* to, const void* on_gpu, std::size_t bytes, Make make) {
  const warren_device_table& table = copies_.table_;
  const std::int32_t device = copies_.device_;
  if (const Status status = take(makes_); !status.ok()) return status;
  return queue([&](void* stream) {
    void* const is_made = makes_->reached[queued_ % Lane::kChunks];
    auto code = make(makes_->stream);
    if (code == WARREN_DEVICE_OK) code = table.record(device, is_made, makes_->stream);
    if (code == WARREN_DEVICE_OK) code = table.wait_for(device, stream, is_made);
    return code == WARREN_DEVICE_OK ? table.to_host(device, to, on_gpu, bytes, stream) : code;
  });
}

Status DeviceCopies::Flow::reduced(std::byte* to, void* on_gpu, const Reduction& r) {
  const warren_device_table& table = copies_.table_;
  return made(to, on_gpu, r.bytes, [&](void* stream) {
    const std::int32_t device = copies_.device_;
    auto code = WARREN_DEVICE_OK;
    if (r.upload.bytes != 0) code = table.to_device(device, r.upload.to, r.upload.from, r.upload.bytes, stream);
    return code == WARREN_DEVICE_OK ? table.reduce(device, on_gpu, r.operands.data(), r.count, &r.how, stream) : code;
  });
}

Status DeviceCopies::Flow::copied(std::byte* to, void* on_gpu, const void* from, std::size_t of_all,
                                  std::size_t bytes) {
  return made(to, on_gpu, bytes,
              [&](void* stream) { return copies_.table_.copy(copies_.device_, on_gpu, from, of_all, stream); });
}

Status DeviceCopies::Flow::unpack(const void* packed, std::span<const warren_device_piece> pieces) {
  return queue([&](void* stream) {
    return copies_.table_.unpack(copies_.device_, packed, pieces.data(), pieces.size(), stream);
  });
}

Result<bool> DeviceCopies::Flow::look() {
  if (under_way() == 0 && (wire_ == WARREN_F32 || began_)) return false;
  const auto is_reached = [this](void* event) -> Result<bool> {
    const auto code = copies_.table_.query(copies_.device_, event);
    if (code == WARREN_DEVICE_OK || code == WARREN_DEVICE_NOT_READY) return code == WARREN_DEVICE_OK;
    return copies_.error(code, "a copy, or the program's work before it, has failed");
  };
  if (!began_) {
    const auto reached = is_reached(after_->get());
    if (!reached.ok() || !reached.value()) return reached;
    began_ = true;
    since_ = Clock::now();
    if (under_way() == 0) return false;
  }
  const std::size_t before = arrived_;
  while (under_way() != 0) {
    const auto reached = is_reached(lane_->reached[arrived_ % Lane::kChunks]);
    if (!reached.ok()) return reached;
    if (!reached.value()) break;
    arrived_++;
  }
  if (arrived_ != before) {
    since_ = Clock::now();
    if (under_way() == 0 && scratch_ != nullptr) copies_.keep_scratch(std::exchange(scratch_, nullptr));
    return true;
  }
  if (Clock::now() - since_ < std::chrono::milliseconds(copies_.stall_ms_)) return false;
  return Status(Code::kTimeout, "GPU " + std::to_string(copies_.device_) + " has not copied " +
                                    std::to_string(kDeviceChunkBytes) + " bytes in the round timeout of " +
                                    std::to_string(copies_.stall_ms_) + " ms");
}

Status DeviceCopies::wait(Flow& flow) {
  auto pause = kShortestSleep;
  for (int looks = 0;; looks++) {
    const auto some = flow.look();
    if (!some.ok()) return some.status();
    // Or it may begin.
    if (some.value() || (flow.under_way() == 0 && flow.has_room())) return {};
    if (ended()) {
      return {Code::kClosed, "the communicator was destroyed during a copy on GPU " + std::to_string(device_)};
    }
    if (looks < kLooks) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause + pause / 4, kLongestSleep);
  }
}

template <class Copy>
Status DeviceCopies::copy(std::size_t bytes, const Event& after, warren_type wire, Copy copy_chunk) {
  const std::size_t chunks = (bytes + kDeviceChunkBytes - 1) / kDeviceChunkBytes;
  Flow flow(*this, after, wire);
  for (std::size_t queued = 0; flow.arrived() < chunks;) {
    for (; queued < chunks && flow.has_room(); queued++) {
      const std::size_t at = queued * kDeviceChunkBytes;
      if (const Status status = copy_chunk(flow, at, std::min(kDeviceChunkBytes, bytes - at)); !status.ok()) {
        return status;
      }
    }
    if (const Status status = wait(flow); !status.ok()) return status;
  }
  return {};
}

Status DeviceCopies::to_host(std::byte* to, const void* from, std::size_t bytes, const Event& after, warren_type wire) {
  return copy(bytes, after, wire, [&](Flow& flow, std::size_t at, std::size_t size) {
    return flow.to_host(to + bytes_on_cpu(wire, at), static_cast<const std::byte*>(from) + at, size);
  });
}

Status DeviceCopies::to_device(void* to, const std::byte* from, std::size_t bytes, const Event& after,
                               warren_type wire) {
  return copy(bytes, after, wire, [&](Flow& flow, std::size_t at, std::size_t size) {
    return flow.to_device(static_cast<std::byte*>(to) + at, from + bytes_on_cpu(wire, at), size);
  });
}

template <class Queue>
Status DeviceCopies::all(std::size_t count, const Event& after, Queue queue) {
  Flow flow(*this, after);
  for (std::size_t i = 0; i < count; i++) {
    while (!flow.has_room()) {
      if (const Status status = wait(flow); !status.ok()) return status;
    }
    if (const Status status = queue(flow, i); !status.ok()) return status;
  }
  while (flow.under_way() != 0) {
    if (const Status status = wait(flow); !status.ok()) return status;
  }
  return {};
}

Status DeviceCopies::within(std::span<const Within> copies, const Event& after) {
  return all(copies.size(), after,
             [&](Flow& flow, std::size_t i) { return flow.within(copies[i].to, copies[i].from, copies[i].bytes); });
}

Status DeviceCopies::unpack(const void* packed, std::span<const warren_device_piece> pieces, const Event& after) {
  const auto* from = static_cast<const std::byte*>(packed);
  const std::vector<PackLaunch> launches = launches_of(pieces);
  return all(launches.size(), after,
             [&](Flow& flow, std::size_t i) { return flow.unpack(from + launches[i].at, launches[i].pieces); });
}

}  // namespace warren::worker

// Copies between pinned memory and one GPU, in chunks, each with an event behind it: on streams of their own, which
// wait for the caller's stream by events and for nothing else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "recovery/result.h"
#include "worker/device/device_table.h"

namespace warren::worker {

inline constexpr std::size_t kDeviceChunkBytes = std::size_t{4} << 20;

// Any thread may call. Events end before what made them.
class DeviceCopies {
 public:
  // Marks a place on the caller's stream.
  class Event {
   public:
    Event(DeviceCopies& copies, void* event) : copies_(copies), event_(event) {}
    ~Event() { copies_.keep(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    [[nodiscard]] void* get() const { return event_; }

   private:
    DeviceCopies& copies_;
    void* const event_;
  };

  // `stall_ms`: how long a chunk may take once it may begin. `ends`: set when nobody wants the results any more.
  DeviceCopies(const warren_device_table& table, std::int32_t device, std::int64_t stall_ms,
               const std::atomic<bool>& ends)
      : table_(table), device_(device), stall_ms_(stall_ms), ends_(ends) {}
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  [[nodiscard]] std::int32_t device() const { return device_; }
  [[nodiscard]] Result<std::unique_ptr<Event>> make_event();
  // The event stands behind what is on the caller's stream now.
  [[nodiscard]] Status record(const Event& event, void* stream);

  // Copies when `after` has been reached, and returns when all is there. Before `after` it waits for as long as the
  // program's work takes. After a failure the memory may still be read or written by the GPU. kUnavailable: the GPU
  // reports an error. kTimeout: a chunk has not arrived in stall_ms. kClosed: `ends`.
  [[nodiscard]] Status to_host(std::byte* to, const void* from, std::size_t bytes, const Event& after);
  [[nodiscard]] Status to_device(void* to, const std::byte* from, std::size_t bytes, const Event& after);

 private:
  // A stream and the events behind its newest chunks.
  struct Lane {
    static constexpr std::size_t kChunks = 4;  // in flight
    void* stream = nullptr;
    void* reached[kChunks] = {};
  };
  [[nodiscard]] Status error(warren_device_code code, const char* what) const;
  [[nodiscard]] Result<Lane> take_lane();
  [[nodiscard]] Status wait(void* event, bool bounded);
  template <class Copy>
  [[nodiscard]] Status copy(std::size_t bytes, const Event& after, Copy copy_chunk);
  void keep(void* event);

  const warren_device_table& table_;
  const std::int32_t device_;
  const std::int64_t stall_ms_;
  const std::atomic<bool>& ends_;
  std::mutex mutex_;
  std::vector<Lane> lanes_;    // idle
  std::vector<void*> events_;  // idle
};

}  // namespace warren::worker

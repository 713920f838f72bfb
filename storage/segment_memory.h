// Segment memory that other processes of the host can map: a memfd, passed on as a descriptor (worker/segments/).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "recovery/base/result.h"
#include "storage/fork_guard.h"
#include "storage/host_log.h"

namespace warren {

// A file descriptor that closes itself, also in children of a fork (storage/fork_guard.h).
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(not_for_children(fd)) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd();

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

class MemfdSegment final : public SegmentMemory {
 public:
  ~MemfdSegment() override;
  MemfdSegment(const MemfdSegment&) = delete;
  MemfdSegment& operator=(const MemfdSegment&) = delete;

  std::span<std::byte> bytes() override { return bytes_; }
  void release(std::size_t at, std::size_t size) override;

  // What others are given: it can be mapped for reading alone (where /proc is mounted; else it is the writer's own).
  [[nodiscard]] int fd() const { return shown_.open() ? shown_.get() : fd_.get(); }

 private:
  friend Result<std::shared_ptr<MemfdSegment>> memfd_segment(std::size_t bytes, const char* name);
  MemfdSegment() = default;

  OwnedFd fd_, shown_;
  std::span<std::byte> bytes_;
};

// Sparse; can neither shrink nor grow from here on. It shows under this name in /proc/PID/maps. kUnavailable: the
// system gives no such file, or no address space for it.
[[nodiscard]] Result<std::shared_ptr<MemfdSegment>> memfd_segment(std::size_t bytes, const char* name = "warren-log");

// Another life's segment, mapped read-only for as long as `keeper` lives. The descriptor is not needed afterwards.
struct MappedSegment {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> keeper;
};
// kRefused: not a memory file, not sealed against shrinking (reading it could kill us), or of another size.
// kUnavailable: it cannot be mapped.
[[nodiscard]] Result<MappedSegment> map_segment(int fd, std::size_t bytes);

}  // namespace warren

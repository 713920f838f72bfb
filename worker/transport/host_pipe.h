// Two streams of bytes between two processes of one host, one each way, through memory that both have mapped: what a
// socket does, without a system call a piece and with one copy less.
//
// Each stream is a ring. Its writer counts the bytes that it has put in, its reader those that it has taken; each
// counter is written by one end alone, and nobody relies on the other end's beyond what memory safety needs.
//
// Who has nothing to do says so in the ring before it sleeps on the socket that the pipe belongs to (wait_…()), and the
// other end then sends a byte there when that changes (must_wake_…()): both store first and look at the other's word
// after a fence, so one of them sees it.
//
// The memory has no name and goes with the processes that have mapped it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "recovery/result.h"
#include "storage/segment_memory.h"

namespace warren::worker {

class HostPipe {
 public:
  // Of each ring: what fits into the cache that both ends share, and a power of two.
  static constexpr std::size_t kRingBytes = std::size_t{256} << 10;
  // At most so many bytes move in one call: the other end begins on them while the next ones are copied.
  static constexpr std::size_t kPieceBytes = std::size_t{32} << 10;

  // The memory of a new pipe. kUnavailable: the system gives none.
  static Result<OwnedFd> create();
  // One end of it; the descriptor is not needed afterwards. `first`: the end of the process that has made it. kRefused:
  // not such memory (it could shrink under us). kUnavailable: it cannot be mapped.
  static Result<std::unique_ptr<HostPipe>> map(int fd, bool first);
  ~HostPipe();
  HostPipe(const HostPipe&) = delete;
  HostPipe& operator=(const HostPipe&) = delete;

  // Copies what there is room for, of `a` and then of `b`. How many bytes; nullopt: the other end's counter cannot be.
  [[nodiscard]] std::optional<std::size_t> write(std::span<const std::byte> a, std::span<const std::byte> b);
  // Copies what has come, into `a` and then into `b`.
  [[nodiscard]] std::optional<std::size_t> read(std::span<std::byte> a, std::span<std::byte> b);

  // After a write or a read: the other end sleeps until there is one. It is told once.
  [[nodiscard]] bool must_wake_reader();
  [[nodiscard]] bool must_wake_writer();

  // Before sleeping until something can be read, or written. False: it can.
  // Stands until the other end has told.
  [[nodiscard]] bool wait_to_read();
  [[nodiscard]] bool wait_to_write();

 private:
  struct Ring;
  struct End {
    Ring* ring = nullptr;
    std::byte* bytes = nullptr;
    std::uint64_t count = 0;  // of this end
  };
  HostPipe(void* at, bool first);

  void* at_;
  End out_, in_;
};

}  // namespace warren::worker

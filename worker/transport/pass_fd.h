// Bytes with a descriptor, from one process of a host to another over a Unix socket. Neither function waits.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "recovery/base/result.h"
#include "storage/segment_memory.h"

namespace warren::worker {

// Sends `bytes` in one piece, and with them `fd`, which stays the caller's (-1: none). False: the socket takes nothing
// for now. kUnavailable: it never will.
[[nodiscard]] Result<bool> send_with_fd(int socket, std::span<const std::byte> bytes, int fd);

struct Parcel {
  std::size_t bytes = 0;  // 0: the other end has closed the socket
  bool cut = false;       // the packet had more bytes than there was room for
  OwnedFd fd;             // not open: none came
};
// What comes next, of a packet or stream. Nothing: nothing is there. kUnavailable: nothing ever will be. kExhausted: a
// descriptor was lost, because this process has too many open. kCorrupt: more than one came; all are closed.
[[nodiscard]] Result<std::optional<Parcel>> receive_with_fd(int socket, std::span<std::byte> room);

}  // namespace warren::worker

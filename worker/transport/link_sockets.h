// The sockets of data links: their addresses and options.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "recovery/base/ids.h"
#include "worker/transport/numeric_address.h"

namespace warren::worker {

// For messages: host and port in digits.
[[nodiscard]] std::string name_of(const sockaddr* address, socklen_t length);

// The Unix socket of a life, for ranks of its host. It is abstract: the name lives no longer than the process. Only
// members of the plan know the name, and the handshake follows.
[[nodiscard]] SocketAddress host_address(Incarnation life);

// Options of a TCP connection of a data link, or of one that is passed on. An idle one whose other end has silently
// gone fails by itself. No TCP_USER_TIMEOUT: it also counts the time for which a live peer, busy elsewhere, does not
// read.
//
// While a link is down TCP doubles its pauses, and then lets as long again pass before it tries the next time: for no
// more than a third of the round timeout, where the kernel can (Linux 6.15).
//
// Within a machine no rate has to be found out, and Reno, which each system has and lets anybody choose, sends as fast
// as the other end reads. BBR, where it is the system's choice, halts a connection for 200 ms in ten seconds to look:
// 16 MiB among 8 ranks took 77 to 121 ms with it, up to 211, and 67 to 71 with Reno, up to 87
// (docs/measurements/allreduce.md).
void tune_link(int fd, std::int64_t timeout_ms);

}  // namespace warren::worker

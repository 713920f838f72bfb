// Whom a listening socket of this process takes, and how many at once.
#pragma once

namespace warren::worker {

// So many connections are taken off a listening socket before other work has its turn. Strangers may connect and close
// without end: a loop that ends when nobody is left never comes to its heartbeats.
inline constexpr int kAcceptsATurn = 64;

// Whether the process at the other end of this Unix socket runs as the same user. Everybody on the machine can connect
// to an abstract socket, whose name stands in /proc/net/unix.
[[nodiscard]] bool is_same_user(int unix_socket);

}  // namespace warren::worker

// Where a peer listens, a numeric address and a port, and the first steps to it.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "storage/segment_memory.h"

namespace warren::worker {

struct Address {
  std::string host;  // numeric, IPv4 or IPv6
  std::uint16_t port = 0;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// As connect() and bind() take it; nullopt: the host is no number.
[[nodiscard]] std::optional<SocketAddress> numeric(const Address& address);

// A non-blocking socket of which it is not known yet whether it is connected. Not open: why not is in errno.
[[nodiscard]] OwnedFd begin_to_connect(const SocketAddress& to);
// An error number; 0: it is connected. nullopt: that is not known yet.
[[nodiscard]] std::optional<int> why_not_connected(int fd);

}  // namespace warren::worker

// Where a peer listens: a numeric address and a port.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

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

}  // namespace warren::worker

#include "worker/transport/link_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace warren::worker {
namespace {

void set_option(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

// Whether both ends of a connection have the same address.
bool is_within_machine(int fd) {
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) != 0 || own.ss_family != other.ss_family) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in&>(own).sin_addr,
                       &reinterpret_cast<const sockaddr_in&>(other).sin_addr, sizeof(in_addr)) == 0;
  }
  return own.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(own).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(other).sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

std::string name_of(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  const bool v6 = address->sa_family == AF_INET6;
  return (v6 ? "[" : "") + std::string(host) + (v6 ? "]:" : ":") + port;
}

SocketAddress host_address(Incarnation life) {
  SocketAddress a;
  auto* address = reinterpret_cast<sockaddr_un*>(&a.storage);
  address->sun_family = AF_UNIX;
  char name[64];
  const int n = std::snprintf(name, sizeof name, "warren-link-%016llx", static_cast<unsigned long long>(life.value));
  std::memcpy(address->sun_path + 1, name, static_cast<std::size_t>(n));
  a.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n));
  return a;
}

void tune_link(int fd, std::int64_t timeout_ms) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  constexpr char kReno[] = "reno";
  if (is_within_machine(fd)) (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno, sizeof kReno - 1);
  constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS, which Debian's headers do not know yet
  set_option(fd, IPPROTO_TCP, kTcpRtoMaxMs, static_cast<int>(std::clamp<std::int64_t>(timeout_ms / 3, 1000, 120'000)));
  const auto third_s = static_cast<int>(std::clamp<std::int64_t>(timeout_ms / 3000, 1, 3600));
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, third_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, third_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
}

}  // namespace warren::worker

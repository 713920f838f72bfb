#include "worker/transport/numeric_address.h"

#include <netdb.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

namespace warren::worker {

std::optional<SocketAddress> numeric(const Address& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0 || found == nullptr) return {};
  SocketAddress a;
  std::memcpy(&a.storage, found->ai_addr, found->ai_addrlen);
  a.length = found->ai_addrlen;
  freeaddrinfo(found);
  return a;
}

OwnedFd begin_to_connect(const SocketAddress& to) {
  OwnedFd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.open()) return fd;
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) == 0) return fd;
  const int error = errno;
  if (error == EINPROGRESS || error == EINTR) return fd;
  fd = OwnedFd();
  errno = error;
  return fd;
}

std::optional<int> why_not_connected(int fd) {
  pollfd p{fd, POLLOUT, 0};
  if (::poll(&p, 1, 0) <= 0) return std::nullopt;
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 ? errno : error;
}

}  // namespace warren::worker

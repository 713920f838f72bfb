#include "chaos/process/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

namespace warren::chaos::process {
namespace {

// Well above those of services, below what Linux gives to connections where nobody has said otherwise.
constexpr std::uint16_t kFirstPort = 12'000, kUsualEnd = 32'768;
constexpr int kAttempts = 100;

// Of the ports from kFirstPort on, the first one that a connection may be given.
std::uint16_t end_of_ports() {
  unsigned low = 0;
  if (!(std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low)) low = kUsualEnd;
  return static_cast<std::uint16_t>(low < kFirstPort + 1000u || low > 65'535 ? kUsualEnd : low);
}

// 0, or why not.
int try_port(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const int error = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

Result<std::uint16_t> free_port() {
  std::random_device random;  // jobs beside each other draw others
  std::uniform_int_distribution<int> ports(kFirstPort, end_of_ports() - 1);
  int error = 0;
  for (int i = 0; i < kAttempts; i++) {
    const auto port = static_cast<std::uint16_t>(ports(random));
    error = try_port(port);
    if (error == 0) return port;
  }
  return Status(Code::kUnavailable, std::string("no free port: ") + std::strerror(error));
}

}  // namespace warren::chaos::process

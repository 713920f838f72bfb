#include "worker/launch/rabit_tracker.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>

namespace warren::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Both ends of rabit's protocol begin with this number, in the byte order of the machine, as all numbers of it are.
constexpr std::int32_t kMagic = 0xff99;

// A connection whose calls all end by one moment.
class Connection {
 public:
  Connection(const HostPort& to, Clock::time_point end) : end_(end) {
    const auto addresses = resolve_host(to.host, std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()));
    if (!addresses.ok()) return;
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    if (getaddrinfo(addresses.value()[0].c_str(), std::to_string(to.port).c_str(), &hints, &list) != 0) return;
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
    fd_ = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return;
    (void)connect(fd_, list->ai_addr, list->ai_addrlen);  // its outcome is that of the first send
  }
  ~Connection() {
    if (fd_ >= 0) close(fd_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool send(const std::string& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      if (!wait(POLLOUT)) return false;
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<std::size_t>(n);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    }
    return true;
  }

  bool receive(std::int32_t& number) {
    char bytes[sizeof number];
    std::size_t received = 0;
    while (received < sizeof bytes) {
      if (!wait(POLLIN)) return false;
      const ssize_t n = recv(fd_, bytes + received, sizeof bytes - received, 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n > 0) received += static_cast<std::size_t>(n);
    }
    std::memcpy(&number, bytes, sizeof number);
    return true;
  }

 private:
  bool wait(short events) const {
    while (fd_ >= 0) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
      if (left <= 0) return false;
      pollfd wanted{fd_, events, 0};
      const int n = poll(&wanted, 1, static_cast<int>(left));
      if (n > 0) return true;
      if (n < 0 && errno != EINTR) return false;
    }
    return false;
  }

  const Clock::time_point end_;
  int fd_ = -1;
};

std::string number(std::int32_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string text(const std::string& value) {
  return number(static_cast<std::int32_t>(value.size())) + value;
}

// False: the other end is no tracker of rabit's.
bool greet(Connection& connection) {
  std::int32_t answer = 0;
  return connection.send(number(kMagic)) && connection.receive(answer) && answer == kMagic;
}

// What a client of this rank (-1: it has none) says after the greeting, without world size and job.
std::string say(std::int32_t rank, const std::string& command) {
  return number(rank) + number(-1) + text("NULL") + text(command);
}

// The rank that dmlc-submit has given to the worker, which is its number; -1: none.
std::int32_t rank_of(const std::string& worker_id) {
  std::int32_t rank = -1;
  const char* const end = worker_id.data() + worker_id.size();
  const auto [stop, error] = std::from_chars(worker_id.data(), end, rank);
  return error == std::errc() && stop == end && rank >= 0 ? rank : -1;
}

}  // namespace

Status refuse_rabits_tracker(const HostPort& tracker, const std::string& worker_id, std::uint32_t attempt,
                             std::int64_t timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  Connection connection(tracker, end);
  if (!greet(connection)) return {};
  // The tracker waits for the rest of what a client says, here a line for its log.
  (void)connection.send(say(-1, "print") + text("worker " + worker_id +
                                                " is one of Warren's and has left: this is rabit's tracker; start "
                                                "`warren tracker` and set WARREN_TRACKER"));
  // A second word of one rank would end the tracker before all workers have found it.
  if (const std::int32_t rank = rank_of(worker_id); rank >= 0 && attempt == 0) {
    Connection last(tracker, end);
    if (greet(last)) (void)last.send(say(rank, "shutdown"));
  }
  return {Code::kRefused, "what answers at " + to_string(tracker) +
                              " is rabit's own tracker, as dmlc-submit starts it, and serves no worker of Warren's: "
                              "start a `warren tracker` and name it by WARREN_TRACKER, or use `warren run` in the "
                              "place of dmlc-submit"};
}

}  // namespace warren::worker

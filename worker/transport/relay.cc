#include "worker/transport/relay.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "storage/start_thread.h"

namespace warren::worker {
namespace {

constexpr int kEventsAtOnce = 64;
// Beside which each event names a connection and which of its ends.
constexpr std::uint64_t kWoken = 0;

Status no_descriptor() {
  return {Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno)};
}

bool later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

// Neither these sockets nor any others will be spliced: an old or another kernel, or a sandbox.
bool cannot_splice(int error) {
  return error == EINVAL || error == ENOSYS || error == EPERM;
}

}  // namespace

Status Relay::Lane::make() {
  int ends[2];
  if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return no_descriptor();
  out = OwnedFd(ends[0]);
  in = OwnedFd(ends[1]);
  // Refused to a user who has many large ones.
  (void)::fcntl(in.get(), F_SETPIPE_SZ, static_cast<int>(kWindowBytes));
  const int granted = ::fcntl(in.get(), F_GETPIPE_SZ);
  if (granted <= 0) return no_descriptor();
  window = std::min(kWindowBytes, static_cast<std::size_t>(granted));
  return {};
}

void Relay::Lane::use_buffer() {
  buffer.resize(window);
  for (std::size_t got = 0; got < held;) {
    const ssize_t n = ::read(out.get(), buffer.data() + got, held - got);
    WARREN_CHECK(n > 0 || (n < 0 && errno == EINTR), "what is held lies in the pipe");
    if (n > 0) got += static_cast<std::size_t>(n);
  }
  begin = 0;
  full = false;
  in = OwnedFd();
  out = OwnedFd();
}

bool Relay::Lane::may_move(const End& from, const End& to) const {
  return (!ended && from.readable && held < window && !full) || (held != 0 && to.writable);
}

bool Relay::Lane::take(End& from) {
  ssize_t n = 0;
  if (buffer.empty()) {
    n = ::splice(from.fd.get(), nullptr, in.get(), nullptr, window - held, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (n < 0 && cannot_splice(errno)) use_buffer();
  }
  if (!buffer.empty()) {
    if (begin != 0) std::memmove(buffer.data(), buffer.data() + begin, held);
    begin = 0;
    n = ::recv(from.fd.get(), buffer.data() + held, window - held, MSG_DONTWAIT);
  }
  if (n > 0) {
    held += static_cast<std::size_t>(n);
  } else if (n == 0) {
    ended = true;
  } else if (later(errno)) {
    // A pipe that holds little is full all the same where it came in small pieces: the socket is asked again when some
    // have left.
    if (buffer.empty() && held != 0) {
      full = true;
    } else {
      from.readable = false;
    }
  } else {
    return errno == EINTR;
  }
  return true;
}

bool Relay::Lane::give(End& to, std::uint64_t& bytes) {
  ssize_t n = 0;
  if (buffer.empty()) {
    n = ::splice(out.get(), nullptr, to.fd.get(), nullptr, held, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (n < 0 && cannot_splice(errno)) use_buffer();
  }
  if (!buffer.empty()) n = ::send(to.fd.get(), buffer.data() + begin, held, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n > 0) {
    held -= static_cast<std::size_t>(n);
    begin = buffer.empty() ? 0 : begin + static_cast<std::size_t>(n);
    full = false;
    bytes += static_cast<std::uint64_t>(n);
  } else if (n < 0 && later(errno)) {
    to.writable = false;
  } else {
    return n < 0 && errno == EINTR;
  }
  return true;
}

bool Relay::Lane::move(End& from, End& to, std::uint64_t& bytes) {
  if (!ended && from.readable && held < window && !full && !take(from)) return false;
  if (held != 0 && to.writable && !give(to, bytes)) return false;
  if (ended && held == 0 && !std::exchange(shut, true)) (void)::shutdown(to.fd.get(), SHUT_WR);
  return true;
}

Status Relay::start() {
  wake_ = OwnedFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  poll_ = OwnedFd(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWoken;
  if (!wake_.open() || !poll_.open() || ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return no_descriptor();
  }
  // It takes no signals, nor is one of its own ever delivered: splice() to a socket whose other end has gone raises
  // SIGPIPE.
  return start_thread(thread_, [this] { run(); });
}

Status Relay::join(OwnedFd one, OwnedFd other) {
  if (connections() >= limits::kMaxRelayed) {
    return {Code::kExhausted, "this rank passes on " + std::to_string(limits::kMaxRelayed) + " connections already"};
  }
  auto c = std::make_unique<Connection>();
  c->ends[0].fd = std::move(one);
  c->ends[1].fd = std::move(other);
  for (Lane& lane : c->lanes) {
    if (Status made = lane.make(); !made.ok()) return made;
  }
  if (!thread_.joinable()) {
    if (Status started = start(); !started.ok()) return started;
  }
  connections_.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    joined_.push_back(std::move(c));
  }
  const std::uint64_t one_more = 1;
  (void)!::write(wake_.get(), &one_more, sizeof one_more);
  return {};
}

std::uint64_t Relay::stop() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    const std::uint64_t one_more = 1;
    (void)!::write(wake_.get(), &one_more, sizeof one_more);
    thread_.join();
  }
  stopping_ = false;
  joined_.clear();
  running_.clear();
  connections_.store(0, std::memory_order_relaxed);
  wake_ = OwnedFd();
  poll_ = OwnedFd();
  return std::exchange(bytes_, 0);
}

void Relay::begin_joined() {
  std::vector<std::unique_ptr<Connection>> fresh;
  {
    const std::lock_guard lock(mutex_);
    fresh.swap(joined_);
  }
  for (auto& c : fresh) {
    const std::uint64_t id = ++last_id_;
    bool watched = true;
    for (std::uint64_t i = 0; i < 2; i++) {
      epoll_event event{};
      // Of changes alone: what nobody can take at present would be told again and again, and so would an end.
      event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
      event.data.u64 = 2 * id + i;
      watched = watched && ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, c->ends[i].fd.get(), &event) == 0;
    }
    running_.emplace(id, std::move(c));
    if (!watched) end(id);
  }
}

void Relay::end(std::uint64_t id) {
  running_.erase(id);
  connections_.fetch_sub(1, std::memory_order_relaxed);
}

bool Relay::move(Connection& c) {
  for (std::size_t i = 0; i < 2; i++) {
    if (!c.lanes[i].move(c.ends[i], c.ends[1 - i], bytes_)) return false;
  }
  return !(c.lanes[0].shut && c.lanes[1].shut);
}

void Relay::run() {
  std::array<epoll_event, kEventsAtOnce> events;
  std::vector<std::uint64_t> listed, next;  // connections of which something may move
  while (true) {
    const int n = ::epoll_wait(poll_.get(), events.data(), kEventsAtOnce, listed.empty() ? -1 : 0);
    for (std::size_t i = 0; n > 0 && i < static_cast<std::size_t>(n); i++) {
      const std::uint32_t what = events[i].events;
      const std::uint64_t name = events[i].data.u64;
      if (name == kWoken) {
        std::uint64_t count = 0;
        (void)!::read(wake_.get(), &count, sizeof count);
        {
          const std::lock_guard lock(mutex_);
          if (stopping_) return;
        }
        begin_joined();
        continue;
      }
      const auto it = running_.find(name / 2);
      if (it == running_.end()) continue;
      Connection& c = *it->second;
      // Reset: what it has sent before is lost to it as well.
      if ((what & EPOLLERR) != 0) {
        end(name / 2);
        continue;
      }
      End& changed = c.ends[name % 2];
      changed.readable = changed.readable || (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) != 0;
      changed.writable = changed.writable || (what & EPOLLOUT) != 0;
      if (!std::exchange(c.listed, true)) listed.push_back(name / 2);
    }
    // One step each, so that they share this thread.
    next.clear();
    for (const std::uint64_t id : listed) {
      const auto it = running_.find(id);
      if (it == running_.end()) continue;
      Connection& c = *it->second;
      if (!move(c)) {
        end(id);
        continue;
      }
      c.listed = c.lanes[0].may_move(c.ends[0], c.ends[1]) || c.lanes[1].may_move(c.ends[1], c.ends[0]);
      if (c.listed) next.push_back(id);
    }
    listed.swap(next);
  }
}

}  // namespace warren::worker

#include "launcher/output.h"

#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace warren::worker {

void LineSplitter::emit(std::string_view end, std::string& out) {
  out += prefix_;
  out += partial_;
  out += end;
  out += '\n';
  partial_.clear();
}

void LineSplitter::take(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t room = kMaxLineBytes - partial_.size();
    const std::size_t length = std::min(newline, bytes.size());
    if (length > room) {
      emit(bytes.substr(0, room), out);
      bytes.remove_prefix(room);
    } else if (newline == std::string_view::npos) {
      partial_ += bytes;
      return;
    } else {
      emit(bytes.substr(0, newline), out);
      bytes.remove_prefix(newline + 1);
    }
  }
}

void LineSplitter::finish(std::string& out) {
  if (!partial_.empty()) emit({}, out);
}

void OutputQueue::write_some() {
  std::size_t written = 0;
  while (!broken_ && written < queue_.size()) {
    pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (poll(&ready, 1, 0) <= 0) break;
    // A pipe that is ready takes PIPE_BUF bytes without blocking; a terminal or a file takes more.
    const std::size_t n = std::min<std::size_t>(queue_.size() - written, PIPE_BUF);
    const ssize_t rc = write(fd_, queue_.data() + written, n);
    if (rc > 0) {
      written += static_cast<std::size_t>(rc);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      broken_ = true;
    }
  }
  if (broken_) {
    queue_.clear();
  } else {
    queue_.erase(0, written);
  }
}

OtherLines::OtherLines() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

OtherLines::~OtherLines() {
  if (fd_ >= 0) close(fd_);
  // What no launch has taken: it had not begun, or was over. As far as it goes without waiting: a pipe that is ready
  // has room for so much.
  std::string_view left = lines_;
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  while (!left.empty() && poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    const ssize_t n = write(STDERR_FILENO, left.data(), std::min<std::size_t>(left.size(), PIPE_BUF));
    if (n <= 0) break;
    left.remove_prefix(static_cast<std::size_t>(n));
  }
}

void OtherLines::add(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (lines_.size() + line.size() >= kRoomBytes) {
    ++dropped_;
    return;
  }
  lines_ += line;
  lines_ += '\n';
  if (fd_ >= 0) (void)eventfd_write(fd_, 1);
}

std::uint64_t OtherLines::take(std::string& out) {
  const std::lock_guard lock(mutex_);
  eventfd_t count = 0;
  if (fd_ >= 0) (void)eventfd_read(fd_, &count);
  out += lines_;
  lines_.clear();
  return std::exchange(dropped_, 0);
}

}  // namespace warren::worker

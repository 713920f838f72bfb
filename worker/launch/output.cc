#include "worker/launch/output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

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

}  // namespace warren::worker

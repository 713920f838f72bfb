#include "worker/transport/handshake_bytes.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "recovery/base/check.h"

namespace warren::worker {

void HandshakeBytes::expect(std::size_t bytes) {
  WARREN_CHECK(bytes <= buffer_.size(), "no step of a handshake is longer than a hello");
  due_ = bytes;
  done_ = 0;
}

void HandshakeBytes::load(std::span<const std::byte> bytes) {
  expect(bytes.size());
  std::memcpy(buffer_.data(), bytes.data(), bytes.size());
}

bool HandshakeBytes::read(int fd, bool& dead) {
  while (done_ < due_) {
    const ssize_t n = ::recv(fd, buffer_.data() + done_, due_ - done_, MSG_DONTWAIT);
    if (n > 0) {
      done_ += static_cast<std::size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    } else {
      dead = true;
      return false;
    }
  }
  return true;
}

bool HandshakeBytes::write(int fd, bool& dead) {
  while (done_ < due_) {
    const ssize_t n = ::send(fd, buffer_.data() + done_, due_ - done_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      done_ += static_cast<std::size_t>(n);
    } else if (errno == EINTR) {
      continue;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else {
      dead = true;
      return false;
    }
  }
  return true;
}

}  // namespace warren::worker

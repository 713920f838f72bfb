#include "worker/transport/pass_fd.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace warren::worker {
namespace {

// The padding of CMSG_SPACE would hold a second descriptor, and a receiver would have to close it.
constexpr std::size_t kRoomForOne = CMSG_LEN(sizeof(int));

bool later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

}  // namespace

Result<bool> send_with_fd(int socket, std::span<const std::byte> bytes, int fd) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = kRoomForOne;
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  ssize_t n = 0;
  do {
    n = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && later(errno)) return false;
  if (n < 0) return Status(Code::kUnavailable, std::strerror(errno));
  if (static_cast<std::size_t>(n) != bytes.size()) return Status(Code::kUnavailable, "the socket took a part only");
  return true;
}

Result<std::optional<Parcel>> receive_with_fd(int socket, std::span<std::byte> room) {
  iovec part{room.data(), room.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = kRoomForOne;
  ssize_t n = 0;
  do {
    n = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && later(errno)) return std::optional<Parcel>();
  if (n < 0) return Status(Code::kUnavailable, std::strerror(errno));
  Parcel parcel;
  parcel.bytes = static_cast<std::size_t>(n);
  parcel.cut = (message.msg_flags & MSG_TRUNC) != 0;
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
      rights->cmsg_len == kRoomForOne) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    parcel.fd = OwnedFd(fd);
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    if (parcel.fd.open()) return Status(Code::kCorrupt, "more than one descriptor came at once");
    return Status(Code::kExhausted, "a descriptor was lost: this process has too many open (ulimit -n)");
  }
  return std::optional<Parcel>(std::move(parcel));
}

}  // namespace warren::worker

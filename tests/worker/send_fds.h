// Packets with as many descriptors as one likes, as only a stranger would send them.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

namespace warren::worker {

// A packet that carries copies of standard input: 16 at most.
inline void send_with_descriptors(int socket, const void* bytes, std::size_t size, int descriptors) {
  iovec part{const_cast<void*>(bytes), size};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
  if (descriptors > 0) {
    const std::vector<int> fds(static_cast<std::size_t>(descriptors), 0);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  ASSERT_EQ(::sendmsg(socket, &header, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

}  // namespace warren::worker

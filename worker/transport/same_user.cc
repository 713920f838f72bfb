#include "worker/transport/same_user.h"

#include <sys/socket.h>
#include <unistd.h>

namespace warren::worker {

bool is_same_user(int unix_socket) {
  ucred other{};
  socklen_t length = sizeof other;
  return ::getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.uid == ::geteuid();
}

}  // namespace warren::worker

#include "launcher/guard.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "recovery/base/limits.h"

namespace warren::worker {
namespace {

constexpr std::size_t kMostGroups = limits::kMaxWorldSize + limits::kMaxSpares;

// Linux before 5.9 has no close_range(). Descriptors are given out from the lowest on: a launcher's are below this,
// above all its end of the socket, which would never be closed for the guard's read.
void close_most() {
  constexpr int kMost = 65536;
  for (int fd = 1; fd < kMost; ++fd) close(fd);
}

// Runs in the child of a process that may have threads: nothing here allocates or locks.
[[noreturn]] void watch(int fd) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  setsid();  // a terminal's hang-up and a kill of the launcher's group pass by
  // Not prctl(): the sanitizers' own takes a lock, which a thread of the launcher's may have held at the fork.
  syscall(SYS_prctl, PR_SET_NAME, "warren-guard", 0, 0, 0);
  // Nothing of the launcher's stays open here: a reader of its output sees the end when the launcher ends.
  dup2(fd, 0);
  if (close_range(1, ~0U, 0) != 0) close_most();
  static pid_t groups[kMostGroups];
  std::size_t count = 0;
  while (true) {
    pid_t message = 0;
    const ssize_t n = read(0, &message, sizeof message);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof message) break;
    if (message > 0) {
      if (count < kMostGroups) groups[count++] = message;
      continue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (groups[i] == -message) {
        groups[i] = groups[--count];
        break;
      }
    }
  }
  for (std::size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  _exit(0);
}

}  // namespace

Result<Guard> Guard::start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status(Code::kInternal, std::string("cannot make a socket for the guard process: ") + std::strerror(errno));
  }
  const pid_t pid = fork();
  if (pid == 0) watch(ends[1]);
  const int why = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return Status(Code::kInternal, std::string("cannot start the guard process: ") + std::strerror(why));
  }
  return Guard(ends[0], pid);
}

Guard::Guard(Guard&& other) noexcept : fd_(std::exchange(other.fd_, -1)), pid_(std::exchange(other.pid_, -1)) {}

Guard::~Guard() {
  if (fd_ < 0) return;
  close(fd_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::tell(pid_t message) const {
  // A guard that somebody killed is a missing safety net, not a reason to fail.
  while (send(fd_, &message, sizeof message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace warren::worker

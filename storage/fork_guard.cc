#include "storage/fork_guard.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <vector>

namespace warren {
namespace {

struct File {
  dev_t device = 0;
  ino_t number = 0;  // 0: none
};

std::atomic<bool> on{false};
// Held while a fork is made: what the child sees is whole.
std::mutex mutex;

// By descriptor. Never destroyed: a program's destructors may still fork, and close.
std::vector<File>& files() {
  static auto* const all = new std::vector<File>();
  return *all;
}

// In the child, whose only thread is the one that has forked: calls nothing that is not async-signal-safe.
void close_all() {
  const int error = errno;
  std::vector<File>& all = files();
  for (std::size_t fd = 0; fd < all.size(); fd++) {
    if (all[fd].number == 0) continue;
    struct stat now {};
    const bool same =
        fstat(static_cast<int>(fd), &now) == 0 && now.st_dev == all[fd].device && now.st_ino == all[fd].number;
    if (same) (void)::close(static_cast<int>(fd));
    all[fd] = {};
  }
  errno = error;
}

}  // namespace

void close_in_children() {
  static const int once = [] {
    (void)files();
    on.store(true);
    return pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                          [] {
                            close_all();
                            mutex.unlock();
                          });
  }();
  (void)once;
}

int not_for_children(int fd) {
  struct stat file {};
  if (fd < 0 || !on.load(std::memory_order_relaxed) || fstat(fd, &file) != 0) return fd;
  // All others (of events, of what is watched) are one file to the system, which says nothing of this one.
  if (!S_ISSOCK(file.st_mode) && !S_ISREG(file.st_mode) && !S_ISFIFO(file.st_mode)) return fd;
  const std::lock_guard lock(mutex);
  std::vector<File>& all = files();
  try {
    if (all.size() <= static_cast<std::size_t>(fd)) all.resize(static_cast<std::size_t>(fd) + 1);
  } catch (const std::bad_alloc&) {
    return fd;  // the child keeps it: a death is seen later then, by heartbeats
  }
  all[static_cast<std::size_t>(fd)] = {file.st_dev, file.st_ino};
  return fd;
}

void not_for_children(std::span<const std::byte> pages) {
  (void)::madvise(const_cast<std::byte*>(pages.data()), pages.size(), MADV_DONTFORK);
}

}  // namespace warren

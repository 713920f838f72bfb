#include "worker/launch/sigterm.h"

#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

namespace warren::worker {
namespace {

std::atomic<int> counted{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler uses it");

std::mutex mutex;
int holders = 0;
struct sigaction before {};  // what the program had made of it

void count_one(int) {
  counted.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Result<std::unique_ptr<SigtermCount>> SigtermCount::take() {
  const std::lock_guard lock(mutex);
  if (holders == 0) {
    struct sigaction action {};
    action.sa_handler = count_one;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGTERM, &action, &before) != 0) {
      return Status(Code::kUnavailable, std::string("cannot handle SIGTERM: ") + std::strerror(errno));
    }
  }
  ++holders;
  return std::unique_ptr<SigtermCount>(new SigtermCount(counted.load(std::memory_order_relaxed)));
}

SigtermCount::~SigtermCount() {
  const std::lock_guard lock(mutex);
  if (--holders == 0) sigaction(SIGTERM, &before, nullptr);
}

int SigtermCount::count() const {
  return counted.load(std::memory_order_relaxed) - first_;
}

}  // namespace warren::worker

#include "worker/system/run_delay.h"

#include <fstream>
#include <string>
#include <utility>

namespace warren::worker {

std::int64_t RunDelay::since_last(pid_t thread) {
  if (thread == 0) return 0;
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
  std::int64_t on_core_ns = 0, waited_ns = 0;
  if (!(file >> on_core_ns >> waited_ns)) return 0;
  const bool same = std::exchange(thread_, thread) == thread;
  if (!same || waited_ns < ns_) {
    ns_ = waited_ns;
    return 0;
  }
  const std::int64_t ms = (waited_ns - ns_) / 1'000'000;
  ns_ += ms * 1'000'000;
  return ms;
}

}  // namespace warren::worker

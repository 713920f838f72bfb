// The time for which a thread could have run and had no core.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace warren::worker {

// One thread uses it.
class RunDelay {
 public:
  // Of this thread of the process, in ms, since the call before. 0 if that was of another thread, and where the kernel
  // does not say (/proc/self/task/N/schedstat).
  [[nodiscard]] std::int64_t since_last(pid_t thread);

 private:
  pid_t thread_ = 0;
  std::int64_t ns_ = 0;  // that have been told of
};

}  // namespace warren::worker

// The time for which a thread could have run and had no core.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace warren::worker {

// The delay of one thread at a time. One thread calls it.
class RunDelay {
 public:
  // The delay of this thread of the process since the call before, in ms. 0 if that call was of another thread, and
  // where the kernel does not say (/proc/self/task/N/schedstat).
  [[nodiscard]] std::int64_t since_last(pid_t thread);

 private:
  pid_t thread_ = 0;
  std::int64_t ns_ = 0;  // that have been told of
};

}  // namespace warren::worker

// Which threads of this process are the library's, and which the program's.
#pragma once

#include <sys/types.h>

#include <vector>

namespace warren {

// While one lives, the calling thread counts as the library's.
class OwnThread {
 public:
  OwnThread();
  ~OwnThread();
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

 private:
  const pid_t thread_;
};

// The threads of this process that are not the library's; none where the system does not tell.
[[nodiscard]] std::vector<pid_t> program_threads();

}  // namespace warren

// The time.
#ifndef RABIT_INTERNAL_TIMER_H_
#define RABIT_INTERNAL_TIMER_H_

#include <time.h>

#include "rabit/internal/utils.h"

namespace rabit {
namespace utils {

// Seconds since 1970.
inline double GetTime() {
  timespec now;
  Check(clock_gettime(CLOCK_REALTIME, &now) == 0, "failed to get time");
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace utils
}  // namespace rabit

#endif  // RABIT_INTERNAL_TIMER_H_

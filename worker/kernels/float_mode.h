// The floating-point mode in which all kernels run: round to nearest even, denormals kept, exceptions masked.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace warren::worker::kernels {

// Sets the mode for the calling thread and restores the caller's at the end of the scope. A few cycles where the
// caller's mode is the same already, which is nearly always.
class DefaultFloatMode {
 public:
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

#if defined(__x86_64__)
  DefaultFloatMode() : callers_(_mm_getcsr()) {
    if ((callers_ & ~kStatusFlags) != kDefault) [[unlikely]]
      _mm_setcsr(kDefault);
  }
  ~DefaultFloatMode() {
    if ((callers_ & ~kStatusFlags) != kDefault) [[unlikely]]
      _mm_setcsr(callers_);
  }

 private:
  static constexpr unsigned kStatusFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nearest even, neither FTZ nor DAZ
  unsigned callers_;
#else
  DefaultFloatMode() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatMode() {
    std::fesetenv(&callers_);
  }

 private:
  std::fenv_t callers_;
#endif
};

}  // namespace warren::worker::kernels

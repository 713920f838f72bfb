// The instruction sets that the kernels are compiled for and this processor has.
#pragma once

#include <cstdint>
#include <vector>

#include "hwy/highway.h"

namespace warren::worker::test {

// Ends with the portable one, which every processor has.
inline std::vector<std::int64_t> targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::int64_t> found;
  for (const std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4}) {
    if ((hwy::SupportedTargets() & HWY_TARGETS & target) != 0) found.push_back(target);
  }
  found.push_back(HWY_SCALAR);
  return found;
}

// Reducers made while this lives use the target.
class UseTarget {
 public:
  explicit UseTarget(std::int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~UseTarget() { hwy::SetSupportedTargetsForTest(0); }
  UseTarget(const UseTarget&) = delete;
  UseTarget& operator=(const UseTarget&) = delete;
};

}  // namespace warren::worker::test

// In which form elements lie in memory or on the wire during a collective.
#pragma once

#include <cstdint>

namespace warren::worker {

enum class Form : std::uint8_t {
  kValue = 0,    // the user's type
  kPartial = 1,  // the accumulator's type: f32 for f16 and bf16, else the user's type
};

}  // namespace warren::worker

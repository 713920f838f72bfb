// What memory and caches give to one that only reads and writes as a kernel does, and computes next to nothing.
#pragma once

#include <cstddef>

namespace warren::bench {

// How many operands are read side by side for each output; wide: in elements of twice the bytes.
enum class Pattern { kTwo, kTwoToWide, kThree, kFour, kEight, kSixteen, kWiden, kNarrow };
constexpr std::size_t kPatterns = 8;

// `bytes` of what is not wide, a multiple of 64, as the pointers are. The output may be the first operand, if both are
// as wide. Which bits come out is unspecified; zeros, of zeros.
using Access = void (*)(std::byte* to, const std::byte* const* from, std::size_t bytes);

// For the processor that this runs on. `past_caches`: what is written is not fetched first, and goes to memory.
[[nodiscard]] Access access(Pattern pattern, bool past_caches);

}  // namespace warren::bench

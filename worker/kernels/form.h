// In which form elements lie in memory or on the wire during a collective, and in which order they are combined.
#pragma once

#include <cstdint>

namespace warren::worker {

enum class Form : std::uint8_t {
  kValue = 0,    // the user's type
  kPartial = 1,  // the accumulator's type: f32 for f16, bf16 and blocks of 8-bit integers, else the user's type
};

// How more than two operands are combined, in their order.
enum class Bracketing : std::uint8_t {
  kChain,  // ((0 ⊕ 1) ⊕ 2) ⊕ …
  // The balanced binary tree over the largest power of two P of positions up to their number N: operands 2i and 2i + 1
  // for i < N − P are one position, 2i ⊕ 2i+1, and the others one each.
  kBalanced,
};

}  // namespace warren::worker

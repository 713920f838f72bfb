// The elements of a simulated program, combined one after the other without any of the code under test.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "recovery/wire/frame.h"

namespace warren::chaos {

// The custom operation: inout = a after inout. `context` not null swaps the operands (Mutant::operands_swapped).
struct Affine {
  std::uint64_t m, c;
};
std::int32_t chain_affine(const void* a, void* inout, std::size_t n, void* context);

// An element of kF32AsI8. The first value is the largest in size, and what the scale is told by; the others are
// multiples of the number of ranks. So sums and averages are exact.
struct Block {
  float scale = 1;
  std::array<std::int8_t, kI8BlockValues> values{};
};
static_assert(sizeof(Block) == kI8BlockBytes);

[[nodiscard]] bool is_float(DataType type);
[[nodiscard]] double read_float(DataType type, const std::byte* from);
void write_float(DataType type, double v, std::byte* to);
[[nodiscard]] double combine_floats(ReduceOp op, double a, double b);
// inout = a with inout, of an integer type.
void combine_integers(DataType type, ReduceOp op, const std::byte* a, std::byte* inout);
void divide_integer(DataType type, std::byte* inout, std::size_t by);

}  // namespace warren::chaos

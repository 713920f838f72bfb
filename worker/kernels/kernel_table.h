// The functions of one (type, operation), chosen for the processor. See reduce.h for what they compute.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recovery/wire/frame.h"
#include "worker/kernels/form.h"

namespace warren::worker::kernels {

// dst[i] = a[i] ⊕ b[i]; `contributors` is what an average divides by.
using Combine = void (*)(void* dst, const void* a, const void* b, std::size_t n, std::uint32_t contributors);
// dst[i] = a[i] in another form, or finished.
using Convert = void (*)(void* dst, const void* a, std::size_t n, std::uint32_t contributors);

// Several operands in one pass, values unless it is said otherwise.
using Many = void (*)(void* dst, const void* const* operands, std::size_t count, std::size_t n,
                      std::uint32_t contributors);

// The first index says whether the result is finished, the others are forms.
struct KernelTable {
  Combine combine[2][2][2][2] = {};  // [finish][dst][a][b]
  Convert convert[2][2][2] = {};     // [finish][dst][a]; nullptr: the bytes are the same
  // nullptr: by combine.
  // To a value where it finishes, else to a partial.
  Many chain[2][2] = {};  // ((0 ⊕ 1) ⊕ 2) ⊕ …, two or more: [finish][form of 0]
  Many quad[2] = {};      // (0 ⊕ 1) ⊕ (2 ⊕ 3): [finish]
};

// For the processor that this runs on; the tables live for ever. nullptr: not these types, or not defined for them.
[[nodiscard]] const KernelTable* find_integer_kernels(DataType type, ReduceOp op);  // and bool
[[nodiscard]] const KernelTable* find_float_kernels(DataType type, ReduceOp op);    // f32, f64
[[nodiscard]] const KernelTable* find_half_kernels(DataType type, ReduceOp op);     // f16, bf16
[[nodiscard]] const KernelTable* find_block_kernels(ReduceOp op);                   // blocks of 8-bit integers

}  // namespace warren::worker::kernels

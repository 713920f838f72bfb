// What a caller of the kernels asks for, checked in one place for the GPU and for the twins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/elements.h"
#include "worker/device/device_table.h"

namespace warren::cuda {

// Why the kernels do not serve it; nullptr: they do.
[[nodiscard]] const char* why_not_reduce(const warren_device_reduction& how);
// Whether the bracketing is another one than from left to right: three are a chain either way.
[[nodiscard]] constexpr bool is_tree(const warren_device_reduction& how) {
  return how.bracketing == WARREN_DEVICE_BALANCED && how.inputs > 3;
}
// Bytes of so many elements of an input, and of what it makes.
[[nodiscard]] std::size_t reduced_bytes(const warren_device_reduction& how, std::size_t input, std::size_t count);
[[nodiscard]] std::size_t reduced_bytes(const warren_device_reduction& how, std::size_t count);
[[nodiscard]] const char* why_not_convert(warren_type out, warren_type in);
[[nodiscard]] const char* why_not_pack(std::size_t pieces);
// Why kernels that were built for this capability and newer ones (800: 8.0) do not run on a device; empty: they do.
[[nodiscard]] std::string why_not_on(std::int32_t device, int major, int minor, int lowest);

// Of so many values of a type that convert() knows.
[[nodiscard]] std::size_t converted_bytes(warren_type type, std::size_t count);

// Calls f.operator()<Value, Op>() for what why_not_reduce() has let pass.
template <class Value, class F>
auto with_op(warren_op op, F f) {
  switch (op) {
    case WARREN_PRODUCT: return f.template operator()<Value, Op::kProduct>();
    case WARREN_MIN: return f.template operator()<Value, Op::kMin>();
    case WARREN_MAX: return f.template operator()<Value, Op::kMax>();
    case WARREN_AVERAGE: return f.template operator()<Value, Op::kAverage>();
    default: return f.template operator()<Value, Op::kSum>();
  }
}

template <class F>
auto with_type_and_op(warren_type type, warren_op op, F f) {
  switch (type) {
    case WARREN_F16: return with_op<F16>(op, f);
    case WARREN_BF16: return with_op<BF16>(op, f);
    default: return with_op<F32>(op, f);
  }
}

}  // namespace warren::cuda

#include "chaos/sim/elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "recovery/base/check.h"

namespace warren::chaos {
namespace {

// A whole number that f16 and bf16 hold exactly, as their bits.
std::uint16_t half_bits(double v, int exponent_bits, int fraction_bits) {
  if (v == 0) return 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = std::ilogb(v);
  const auto fraction =
      static_cast<std::uint32_t>(std::ldexp(std::fabs(v), fraction_bits - exponent)) - (1u << fraction_bits);
  const std::uint32_t sign = v < 0 ? 1u << 15 : 0u;
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(exponent + bias) << fraction_bits | fraction);
}
double half_value(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  if (exponent == 0 && fraction == 0) return 0;
  const double v = std::ldexp(static_cast<double>(fraction + (1 << fraction_bits)),
                              exponent - ((1 << (exponent_bits - 1)) - 1) - fraction_bits);
  return (bits >> 15) != 0 ? -v : v;
}

// Integers of any width as 64 bits that are cut to it in the end; min and max need the sign.
template <class T>
void combine_as(ReduceOp op, const std::byte* a, std::byte* inout) {
  T x, y;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, inout, sizeof y);
  // Sign-extended on purpose: what wraps at 64 bits wraps at fewer too.
  const auto u = static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
  const auto v = static_cast<std::uint64_t>(static_cast<std::int64_t>(y));
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: y = static_cast<T>(u + v); break;
    case ReduceOp::kProduct: y = static_cast<T>(u * v); break;
    case ReduceOp::kMin: y = std::min(x, y); break;
    case ReduceOp::kMax: y = std::max(x, y); break;
    case ReduceOp::kBitAnd: y = static_cast<T>(u & v); break;
    case ReduceOp::kBitOr: y = static_cast<T>(u | v); break;
    default: y = static_cast<T>(u ^ v); break;
  }
  std::memcpy(inout, &y, sizeof y);
}
template <class T>
void divide_as(std::byte* inout, std::size_t by) {
  WARREN_CHECK(by > 0, "an average has contributors");
  T v;
  std::memcpy(&v, inout, sizeof v);
  // In 64 bits: a narrow type does not hold every world size.
  using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  v = static_cast<T>(static_cast<Wide>(v) / static_cast<Wide>(by));
  std::memcpy(inout, &v, sizeof v);
}

template <class Do>
void with_integer(DataType type, Do what) {
  switch (type) {
    case DataType::kI8: return what(std::int8_t{});
    case DataType::kU8: return what(std::uint8_t{});
    case DataType::kI16: return what(std::int16_t{});
    case DataType::kU16: return what(std::uint16_t{});
    case DataType::kI32: return what(std::int32_t{});
    case DataType::kU32: return what(std::uint32_t{});
    case DataType::kI64: return what(std::int64_t{});
    default: return what(std::uint64_t{});
  }
}

}  // namespace

std::int32_t chain_affine(const void* a, void* inout, std::size_t n, void* context) {
  for (std::size_t i = 0; i < n; ++i) {
    Affine x, y;
    std::memcpy(&x, static_cast<const std::byte*>(a) + i * sizeof x, sizeof x);
    std::memcpy(&y, static_cast<std::byte*>(inout) + i * sizeof y, sizeof y);
    if (context != nullptr) std::swap(x, y);
    const Affine both{x.m * y.m, x.m * y.c + x.c};
    std::memcpy(static_cast<std::byte*>(inout) + i * sizeof both, &both, sizeof both);
  }
  return 0;
}

bool is_float(DataType type) {
  return type == DataType::kF16 || type == DataType::kBF16 || type == DataType::kF32 || type == DataType::kF64;
}

double read_float(DataType type, const std::byte* from) {
  if (type == DataType::kF64) {
    double v = 0;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  if (type == DataType::kF32) {
    float v = 0;
    std::memcpy(&v, from, sizeof v);
    return static_cast<double>(v);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return type == DataType::kF16 ? half_value(bits, 5, 10) : half_value(bits, 8, 7);
}

void write_float(DataType type, double v, std::byte* to) {
  if (type == DataType::kF64) {
    std::memcpy(to, &v, sizeof v);
  } else if (type == DataType::kF32) {
    const auto f = static_cast<float>(v);
    std::memcpy(to, &f, sizeof f);
  } else {
    const std::uint16_t bits = type == DataType::kF16 ? half_bits(v, 5, 10) : half_bits(v, 8, 7);
    std::memcpy(to, &bits, sizeof bits);
  }
}

double combine_floats(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return a + b;
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kMin: return std::min(a, b);
    default: return std::max(a, b);
  }
}

void combine_integers(DataType type, ReduceOp op, const std::byte* a, std::byte* inout) {
  with_integer(type, [&](auto zero) { combine_as<decltype(zero)>(op, a, inout); });
}

void divide_integer(DataType type, std::byte* inout, std::size_t by) {
  with_integer(type, [&](auto zero) { divide_as<decltype(zero)>(inout, by); });
}

}  // namespace warren::chaos

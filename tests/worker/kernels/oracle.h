// What a reduction must give, element by element, written as plainly as it can be. Tests compare bits with it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "recovery/wire/frame.h"
#include "worker/kernels/form.h"

namespace warren::worker::test {

// Bits of a 16-bit float with this many exponent and significand bits.
template <int kExponentBits, int kFractionBits>
struct Half {
  std::uint16_t bits;

  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kTopExponent = (1 << kExponentBits) - 1;

  [[nodiscard]] float widen() const {
    const bool negative = (bits >> 15) != 0;
    const int exponent = (bits >> kFractionBits) & kTopExponent;
    const int fraction = bits & ((1 << kFractionBits) - 1);
    float value = 0;
    if (exponent == kTopExponent && fraction != 0) {
      const std::uint32_t payload = static_cast<std::uint32_t>(fraction) << (23 - kFractionBits);
      // bf16 is only shifted; f16 becomes quiet on the way.
      const std::uint32_t quiet = kFractionBits == 10 ? 0x00400000u : 0u;
      return std::bit_cast<float>((negative ? 0x80000000u : 0u) | 0x7f800000u | payload | quiet);
    }
    if (exponent == kTopExponent) {
      value = std::numeric_limits<float>::infinity();
    } else if (exponent == 0) {
      value = std::ldexp(static_cast<float>(fraction), 1 - kBias - kFractionBits);
    } else {
      value = std::ldexp(static_cast<float>(fraction + (1 << kFractionBits)), exponent - kBias - kFractionBits);
    }
    return negative ? -value : value;
  }

  // To nearest, ties to even.
  static Half narrow(float value) {
    const std::uint32_t wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (wide >> 31) << 15;
    const auto make = [&](std::uint32_t rest) { return Half{static_cast<std::uint16_t>(sign | rest)}; };
    constexpr std::uint32_t kInfinity = static_cast<std::uint32_t>(kTopExponent) << kFractionBits;
    if (std::isnan(value)) {
      const std::uint32_t payload = (wide & 0x7fffffu) >> (23 - kFractionBits);
      return make(kInfinity | payload | (1u << (kFractionBits - 1)));
    }
    if (std::isinf(value)) return make(kInfinity);
    const double magnitude = std::fabs(static_cast<double>(value));
    if (magnitude == 0) return make(0);
    const int exponent = std::max(std::ilogb(magnitude), 1 - kBias);
    const double units = std::nearbyint(std::ldexp(magnitude, kFractionBits - exponent));  // exact before nearbyint
    // `units` is the fraction with its leading one; adding it to the exponent field carries as it should.
    const std::uint32_t field = static_cast<std::uint32_t>(exponent + kBias - 1) << kFractionBits;
    const std::uint32_t rest = field + static_cast<std::uint32_t>(units);
    return make(rest >= kInfinity ? kInfinity : rest);
  }
};
using F16 = Half<5, 10>;
using BF16 = Half<8, 7>;

// 256 values as 8-bit integers behind their scale, in the plainest way: doubles hold each step exactly before it is
// rounded to f32.
using I8Values = std::array<float, kI8BlockValues>;
struct I8Block {
  float scale;
  std::int8_t values[kI8BlockValues];

  static constexpr float kLeastScale = 0x1p-126f;
  static I8Block narrow(const I8Values& values) {
    float largest = 127.0f * kLeastScale;
    bool finite = true;
    for (const float value : values) {
      finite = finite && std::isfinite(value);
      largest = std::max(largest, std::fabs(value));
    }
    I8Block block{};
    block.scale = std::numeric_limits<float>::quiet_NaN();
    if (!finite) return block;
    block.scale = static_cast<float>(static_cast<double>(largest) / 127.0);
    const auto factor = static_cast<float>(127.0 / static_cast<double>(largest));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto product = static_cast<float>(static_cast<double>(values[i]) * static_cast<double>(factor));
      block.values[i] = static_cast<std::int8_t>(std::nearbyint(product));  // ties to even
    }
    return block;
  }
  [[nodiscard]] I8Values widen() const {
    I8Values wide{};
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const auto product = static_cast<float>(static_cast<double>(values[i]) * static_cast<double>(scale));
      wide[i] = std::isnan(product) ? std::numeric_limits<float>::quiet_NaN() : product;
    }
    return wide;
  }
};
static_assert(sizeof(I8Block) == kI8BlockBytes);

// A bool that came from anywhere.
struct Truth {
  std::uint8_t byte;
};

template <class T>
struct Traits {
  using Partial = T;
  static T widen(T v) { return v; }
  static T narrow(T v) { return v; }
};
template <int E, int F>
struct Traits<Half<E, F>> {
  using Partial = float;
  static float widen(Half<E, F> v) { return v.widen(); }
  static Half<E, F> narrow(float v) { return Half<E, F>::narrow(v); }
};

template <class T>
T one_nan(T v) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(v)) return std::numeric_limits<T>::quiet_NaN();
  }
  return v;
}

// Both in the accumulator's type.
template <class P>
P combine_one(ReduceOp op, P a, P b) {
  if constexpr (std::is_same_v<P, Truth>) {
    const bool x = a.byte != 0, y = b.byte != 0;
    switch (op) {
      case ReduceOp::kProduct:
      case ReduceOp::kMin:
      case ReduceOp::kBitAnd: return {static_cast<std::uint8_t>(x && y)};
      case ReduceOp::kBitXor: return {static_cast<std::uint8_t>(x != y)};
      default: return {static_cast<std::uint8_t>(x || y)};
    }
  } else if constexpr (std::is_floating_point_v<P>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<P>::quiet_NaN();
    switch (op) {
      case ReduceOp::kProduct: return one_nan(a * b);
      case ReduceOp::kMin: return a < b || (a == b && std::signbit(a)) ? a : b;
      case ReduceOp::kMax: return a > b || (a == b && !std::signbit(a)) ? a : b;
      default: return one_nan(a + b);
    }
  } else {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::kProduct: return static_cast<P>(x * y);
      case ReduceOp::kMin: return a < b ? a : b;
      case ReduceOp::kMax: return a < b ? b : a;
      case ReduceOp::kBitAnd: return static_cast<P>(x & y);
      case ReduceOp::kBitOr: return static_cast<P>(x | y);
      case ReduceOp::kBitXor: return static_cast<P>(x ^ y);
      default: return static_cast<P>(x + y);
    }
  }
}

template <class P>
P finish_one(ReduceOp op, P v, std::uint32_t contributors) {
  if constexpr (std::is_same_v<P, Truth>) return {static_cast<std::uint8_t>(v.byte != 0)};
  if (op != ReduceOp::kAverage) return v;
  if constexpr (std::is_same_v<P, Truth>) {
    return v;
  } else if constexpr (std::is_floating_point_v<P>) {
    return one_nan(v / static_cast<P>(contributors));
  } else if constexpr (std::is_signed_v<P>) {
    return static_cast<P>(static_cast<std::int64_t>(v) / static_cast<std::int64_t>(contributors));
  } else {
    return static_cast<P>(static_cast<std::uint64_t>(v) / contributors);
  }
}

template <class T>
typename Traits<T>::Partial load_one(const std::byte* from, Form form, std::size_t i) {
  typename Traits<T>::Partial partial;
  if (form == Form::kPartial) {
    std::memcpy(&partial, from + i * sizeof(partial), sizeof(partial));
    return partial;
  }
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return Traits<T>::widen(value);
}

template <class T>
void store_one(std::byte* to, Form form, std::size_t i, typename Traits<T>::Partial partial) {
  if (form == Form::kPartial) {
    std::memcpy(to + i * sizeof(partial), &partial, sizeof(partial));
  } else {
    const T value = Traits<T>::narrow(partial);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

// Elements that matter (zeros, infinities, NaNs, denormals, extremes), as bits.
template <class T>
std::vector<T> special_values() {
  if constexpr (std::is_same_v<T, float>) {
    std::vector<float> v;
    for (const std::uint32_t bits :
         {0u, 1u, 0x007fffffu, 0x00800000u, 0x3f800000u, 0x3f800001u, 0x4b800000u, 0x7f7fffffu, 0x7f800000u,
          0x7f800001u, 0x7fc12345u, 0x33800000u, 0x477fefffu, 0x477ff000u, 0x38800000u, 0x387fffffu, 0x33000001u}) {
      v.push_back(std::bit_cast<float>(bits));
      v.push_back(std::bit_cast<float>(bits | 0x80000000u));
    }
    return v;
  } else if constexpr (std::is_same_v<T, double>) {
    std::vector<double> v;
    for (const std::uint64_t bits :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x000fffffffffffff}, std::uint64_t{0x0010000000000000},
          std::uint64_t{0x3ff0000000000000}, std::uint64_t{0x3ff0000000000001}, std::uint64_t{0x7fefffffffffffff},
          std::uint64_t{0x7ff0000000000000}, std::uint64_t{0x7ff0000000000001}, std::uint64_t{0x7ff8123400000000},
          std::uint64_t{0x3ca0000000000000}}) {
      v.push_back(std::bit_cast<double>(bits));
      v.push_back(std::bit_cast<double>(bits | (std::uint64_t{1} << 63)));
    }
    return v;
  } else if constexpr (std::is_same_v<T, F16>) {
    std::vector<F16> v;
    for (const unsigned bits :
         {0u, 1u, 0x3ffu, 0x400u, 0x3c00u, 0x3c01u, 0x6800u, 0x7bffu, 0x7c00u, 0x7c01u, 0x7e55u}) {
      v.push_back(F16{static_cast<std::uint16_t>(bits)});
      v.push_back(F16{static_cast<std::uint16_t>(bits | 0x8000u)});
    }
    return v;
  } else if constexpr (std::is_same_v<T, BF16>) {
    std::vector<BF16> v;
    for (const unsigned bits : {0u, 1u, 0x7fu, 0x80u, 0x3f80u, 0x3f81u, 0x4380u, 0x7f7fu, 0x7f80u, 0x7f81u, 0x7fd5u}) {
      v.push_back(BF16{static_cast<std::uint16_t>(bits)});
      v.push_back(BF16{static_cast<std::uint16_t>(bits | 0x8000u)});
    }
    return v;
  } else if constexpr (std::is_same_v<T, Truth>) {
    return {{0}, {1}, {2}, {0x7f}, {0x80}, {0xff}};
  } else {
    using L = std::numeric_limits<T>;
    return {
        T(0),  T(1), T(-1), T(2), T(3), T(L::max()), T(L::min()), T(L::max() - 1), T(L::min() + 1), T(L::max() / 2 + 1),
        T(100)};
  }
}

// Every pair of special values, element by element over two arrays, then random bits. `side` 0 gives the first of each
// pair, 1 the second.
template <class T>
std::vector<T> test_elements(int side, std::size_t at_least) {
  const std::vector<T> special = special_values<T>();
  std::vector<T> v;
  for (const T& x : special) {
    for (const T& y : special) v.push_back(side == 0 ? x : y);
  }
  std::uint64_t state = 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(side);
  const std::size_t total = v.size() + at_least;
  while (v.size() < total) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    T element;
    std::memcpy(&element, &state, sizeof(T));
    v.push_back(element);
  }
  return v;
}

}  // namespace warren::worker::test

#include "bench/access_patterns.h"

// Compiled once per target, as the kernels are.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/access_patterns.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <array>
#include <cstdint>
#include <utility>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace warren::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Bytes = hn::ScalableTag<std::uint8_t>;

// What step `step` reads of an operand for vector `j` of the kTo that it writes.
template <std::size_t kTo, std::size_t kFrom>
HWY_INLINE hn::Vec<Bytes> part(const std::uint8_t* from, std::size_t step, std::size_t j) {
  const Bytes d;
  const std::size_t n = hn::Lanes(d);
  if constexpr (kFrom == kTo) return hn::LoadU(d, from + (step * kTo + j) * n);
  if constexpr (kFrom < kTo) return hn::LoadU(d, from + step * n);
  if constexpr (kFrom > kTo) {
    return hn::Xor(hn::LoadU(d, from + 2 * step * n), hn::LoadU(d, from + (2 * step + 1) * n));
  }
}

template <bool kPastCaches, std::size_t kTo, std::size_t... kFrom, std::size_t... kOperand>
HWY_INLINE void walk(std::uint8_t* to, const std::array<const std::uint8_t*, sizeof...(kFrom)> from, std::size_t bytes,
                     std::index_sequence<kOperand...>) {
  const Bytes d;
  const std::size_t n = hn::Lanes(d);
  for (std::size_t step = 0; step < bytes / n; ++step) {
    for (std::size_t j = 0; j < kTo; ++j) {
      auto v = hn::Zero(d);
      ((v = hn::Xor(v, part<kTo, kFrom>(from[kOperand], step, j))), ...);
      if constexpr (kPastCaches) {
        hn::Stream(v, d, to + (step * kTo + j) * n);
      } else {
        hn::StoreU(v, d, to + (step * kTo + j) * n);
      }
    }
  }
  if constexpr (kPastCaches) hwy::FlushStream();
}

template <bool kPastCaches, std::size_t kTo, std::size_t... kFrom>
void access(std::byte* to, const std::byte* const* from, std::size_t bytes) {
  std::array<const std::uint8_t*, sizeof...(kFrom)> operands;
  for (std::size_t k = 0; k < operands.size(); ++k) operands[k] = reinterpret_cast<const std::uint8_t*>(from[k]);
  walk<kPastCaches, kTo, kFrom...>(reinterpret_cast<std::uint8_t*>(to), operands, bytes,
                                   std::make_index_sequence<sizeof...(kFrom)>());
}

// In the order of Pattern.
template <bool kPastCaches>
constexpr std::array<Access, kPatterns> kAccesses = {
    access<kPastCaches, 1, 1, 1>,
    access<kPastCaches, 2, 2, 1>,
    access<kPastCaches, 1, 1, 1, 1>,
    access<kPastCaches, 1, 1, 1, 1, 1>,
    access<kPastCaches, 1, 1, 1, 1, 1, 1, 1, 1, 1>,
    access<kPastCaches, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1>,
    access<kPastCaches, 2, 1>,
    access<kPastCaches, 1, 2>,
};

Access find(Pattern pattern, bool past_caches) {
  const auto at = static_cast<std::size_t>(pattern);
  return past_caches ? kAccesses<true>[at] : kAccesses<false>[at];
}

}  // namespace HWY_NAMESPACE
}  // namespace warren::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace warren::bench {
HWY_EXPORT(find);
Access access(Pattern pattern, bool past_caches) {
  return HWY_DYNAMIC_DISPATCH(find)(pattern, past_caches);
}
}  // namespace warren::bench
#endif

// Kernels of blocks of 8-bit integers with a scale, which are combined in f32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/block_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <cstring>

#include "hwy/highway.h"
#include "worker/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace warren::worker::kernels {
namespace HWY_NAMESPACE {

struct Scale {
  float scale;
  float factor;  // by which values are multiplied; 0: they are zeros
};

// Magnitudes have the order of their bits, infinities and NaNs at the top.
HWY_INLINE Scale scale_of(std::int32_t largest_magnitude) {
  if (largest_magnitude >= 0x7f800000) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  constexpr std::int32_t kLeast = 0x03fe0000;  // 127 * 2^-126: neither of the two is a denormal
  const std::int32_t bits = largest_magnitude < kLeast ? kLeast : largest_magnitude;
  float largest = 0;
  std::memcpy(&largest, &bits, sizeof largest);
  return {largest / 127.0f, 127.0f / largest};
}

// Lanes are values, whichever blocks they are in; a vector is of one block. What makes a block needs all of its values,
// so blocks are made one by one.
struct I8Blocks {
  using Lane = float;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* p, std::size_t i) {
    const auto* const block = static_cast<const std::uint8_t*>(p) + i / kI8BlockValues * kI8BlockBytes;
    const auto* const values = reinterpret_cast<const std::int8_t*>(block + sizeof(float)) + i % kI8BlockValues;
    float scale = 0;
    std::memcpy(&scale, block, sizeof scale);
    const hn::Rebind<std::int8_t, D> bytes;
    const hn::RebindToSigned<D> di;
    const auto steps = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(bytes, values)));
    return canonical(d, hn::Mul(steps, hn::Set(d, scale)));
  }

  template <class Step>
  static HWY_INLINE void walk(const Step& step, std::size_t n) {
    for (std::size_t block = 0; block < n; ++block) make(step, block);
  }

 private:
  // The destination may be an operand: it is written when all of the block has been computed.
  template <class Step>
  static HWY_INLINE void make(const Step& step, std::size_t block) {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::int8_t, decltype(d)> bytes;
    const std::size_t lanes = hn::Lanes(d);
    static_assert(kI8BlockValues % hn::MaxLanes(d) == 0, "a block is vectors");
    HWY_ALIGN float values[kI8BlockValues];
    auto largest = hn::Zero(di);
    for (std::size_t i = 0; i < kI8BlockValues; i += lanes) {
      const auto v = step.compute(d, block * kI8BlockValues + i);
      largest = hn::Max(largest, hn::And(hn::BitCast(di, v), hn::Set(di, 0x7fffffff)));
      hn::Store(v, d, values + i);
    }
    const Scale scale = scale_of(hn::GetLane(hn::MaxOfLanes(di, largest)));
    auto* const out = static_cast<std::uint8_t*>(step.dst) + block * kI8BlockBytes;
    std::memcpy(out, &scale.scale, sizeof(float));
    auto* const out_values = reinterpret_cast<std::int8_t*>(out + sizeof(float));
    if (scale.factor == 0.0f) {
      std::memset(out_values, 0, kI8BlockValues);
      return;
    }
    // A sum that has no room for fractions: it is rounded to an integer, which stands in its low bits.
    const auto no_fractions = hn::Set(d, 0x1.8p23f);
    for (std::size_t i = 0; i < kI8BlockValues; i += lanes) {
      const auto steps = hn::Mul(hn::Load(d, values + i), hn::Set(d, scale.factor));
      const auto whole = hn::Sub(hn::BitCast(di, hn::Add(steps, no_fractions)), hn::BitCast(di, no_fractions));
      hn::StoreU(hn::DemoteTo(bytes, whole), bytes, out_values + i);
    }
  }
};

// So many f32 for each block.
struct I8Partials : Plain<float> {
  template <class Step>
  static HWY_INLINE void walk(const Step& step, std::size_t n) {
    const hn::ScalableTag<float> d;
    for (std::size_t i = 0; i < n * kI8BlockValues; i += hn::Lanes(d)) store(d, step.compute(d, i), step.dst, i);
  }
};

// The least and the greatest of blocks would be as coarse as what is largest beside them, and products have no bound.
const KernelTable* find_block(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return two_forms<I8Blocks, I8Partials, Sum>();
    case ReduceOp::kAverage: return two_forms<I8Blocks, I8Partials, Sum, SumThenDivide, Divide>();
    default: return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace warren::worker::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace warren::worker::kernels {
HWY_EXPORT(find_block);
const KernelTable* find_block_kernels(ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(find_block)(op);
}
}  // namespace warren::worker::kernels
#endif

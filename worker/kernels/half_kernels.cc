// Kernels of f16 and bf16, which are combined in f32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/half_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "worker/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace warren::worker::kernels {
namespace HWY_NAMESPACE {

// Highway's own conversions serve only where the processor has the instruction: its emulation of f16 knows neither
// infinities nor rounding, and its bf16 truncates.
#define WARREN_HAVE_F16C (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)

// Widening keeps a NaN's sign and payload and makes it quiet, as the processor's instruction does.
struct F16 {
  using Lane = float;
  using Element = std::uint16_t;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* p, std::size_t i) {
#if WARREN_HAVE_F16C
    const hn::Rebind<hwy::float16_t, D> halves;
    return hn::PromoteTo(d, hn::LoadU(halves, static_cast<const hwy::float16_t*>(p) + i));
#else
    const hn::Rebind<std::uint16_t, D> halves;
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::PromoteTo(du, hn::LoadU(halves, static_cast<const std::uint16_t*>(p) + i));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffu));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    // With the exponent in its place, a power of two corrects the bias, for denormals too.
    const auto scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
    const auto order = hn::BitCast(di, magnitude);
    const auto not_finite = hn::IfThenElseZero(hn::Gt(order, hn::Set(di, 0x7bff)), hn::Set(di, 0x7f800000));
    const auto quiet = hn::IfThenElseZero(hn::Gt(order, hn::Set(di, 0x7c00)), hn::Set(di, 0x00400000));
    const auto extra = hn::Or(hn::BitCast(du, hn::Or(not_finite, quiet)), sign);
    return hn::BitCast(d, hn::Or(hn::BitCast(du, scaled), extra));
#endif
  }

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, void* p, std::size_t i) {
#if WARREN_HAVE_F16C
    const hn::Rebind<hwy::float16_t, D> halves;
    hn::StoreU(hn::DemoteTo(halves, v), halves, static_cast<hwy::float16_t*>(p) + i);
#else
    const hn::Rebind<std::uint16_t, D> halves;
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const auto order = hn::BitCast(di, magnitude);

    // Normal: rebias, and round by adding just under half of the last place, or half where that place is odd. What
    // overflows by it becomes infinity.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const auto rebiased = hn::Add(hn::Add(magnitude, hn::Set(du, 0xc8000fffu)), odd);
    const auto normal = hn::ShiftRight<13>(rebiased);
    // Denormal: adding 0.5 puts the last place of a denormal f16 at that of the sum, and the adder rounds.
    const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto denormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000u));
    const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffu));
    const auto nan = hn::Or(payload, hn::Set(du, 0x7e00u));

    auto out = hn::IfThenElse(hn::RebindMask(du, hn::Lt(order, hn::Set(di, 0x38800000))), denormal, normal);
    out = hn::IfThenElse(hn::RebindMask(du, hn::Gt(order, hn::Set(di, 0x477fffff))), hn::Set(du, 0x7c00u), out);
    out = hn::IfThenElse(hn::RebindMask(du, hn::Gt(order, hn::Set(di, 0x7f800000))), nan, out);
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(di, hn::Or(out, sign))), halves, static_cast<std::uint16_t*>(p) + i);
#endif
  }
};

struct BF16 {
  using Lane = float;
  using Element = std::uint16_t;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* p, std::size_t i) {
    const hn::Rebind<std::uint16_t, D> halves;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::PromoteTo(du, hn::LoadU(halves, static_cast<const std::uint16_t*>(p) + i));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }

  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> v, void* p, std::size_t i) {
    const hn::Rebind<std::uint16_t, D> halves;
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, v);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
    const auto quiet = hn::Or(upper, hn::Set(du, 0x40u));  // rounding could carry a NaN over into infinity
    const auto out = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(di, out)), halves, static_cast<std::uint16_t*>(p) + i);
  }
};

template <class Value>
const KernelTable* find(ReduceOp op) {
  using Partial = Plain<float>;
  switch (op) {
    case ReduceOp::kSum: return two_forms<Value, Partial, Sum>();
    case ReduceOp::kProduct: return two_forms<Value, Partial, Product>();
    case ReduceOp::kMin: return two_forms<Value, Partial, Min>();
    case ReduceOp::kMax: return two_forms<Value, Partial, Max>();
    case ReduceOp::kAverage: return two_forms<Value, Partial, Sum, SumThenDivide, Divide>();
    default: return nullptr;
  }
}

const KernelTable* find_half(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kF16: return find<F16>(op);
    case DataType::kBF16: return find<BF16>(op);
    default: return nullptr;
  }
}

#undef WARREN_HAVE_F16C

}  // namespace HWY_NAMESPACE
}  // namespace warren::worker::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace warren::worker::kernels {
HWY_EXPORT(find_half);
const KernelTable* find_half_kernels(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(find_half)(type, op);
}
}  // namespace warren::worker::kernels
#endif

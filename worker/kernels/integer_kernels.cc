// Kernels of the integer types and of bool.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/integer_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "worker/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace warren::worker::kernels {
namespace HWY_NAMESPACE {

// Bytes as 16-bit lanes, for products: no instruction multiplies bytes, and the low byte of a wider product is right.
struct BytesInWords {
  using Lane = std::uint16_t;
  using Element = std::uint8_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* p, std::size_t i) {
    const hn::Rebind<std::uint8_t, D> bytes;
    return hn::PromoteTo(d, hn::LoadU(bytes, static_cast<const std::uint8_t*>(p) + i));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, void* p, std::size_t i) {
    const hn::Rebind<std::uint8_t, D> bytes;
    const hn::RebindToSigned<D> narrow;  // DemoteTo saturates: only what fits may reach it
    hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(narrow, hn::And(v, hn::Set(d, std::uint16_t{0xff})))), bytes,
               static_cast<std::uint8_t*>(p) + i);
  }
};

// Bools as bytes that are 0 or 1, whatever they were.
struct Truth {
  using Lane = std::uint8_t;
  using Element = std::uint8_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* p, std::size_t i) {
    return hn::Min(hn::LoadU(d, static_cast<const std::uint8_t*>(p) + i), hn::Set(d, std::uint8_t{1}));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, void* p, std::size_t i) {
    hn::StoreU(v, d, static_cast<std::uint8_t*>(p) + i);
  }
};

// Operations that work bit by bit are the same for all widths.
template <class Op, std::size_t kBytes>
void combine_bits(void* dst, const void* a, const void* b, std::size_t n, std::uint32_t contributors) {
  using P = Plain<std::uint8_t>;
  combine<Op, P, P, P>(dst, a, b, n * kBytes, contributors);
}

template <class Op, std::size_t kBytes>
void chain_bits(void* dst, const void* const* operands, std::size_t count, std::size_t n, std::uint32_t contributors) {
  using P = Plain<std::uint8_t>;
  chain<Op, Op, P, P, P>(dst, operands, count, n * kBytes, contributors);
}

template <class Op, std::size_t kBytes>
void quad_bits(void* dst, const void* const* operands, std::size_t count, std::size_t n, std::uint32_t contributors) {
  using P = Plain<std::uint8_t>;
  quad<Op, Op, P, P>(dst, operands, count, n * kBytes, contributors);
}

// Rounds toward zero. Below 64 bits a floating quotient, truncated, is exact: an integer quotient and the next below
// differ by more than the rounding of one that fits in the significand. That form vectorizes.
template <class T>
void divide(void* dst, const void* a, std::size_t n, std::uint32_t contributors) {
  T* out = static_cast<T*>(dst);
  const T* in = static_cast<const T*>(a);
  if constexpr (sizeof(T) == 8) {
    const T divisor = static_cast<T>(contributors);
    for (std::size_t i = 0; i < n; ++i) out[i] = in[i] / divisor;
  } else {
    using Wide = std::conditional_t<sizeof(T) <= 2, float, double>;
    using Quotient = std::conditional_t<sizeof(T) <= 2, std::int32_t, T>;
    const Wide divisor = static_cast<Wide>(contributors);
    for (std::size_t i = 0; i < n; ++i) {
      out[i] = static_cast<T>(static_cast<Quotient>(static_cast<Wide>(in[i]) / divisor));
    }
  }
}

template <class T>
void sum_then_divide(void* dst, const void* a, const void* b, std::size_t n, std::uint32_t contributors) {
  using P = Plain<std::make_unsigned_t<T>>;
  constexpr std::size_t kBlock = 8192 / sizeof(T);  // the sums are divided while they are in the first cache
  for (std::size_t i = 0; i < n; i += kBlock) {
    const std::size_t count = std::min(kBlock, n - i);
    T* out = static_cast<T*>(dst) + i;
    combine<Sum, P, P, P>(out, static_cast<const T*>(a) + i, static_cast<const T*>(b) + i, count, contributors);
    divide<T>(out, out, count, contributors);
  }
}

template <class Op, class P>
const KernelTable* table() {
  static constexpr KernelTable kTable =
      same_forms(combine<Op, P, P, P>, combine<Op, P, P, P>, nullptr, chain<Op, Op, P, P, P>, chain<Op, Op, P, P, P>,
                 quad<Op, Op, P, P>, quad<Op, Op, P, P>);
  return &kTable;
}

template <class Op, std::size_t kBytes>
const KernelTable* bits_table() {
  static constexpr KernelTable kTable =
      same_forms(combine_bits<Op, kBytes>, combine_bits<Op, kBytes>, nullptr, chain_bits<Op, kBytes>,
                 chain_bits<Op, kBytes>, quad_bits<Op, kBytes>, quad_bits<Op, kBytes>);
  return &kTable;
}

template <class T>
const KernelTable* average_table() {
  using U = Plain<std::make_unsigned_t<T>>;
  static constexpr KernelTable kTable = same_forms(combine<Sum, U, U, U>, sum_then_divide<T>, divide<T>,
                                                   chain<Sum, Sum, U, U, U>, nullptr, quad<Sum, Sum, U, U>, nullptr);
  return &kTable;
}

template <class T>
const KernelTable* find(ReduceOp op) {
  // Sums and products wrap, so the sign does not matter to them.
  using U = Plain<std::make_unsigned_t<T>>;
  using P = Plain<T>;
  using Factor = std::conditional_t<sizeof(T) == 1, BytesInWords, U>;
  switch (op) {
    case ReduceOp::kSum: return table<Sum, U>();
    case ReduceOp::kProduct: return table<Product, Factor>();
    case ReduceOp::kMin: return table<Min, P>();
    case ReduceOp::kMax: return table<Max, P>();
    case ReduceOp::kBitAnd: return bits_table<BitAnd, sizeof(T)>();
    case ReduceOp::kBitOr: return bits_table<BitOr, sizeof(T)>();
    case ReduceOp::kBitXor: return bits_table<BitXor, sizeof(T)>();
    case ReduceOp::kAverage: return average_table<T>();
    default: return nullptr;
  }
}

template <class Op>
const KernelTable* truth_table() {
  static constexpr KernelTable kTable =
      same_forms(combine<Op, Truth, Truth, Truth>, combine<Op, Truth, Truth, Truth>, convert<Same, Truth, Truth>,
                 chain<Op, Op, Truth, Truth, Truth>, chain<Op, Op, Truth, Truth, Truth>, quad<Op, Op, Truth, Truth>,
                 quad<Op, Op, Truth, Truth>);
  return &kTable;
}

const KernelTable* find_bool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr: return truth_table<BitOr>();
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd: return truth_table<BitAnd>();
    case ReduceOp::kBitXor: return truth_table<BitXor>();
    default: return nullptr;
  }
}

const KernelTable* find_integer(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kBool: return find_bool(op);
    case DataType::kI16: return find<std::int16_t>(op);
    case DataType::kU16: return find<std::uint16_t>(op);
    case DataType::kI8: return find<std::int8_t>(op);
    case DataType::kU8: return find<std::uint8_t>(op);
    case DataType::kI32: return find<std::int32_t>(op);
    case DataType::kU32: return find<std::uint32_t>(op);
    case DataType::kI64: return find<std::int64_t>(op);
    case DataType::kU64: return find<std::uint64_t>(op);
    default: return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace warren::worker::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace warren::worker::kernels {
HWY_EXPORT(find_integer);
const KernelTable* find_integer_kernels(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(find_integer)(type, op);
}
}  // namespace warren::worker::kernels
#endif

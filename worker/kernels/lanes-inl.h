// How a kernel walks over its elements, and the operations on vectors. Compiled once per target (see Highway).
//
// No clang-format or include guard of the usual kind: the guard toggles, because the file is read again for each
// target.

#if defined(WARREN_WORKER_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WARREN_WORKER_KERNELS_LANES_INL_H_
#undef WARREN_WORKER_KERNELS_LANES_INL_H_
#else
#define WARREN_WORKER_KERNELS_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "worker/kernels/kernel_table.h"

HWY_BEFORE_NAMESPACE();
namespace warren::worker::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---- memory formats: how elements in memory become lanes --------------------------------------------------------

// Elements are lanes.
template <class T>
struct Plain {
  using Lane = T;
  using Element = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* p, std::size_t i) {
    return hn::LoadU(d, static_cast<const T*>(p) + i);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, void* p, std::size_t i) {
    hn::StoreU(v, d, static_cast<T*>(p) + i);
  }
};

// ---- operations -------------------------------------------------------------------------------------------------
// Each is bitwise symmetric in its operands. For floats that takes care of NaNs: which operand's NaN an instruction
// passes on depends on the order in which the compiler happens to give them, so every NaN result is made the same one.

template <class D>
HWY_INLINE hn::Vec<D> one_nan(D d) {
  return hn::Set(d, std::numeric_limits<hn::TFromD<D>>::quiet_NaN());
}

template <class D>
HWY_INLINE hn::Vec<D> canonical(D d, hn::Vec<D> v) {
  if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
    return hn::IfThenElse(hn::IsNaN(v), one_nan(d), v);
  } else {
    return v;
  }
}

struct Sum {
  explicit Sum(std::uint32_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> a, hn::Vec<D> b) const {
    return canonical(d, hn::Add(a, b));
  }
};

struct Product {
  explicit Product(std::uint32_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> a, hn::Vec<D> b) const {
    if constexpr (sizeof(hn::TFromD<D>) == 8 && !hwy::IsFloat<hn::TFromD<D>>() && hn::MaxLanes(d) == 1) {
      return hn::Set(d, hn::GetLane(a) * hn::GetLane(b));  // Highway has no 64-bit product of half a vector
    } else {
      return canonical(d, hn::Mul(a, b));
    }
  }
};

// Of two zeros Min and Max return either, and of a NaN and a number too, depending on the processor and the order.
// Both orders together hold −0 and +0 if they differ, and their sign bits then decide.
struct Min {
  explicit Min(std::uint32_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> a, hn::Vec<D> b) const {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const auto nan = hn::Or(hn::IsNaN(a), hn::IsNaN(b));
      return hn::IfThenElse(nan, one_nan(d), hn::Or(hn::Min(a, b), hn::Min(b, a)));
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  explicit Max(std::uint32_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> a, hn::Vec<D> b) const {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const auto nan = hn::Or(hn::IsNaN(a), hn::IsNaN(b));
      return hn::IfThenElse(nan, one_nan(d), hn::And(hn::Max(a, b), hn::Max(b, a)));
    } else {
      return hn::Max(a, b);
    }
  }
};

struct BitAnd {
  explicit BitAnd(std::uint32_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> a, hn::Vec<D> b) const {
    return hn::And(a, b);
  }
};

struct BitOr {
  explicit BitOr(std::uint32_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> a, hn::Vec<D> b) const {
    return hn::Or(a, b);
  }
};

struct BitXor {
  explicit BitXor(std::uint32_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> a, hn::Vec<D> b) const {
    return hn::Xor(a, b);
  }
};

// For floats: the division that finishes an average, and the sum before it.
struct Divide {
  explicit Divide(std::uint32_t n) : contributors(n) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> v) const {
    return canonical(d, hn::Div(v, hn::Set(d, static_cast<hn::TFromD<D>>(contributors))));
  }
  std::uint32_t contributors;
};

struct SumThenDivide {
  explicit SumThenDivide(std::uint32_t n) : divide(n) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> a, hn::Vec<D> b) const {
    return divide(d, hn::Add(a, b));
  }
  Divide divide;
};

struct Same {
  explicit Same(std::uint32_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> v) const {
    return v;
  }
};

// ---- walking ----------------------------------------------------------------------------------------------------

template <class Op, class Dst, class A, class B>
struct BinaryStep {
  using Lane = typename Dst::Lane;
  using Out = Dst;
  template <class D>
  HWY_INLINE hn::Vec<D> compute(D d, std::size_t i) const {
    return op(d, A::load(d, a, i), B::load(d, b, i));
  }
  Op op;
  void* dst;
  const void* a;
  const void* b;
};

template <class Op, class Dst, class A>
struct UnaryStep {
  using Lane = typename Dst::Lane;
  using Out = Dst;
  template <class D>
  HWY_INLINE hn::Vec<D> compute(D d, std::size_t i) const {
    return op(d, A::load(d, a, i));
  }
  Op op;
  void* dst;
  const void* a;
};

// Left to right; `Last` makes the final value.
template <class Op, class Last, class Dst, class First, class Value>
struct ChainStep {
  using Lane = typename Dst::Lane;
  using Out = Dst;
  template <class D>
  HWY_INLINE hn::Vec<D> compute(D d, std::size_t i) const {
    auto v = First::load(d, operands[0], i);
    for (std::size_t k = 1; k + 1 < count; ++k) v = op(d, v, Value::load(d, operands[k], i));
    return last(d, v, Value::load(d, operands[count - 1], i));
  }
  Op op;
  Last last;
  void* dst;
  const void* const* operands;
  std::size_t count;
};

template <class Op, class Last, class Dst, class Value>
struct QuadStep {
  using Lane = typename Dst::Lane;
  using Out = Dst;
  template <class D>
  HWY_INLINE hn::Vec<D> compute(D d, std::size_t i) const {
    const auto left = op(d, Value::load(d, operands[0], i), Value::load(d, operands[1], i));
    return last(d, left, op(d, Value::load(d, operands[2], i), Value::load(d, operands[3], i)));
  }
  Op op;
  Last last;
  void* dst;
  const void* const* operands;
};

// n < 2 · Lanes(d). Two vectors that may overlap cover everything; both are computed before either is stored, because
// the destination may be an operand.
template <class D, class Step>
HWY_INLINE void walk_few(D d, const Step& step, std::size_t n) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  if (n >= kLanes) {
    const auto first = step.compute(d, 0);
    const auto last = step.compute(d, n - kLanes);
    Step::Out::store(d, first, step.dst, 0);
    Step::Out::store(d, last, step.dst, n - kLanes);
  } else if constexpr (kLanes > 1) {
    walk_few(hn::Half<D>(), step, n);
  }
}

template <class Step>
HWY_INLINE void walk_lanes(const Step& step, std::size_t n) {
  using Lane = typename Step::Lane;
  using Out = typename Step::Out;
  const hn::ScalableTag<Lane> d;
  const std::size_t lanes = hn::Lanes(d);
  if (n < 2 * lanes) return walk_few(d, step, n);

  // First and last vector are computed from operands that nothing has overwritten yet, and stored at the end. What lies
  // between starts where stores are aligned, as far as the destination's elements allow.
  const auto first = step.compute(d, 0);
  const auto last = step.compute(d, n - lanes);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(step.dst) / sizeof(typename Out::Element) % lanes;
  std::size_t i = lanes - misaligned;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto v0 = step.compute(d, i);
    const auto v1 = step.compute(d, i + lanes);
    const auto v2 = step.compute(d, i + 2 * lanes);
    const auto v3 = step.compute(d, i + 3 * lanes);
    Out::store(d, v0, step.dst, i);
    Out::store(d, v1, step.dst, i + lanes);
    Out::store(d, v2, step.dst, i + 2 * lanes);
    Out::store(d, v3, step.dst, i + 3 * lanes);
  }
  for (; i + lanes <= n; i += lanes) Out::store(d, step.compute(d, i), step.dst, i);
  Out::store(d, first, step.dst, 0);
  Out::store(d, last, step.dst, n - lanes);
}

// Formats whose elements are many lanes have a walk of their own.
template <class Step>
HWY_INLINE void walk(const Step& step, std::size_t n) {
  if constexpr (requires { Step::Out::walk(step, n); }) {
    Step::Out::walk(step, n);
  } else {
    walk_lanes(step, n);
  }
}

template <class Op, class Dst, class A, class B>
void combine(void* dst, const void* a, const void* b, std::size_t n, std::uint32_t contributors) {
  walk(BinaryStep<Op, Dst, A, B>{Op(contributors), dst, a, b}, n);
}

template <class Op, class Dst, class A>
void convert(void* dst, const void* a, std::size_t n, std::uint32_t contributors) {
  walk(UnaryStep<Op, Dst, A>{Op(contributors), dst, a}, n);
}

template <class Op, class Last, class Dst, class First, class Value>
void chain(void* dst, const void* const* operands, std::size_t count, std::size_t n, std::uint32_t contributors) {
  walk(ChainStep<Op, Last, Dst, First, Value>{Op(contributors), Last(contributors), dst, operands, count}, n);
}

template <class Op, class Last, class Dst, class Value>
void quad(void* dst, const void* const* operands, std::size_t, std::size_t n, std::uint32_t contributors) {
  walk(QuadStep<Op, Last, Dst, Value>{Op(contributors), Last(contributors), dst, operands}, n);
}

// A table for types whose forms are the same.
constexpr KernelTable same_forms(Combine partial, Combine finished, Convert finish, Many chain_of, Many chain_finished,
                                 Many quad_of, Many quad_finished) {
  KernelTable table;
  table.chain[0][0] = table.chain[0][1] = chain_of;
  table.chain[1][0] = table.chain[1][1] = chain_finished;
  table.quad[0] = quad_of;
  table.quad[1] = quad_finished;
  for (int dst = 0; dst < 2; ++dst) {
    for (int a = 0; a < 2; ++a) {
      for (int b = 0; b < 2; ++b) {
        table.combine[0][dst][a][b] = partial;
        table.combine[1][dst][a][b] = finished;
      }
      table.convert[1][dst][a] = finish;
    }
  }
  return table;
}

// ---- a table for types that are combined in another

// Operations are symmetric, so one kernel serves (partial, value) and (value, partial).
template <Combine kCombine>
void swapped(void* dst, const void* a, const void* b, std::size_t n, std::uint32_t contributors) {
  kCombine(dst, b, a, n, contributors);
}

template <class Op, class Value, class Partial>
constexpr void fill(Combine (&forms)[2][2][2]) {
  forms[0][0][0] = combine<Op, Value, Value, Value>;
  forms[0][0][1] = combine<Op, Value, Value, Partial>;
  forms[0][1][0] = swapped<combine<Op, Value, Value, Partial>>;
  forms[0][1][1] = combine<Op, Value, Partial, Partial>;
  forms[1][0][0] = combine<Op, Partial, Value, Value>;
  forms[1][0][1] = combine<Op, Partial, Value, Partial>;
  forms[1][1][0] = swapped<combine<Op, Partial, Value, Partial>>;
  forms[1][1][1] = combine<Op, Partial, Partial, Partial>;
}

template <class Op, class Value, class Partial>
constexpr void fill(Convert (&forms)[2][2]) {
  forms[0][1] = convert<Op, Value, Partial>;
  forms[1][0] = convert<Op, Partial, Value>;
  if constexpr (!std::is_same_v<Op, Same>) {
    forms[0][0] = convert<Op, Value, Value>;
    forms[1][1] = convert<Op, Partial, Partial>;
  }
}

template <class Value, class Partial, class Op, class FinishingOp, class Finish>
constexpr KernelTable make_two_forms() {
  KernelTable table;
  fill<Op, Value, Partial>(table.combine[0]);
  fill<FinishingOp, Value, Partial>(table.combine[1]);
  fill<Same, Value, Partial>(table.convert[0]);
  fill<Finish, Value, Partial>(table.convert[1]);
  table.chain[0][0] = chain<Op, Op, Partial, Value, Value>;
  table.chain[0][1] = chain<Op, Op, Partial, Partial, Value>;
  table.chain[1][0] = chain<Op, FinishingOp, Value, Value, Value>;
  table.chain[1][1] = chain<Op, FinishingOp, Value, Partial, Value>;
  table.quad[0] = quad<Op, Op, Partial, Value>;
  table.quad[1] = quad<Op, FinishingOp, Value, Value>;
  return table;
}

template <class Value, class Partial, class Op, class FinishingOp = Op, class Finish = Same>
const KernelTable* two_forms() {
  static constexpr KernelTable kTable = make_two_forms<Value, Partial, Op, FinishingOp, Finish>();
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace warren::worker::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target guard

// Kernels of f32 and f64.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/float_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "worker/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace warren::worker::kernels {
namespace HWY_NAMESPACE {

template <class T, class Op>
const KernelTable* plain_table() {
  using P = Plain<T>;
  static constexpr KernelTable kTable =
      same_forms(combine<Op, P, P, P>, combine<Op, P, P, P>, nullptr, chain<Op, Op, P, P, P>, chain<Op, Op, P, P, P>,
                 quad<Op, Op, P, P>, quad<Op, Op, P, P>);
  return &kTable;
}

template <class T>
const KernelTable* average_table() {
  using P = Plain<T>;
  static constexpr KernelTable kTable = same_forms(
      combine<Sum, P, P, P>, combine<SumThenDivide, P, P, P>, convert<Divide, P, P>, chain<Sum, Sum, P, P, P>,
      chain<Sum, SumThenDivide, P, P, P>, quad<Sum, Sum, P, P>, quad<Sum, SumThenDivide, P, P>);
  return &kTable;
}

template <class T>
const KernelTable* find(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return plain_table<T, Sum>();
    case ReduceOp::kProduct: return plain_table<T, Product>();
    case ReduceOp::kMin: return plain_table<T, Min>();
    case ReduceOp::kMax: return plain_table<T, Max>();
    case ReduceOp::kAverage: return average_table<T>();
    default: return nullptr;
  }
}

const KernelTable* find_float(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kF32: return find<float>(op);
    case DataType::kF64: return find<double>(op);
    default: return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace warren::worker::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace warren::worker::kernels {
HWY_EXPORT(find_float);
const KernelTable* find_float_kernels(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(find_float)(type, op);
}
}  // namespace warren::worker::kernels
#endif

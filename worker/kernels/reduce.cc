#include "worker/kernels/reduce.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "recovery/check.h"
#include "recovery/limits.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/kernel_table.h"

namespace warren::worker {
namespace {

const kernels::KernelTable* find_kernels(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kF32:
    case DataType::kF64: return kernels::find_float_kernels(type, op);
    case DataType::kF16:
    case DataType::kBF16: return kernels::find_half_kernels(type, op);
    default: return kernels::find_integer_kernels(type, op);
  }
}

bool is_type(DataType type) {
  return type >= DataType::kI8 && type <= DataType::kCustom;
}
bool is_op(ReduceOp op) {
  return op <= ReduceOp::kCustom;
}

Status invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

}  // namespace

Result<Reducer> Reducer::make(DataType type, ReduceOp op, std::uint32_t contributors, std::size_t custom_bytes,
                              CustomReduce custom, void* custom_context) {
  if (!is_type(type)) return invalid("unknown data type " + std::to_string(static_cast<int>(type)));
  if (!is_op(op)) return invalid("unknown operation " + std::to_string(static_cast<int>(op)));
  if (contributors < 1 || contributors > limits::kMaxWorldSize) {
    return invalid("a reduction has 1 to " + std::to_string(limits::kMaxWorldSize) + " contributors, not " +
                   std::to_string(contributors));
  }
  Reducer reducer;
  reducer.contributors_ = contributors;
  if (type == DataType::kCustom) {
    if (custom_bytes < 1 || custom_bytes > limits::kMaxCustomElementBytes) {
      return invalid("an element of a custom type has 1 to " + std::to_string(limits::kMaxCustomElementBytes) +
                     " bytes, not " + std::to_string(custom_bytes));
    }
    if (op != ReduceOp::kCustom && op != ReduceOp::kNone) {
      return invalid(std::string(to_string(op)) + " is not defined for a custom type: give a function");
    }
    if (op == ReduceOp::kCustom && custom == nullptr) return invalid("a custom reduction needs a function");
    reducer.value_bytes_ = reducer.partial_bytes_ = custom_bytes;
    if (op == ReduceOp::kCustom) {
      reducer.custom_ = custom;
      reducer.custom_context_ = custom_context;
    }
    return reducer;
  }
  if (op == ReduceOp::kCustom)
    return invalid("a custom reduction works on a custom type, not on " + std::string(to_string(type)));
  reducer.value_bytes_ = reducer.partial_bytes_ = element_bytes(type);
  if (op == ReduceOp::kNone) return reducer;
  if (type == DataType::kF16 || type == DataType::kBF16) reducer.partial_bytes_ = sizeof(float);
  reducer.kernels_ = find_kernels(type, op);
  if (reducer.kernels_ == nullptr) {
    return invalid(std::string(to_string(op)) + " is not defined for " + to_string(type));
  }
  return reducer;
}

void Reducer::reduce(void* dst, Form dst_form, const void* a, Form a_form, const void* b, Form b_form, std::size_t n,
                     bool finish) const {
  const kernels::DefaultFloatMode mode;
  if (kernels_ != nullptr) [[likely]] {
    kernels_->combine[finish][static_cast<int>(dst_form)][static_cast<int>(a_form)][static_cast<int>(b_form)](
        dst, a, b, n, contributors_);
    return;
  }
  WARREN_CHECK(custom_ != nullptr, "only what has an operation reduces");
  reduce_custom(dst, a, b, n);
}

void Reducer::reduce_custom(void* dst, const void* a, const void* b, std::size_t n) const {
  if (dst != a) {
    if (dst != b && n > 0) std::memcpy(dst, b, n * value_bytes_);
    if (n > 0) custom_(a, dst, n, custom_context_);
    return;
  }
  // The function overwrites its second operand, and the result belongs where the first one lies.
  constexpr std::size_t kBlockBytes = 16384;
  alignas(64) std::byte here[kBlockBytes];
  std::vector<std::byte> large(value_bytes_ > kBlockBytes ? value_bytes_ : 0);
  std::byte* const first = large.empty() ? here : large.data();
  const std::size_t block = std::max<std::size_t>(1, kBlockBytes / value_bytes_);
  for (std::size_t i = 0; i < n; i += block) {
    const std::size_t count = std::min(block, n - i);
    std::byte* out = static_cast<std::byte*>(dst) + i * value_bytes_;
    std::memcpy(first, out, count * value_bytes_);
    if (b != dst) std::memcpy(out, static_cast<const std::byte*>(b) + i * value_bytes_, count * value_bytes_);
    custom_(first, out, count, custom_context_);
  }
}

void Reducer::copy(void* dst, Form dst_form, const void* a, Form a_form, std::size_t n, bool finish) const {
  const kernels::Convert convert =
      kernels_ == nullptr ? nullptr : kernels_->convert[finish][static_cast<int>(dst_form)][static_cast<int>(a_form)];
  if (convert == nullptr) {
    if (dst != a && n > 0) std::memcpy(dst, a, n * bytes(dst_form));
    return;
  }
  const kernels::DefaultFloatMode mode;
  convert(dst, a, n, contributors_);
}

}  // namespace warren::worker

#include "worker/kernels/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/kernel_table.h"

namespace warren::worker {
namespace {

const kernels::KernelTable* find_kernels(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kF32:
    case DataType::kF64: return kernels::find_float_kernels(type, op);
    case DataType::kF16:
    case DataType::kF32AsF16: return kernels::find_half_kernels(DataType::kF16, op);
    case DataType::kBF16:
    case DataType::kF32AsBF16: return kernels::find_half_kernels(DataType::kBF16, op);
    case DataType::kF32AsI8: return kernels::find_block_kernels(op);
    default: return kernels::find_integer_kernels(type, op);
  }
}

bool is_type(DataType type) {
  return type >= DataType::kI8 && type <= kLastDataType;
}
bool is_half(DataType type) {
  return type == DataType::kF16 || type == DataType::kBF16 || type == DataType::kF32AsF16 ||
         type == DataType::kF32AsBF16;
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
  reducer.kernels_ = find_kernels(type, op);
  if (is_half(type)) reducer.partial_bytes_ = sizeof(float);
  if (type == DataType::kF32AsI8) reducer.partial_bytes_ = kI8BlockValues * sizeof(float);
  if (reducer.kernels_ == nullptr) {
    return invalid(std::string(to_string(op)) + " is not defined for " + to_string(type));
  }
  return reducer;
}

Status Reducer::reduce(void* dst, Form dst_form, const void* a, Form a_form, const void* b, Form b_form, std::size_t n,
                       bool finish) const {
  const kernels::DefaultFloatMode mode;
  if (kernels_ != nullptr) [[likely]] {
    kernels_->combine[finish][static_cast<int>(dst_form)][static_cast<int>(a_form)][static_cast<int>(b_form)](
        dst, a, b, n, contributors_);
    return {};
  }
  WARREN_CHECK(custom_ != nullptr, "only what has an operation reduces");
  return reduce_custom(dst, a, b, n);
}

// Elements [at, at + n) of all operands.
struct Reducer::Block {
  std::span<const void* const> operands;
  std::size_t at = 0, n = 0;
  std::size_t value_bytes = 1;
  std::size_t folded = 0;         // positions that are two operands
  std::byte* between = nullptr;   // two results of each level
  std::size_t between_bytes = 0;  // of one
  [[nodiscard]] const void* operand(std::size_t k) const {
    return static_cast<const std::byte*>(operands[k]) + at * value_bytes;
  }
};

// The balanced tree over `positions` of them, from `first` on.
Status Reducer::combine_block(const Block& block, std::size_t first, std::size_t positions, void* dst, Form form,
                              std::size_t level) const {
  struct Side {
    const void* at = nullptr;
    Form form = Form::kValue;
  };
  const bool finish = form == Form::kValue;
  // Four positions that are operands, or two that are pairs of them.
  const std::size_t operands = positions == 4 && first >= block.folded       ? first + block.folded
                               : positions == 2 && first + 2 <= block.folded ? 2 * first
                                                                             : SIZE_MAX;
  if (operands != SIZE_MAX && kernels_ != nullptr && kernels_->quad[finish] != nullptr) {
    const void* four[4];
    for (std::size_t k = 0; k < 4; ++k) four[k] = block.operand(operands + k);
    kernels_->quad[finish](dst, four, 4, block.n, contributors_);
    return {};
  }
  if (positions == 1) {
    return reduce(dst, form, block.operand(2 * first), Form::kValue, block.operand(2 * first + 1), Form::kValue,
                  block.n, finish);
  }
  const auto half = [&](std::size_t from, bool right, Side& side) -> Status {
    if (positions == 2 && from >= block.folded) {
      side = {block.operand(from + block.folded), Form::kValue};
      return {};
    }
    void* const sum = block.between + (2 * level + (right ? 1 : 0)) * block.between_bytes;
    side = {sum, Form::kPartial};
    return combine_block(block, from, positions / 2, sum, Form::kPartial, level + 1);
  };
  Side a, b;
  if (Status status = half(first, false, a); !status.ok()) return status;
  if (Status status = half(first + positions / 2, true, b); !status.ok()) return status;
  return reduce(dst, form, a.at, a.form, b.at, b.form, block.n, finish);
}

Status Reducer::combine(void* dst, Form dst_form, std::span<const void* const> operands, Form first_form,
                        Bracketing bracketing, std::size_t n) const {
  WARREN_CHECK(operands.size() >= 2, "one operand is copied");
  WARREN_CHECK(first_form == Form::kValue || bracketing == Bracketing::kChain, "a partial result begins a chain");
  const bool finish = dst_form == Form::kValue;
  if (operands.size() == 2) {
    return reduce(dst, dst_form, operands[0], first_form, operands[1], Form::kValue, n, finish);
  }
  const kernels::DefaultFloatMode mode;
  const std::size_t positions = std::bit_floor(operands.size());
  if (kernels_ != nullptr) {
    const kernels::Many chain = kernels_->chain[finish][static_cast<int>(first_form)];
    // Three are a chain either way.
    const bool is_chain = bracketing == Bracketing::kChain || operands.size() == 3;
    if (is_chain && chain != nullptr) {
      chain(dst, operands.data(), operands.size(), n, contributors_);
      return {};
    }
    if (!is_chain && operands.size() == 4 && kernels_->quad[finish] != nullptr) {
      kernels_->quad[finish](dst, operands.data(), 4, n, contributors_);
      return {};
    }
  }
  constexpr std::size_t kBlockBytes = 4096;
  constexpr std::size_t kLevels = 4;  // above the leaves of 16 positions; two results each
  alignas(64) std::byte here[2 * kLevels * kBlockBytes];
  std::vector<std::byte> large;  // elements of 4 MiB are allowed, and any number of operands
  Block block{operands, 0, 0, value_bytes_, operands.size() - positions, here, kBlockBytes};
  const std::size_t results =
      bracketing == Bracketing::kChain ? 1 : 2 * static_cast<std::size_t>(std::bit_width(positions) - 1);
  if (partial_bytes_ > kBlockBytes || results > 2 * kLevels) {
    block.between_bytes = std::max(partial_bytes_, kBlockBytes);
    large.resize(results * block.between_bytes + 64);
    void* aligned = large.data();
    std::size_t room = large.size();
    block.between = static_cast<std::byte*>(std::align(64, results * block.between_bytes, aligned, room));
  }
  const std::size_t most = std::max<std::size_t>(1, block.between_bytes / partial_bytes_);
  for (block.at = 0; block.at < n; block.at += most) {
    block.n = std::min(most, n - block.at);
    void* const out = static_cast<std::byte*>(dst) + block.at * bytes(dst_form);
    if (bracketing == Bracketing::kBalanced) {
      if (Status status = combine_block(block, 0, positions, out, dst_form, 0); !status.ok()) return status;
      continue;
    }
    const void* sum = static_cast<const std::byte*>(operands[0]) + block.at * bytes(first_form);
    Form sum_form = first_form;
    for (std::size_t k = 1; k < operands.size(); ++k) {
      const bool last = k + 1 == operands.size();
      void* const to = last ? out : block.between;
      const Form to_form = last ? dst_form : Form::kPartial;
      Status status = reduce(to, to_form, sum, sum_form, block.operand(k), Form::kValue, block.n, last && finish);
      if (!status.ok()) return status;
      sum = to;
      sum_form = to_form;
    }
  }
  return {};
}

// What the function throws goes no further than here: above are rounds of other calls, and a thread of the library.
Status Reducer::call_custom(const void* a, void* inout, std::size_t n) const {
  try {
    const std::int32_t failed = custom_(a, inout, n, custom_context_);
    if (failed == 0) return {};
    return {Code::kInternal, "the reduction has failed, and returned " + std::to_string(failed)};
  } catch (const std::exception& e) {
    return {Code::kInternal, std::string("the reduction has thrown: ") + e.what()};
  } catch (...) {
    return {Code::kInternal, "the reduction has thrown"};
  }
}

Status Reducer::reduce_custom(void* dst, const void* a, const void* b, std::size_t n) const {
  if (n == 0) return {};
  if (dst != a) {
    if (dst != b) std::memcpy(dst, b, n * value_bytes_);
    return call_custom(a, dst, n);
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
    if (Status status = call_custom(first, out, count); !status.ok()) return status;
  }
  return {};
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

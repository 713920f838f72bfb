// Elementwise reduction: types × operations, vectorized for the processor it runs on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "worker/kernels/form.h"

namespace warren::worker {

namespace kernels {
struct KernelTable;
}

// A user's reduction: for i in [0, n): inout[i] = a[i] ⊕ inout[i], with elements of the size given with it; must be
// associative and commutative up to what the program tolerates, and pure. Anything but 0, or an exception, says that it
// has failed; what it has written then is nobody's.
using CustomReduce = std::int32_t (*)(const void* a, void* inout, std::size_t n, void* context);

// How the elements of one round are combined. A small value: made once per round or kept; all members are const and may
// be called from any thread.
//
// Sums and products of integers wrap. Average: integers are summed with wrap-around, then divided rounding toward zero;
// floats are summed, then divided. Of bool, sum, max and bit_or are the logical or, product, min and bit_and the
// logical and, bit_xor is the exclusive or; any byte but 0 is true, and finals are 0 or 1. f16 and bf16 are combined in
// f32 and rounded to nearest even once, when a value is made of them. Blocks of 8-bit integers (recovery/wire/frame.h)
// are added and averaged in f32 likewise, and rounded to what the device's table says of I8
// (worker/device/device_table.h), so that a NaN or infinity makes all of its block NaN. min and max: a NaN in any input
// gives a NaN; of −0 and +0, min is −0 and max is +0. Every NaN that combining or dividing gives is the positive quiet
// one without payload; what is only converted keeps its payload. Combining is bitwise a function of (a, b), the same on
// every processor; no contraction; denormals are kept and results rounded to nearest even, whatever the calling
// thread's MXCSR says. A custom function runs in that mode too.
//
// reduce() and combine() fail where a custom function has failed, with kInternal; it is not called again, and what
// stands at `dst` then is no result. What the kernels do never fails.
class Reducer {
 public:
  // kInvalidArgument: the operation is not defined for the type (bitwise on floats, average of bool), or a custom type
  // without function, or one whose elements have not 1 to limits::kMaxCustomElementBytes bytes. kNone, for any type:
  // moves elements only. `contributors`: how many ranks' inputs are combined (for average), 1 to limits::kMaxWorldSize.
  // `custom_bytes`: element size of kCustom. The kernels for this processor are chosen here, once.
  static Result<Reducer> make(DataType type, ReduceOp op, std::uint32_t contributors, std::size_t custom_bytes = 0,
                              CustomReduce custom = nullptr, void* custom_context = nullptr);
  // Whether a function of the program's combines.
  [[nodiscard]] bool custom() const { return custom_ != nullptr; }

  Reducer() = default;  // moves bytes only: value_bytes() is 1

  // Bytes of one element in this form.
  [[nodiscard]] std::size_t bytes(Form form) const { return form == Form::kValue ? value_bytes_ : partial_bytes_; }

  // dst[i] = a[i] ⊕ b[i] for i in [0, n), finished if asked. dst may be a or b (the same pointer, and then the same
  // form width), no other overlap. Pointers are aligned to an element's natural size, not more; of blocks, to nothing.
  Status reduce(void* dst, Form dst_form, const void* a, Form a_form, const void* b, Form b_form, std::size_t n,
                bool finish) const;
  // dst[i] = all operands' [i], two or more, bracketed as asked, and finished where dst_form is kValue: the bits that
  // reduce() gives step by step. All operands are values, but that the first one of a chain may be a partial result.
  // They are read once, side by side; what lies between stays in registers or in the first cache. dst may be an operand
  // of its form.
  Status combine(void* dst, Form dst_form, std::span<const void* const> operands, Form first_form,
                 Bracketing bracketing, std::size_t n) const;
  // dst[i] = a[i], converted between forms, finished if asked. dst may be a.
  void copy(void* dst, Form dst_form, const void* a, Form a_form, std::size_t n, bool finish) const;

 private:
  struct Block;
  Status combine_block(const Block& block, std::size_t first, std::size_t positions, void* dst, Form form,
                       std::size_t level) const;
  Status reduce_custom(void* dst, const void* a, const void* b, std::size_t n) const;
  Status call_custom(const void* a, void* inout, std::size_t n) const;

  std::size_t value_bytes_ = 1;
  std::size_t partial_bytes_ = 1;
  std::uint32_t contributors_ = 1;
  const kernels::KernelTable* kernels_ = nullptr;  // nullptr: moves bytes, or combines by `custom_`
  CustomReduce custom_ = nullptr;
  void* custom_context_ = nullptr;
};

}  // namespace warren::worker

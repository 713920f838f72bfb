#include "cuda/twins.h"

#include <algorithm>
#include <cstring>

#include "cuda/elements.h"
#include "cuda/request.h"

namespace warren::cuda::twins {

void reduce(void* out, const void* const* in, std::size_t inputs, std::size_t count, warren_type type, warren_op op) {
  with_type_and_op(type, op, [&]<class Value, Op kOp>() {
    using Element = typename Value::Element;
    for (std::size_t i = 0; i < count; i++) {
      static_cast<Element*>(out)[i] = reduce_element<Value, kOp>(
          inputs, [&](std::size_t input) { return static_cast<const Element*>(in[input])[i]; });
    }
  });
}

void convert(void* out, warren_type out_type, const void* in, warren_type in_type, std::size_t count) {
  const auto narrow = [&]<class Value>(Value) {
    for (std::size_t i = 0; i < count; i++) {
      static_cast<std::uint16_t*>(out)[i] = Value::narrow(static_cast<const float*>(in)[i]);
    }
  };
  const auto widen = [&]<class Value>(Value) {
    for (std::size_t i = 0; i < count; i++) {
      static_cast<float*>(out)[i] = Value::widen(static_cast<const std::uint16_t*>(in)[i]);
    }
  };
  if (out_type == WARREN_F16) return narrow(F16());
  if (out_type == WARREN_BF16) return narrow(BF16());
  if (in_type == WARREN_F16) return widen(F16());
  widen(BF16());
}

void checksum(std::uint64_t* out, const void* in, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += WARREN_DEVICE_CHECKSUM_BLOCK) {
    const std::size_t size = std::min(WARREN_DEVICE_CHECKSUM_BLOCK, bytes - at);
    const auto* const block = static_cast<const std::byte*>(in) + at;
    std::uint64_t sum = 0;
    for (std::size_t word = 0; word * 8 < size; word++) {
      std::uint64_t value = 0;
      std::memcpy(&value, block + word * 8, std::min<std::size_t>(8, size - word * 8));
      sum += checksum_word(value, word);
    }
    *out++ = checksum_end(sum, size);
  }
}

}  // namespace warren::cuda::twins

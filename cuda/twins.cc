#include "cuda/twins.h"

#include <algorithm>
#include <cstring>

#include "cuda/elements.h"
#include "cuda/request.h"

namespace warren::cuda::twins {
namespace {

void to_blocks(warren_device_i8_block* out, const float* in, std::size_t count) {
  for (std::size_t first = 0; first < count; first += WARREN_DEVICE_I8_VALUES, out++) {
    const std::size_t values = std::min<std::size_t>(WARREN_DEVICE_I8_VALUES, count - first);
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < values; i++) largest = std::max(largest, magnitude_of(in[first + i]));
    const BlockScale scale = scale_of(largest);
    out->scale = scale.scale;
    for (std::size_t i = 0; i < WARREN_DEVICE_I8_VALUES; i++) {
      out->values[i] = i < values ? scaled_down(in[first + i], scale.factor) : std::int8_t{0};
    }
  }
}

void from_blocks(float* out, const warren_device_i8_block* in, std::size_t count) {
  for (std::size_t i = 0; i < count; i++) {
    const warren_device_i8_block& block = in[i / WARREN_DEVICE_I8_VALUES];
    out[i] = scaled_up(block.values[i % WARREN_DEVICE_I8_VALUES], block.scale);
  }
}

template <class Packed>
void copy_tiles(const warren_device_piece* pieces, std::size_t count, Packed* packed) {
  const Pieces all = pieces_of(pieces, count);
  for (std::uint64_t tile = 0; tile < tiles_of(all); tile++) {
    for (unsigned thread = 0; thread < kTileThreads; thread++) copy_tile(all, packed, tile, thread, kTileThreads);
  }
}

}  // namespace

void reduce(void* out, const void* const* in, std::size_t count, const warren_device_reduction& how) {
  with_type_and_op(how.type, how.op, [&]<class Value, Op kOp>() {
    const bool tree = is_tree(how);
    for (std::size_t i = 0; i < count; i++) {
      if (tree) {
        reduce_element<Value, kOp, true>(out, in, how, i);
      } else {
        reduce_element<Value, kOp, false>(out, in, how, i);
      }
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
  if (out_type == WARREN_I8) {
    return to_blocks(static_cast<warren_device_i8_block*>(out), static_cast<const float*>(in), count);
  }
  if (in_type == WARREN_I8) {
    return from_blocks(static_cast<float*>(out), static_cast<const warren_device_i8_block*>(in), count);
  }
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
    *out++ = sum + mix(size);
  }
}

void pack(void* packed, const warren_device_piece* pieces, std::size_t count) {
  copy_tiles(pieces, count, static_cast<unsigned char*>(packed));
}

void unpack(const void* packed, const warren_device_piece* pieces, std::size_t count) {
  copy_tiles(pieces, count, static_cast<const unsigned char*>(packed));
}

}  // namespace warren::cuda::twins

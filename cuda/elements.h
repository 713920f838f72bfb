// The arithmetic of the kernels, one element at a time, for the GPU and for the CPU: the kernels and their twins
// compile the same lines. What it must give is what worker/kernels gives: round to nearest even, denormals kept, one
// NaN, −0 below +0 in min and max. Both compilers are told not to contract (-fmad=false, -ffp-contract=off).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "worker/device/device_table.h"

#ifdef __CUDACC__
#define WARREN_BOTH __host__ __device__ inline
#else
#define WARREN_BOTH inline
#endif

#ifdef __CUDA_ARCH__
#define WARREN_UNROLL_4 _Pragma("unroll 4")
#else
#define WARREN_UNROLL_4
#endif

namespace warren::cuda {

enum class Op : std::uint8_t { kSum, kProduct, kMin, kMax, kAverage };

WARREN_BOTH std::uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

WARREN_BOTH float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

WARREN_BOTH bool is_nan(float value) {
  return (bits_of(value) & 0x7fffffffu) > 0x7f800000u;
}

WARREN_BOTH float one_nan(float value) {
  return is_nan(value) ? float_of(0x7fc00000u) : value;
}

// What a buffer holds, and how it becomes an f32 and is made of one.
struct F32 {
  using Element = float;
  static WARREN_BOTH float widen(float value) { return value; }
  static WARREN_BOTH float narrow(float value) { return value; }
};

struct BF16 {
  using Element = std::uint16_t;
  static WARREN_BOTH float widen(std::uint16_t value) { return float_of(static_cast<std::uint32_t>(value) << 16); }
  static WARREN_BOTH std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_of(value);
    // Rounding could carry a NaN over into infinity.
    if (is_nan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

struct F16 {
  using Element = std::uint16_t;
  // A NaN keeps its sign and payload and becomes quiet.
  static WARREN_BOTH float widen(std::uint16_t value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
    const std::uint32_t magnitude = value & 0x7fffu;
#ifdef __CUDA_ARCH__
    // The same for all but NaNs, of which the instruction makes one.
    if (magnitude <= 0x7c00u) {
      float wide = 0;
      asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
      return wide;
    }
#endif
    if (magnitude < 0x0400u) {  // zero and denormals: multiples of 2^-24
      return float_of(bits_of(static_cast<float>(magnitude) * 0x1p-24f) | sign);
    }
    const std::uint32_t rebias = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return float_of(((magnitude << 13) + rebias) | quiet | sign);
  }
  static WARREN_BOTH std::uint16_t narrow(float value) {
    const std::uint32_t wide = bits_of(value);
    const std::uint32_t sign = (wide >> 16) & 0x8000u, magnitude = wide & 0x7fffffffu;
#ifdef __CUDA_ARCH__
    // Likewise. The many branches below took a third of the time of a conversion.
    if (magnitude <= 0x7f800000u) {
      std::uint16_t narrowed = 0;
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrowed) : "f"(value));
      return narrowed;
    }
#endif
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x47800000u) {
      half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    } else if (magnitude >= 0x33000000u) {
      const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u, shift = 126u - (magnitude >> 23);
      const std::uint32_t rest = significand & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
      half = significand >> shift;
      if (rest > tie || (rest == tie && (half & 1u) != 0)) ++half;
    }
    return static_cast<std::uint16_t>(sign | half);
  }
};

template <Op kOp>
WARREN_BOTH float combine(float a, float b) {
  if constexpr (kOp == Op::kProduct) {
    return one_nan(a * b);
  } else if constexpr (kOp == Op::kMin || kOp == Op::kMax) {
    if (is_nan(a) || is_nan(b)) return float_of(0x7fc00000u);
    if (a == b) {  // of two zeros, either: their signs decide
      return float_of(kOp == Op::kMin ? bits_of(a) | bits_of(b) : bits_of(a) & bits_of(b));
    }
    return (kOp == Op::kMin) == (a < b) ? a : b;
  } else {
    return one_nan(a + b);
  }
}

// in[0] ⊕ in[1] ⊕ …, from left to right. `load` gives the element of an input.
template <Op kOp, class Load>
WARREN_BOTH float chain_of(std::size_t inputs, Load load) {
  float sum = load(0);
  for (std::size_t i = 1; i < inputs; ++i) sum = combine<kOp>(sum, load(i));
  return sum;
}

// The same as a balanced tree (WARREN_DEVICE_BALANCED), of at least two inputs. A sum waits for its right neighbour of
// as many positions: what waits has the bits of the number of positions that are done.
template <Op kOp, class Load>
WARREN_BOTH float tree_of(std::size_t inputs, Load load) {
  std::size_t positions = 1;
  while (positions * 2 <= inputs) positions *= 2;
  const std::size_t folded = inputs - positions;
  float waiting[7];
  static_assert(WARREN_DEVICE_MAX_INPUTS == 64, "a tree of six levels");
  std::size_t sums = 0;
  for (std::size_t p = 0; p < positions; ++p) {
    float sum = p < folded ? combine<kOp>(load(2 * p), load(2 * p + 1)) : load(p + folded);
    for (std::size_t done = p; done % 2 != 0; done /= 2) sum = combine<kOp>(waiting[--sums], sum);
    waiting[sums++] = sum;
  }
  return waiting[0];
}

template <class Value, Op kOp>
WARREN_BOTH typename Value::Element finished(float sum, std::uint32_t contributors) {
  if (kOp == Op::kAverage) sum = one_nan(sum / static_cast<float>(contributors));
  return Value::narrow(sum);
}

// One input that is its own result keeps all of its bits.
template <Op kOp>
WARREN_BOTH bool is_copy(const warren_device_reduction& how) {
  return how.inputs == 1 && kOp != Op::kAverage && how.first_is_partial == 0 && how.unfinished == 0;
}

// Element i.
template <class Value, Op kOp, bool kTree>
WARREN_BOTH void reduce_element(void* out, const void* const* in, const warren_device_reduction& how, std::size_t i) {
  using Element = typename Value::Element;
  const auto value = [&](std::size_t input) { return static_cast<const Element*>(in[input])[i]; };
  if (is_copy<kOp>(how)) {
    static_cast<Element*>(out)[i] = value(0);
    return;
  }
  const auto load = [&](std::size_t input) {
    return input == 0 && how.first_is_partial != 0 ? static_cast<const float*>(in[0])[i] : Value::widen(value(input));
  };
  float sum = 0;
  if constexpr (kTree) {
    sum = tree_of<kOp>(how.inputs, load);
  } else {
    sum = chain_of<kOp>(how.inputs, load);
  }
  if (how.unfinished != 0) {
    static_cast<float*>(out)[i] = sum;
  } else {
    static_cast<Element*>(out)[i] = finished<Value, kOp>(sum, how.contributors);
  }
}

// I8 with a scale for each block, as device_table.h has it. Magnitudes have the order of their bits, infinities and
// NaNs at the top.
WARREN_BOTH std::uint32_t magnitude_of(float value) {
  return bits_of(value) & 0x7fffffffu;
}

struct BlockScale {
  float scale;
  float factor;  // by which values are multiplied; 0: they are zeros
};

WARREN_BOTH BlockScale scale_of(std::uint32_t largest_magnitude) {
  if (largest_magnitude >= 0x7f800000u) return {float_of(0x7fc00000u), 0.0f};
  constexpr std::uint32_t kLeast = 0x03fe0000u;  // 127 * 2^-126: neither of the two is a denormal
  const float largest = float_of(largest_magnitude < kLeast ? kLeast : largest_magnitude);
  return {largest / 127.0f, 127.0f / largest};
}

WARREN_BOTH std::int8_t scaled_down(float value, float factor) {
  if (factor == 0.0f) return 0;
  // The sum has no room for fractions: it is rounded to an integer, which stands in its low bits.
  return static_cast<std::int8_t>(bits_of(value * factor + 0x1.8p23f) & 0xffu);
}

WARREN_BOTH float scaled_up(std::int8_t value, float scale) {
  return one_nan(static_cast<float>(value) * scale);
}

// The checksum of a block: the sum of its words, each mixed with its place, and of its length, so that threads may add
// up their parts in any order; a change of one word always shows. The last word is filled up with zeros.
WARREN_BOTH std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What a word of this place is mixed with; from one to the one so many places on.
WARREN_BOTH constexpr std::uint64_t checksum_places(std::uint64_t places) {
  return places * 0x9e3779b97f4a7c15u;
}
WARREN_BOTH constexpr std::uint64_t checksum_place(std::uint64_t place) {
  return checksum_places(place + 1);
}

WARREN_BOTH std::uint64_t checksum_word(std::uint64_t word, std::uint64_t place) {
  return mix(word + checksum_place(place));
}

// Pieces to be packed or unpacked: by value, as a kernel takes them.
struct Pieces {
  unsigned char* data[WARREN_DEVICE_MAX_PIECES];
  std::uint64_t end[WARREN_DEVICE_MAX_PIECES];  // in the packed memory
  std::uint32_t count;
};
static_assert(sizeof(Pieces) + 2 * sizeof(void*) <= 4096, "a launch has no more room for arguments");

inline Pieces pieces_of(const warren_device_piece* pieces, std::size_t count) {
  Pieces all{};
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < count; i++) {
    end += pieces[i].bytes;
    all.data[i] = static_cast<unsigned char*>(pieces[i].data);
    all.end[i] = end;
  }
  all.count = static_cast<std::uint32_t>(count);
  return all;
}

// The packed memory is cut into tiles, wherever pieces begin and end. So many threads copy one.
constexpr std::size_t kTileBytes = std::size_t{16} << 10;
constexpr unsigned kTileThreads = 256;

inline std::uint64_t tiles_of(const Pieces& pieces) {
  return pieces.count == 0 ? 0 : (pieces.end[pieces.count - 1] + kTileBytes - 1) / kTileBytes;
}

// The first one that ends behind `at`.
WARREN_BOTH std::uint32_t piece_at(const Pieces& pieces, std::uint64_t at) {
  std::uint32_t first = 0, left = pieces.count;
  while (left != 0) {
    const std::uint32_t half = left / 2;
    if (pieces.end[first + half] <= at) {
      first += half + 1;
      left -= half + 1;
    } else {
      left = half;
    }
  }
  return first;
}

struct alignas(16) Word16 {
  std::uint32_t part[4];
};

WARREN_BOTH std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

WARREN_BOTH void copy_word(unsigned char* to, const unsigned char* from) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<Word16*>(to) = *reinterpret_cast<const Word16*>(from);
#else
  // As on a GPU, which loads and stores nothing that is not aligned.
  if ((address_of(to) | address_of(from)) % sizeof(Word16) != 0) std::abort();
  std::memcpy(to, from, sizeof(Word16));
#endif
}

// The share of one thread, where both ends lie alike.
WARREN_BOTH void copy_words(unsigned char* to, const unsigned char* from, std::size_t bytes, unsigned thread,
                            unsigned threads) {
  constexpr std::size_t kWord = sizeof(Word16);
  const std::size_t to_first = (kWord - address_of(to) % kWord) % kWord;
  const std::size_t before = to_first < bytes ? to_first : bytes;
  const std::size_t words = (bytes - before) / kWord, whole = words * kWord;
  WARREN_UNROLL_4
  for (std::size_t i = thread; i < words; i += threads) {
    const std::size_t at = before + i * kWord;
    copy_word(to + at, from + at);
  }
  // What is before the first word and behind the last.
  for (std::size_t i = thread; i < bytes - whole; i += threads) {
    const std::size_t at = i < before ? i : i + whole;
    to[at] = from[at];
  }
}

// The last 16 bytes but `shift` of `first`, and the first `shift` of `second`.
WARREN_BOTH Word16 shifted_out_of(const Word16& first, const Word16& second, unsigned shift) {
  std::uint32_t window[8];
  for (int i = 0; i < 4; i++) {
    window[i] = first.part[i];
    window[i + 4] = second.part[i];
  }
  // Not by an index that is computed, for which the window would have to lie in memory.
  if ((shift & 8) != 0) {
    for (int i = 0; i < 6; i++) window[i] = window[i + 2];
  }
  if ((shift & 4) != 0) {
    for (int i = 0; i < 5; i++) window[i] = window[i + 1];
  }
  const unsigned bits = 8 * (shift % 4);
  Word16 out;
  for (int i = 0; i < 4; i++) {
    const std::uint64_t both = static_cast<std::uint64_t>(window[i + 1]) << 32 | window[i];
    out.part[i] = static_cast<std::uint32_t>(both >> bits);
  }
  return out;
}

// The share of one thread, where the two ends lie differently: words of `to` are made of the two words of `from` that
// their bytes lie in, as far as both are within it.
WARREN_BOTH void copy_shifted(unsigned char* to, const unsigned char* from, std::size_t bytes, unsigned thread,
                              unsigned threads) {
  constexpr std::size_t kWord = sizeof(Word16);
  std::size_t before = (kWord - address_of(to) % kWord) % kWord;
  if (before < bytes && address_of(from + before) % kWord > before) before += kWord;
  const unsigned shift = static_cast<unsigned>((address_of(from) + before) % kWord);
  const std::size_t left = before < bytes ? bytes - before + shift : 0;
  const std::size_t words = left < 2 * kWord ? 0 : left / kWord - 1, whole = words * kWord;
  const unsigned char* const first = from + before - shift;
  WARREN_UNROLL_4
  for (std::size_t i = thread; i < words; i += threads) {
    Word16 part[2];
    copy_word(reinterpret_cast<unsigned char*>(&part[0]), first + i * kWord);
    copy_word(reinterpret_cast<unsigned char*>(&part[1]), first + (i + 1) * kWord);
    const Word16 out = shifted_out_of(part[0], part[1], shift);
    copy_word(to + before + i * kWord, reinterpret_cast<const unsigned char*>(&out));
  }
  for (std::size_t i = thread; i < bytes - whole; i += threads) {
    const std::size_t at = i < before ? i : i + whole;
    to[at] = from[at];
  }
}

WARREN_BOTH void copy_bytes(unsigned char* to, const unsigned char* from, std::size_t bytes, unsigned thread,
                            unsigned threads) {
  if ((address_of(to) ^ address_of(from)) % sizeof(Word16) == 0) {
    return copy_words(to, from, bytes, thread, threads);
  }
  copy_shifted(to, from, bytes, thread, threads);
}

// The share of one thread in a tile: to packed memory, or, where that is constant, from there.
template <class Packed>
WARREN_BOTH void copy_tile(const Pieces& pieces, Packed* packed, std::uint64_t tile, unsigned thread,
                           unsigned threads) {
  const std::uint64_t all = pieces.end[pieces.count - 1];
  std::uint64_t at = tile * kTileBytes;
  const std::uint64_t end = all - at < kTileBytes ? all : at + kTileBytes;
  for (std::uint32_t p = piece_at(pieces, at); at < end; p++) {
    const std::uint64_t begin = p == 0 ? 0 : pieces.end[p - 1];
    const std::uint64_t stop = pieces.end[p] < end ? pieces.end[p] : end;
    unsigned char* const piece = pieces.data[p] + (at - begin);
    if constexpr (std::is_const_v<Packed>) {
      copy_bytes(piece, packed + at, stop - at, thread, threads);
    } else {
      copy_bytes(packed + at, piece, stop - at, thread, threads);
    }
    at = stop;
  }
}

}  // namespace warren::cuda

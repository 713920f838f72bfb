// Kernels bound by memory: 16 bytes a load where everything is aligned to that, one thread a vector, several vectors a
// thread where there are more than fill the device.
#include <algorithm>
#include <cstddef>

#include "cuda/elements.h"
#include "cuda/kernels.h"
#include "cuda/request.h"

namespace warren::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kThreadsOfAProcessor = 2048;  // at most; of 8.0, 9.0 and 10.0
constexpr std::size_t kMostBlocks = 132 * 8 * 4;
constexpr std::size_t kVectorBytes = 16;
// Thread blocks of a checksum block.
constexpr unsigned kChecksumParts = 16;

unsigned blocks_for(std::size_t threads) {
  return static_cast<unsigned>(std::clamp<std::size_t>((threads + kThreads - 1) / kThreads, 1, kMostBlocks));
}

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kVectorBytes == 0;
}

struct Inputs {
  const void* in[WARREN_DEVICE_MAX_INPUTS];
  warren_device_reduction how;
};

template <class Element>
struct alignas(kVectorBytes) Vector {
  static constexpr int kElements = kVectorBytes / sizeof(Element);
  Element at[kElements];
};
// As many elements, widened.
template <int kElements>
struct alignas(kVectorBytes) Partials {
  float at[kElements];
};

// Elements from `first` on, one a thread: what is left over by vectors, or all where something is not aligned, or of a
// tree.
template <class Value, Op kOp, bool kTree>
__global__ void reduce_elements(void* out, const __grid_constant__ Inputs inputs, std::size_t first,
                                std::size_t count) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = first + static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    reduce_element<Value, kOp, kTree>(out, inputs.in, inputs.how, i);
  }
}

// A chain. All threads take the same branches.
template <class Value, Op kOp>
__global__ void reduce_vectors(void* out, const __grid_constant__ Inputs inputs, std::size_t vectors) {
  using V = Vector<typename Value::Element>;
  using P = Partials<V::kElements>;
  const warren_device_reduction& how = inputs.how;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += step) {
    float sum[V::kElements];
    if (how.first_is_partial != 0) {
      const P first = static_cast<const P*>(inputs.in[0])[i];
#pragma unroll
      for (int e = 0; e < V::kElements; e++) sum[e] = first.at[e];
    } else {
      const V first = static_cast<const V*>(inputs.in[0])[i];
      if (is_copy<kOp>(how)) {
        static_cast<V*>(out)[i] = first;
        continue;
      }
#pragma unroll
      for (int e = 0; e < V::kElements; e++) sum[e] = Value::widen(first.at[e]);
    }
    for (std::size_t input = 1; input < how.inputs; input++) {
      const V next = static_cast<const V*>(inputs.in[input])[i];
#pragma unroll
      for (int e = 0; e < V::kElements; e++) sum[e] = combine<kOp>(sum[e], Value::widen(next.at[e]));
    }
    if (how.unfinished != 0) {
      P result;
#pragma unroll
      for (int e = 0; e < V::kElements; e++) result.at[e] = sum[e];
      static_cast<P*>(out)[i] = result;
    } else {
      V result;
#pragma unroll
      for (int e = 0; e < V::kElements; e++) result.at[e] = finished<Value, kOp>(sum[e], how.contributors);
      static_cast<V*>(out)[i] = result;
    }
  }
}

// `kAtOnce` at once where both ends are aligned, and one by one what is left over, or all: at two thirds of the rate.
template <std::size_t kAtOnce, class To, class From, class Convert>
__device__ void convert_elements(To* out, const From* in, std::size_t count, bool vectors, Convert convert) {
  struct alignas(sizeof(From) * kAtOnce < kVectorBytes ? sizeof(From) * kAtOnce : kVectorBytes) Ins {
    From at[kAtOnce];
  };
  struct alignas(sizeof(To) * kAtOnce < kVectorBytes ? sizeof(To) * kAtOnce : kVectorBytes) Outs {
    To at[kAtOnce];
  };
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::size_t whole = vectors ? count / kAtOnce : 0;
  for (std::size_t i = first; i < whole; i += step) {
    const Ins values = reinterpret_cast<const Ins*>(in)[i];
    Outs converted;
#pragma unroll
    for (std::size_t e = 0; e < kAtOnce; e++) converted.at[e] = convert(values.at[e]);
    reinterpret_cast<Outs*>(out)[i] = converted;
  }
  for (std::size_t i = whole * kAtOnce + first; i < count; i += step) out[i] = convert(in[i]);
}

// Of what is read and of what is written, respectively, 32 bytes a thread and 16: stores that leave gaps cost a third.
constexpr std::size_t kNarrowedAtOnce = 8, kWidenedAtOnce = 4;

template <class Value>
__global__ void narrow_elements(std::uint16_t* out, const float* in, std::size_t count, bool vectors) {
  convert_elements<kNarrowedAtOnce>(out, in, count, vectors, [](float value) { return Value::narrow(value); });
}

template <class Value>
__global__ void widen_elements(float* out, const std::uint16_t* in, std::size_t count, bool vectors) {
  convert_elements<kWidenedAtOnce>(out, in, count, vectors, [](std::uint16_t value) { return Value::widen(value); });
}

// One warp a block of values, of which each thread has two groups of four.
__global__ void narrow_to_blocks(warren_device_i8_block* out, const float* in, std::size_t count, bool vectors) {
  using V = Vector<float>;
  constexpr unsigned kHalf = WARREN_DEVICE_I8_VALUES / 2;
  static_assert(kHalf == 32 * V::kElements, "a warp has half of them at once");
  const std::size_t blocks = (count + WARREN_DEVICE_I8_VALUES - 1) / WARREN_DEVICE_I8_VALUES;
  const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * warps;
  for (std::size_t block = static_cast<std::size_t>(blockIdx.x) * warps + threadIdx.x / 32; block < blocks;
       block += step) {
    V group[2];
    std::uint32_t largest = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const std::size_t first = block * WARREN_DEVICE_I8_VALUES + half * kHalf + lane * V::kElements;
      if (vectors && first + V::kElements <= count) {
        group[half] = *reinterpret_cast<const V*>(in + first);
      } else {
#pragma unroll
        for (int e = 0; e < V::kElements; e++) group[half].at[e] = first + e < count ? in[first + e] : 0.0f;
      }
#pragma unroll
      for (int e = 0; e < V::kElements; e++) largest = max(largest, magnitude_of(group[half].at[e]));
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    }
    const BlockScale scale = scale_of(largest);
    if (lane == 0) out[block].scale = scale.scale;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      std::uint32_t word = 0;
#pragma unroll
      for (int e = 0; e < V::kElements; e++) {
        const auto value = static_cast<std::uint8_t>(scaled_down(group[half].at[e], scale.factor));
        word |= static_cast<std::uint32_t>(value) << 8 * e;
      }
      reinterpret_cast<std::uint32_t*>(out[block].values)[half * 32 + lane] = word;
    }
  }
}
static_assert(sizeof(warren_device_i8_block) == sizeof(float) + WARREN_DEVICE_I8_VALUES, "no gaps");
static_assert(offsetof(warren_device_i8_block, values) % sizeof(std::uint32_t) == 0, "four at once are aligned");

// One thread a group of four.
__global__ void widen_from_blocks(float* out, const warren_device_i8_block* in, std::size_t count, bool vectors) {
  using V = Vector<float>;
  constexpr std::size_t kGroups = WARREN_DEVICE_I8_VALUES / V::kElements;
  const std::size_t groups = (count + V::kElements - 1) / V::kElements;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < groups; i += step) {
    const warren_device_i8_block& block = in[i / kGroups];
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(block.values)[i % kGroups];
    const float scale = block.scale;
    V group;
#pragma unroll
    for (int e = 0; e < V::kElements; e++) {
      group.at[e] = scaled_up(static_cast<std::int8_t>((word >> 8 * e) & 0xffu), scale);
    }
    const std::size_t first = i * V::kElements;
    if (vectors && first + V::kElements <= count) {
      *reinterpret_cast<V*>(out + first) = group;
    } else {
#pragma unroll
      for (int e = 0; e < V::kElements; e++) {
        if (first + e < count) out[first + e] = group.at[e];
      }
    }
  }
}

template <class Packed>
__global__ void copy_tiles(const __grid_constant__ Pieces pieces, Packed* packed, std::uint64_t tiles) {
  for (std::uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    copy_tile(pieces, packed, tile, threadIdx.x, kTileThreads);
  }
}

template <class Packed>
cudaError_t launch_tiles(const warren_device_piece* pieces, std::size_t count, Packed* packed, cudaStream_t stream) {
  const Pieces all = pieces_of(pieces, count);
  const std::uint64_t tiles = tiles_of(all);
  if (tiles == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<std::uint64_t>(tiles, kMostBlocks));
  copy_tiles<<<blocks, kTileThreads, 0, stream>>>(all, packed, tiles);
  return cudaGetLastError();
}

__device__ std::uint64_t word_of_bytes(const unsigned char* at, std::size_t count) {
  std::uint64_t word = 0;
  for (std::size_t b = 0; b < count; b++) word |= static_cast<std::uint64_t>(at[b]) << 8 * b;
  return word;
}

// Some thread blocks a checksum block, whose sums meet in `out`, which is 0: one would leave half of the
// multiprocessors without work in 256 MiB. All threads that a multiprocessor has are needed: with 40 registers each,
// which leave three quarters of them, it has 0.80 of the rate of copies instead of 0.98 (H200).
__global__ void __launch_bounds__(kThreads, kThreadsOfAProcessor / kThreads)
    checksum_blocks(unsigned long long* out, const unsigned char* in, std::size_t bytes) {
  __shared__ std::uint64_t parts[kThreads / 32];
  const std::size_t block = blockIdx.x / kChecksumParts;
  const unsigned thread = blockIdx.x % kChecksumParts * kThreads + threadIdx.x;
  constexpr unsigned threads = kChecksumParts * kThreads;
  const std::size_t begin = block * WARREN_DEVICE_CHECKSUM_BLOCK;
  const std::size_t size = min(WARREN_DEVICE_CHECKSUM_BLOCK, bytes - begin);
  const std::size_t whole = size / 8;
  std::uint64_t sum = 0;
  if (reinterpret_cast<std::uintptr_t>(in) % kVectorBytes == 0) {
    const auto* const pairs = reinterpret_cast<const ulonglong2*>(in + begin);
    std::uint64_t place = checksum_place(2 * thread);
#pragma unroll 4
    for (std::size_t i = thread; i < whole / 2; i += threads, place += checksum_places(2 * threads)) {
      const ulonglong2 pair = pairs[i];
      sum += mix(pair.x + place) + mix(pair.y + place + checksum_places(1));
    }
    if (thread == 0 && whole % 2 != 0) sum += checksum_word(pairs[whole / 2].x, whole - 1);
  } else {
    // Words that are not aligned are made of the two that they lie in, but the first and the last, beside which there
    // may be no memory.
    const unsigned shift = 8 * static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(in) % 8);
    const auto* const words = reinterpret_cast<const std::uint64_t*>(in + begin - shift / 8);
    for (std::size_t i = thread + 1; i + 1 < whole; i += threads) {
      sum += checksum_word(shift == 0 ? words[i] : words[i] >> shift | words[i + 1] << (64 - shift), i);
    }
    if (thread < 2 && thread < whole) {
      const std::size_t i = thread == 0 ? 0 : whole - 1;
      sum += checksum_word(word_of_bytes(in + begin + 8 * i, 8), i);
    }
  }
  if (thread == 0 && size % 8 != 0) {
    sum += checksum_word(word_of_bytes(in + begin + 8 * whole, size % 8), whole);
  }
  if (thread == 0) sum += mix(size);
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned warp = 1; warp < kThreads / 32; warp++) sum += parts[warp];
  atomicAdd(out + block, sum);
}

}  // namespace

int lowest_capability() {
  return std::min({__CUDA_ARCH_LIST__});
}

cudaError_t load_kernels() {
  cudaError_t error = cudaSuccess;
  const auto load = [&error](auto* kernel) {
    cudaFuncAttributes attributes{};
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  for (const warren_type type : {WARREN_F32, WARREN_F16, WARREN_BF16}) {
    for (const warren_op op : {WARREN_SUM, WARREN_PRODUCT, WARREN_MIN, WARREN_MAX, WARREN_AVERAGE}) {
      with_type_and_op(type, op, [&]<class Value, Op kOp>() {
        load(reduce_elements<Value, kOp, true>);
        load(reduce_vectors<Value, kOp>);
        load(reduce_elements<Value, kOp, false>);
      });
    }
  }
  load(narrow_elements<F16>);
  load(narrow_elements<BF16>);
  load(widen_elements<F16>);
  load(widen_elements<BF16>);
  load(narrow_to_blocks);
  load(widen_from_blocks);
  load(copy_tiles<unsigned char>);
  load(copy_tiles<const unsigned char>);
  load(checksum_blocks);
  return error;
}

cudaError_t launch_reduce(void* out, const void* const* in, std::size_t count, const warren_device_reduction& how,
                          cudaStream_t stream) {
  Inputs all{};
  all.how = how;
  bool vectors = aligned(out);
  for (std::size_t i = 0; i < how.inputs; i++) {
    all.in[i] = in[i];
    vectors = vectors && aligned(in[i]);
  }
  if (count == 0) return cudaSuccess;
  with_type_and_op(how.type, how.op, [&]<class Value, Op kOp>() {
    if (is_tree(how)) {
      reduce_elements<Value, kOp, true><<<blocks_for(count), kThreads, 0, stream>>>(out, all, 0, count);
      return;
    }
    constexpr std::size_t kElements = Vector<typename Value::Element>::kElements;
    const std::size_t whole = vectors ? count / kElements : 0, first = whole * kElements;
    if (whole != 0) reduce_vectors<Value, kOp><<<blocks_for(whole), kThreads, 0, stream>>>(out, all, whole);
    if (first != count) {
      reduce_elements<Value, kOp, false><<<blocks_for(count - first), kThreads, 0, stream>>>(out, all, first, count);
    }
  });
  return cudaGetLastError();
}

cudaError_t launch_convert(void* out, warren_type out_type, const void* in, warren_type in_type, std::size_t count,
                           cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const bool vectors = aligned(out) && aligned(in);
  const std::size_t at_once = !vectors ? 1 : in_type == WARREN_F32 ? kNarrowedAtOnce : kWidenedAtOnce;
  const unsigned blocks = blocks_for((count + at_once - 1) / at_once);
  auto* const half = static_cast<std::uint16_t*>(out);
  auto* const full = static_cast<float*>(out);
  const auto* const from_half = static_cast<const std::uint16_t*>(in);
  const auto* const from_full = static_cast<const float*>(in);
  if (out_type == WARREN_I8) {
    const std::size_t values = (count + WARREN_DEVICE_I8_VALUES - 1) / WARREN_DEVICE_I8_VALUES;
    narrow_to_blocks<<<blocks_for(values * 32), kThreads, 0, stream>>>(static_cast<warren_device_i8_block*>(out),
                                                                       from_full, count, aligned(in));
  } else if (in_type == WARREN_I8) {
    widen_from_blocks<<<blocks_for((count + 3) / 4), kThreads, 0, stream>>>(
        full, static_cast<const warren_device_i8_block*>(in), count, aligned(out));
  } else if (out_type == WARREN_F16) {
    narrow_elements<F16><<<blocks, kThreads, 0, stream>>>(half, from_full, count, vectors);
  } else if (out_type == WARREN_BF16) {
    narrow_elements<BF16><<<blocks, kThreads, 0, stream>>>(half, from_full, count, vectors);
  } else if (in_type == WARREN_F16) {
    widen_elements<F16><<<blocks, kThreads, 0, stream>>>(full, from_half, count, vectors);
  } else {
    widen_elements<BF16><<<blocks, kThreads, 0, stream>>>(full, from_half, count, vectors);
  }
  return cudaGetLastError();
}

cudaError_t launch_checksum(std::uint64_t* out, const void* in, std::size_t bytes, cudaStream_t stream) {
  const std::size_t blocks = (bytes + WARREN_DEVICE_CHECKSUM_BLOCK - 1) / WARREN_DEVICE_CHECKSUM_BLOCK;
  if (blocks == 0) return cudaSuccess;
  static_assert(sizeof(unsigned long long) == sizeof *out);
  if (const cudaError_t error = cudaMemsetAsync(out, 0, blocks * sizeof *out, stream); error != cudaSuccess)
    return error;
  checksum_blocks<<<static_cast<unsigned>(blocks) * kChecksumParts, kThreads, 0, stream>>>(
      reinterpret_cast<unsigned long long*>(out), static_cast<const unsigned char*>(in), bytes);
  return cudaGetLastError();
}

cudaError_t launch_pack(void* packed, const warren_device_piece* pieces, std::size_t count, cudaStream_t stream) {
  return launch_tiles(pieces, count, static_cast<unsigned char*>(packed), stream);
}

cudaError_t launch_unpack(const void* packed, const warren_device_piece* pieces, std::size_t count,
                          cudaStream_t stream) {
  return launch_tiles(pieces, count, static_cast<const unsigned char*>(packed), stream);
}

}  // namespace warren::cuda

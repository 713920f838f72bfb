// The call that most tests make: an allreduce that sums.
#pragma once

#include <cstdint>
#include <type_traits>

#include "worker/rounds/call.h"

namespace warren::worker {

// Makes the call a sum of floats, or of integers of 64 bits.
template <class T>
void make_sum(CallSpec& spec, const T* in, T* out, std::uint64_t count) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::uint64_t>);
  spec.collective = Collective::kAllreduce;
  spec.type = std::is_same_v<T, float> ? DataType::kF32 : DataType::kU64;
  spec.op = ReduceOp::kSum;
  spec.input = in;
  spec.output = out;
  spec.count = count;
}
// Sums values in place.
template <class T>
void make_sum(CallSpec& spec, T* values, std::uint64_t count) {
  make_sum(spec, values, values, count);
}

}  // namespace warren::worker

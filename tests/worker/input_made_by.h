// A prepare function that never fails, out of one that returns nothing and captures nothing.
#pragma once

#include <cstdint>

namespace warren::worker {

template <auto kFunction>
std::int32_t input_made_by(void* context) {
  kFunction(context);
  return 0;
}

}  // namespace warren::worker

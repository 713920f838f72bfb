// What a program says when it is asked whether a thread of its own is to go on waiting (warren_options.interrupt).
#pragma once

#include <cstdint>

namespace warren::worker {

struct Interrupt {
  std::int32_t (*asks)(void* context) = nullptr;  // anything but 0: no. null: nobody is asked
  void* context = nullptr;
};

}  // namespace warren::worker

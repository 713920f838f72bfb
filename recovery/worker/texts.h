// Times in the texts of a worker's machine.
#pragma once

#include <cstdint>
#include <string>

namespace warren {

// "12 s", "1500 ms": whole seconds from 10 s on.
[[nodiscard]] inline std::string waited_text(std::int64_t ms) {
  if (ms >= 10'000 || ms % 1000 == 0) return std::to_string(ms / 1000) + " s";
  return std::to_string(ms) + " ms";
}

}  // namespace warren

// Words of what users read, where several sources need them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "recovery/base/ids.h"

namespace warren {

// Ranks that a line names; of more it says how many.
inline constexpr std::size_t kNamesInText = 8;

// "1 round", "2 rounds".
[[nodiscard]] inline std::string rounds_text(std::uint64_t n) {
  return std::to_string(n) + (n == 1 ? " round" : " rounds");
}

// "version 3", as the program counts; "the preamble".
[[nodiscard]] inline std::string of_program(Version version) {
  return version == kPreamble ? "the preamble" : "version " + std::to_string(version.value - 1);
}

// Without leading zeros: 0 is "0".
[[nodiscard]] inline std::string hex(std::uint64_t v) {
  std::string text;
  do {
    text.insert(text.begin(), "0123456789abcdef"[v & 15]);
    v >>= 4;
  } while (v != 0);
  return text;
}

}  // namespace warren

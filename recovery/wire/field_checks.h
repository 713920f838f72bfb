// Checks of single fields, which messages have in common (codec.h declares the checks of messages). Each says why the
// field is wrong.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "recovery/base/result.h"

namespace warren::checks {

[[nodiscard]] Status bad(std::string why);
[[nodiscard]] std::string str(std::integral auto v) {
  return std::to_string(v);
}

[[nodiscard]] Status in_range(std::string_view what, std::uint64_t value, std::uint64_t low, std::uint64_t high);
// The generation that a member speaks of.
[[nodiscard]] Status member_generation(std::uint64_t generation);
[[nodiscard]] Status rank_in_any_world(std::string_view what, std::uint64_t rank);
[[nodiscard]] Status known_code(std::uint32_t code);
[[nodiscard]] Status text_is_printable(std::string_view what, std::string_view text, std::size_t limit_bytes);

}  // namespace warren::checks

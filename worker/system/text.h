// Strict reading of what people type: whole numbers, sizes, switches, and the nearest match to a misspelled word.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "recovery/base/result.h"

namespace warren::worker {

// Digits and nothing else, from least to most. kInvalidArgument: "`what` is '4x': not a whole number from 1 to 16".
[[nodiscard]] Result<std::uint64_t> parse_number(std::string_view what, std::string_view text, std::uint64_t least,
                                                 std::uint64_t most);
// A number of bytes: digits, then nothing, K, M or G (1024, 1024², 1024³; in either case).
[[nodiscard]] Result<std::uint64_t> parse_bytes(std::string_view what, std::string_view text, std::uint64_t least,
                                                std::uint64_t most);
// 1, true, yes, on; 0, false, no, off.
[[nodiscard]] Result<bool> parse_switch(std::string_view what, std::string_view text);

// Without white space at the ends.
[[nodiscard]] std::string_view trim(std::string_view text);

// The candidate that takes the fewest edits to reach from `word`, if that is near enough for a typing error.
[[nodiscard]] std::optional<std::string_view> nearest(std::string_view word,
                                                      std::span<const std::string_view> candidates);
// "; did you mean X?", or nothing.
[[nodiscard]] std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates);

// What is shown of a text that somebody else wrote: in_quotes, control characters as ?, cut after 80 bytes.
[[nodiscard]] std::string in_quotes(std::string_view text);

// Of the system's clock: "2026-11-25T15:54:30.123Z", as the tracker's log has it.
[[nodiscard]] std::string utc_now();

}  // namespace warren::worker

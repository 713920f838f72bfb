// Lists of numbers and of texts in few bytes: an entry that repeats an earlier one, or counts up, costs next to
// nothing. Pure functions. Readers check every length before they make room for what it promises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

[[nodiscard]] wire::NumberColumn column_of(std::span<const std::uint64_t> numbers);
// kCorrupt: the column does not say exactly `count` numbers.
[[nodiscard]] Result<std::vector<std::uint64_t>> numbers_of(const wire::NumberColumn& column, std::size_t count);

// Texts without bytes below 0x20 (checked).
[[nodiscard]] wire::TextColumn column_of(std::span<const std::string_view> texts);

struct Texts {
  std::vector<std::string> distinct;
  std::vector<std::uint64_t> rows;  // by text, in `distinct`
  [[nodiscard]] const std::string& at(std::size_t i) const { return distinct[rows[i]]; }
};
// kCorrupt: the column does not say exactly `count` texts, or one of them is longer than `limit_bytes`.
[[nodiscard]] Result<Texts> texts_of(const wire::TextColumn& column, std::size_t count, std::size_t limit_bytes);

}  // namespace warren

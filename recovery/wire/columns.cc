#include "recovery/wire/columns.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/wire/field_checks.h"

namespace warren {

using checks::bad;
using checks::str;

namespace {

constexpr std::size_t kMaxWidthBytes = 8;
// Of one text; digits after the last of them stand in its pattern.
constexpr std::size_t kMaxNumbersPerText = 8;
// Any 18 digits fit in 64 bits.
constexpr std::size_t kMaxDigits = 18;
constexpr std::size_t kFieldsPerCopy = 3;
// A copy takes 3 to 9 bytes, so shorter ones save nothing.
constexpr std::size_t kMinCopiedBytes = 8;
constexpr std::size_t kMinCopied = 4;
constexpr int kHashBits = 13;
// Than a text has, before texts are written as they are.
constexpr std::size_t kMostMoreBytesPerText = 8;

std::uint64_t zigzag(std::uint64_t difference) {
  return (difference << 1) ^ (std::uint64_t{0} - (difference >> 63));
}
std::uint64_t unzigzag(std::uint64_t coded) {
  return (coded >> 1) ^ (std::uint64_t{0} - (coded & 1));
}

void append_value(std::string& to, std::uint64_t value, std::size_t width_bytes) {
  for (std::size_t i = 0; i < width_bytes; ++i) to += static_cast<char>(value >> (8 * i) & 0xff);
}
std::uint64_t read_value(const char* from, std::size_t width_bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width_bytes; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(from[i])) << (8 * i);
  }
  return value;
}

// Finds where kMinCopied numbers have stood last. Hashes that collide cost a copy, and nothing else: the caller
// compares.
class LastSeen {
 public:
  explicit LastSeen(std::span<const std::uint64_t> numbers) : numbers_(numbers) { slots_.fill(kNever); }
  // Where the numbers at `at` may have stood before.
  [[nodiscard]] std::size_t find(std::size_t at) const { return slots_[slot(at)]; }
  void note(std::size_t at) {
    if (at + kMinCopied <= numbers_.size()) slots_[slot(at)] = at;
  }
  static constexpr std::size_t kNever = SIZE_MAX;

 private:
  [[nodiscard]] std::size_t slot(std::size_t at) const {
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < kMinCopied; ++i) hash = (hash ^ numbers_[at + i]) * 0x9e3779b97f4a7c15;
    return hash >> (64 - kHashBits);
  }
  std::span<const std::uint64_t> numbers_;
  std::array<std::size_t, std::size_t{1} << kHashBits> slots_{};
};

wire::NumberColumn coded(std::span<const std::uint64_t> numbers) {
  wire::NumberColumn column;
  const std::uint64_t most = numbers.empty() ? 0 : *std::ranges::max_element(numbers);
  if (most == 0) return column;
  const std::size_t width = (static_cast<std::size_t>(std::bit_width(most)) + 7) / 8;
  column.set_width_bytes(static_cast<std::uint32_t>(width));
  LastSeen seen(numbers);
  std::size_t at = 0;
  std::uint32_t values = 0;  // since the copy before
  while (at < numbers.size()) {
    std::size_t length = 0;
    std::size_t from = LastSeen::kNever;
    if (at + kMinCopied <= numbers.size()) from = seen.find(at);
    if (from != LastSeen::kNever) {
      while (at + length < numbers.size() && numbers[from + length] == numbers[at + length]) ++length;
    }
    if (length * width >= kMinCopiedBytes) {
      column.add_copies(values);
      column.add_copies(static_cast<std::uint32_t>(length));
      column.add_copies(static_cast<std::uint32_t>(at - from));
      values = 0;
    } else {
      length = 1;
      append_value(*column.mutable_values(), numbers[at], width);
      ++values;
    }
    for (const std::size_t end = at + length; at < end; ++at) seen.note(at);
  }
  return column;
}

// A text as its pattern, and the numbers that the pattern leaves out.
struct Split {
  std::string pattern;
  std::vector<std::uint64_t> numbers;
};
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_number(char c) {
  return c >= 1 && c <= static_cast<char>(kMaxDigits);
}
Split split(std::string_view text) {
  Split s;
  for (std::size_t at = 0; at < text.size();) {
    WARREN_CHECK(static_cast<unsigned char>(text[at]) >= 0x20, "texts on the wire are printable");
    if (!is_digit(text[at]) || s.numbers.size() == kMaxNumbersPerText) {
      s.pattern += text[at++];
      continue;
    }
    const std::size_t begin = at;
    std::uint64_t number = 0;
    while (at < text.size() && is_digit(text[at]) && at - begin < kMaxDigits) {
      number = number * 10 + static_cast<std::uint64_t>(text[at++] - '0');
    }
    // The digits of a number without zeros before it follow from the number.
    s.pattern += static_cast<char>(text[begin] == '0' ? at - begin : 1);
    s.numbers.push_back(number);
  }
  return s;
}

std::size_t numbers_in(const std::string& pattern) {
  return static_cast<std::size_t>(std::ranges::count_if(pattern, is_number));
}

void append_number(std::string& to, std::uint64_t number, std::size_t least_digits) {
  const std::string digits = std::to_string(number);
  if (digits.size() < least_digits) to.append(least_digits - digits.size(), '0');
  to += digits;
}

Status validate_shape(const wire::TextColumn& c, std::size_t count, std::size_t limit_bytes) {
  if (c.distinct() > count) return bad(str(c.distinct()) + " different ones of " + str(count));
  if (static_cast<std::uint32_t>(c.patterns_size()) > c.distinct()) return bad("more patterns than texts");
  if (static_cast<std::size_t>(c.numbers_size()) > kMaxNumbersPerText) return bad("too many numbers in a text");
  for (const std::string& pattern : c.patterns()) {
    if (pattern.size() > limit_bytes) return bad("a pattern of " + str(pattern.size()) + " bytes");
    if (numbers_in(pattern) > static_cast<std::size_t>(c.numbers_size())) return bad("a pattern has too many numbers");
  }
  return {};
}

// Of the different texts, by column and text: the numbers that their patterns leave out.
Result<std::vector<std::vector<std::uint64_t>>> numbers_of_texts(const wire::TextColumn& column,
                                                                 const std::vector<std::uint64_t>& pattern_rows) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(column.numbers_size()), 0);
  std::vector<std::size_t> by_pattern;
  by_pattern.reserve(static_cast<std::size_t>(column.patterns_size()));
  for (const std::string& pattern : column.patterns()) by_pattern.push_back(numbers_in(pattern));
  for (const std::uint64_t row : pattern_rows) {
    for (std::size_t k = 0; k < by_pattern[row]; ++k) ++counts[k];
  }
  std::vector<std::vector<std::uint64_t>> all;
  for (std::size_t k = 0; k < counts.size(); ++k) {
    auto numbers = numbers_of(column.numbers(static_cast<int>(k)), counts[k]);
    if (!numbers.ok()) return numbers.status();
    all.push_back(std::move(numbers).value());
  }
  return all;
}

// Numbers that name rows of a table.
Result<std::vector<std::uint64_t>> rows_of(const wire::NumberColumn& column, std::size_t count, std::size_t rows) {
  auto numbers = numbers_of(column, count);
  if (!numbers.ok()) return numbers.status();
  for (const std::uint64_t row : numbers.value()) {
    if (row >= rows) return bad("row " + str(row) + " of " + str(rows));
  }
  return numbers;
}

}  // namespace

wire::NumberColumn column_of(std::span<const std::uint64_t> numbers) {
  std::vector<std::uint64_t> differences;
  differences.reserve(numbers.size());
  std::uint64_t last = 0;
  for (const std::uint64_t number : numbers) differences.push_back(zigzag(number - std::exchange(last, number)));
  wire::NumberColumn as_they_are = coded(numbers);
  wire::NumberColumn by_differences = coded(differences);
  if (as_they_are.ByteSizeLong() <= by_differences.ByteSizeLong()) return as_they_are;
  by_differences.set_differences(true);
  return by_differences;
}

Result<std::vector<std::uint64_t>> numbers_of(const wire::NumberColumn& column, std::size_t count) {
  const std::size_t width = column.width_bytes();
  if (width == 0) {
    if (!column.values().empty() || !column.copies().empty() || column.differences()) return bad("numbers of no width");
    return std::vector<std::uint64_t>(count, 0);
  }
  if (width > kMaxWidthBytes) return bad("numbers of " + str(width) + " bytes");
  if (column.values().size() % width != 0) return bad("half a number");
  const auto copies = static_cast<std::size_t>(column.copies_size());
  if (copies % kFieldsPerCopy != 0) return bad("half a copy");
  std::size_t values = column.values().size() / width;
  std::uint64_t total = values;
  for (std::size_t i = 1; i < copies; i += kFieldsPerCopy) total += column.copies(static_cast<int>(i));
  if (total != count) return bad(str(total) + " numbers, not " + str(count));

  std::vector<std::uint64_t> numbers;
  numbers.reserve(count);
  const char* next = column.values().data();
  const auto take = [&](std::size_t n) {
    values -= n;
    for (; n != 0; --n, next += width) numbers.push_back(read_value(next, width));
  };
  for (std::size_t i = 0; i < copies; i += kFieldsPerCopy) {
    const std::size_t before = column.copies(static_cast<int>(i));
    if (before > values) return bad("a copy after " + str(before) + " values of " + str(values));
    take(before);
    const std::size_t distance = column.copies(static_cast<int>(i) + 2);
    if (distance == 0 || distance > numbers.size()) return bad("a copy of numbers that are not there");
    for (std::size_t n = column.copies(static_cast<int>(i) + 1); n != 0; --n) {
      numbers.push_back(numbers[numbers.size() - distance]);
    }
  }
  take(values);
  if (column.differences()) {
    std::uint64_t last = 0;
    for (std::uint64_t& number : numbers) number = last += unzigzag(number);
  }
  return numbers;
}

namespace {

// A column of different texts, whose numbers stand apart; without `rows`.
wire::TextColumn with_numbers_apart(std::span<const std::string_view> distinct) {
  wire::TextColumn column;
  std::map<std::string, std::uint64_t> known_patterns;
  std::vector<std::uint64_t> pattern_rows;
  std::array<std::vector<std::uint64_t>, kMaxNumbersPerText> numbers;
  for (const std::string_view text : distinct) {
    Split s = split(text);
    for (std::size_t k = 0; k < s.numbers.size(); ++k) numbers[k].push_back(s.numbers[k]);
    const auto [pattern, is_new_pattern] = known_patterns.emplace(std::move(s.pattern), known_patterns.size());
    pattern_rows.push_back(pattern->second);
    if (is_new_pattern) column.add_patterns(pattern->first);
  }
  *column.mutable_pattern_rows() = column_of(pattern_rows);
  for (const auto& of_texts : numbers) {
    if (!of_texts.empty()) *column.add_numbers() = column_of(of_texts);
  }
  return column;
}

// A column of different texts, each its own pattern; without `rows`.
wire::TextColumn as_they_are(std::span<const std::string_view> distinct) {
  wire::TextColumn column;
  std::vector<std::uint64_t> pattern_rows;
  for (const std::string_view text : distinct) {
    pattern_rows.push_back(pattern_rows.size());
    column.add_patterns(std::string(text));
  }
  *column.mutable_pattern_rows() = column_of(pattern_rows);
  return column;
}

}  // namespace

wire::TextColumn column_of(std::span<const std::string_view> texts) {
  std::map<std::string_view, std::uint64_t> known;
  std::vector<std::string_view> distinct;
  std::vector<std::uint64_t> rows;
  std::size_t distinct_bytes = 0;
  rows.reserve(texts.size());
  for (const std::string_view text : texts) {
    const auto [row, is_new] = known.emplace(text, known.size());
    rows.push_back(row->second);
    if (!is_new) continue;
    distinct.push_back(text);
    distinct_bytes += text.size();
  }
  wire::TextColumn column = with_numbers_apart(distinct);
  // Numbers of one column have one width, so one long number makes all of them long. A list takes about as much more
  // than its texts, and so the largest plan stays within kMaxControlMessageBytes.
  if (column.ByteSizeLong() > distinct_bytes + kMostMoreBytesPerText * distinct.size()) {
    wire::TextColumn plain = as_they_are(distinct);
    if (plain.ByteSizeLong() < column.ByteSizeLong()) column = std::move(plain);
  }
  column.set_distinct(static_cast<std::uint32_t>(distinct.size()));
  *column.mutable_rows() = column_of(rows);
  return column;
}

Result<Texts> texts_of(const wire::TextColumn& column, std::size_t count, std::size_t limit_bytes) {
  if (Status s = validate_shape(column, count, limit_bytes); !s.ok()) return s;
  auto rows = rows_of(column.rows(), count, column.distinct());
  if (!rows.ok()) return rows.status();
  const auto patterns = static_cast<std::size_t>(column.patterns_size());
  const auto pattern_rows = rows_of(column.pattern_rows(), column.distinct(), patterns);
  if (!pattern_rows.ok()) return pattern_rows.status();
  const auto numbers = numbers_of_texts(column, pattern_rows.value());
  if (!numbers.ok()) return numbers.status();

  std::array<std::size_t, kMaxNumbersPerText> next{};
  Texts texts;
  texts.distinct.reserve(column.distinct());
  for (const std::uint64_t row : pattern_rows.value()) {
    std::string text;
    std::size_t k = 0;
    for (const char c : column.patterns(static_cast<int>(row))) {
      if (is_number(c)) {
        append_number(text, numbers.value()[k][next[k]], static_cast<std::size_t>(c));
        ++next[k++];
      } else {
        text += c;
      }
    }
    if (text.size() > limit_bytes) return bad("a text of " + str(text.size()) + " bytes");
    texts.distinct.push_back(std::move(text));
  }
  texts.rows = std::move(rows).value();
  return texts;
}

}  // namespace warren

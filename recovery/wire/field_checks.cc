#include "recovery/wire/field_checks.h"

#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"

namespace warren {
namespace {

// Length of the valid UTF-8 sequence at text[at], 0 if there is none.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(at);
  const std::size_t n = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (n == 0 || at + n > text.size()) return 0;
  std::uint32_t code = n == 1 ? lead : lead & ((1U << (7 - n)) - 1);
  for (std::size_t i = 1; i < n; ++i) {
    if (byte(at + i) >> 6 != 2) return 0;
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  static constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[n] || code > 0x10ffff || surrogate ? 0 : n;
}

// Length of the printable sequence at text[at], 0 if there is none.
std::size_t printable_length(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x20 || lead == 0x7f) return 0;
  const std::size_t n = utf8_length(text, at);
  // U+0080 to U+009F are control characters too: a terminal takes U+009B for the beginning of a command.
  return n == 2 && lead == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0 ? 0 : n;
}

}  // namespace

namespace checks {

Status bad(std::string why) {
  return {Code::kCorrupt, std::move(why)};
}

Status in_range(std::string_view what, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value >= low && value <= high) return {};
  return bad(std::string(what) + " " + std::to_string(value) + " is outside " + std::to_string(low) + " to " +
             std::to_string(high));
}

Status member_generation(std::uint64_t generation) {
  return in_range("generation", generation, 1, kMaxGeneration);
}

Status rank_in_any_world(std::string_view what, std::uint64_t rank) {
  return in_range(what, rank, 0, limits::kMaxWorldSize - 1);
}

Status text_is_printable(std::string_view what, std::string_view text, std::size_t limit_bytes) {
  if (text.size() > limit_bytes) {
    return bad(std::string(what) + " of " + std::to_string(text.size()) + " bytes is over the limit of " +
               std::to_string(limit_bytes));
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = printable_length(text, at);
    if (n == 0) return bad(std::string(what) + " has an unprintable byte at " + std::to_string(at));
    at += n;
  }
  return {};
}

Status known_code(std::uint32_t code) {
  if (code >= 1 && code <= static_cast<std::uint32_t>(Code::kFinished)) return {};
  return bad("unknown failure code " + std::to_string(code));
}

}  // namespace checks

std::string wire_text(std::string_view text) {
  std::string out;
  out.reserve(std::min(text.size(), limits::kMaxReasonBytes));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = printable_length(text, at);
    if (out.size() + std::max<std::size_t>(n, 1) > limits::kMaxReasonBytes) break;
    if (n == 0) {
      out += text[at] == '\n' || text[at] == '\t' ? ' ' : '?';
      ++at;
    } else {
      out += text.substr(at, n);
      at += n;
    }
  }
  return out;
}

Status validate_name(std::string_view what, std::string_view name, std::size_t limit_bytes) {
  const auto invalid = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, std::string(what) + " " + why);
  };
  if (name.empty()) return invalid("is empty");
  if (name.size() > limit_bytes) return invalid("is longer than " + std::to_string(limit_bytes) + " bytes");
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("._:/@-").find(c) != std::string_view::npos;
  };
  if (!std::all_of(name.begin(), name.end(), allowed)) {
    return invalid("'" + wire_text(name) + "' has a character other than A-Z a-z 0-9 . _ : / @ -");
  }
  if (name[0] == '-' || name[0] == '.') return invalid("'" + std::string(name) + "' starts with '-' or '.'");
  return {};
}

}  // namespace warren

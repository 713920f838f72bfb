#include "worker/system/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <vector>

namespace warren::worker {
namespace {

std::optional<std::uint64_t> digits(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMostShown = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kMostShown)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > kMostShown ? "…'" : "'");
}

Result<std::uint64_t> parse_number(std::string_view what, std::string_view text, std::uint64_t least,
                                   std::uint64_t most) {
  const auto value = digits(text);
  if (value && *value >= least && *value <= most) return *value;
  return Status(Code::kInvalidArgument, std::string(what) + " is " + in_quotes(text) + ": not a whole number from " +
                                            std::to_string(least) + " to " + std::to_string(most));
}

Result<std::uint64_t> parse_bytes(std::string_view what, std::string_view text, std::uint64_t least,
                                  std::uint64_t most) {
  std::string_view number = text;
  unsigned shift = 0;
  if (!number.empty()) {
    switch (number.back()) {
      case 'k':
      case 'K': shift = 10; break;
      case 'm':
      case 'M': shift = 20; break;
      case 'g':
      case 'G': shift = 30; break;
      default: break;
    }
  }
  if (shift != 0) number.remove_suffix(1);
  const auto value = digits(number);
  if (value && *value <= (UINT64_MAX >> shift) && (*value << shift) >= least && (*value << shift) <= most) {
    return *value << shift;
  }
  return Status(Code::kInvalidArgument, std::string(what) + " is " + in_quotes(text) +
                                            ": not a number of bytes (digits, then K, M or G if you like) from " +
                                            std::to_string(least) + " to " + std::to_string(most));
}

Result<bool> parse_switch(std::string_view what, std::string_view text) {
  constexpr std::array<std::string_view, 4> kOn = {"1", "true", "yes", "on"};
  constexpr std::array<std::string_view, 4> kOff = {"0", "false", "no", "off"};
  if (std::ranges::find(kOn, text) != kOn.end()) return true;
  if (std::ranges::find(kOff, text) != kOff.end()) return false;
  return Status(Code::kInvalidArgument,
                std::string(what) + " is " + in_quotes(text) + ": give 1 (true, yes, on) or 0 (false, no, off)");
}

std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> candidates) {
  constexpr std::size_t kLongestCompared = 64;
  if (word.size() > kLongestCompared) return std::nullopt;
  std::optional<std::string_view> best;
  std::size_t fewest = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t n = edits(word, candidate);
    if (n < fewest) {
      fewest = n;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  const auto match = nearest(word, candidates);
  return match ? "; did you mean " + std::string(*match) + "?" : std::string();
}

std::string utc_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  std::array<char, 80> text{};
  const std::size_t n = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text.data() + n, text.size() - n, ".%03dZ", static_cast<int>(now.tv_nsec / 1'000'000));
  return text.data();
}

}  // namespace warren::worker

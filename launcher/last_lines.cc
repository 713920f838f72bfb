#include "launcher/last_lines.h"

#include <algorithm>
#include <cctype>

namespace warren::worker {
namespace {

// The place of a traceback's line `  File "train.py", line 31, in main`; nothing: the line is another one.
std::optional<std::string> place_of_frame(std::string_view line) {
  constexpr std::string_view kFile = "  File \"", kLine = "\", line ";
  if (!line.starts_with(kFile)) return std::nullopt;
  line.remove_prefix(kFile.size());
  const std::size_t end = line.rfind(kLine);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view number = line.substr(end + kLine.size());
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const std::size_t digits = static_cast<std::size_t>(std::ranges::find_if_not(number, is_digit) - number.begin());
  if (digits == 0) return std::nullopt;
  // Other tracebacks than those of exceptions (the module faulthandler's) have no comma there.
  if (digits < number.size() && number[digits] != ',') return std::nullopt;
  return std::string(line.substr(0, end)) + ":" + std::string(number.substr(0, digits));
}

bool is_installed(std::string_view place) {
  return place.find("/site-packages/") != std::string_view::npos ||
         place.find("/lib/python3") != std::string_view::npos;
}

}  // namespace

void LastLines::add(std::string_view lines) {
  while (!lines.empty()) {
    lines.remove_prefix(std::min(prefix_.size(), lines.size()));
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    lines_.emplace_back(lines.substr(0, std::min(end, kMostLineBytes)));
    if (end > kMostLineBytes) lines_.back() += "…";
    if (lines_.size() > kMostLines) lines_.pop_front();
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
}

std::string LastLines::text() const {
  std::string out;
  for (const std::string& line : lines_) out += prefix_ + line + "\n";
  return out;
}

std::optional<PythonError> python_error(const std::deque<std::string>& lines) {
  std::optional<PythonError> newest;
  bool in_trace = false, installed = false;
  for (const std::string& line : lines) {
    if (const auto place = place_of_frame(line)) {
      if (!in_trace) newest.emplace();
      in_trace = true;
      if (!newest->place.empty() && is_installed(*place) && !installed) continue;
      installed = is_installed(*place);
      newest->place = *place;
    } else if (in_trace && !line.empty() && !line.starts_with(' ')) {
      newest->exception = line;
      in_trace = installed = false;
    }
  }
  return newest;
}

}  // namespace warren::worker

// Lets so many log lines through in each span of time and counts the others, so that nobody can fill the log.
#pragma once

#include <cstdint>
#include <optional>

#include "recovery/base/machine.h"

namespace warren::tracker {

class LogLimit {
 public:
  LogLimit(std::uint32_t lines, std::int64_t span_ms) : lines_(lines), span_ms_(span_ms) {}

  // Whether to log now; if so, how many lines were swallowed since the last one that was logged.
  std::optional<std::uint64_t> take(TimeMs now) {
    if (!begun_ || now - *begun_ >= span_ms_) {
      begun_ = now;
      used_ = 0;
    }
    if (used_ == lines_) {
      ++swallowed_;
      return std::nullopt;
    }
    ++used_;
    const std::uint64_t before = swallowed_;
    swallowed_ = 0;
    return before;
  }

 private:
  std::uint32_t lines_, used_ = 0;
  std::int64_t span_ms_;
  std::optional<TimeMs> begun_;
  std::uint64_t swallowed_ = 0;
};

}  // namespace warren::tracker

// Log lines that wait until the program takes them: for programs whose own sink may hold up the library's threads, such
// as an interpreter's, which needs a lock that a thread of the program may have.
//
// Bounded by lines and bytes. Where it is full the oldest line goes, and the next line that is taken says how many
// went.
//
// Threads: any. Nobody waits in it but take(), and for no longer than another thread needs to put or take a line.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/result.h"
#include "warren/c_api.h"

namespace warren::worker {

class LogQueue {
 public:
  static constexpr std::size_t kMostLines = 65536, kMostBytes = 4 << 20;

  struct Line {
    warren_log_level level;
    std::string text;
  };

  explicit LogQueue(std::size_t most_lines) : most_lines_(most_lines) {}

  // A communicator logs here between the two. Several may.
  void begin();
  void end();
  // False: the line is not for the program any more, as no communicator logs here, or after divert().
  [[nodiscard]] bool put(warren_log_level level, const std::string& text);
  // The oldest line. kTimeout: none has come for so long; negative: waits for ever. kClosed: none will come, as all
  // communicators that logged here are gone.
  [[nodiscard]] Result<Line> take(std::int64_t timeout_ms);
  // Takes all lines, and lets no more in: the program takes none any more.
  std::vector<Line> divert();

 private:
  [[nodiscard]] std::optional<Line> next();

  const std::size_t most_lines_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::deque<Line> lines_;
  std::size_t bytes_ = 0;      // of lines_
  std::uint64_t dropped_ = 0;  // since a line was taken
  int users_ = 0;
  bool begun_ = false, diverted_ = false;
};

}  // namespace warren::worker

// The last lines that a worker has written, and the Python error that they end with.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace warren::worker {

// Keeps the newest lines of one worker, in a bounded number of bytes.
class LastLines {
 public:
  static constexpr std::size_t kMostLines = 20;
  static constexpr std::size_t kMostLineBytes = 512;  // longer lines are cut

  // `prefix`: what each line begins with that is not the worker's.
  explicit LastLines(std::string prefix) : prefix_(std::move(prefix)) {}

  // `lines` all begin with the prefix and end with a newline.
  void add(std::string_view lines);
  // Without prefixes and newlines.
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }
  // As they were added.
  [[nodiscard]] std::string text() const;

 private:
  std::string prefix_;
  std::deque<std::string> lines_;
};

// What an uncaught exception of a Python program says.
struct PythonError {
  std::string place;      // "train.py:31", of the innermost frame outside of installed packages
  std::string exception;  // "ValueError: negative"; empty where only the place is known
};

// The newest traceback in these lines of output. Nothing: there is none. It may lack its beginning.
[[nodiscard]] std::optional<PythonError> python_error(const std::deque<std::string>& lines);

}  // namespace warren::worker

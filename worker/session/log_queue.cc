#include "worker/session/log_queue.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace warren::worker {
namespace {

// A clock cannot add longer waits to its time: they count as this one.
constexpr std::chrono::milliseconds kMostWait = std::chrono::hours(24 * 365);

}  // namespace

void LogQueue::begin() {
  const std::lock_guard lock(mutex_);
  users_++;
  begun_ = true;
}

void LogQueue::end() {
  const std::lock_guard lock(mutex_);
  users_--;
  changed_.notify_all();
}

bool LogQueue::put(warren_log_level level, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (users_ == 0 || diverted_) return false;
  lines_.push_back({level, text});
  bytes_ += text.size();
  while (lines_.size() > most_lines_ || (bytes_ > kMostBytes && lines_.size() > 1)) {
    bytes_ -= lines_.front().text.size();
    lines_.pop_front();
    dropped_++;
  }
  changed_.notify_one();
  return true;
}

std::optional<LogQueue::Line> LogQueue::next() {
  if (const std::uint64_t dropped = std::exchange(dropped_, 0); dropped != 0) {
    return Line{WARREN_LOG_WARNING, std::to_string(dropped) + (dropped == 1 ? " log line is" : " log lines are") +
                                        " missing here: the program has not taken them from its queue of " +
                                        std::to_string(most_lines_) + " in time"};
  }
  if (lines_.empty()) return std::nullopt;
  Line line = std::move(lines_.front());
  lines_.pop_front();
  bytes_ -= line.text.size();
  return line;
}

Result<LogQueue::Line> LogQueue::take(std::int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return diverted_ || (begun_ && users_ == 0); };
  const auto has_news = [&] { return !lines_.empty() || over(); };
  if (timeout_ms < 0) {
    changed_.wait(lock, has_news);
  } else {
    (void)changed_.wait_for(lock, std::min(std::chrono::milliseconds(timeout_ms), kMostWait), has_news);
  }
  if (auto line = next()) return *std::move(line);
  if (over()) return Status(Code::kClosed, "no more log lines come: the communicators that logged here are gone");
  return Status(Code::kTimeout, "no log line has come for " + std::to_string(timeout_ms) + " ms");
}

std::vector<LogQueue::Line> LogQueue::divert() {
  const std::lock_guard lock(mutex_);
  diverted_ = true;
  std::vector<Line> left;
  while (auto line = next()) left.push_back(*std::move(line));
  changed_.notify_all();
  return left;
}

}  // namespace warren::worker

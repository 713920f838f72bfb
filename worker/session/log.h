// Where a worker's log lines go: the program's queue or sink, or standard error.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "warren/c_api.h"
#include "worker/session/log_queue.h"
#include "worker/system/text.h"

namespace warren::worker {

// Copyable; callable from any thread.
struct Log {
  warren_log_sink sink = nullptr;
  void* context = nullptr;
  int least = WARREN_LOG_INFO;
  std::string (*readable)(std::string) = nullptr;  // what becomes of each line; null: nothing
  std::shared_ptr<LogQueue> queue = nullptr;       // comes before the sink; null: none

  void operator()(warren_log_level level, const std::string& line) const {
    if (level < least) return;
    const std::string text = readable != nullptr ? readable(line) : line;
    if (queue != nullptr && queue->put(level, text)) return;
    if (sink != nullptr) return sink(level, text.c_str(), context);
    to_standard_error(level, text);
  }

  // The library is about to end the process, and the program will take no line any more: those that wait in the queue,
  // and those that come, go to standard error.
  void before_process_ends() const {
    if (queue == nullptr) return;
    for (const LogQueue::Line& line : queue->divert()) to_standard_error(line.level, line.text);
  }

  static void to_standard_error(warren_log_level level, const std::string& text) {
    static constexpr const char* kNames[] = {"info", "warning", "error"};
    std::fprintf(stderr, "%s warren %s: %s\n", utc_now().c_str(), kNames[level], text.c_str());
  }
};

}  // namespace warren::worker

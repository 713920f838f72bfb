// Where a worker's log lines go: the program's sink, or standard error.
#pragma once

#include <cstdio>
#include <string>

#include "warren/c_api.h"
#include "worker/launch/text.h"

namespace warren::worker {

// Copyable; callable from any thread.
struct Log {
  warren_log_sink sink = nullptr;
  void* context = nullptr;
  int least = WARREN_LOG_INFO;
  std::string (*readable)(std::string) = nullptr;  // what becomes of each line; null: nothing

  void operator()(warren_log_level level, const std::string& line) const {
    if (level < least) return;
    const std::string text = readable != nullptr ? readable(line) : line;
    if (sink != nullptr) return sink(level, text.c_str(), context);
    static constexpr const char* kNames[] = {"info", "warning", "error"};
    std::fprintf(stderr, "%s warren %s: %s\n", utc_now().c_str(), kNames[level], text.c_str());
  }
};

}  // namespace warren::worker

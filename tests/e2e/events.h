// What a tracker tells, for a test that waits for it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tracker/tracker.h"

namespace warren::testing {

class Events {
 public:
  [[nodiscard]] tracker::EventSink sink() {
    return [this](std::string_view, const LogEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
      came_.notify_all();
    };
  }
  // The n-th event of this name (from 1); its worker.
  std::string wait_for(const std::string& name, int n = 1) {
    std::unique_lock lock(mutex_);
    std::string worker;
    const bool came = came_.wait_for(lock, std::chrono::minutes(1), [&] {
      int seen = 0;
      for (const LogEvent& event : events_) {
        if (event.name != name || ++seen < n) continue;
        for (const auto& [field, value] : event.fields) {
          if (field == "worker") worker = value;
        }
        return true;
      }
      return false;
    });
    EXPECT_TRUE(came) << name;
    return worker;
  }

  // One more of them than now.
  void wait_for_next(const std::string& name) { wait_for(name, count(name) + 1); }
  int count(const std::string& name) {
    const std::lock_guard lock(mutex_);
    int seen = 0;
    for (const LogEvent& event : events_) seen += event.name == name ? 1 : 0;
    return seen;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<LogEvent> events_;
};

}  // namespace warren::testing

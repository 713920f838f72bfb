// Why the disk of one life takes no results at present: from the thread that writes to the heartbeats.
//
// Threads: any.
#pragma once

#include <mutex>
#include <string>

#include "recovery/base/machine.h"

namespace warren::worker {

class DiskTrouble {
 public:
  // An event of storage::WriteBehind. Others than those that begin or end trouble change nothing.
  void take(const LogEvent& event) {
    const bool begins = event.name == "results_not_written";
    if (!begins && event.name != "results_written") return;
    const std::lock_guard lock(mutex_);
    text_.clear();
    for (const auto& [field, value] : event.fields) {
      if (begins && field == "why") text_ = value;
    }
  }
  // Empty: the disk takes what it is given.
  [[nodiscard]] std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace warren::worker

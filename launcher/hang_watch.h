// Kills workers that show no life.
#pragma once

#include <cstdint>
#include <vector>

#include "launcher/launcher.h"
#include "launcher/worker.h"
#include "launcher/worker_output.h"

namespace warren::worker {

class HangWatch {
 public:
  HangWatch(const LaunchOptions& options, WorkerOutput& output)
      : options_(options), output_(output), last_look_ms_(now_ms()) {}

  [[nodiscard]] bool watching() const { return options_.hung_after_ms > 0; }
  [[nodiscard]] std::int64_t next_look_ms(const std::vector<LaunchedWorker>& workers) const {
    return last_look_ms_ + look_interval_ms(workers);
  }
  // Call at next_look_ms(), or later.
  void look(std::vector<LaunchedWorker>& workers, std::int64_t now);

 private:
  [[nodiscard]] std::int64_t look_interval_ms(const std::vector<LaunchedWorker>& workers) const;
  [[nodiscard]] std::int64_t hung_after_ms(const LaunchedWorker& w) const;
  bool dumps_core(LaunchedWorker& w, std::int64_t now);

  const LaunchOptions& options_;
  WorkerOutput& output_;
  std::int64_t last_look_ms_;
};

}  // namespace warren::worker

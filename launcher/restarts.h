// Whether a worker that has ended is started again: what its restarts, the job's rollbacks and the spares leave.
//
// Ends in, verdicts out: it starts and ends nothing, and only looks at the clock. It keeps the counts in the workers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/launcher.h"
#include "launcher/worker.h"

namespace warren::worker {

// Of the job, whose other workers may be started elsewhere.
[[nodiscard]] std::uint32_t world_size_of(const LaunchOptions& options);

class Restarts {
 public:
  Restarts(const LaunchOptions& options, std::vector<LaunchedWorker>& workers) : options_(options), workers_(workers) {}

  enum class Act { kStartAgain, kGiveUp, kGiveUpSpare, kEndJob };
  struct Verdict {
    Act act;
    std::string what;      // how the worker has ended, for people
    std::string count;     // kStartAgain: which restart it is
    std::string rollback;  // which rollback of the job begins with it; empty: none
  };
  // A life that was lost, or ended with a failure of the program's own, and counts.
  [[nodiscard]] Verdict on_loss(LaunchedWorker& w, std::string what);
  // A rollback ends every worker, and counts once: as often as the worker that was rolled back most often. (One that
  // was being started when a rollback came has not seen it.)
  [[nodiscard]] Verdict on_rollback(LaunchedWorker& w, std::string what);
  // Begins counts anew (LaunchOptions::long_life_ms), before the end of a life is judged.
  void forgive(LaunchedWorker& w);
  // The worker is to be started again: when, after how long a pause, and as which attempt. Returns the pause.
  std::int64_t schedule(LaunchedWorker& w);

  // When a worker is lost: with a spare in its place, which waits here or elsewhere, or with fewer workers.
  [[nodiscard]] bool others_go_on() const;

 private:
  [[nodiscard]] bool enough_without(const LaunchedWorker& w) const;
  [[nodiscard]] bool is_spare(const LaunchedWorker& w) const;
  [[nodiscard]] Verdict on_end_of_spare(LaunchedWorker& w, std::string what, std::uint32_t most);

  const LaunchOptions& options_;
  std::vector<LaunchedWorker>& workers_;
  std::uint32_t rollbacks_ = 0;
  std::int64_t rolled_back_at_ms_ = 0;
};

}  // namespace warren::worker

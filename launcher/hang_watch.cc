#include "launcher/hang_watch.h"

#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

namespace warren::worker {
namespace {

// A worker that does not die within so long after SIGKILL (it is stuck in the kernel) is complained of, as often.
constexpr std::int64_t kUndeadMs = 10'000;
// A dead worker may write its core file for so long.
constexpr std::int64_t kLongestDumpMs = 60'000;

}  // namespace

// Often enough that a worker is killed soon after the limit, at little cost.
std::int64_t HangWatch::look_interval_ms(const std::vector<LaunchedWorker>& workers) const {
  std::int64_t least_ms = options_.hung_after_ms;
  for (const LaunchedWorker& w : workers) {
    if (w.pid != 0) least_ms = std::min(least_ms, hung_after_ms(w));
  }
  return std::clamp<std::int64_t>(least_ms / 20, 1, 500);
}

// The program may have set another round timeout than the launcher was told.
std::int64_t HangWatch::hung_after_ms(const LaunchedWorker& w) const {
  const std::int64_t said = w.life.limit_ms();
  return said != 0 ? said : options_.hung_after_ms;
}

void HangWatch::look(std::vector<LaunchedWorker>& workers, std::int64_t now) {
  const std::int64_t elapsed_ms = now - std::exchange(last_look_ms_, now), interval_ms = look_interval_ms(workers);
  for (LaunchedWorker& w : workers) {
    if (w.pid == 0) continue;
    const std::string who = "worker " + std::to_string(w.id);
    if (w.killed_at_ms < 0) {
      const bool hangs = w.watch.look(w.life.beats(), elapsed_ms, hung_after_ms(w), interval_ms);
      if (dumps_core(w, now) || !hangs) continue;
      output_.notice("worker_killed_hung", who + " (process " + std::to_string(w.pid) + ") has shown no life for " +
                                               std::to_string(hung_after_ms(w)) + " ms; killing it");
      w.killed_at_ms = w.complained_at_ms = now;
      kill(-w.pid, SIGKILL);
    } else if (now - w.complained_at_ms >= kUndeadMs) {
      output_.notice("worker_undead", who + " (process " + std::to_string(w.pid) + ") was killed " +
                                          std::to_string((now - w.killed_at_ms) / 1000) +
                                          " s ago and is still there; it can be started again only when it is gone");
      w.complained_at_ms = now;
    }
  }
}

// Whether the worker is dead and may go on writing its core file. It shows no life, and its end is not seen
// meanwhile.
bool HangWatch::dumps_core(LaunchedWorker& w, std::int64_t now) {
  if (!is_dumping_core(options_.proc, w.pid)) return false;
  if (w.dumps_since_ms < 0) {
    w.dumps_since_ms = now;
    output_.notice("worker_dumps_core", "worker " + std::to_string(w.id) + " (process " + std::to_string(w.pid) +
                                            ") has crashed, and its core file is being written; that may take " +
                                            std::to_string(kLongestDumpMs / 1000) + " s");
  }
  return now - w.dumps_since_ms < kLongestDumpMs;
}

}  // namespace warren::worker

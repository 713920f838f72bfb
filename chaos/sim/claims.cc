#include "chaos/sim/claims.h"

#include <string>

namespace warren::chaos {

void check_claim(Run& run, const Launchers& launchers, const wire::Envelope& e) {
  const SimWorker* found = launchers.find(Incarnation(e.sender()));
  if (found == nullptr) return run.world.violated("I6", "a message came from a life that never was");
  const SimWorker& life = *found;
  if (e.has_stopped() && life.installed() && !life.data_path_stopped()) {
    run.world.violated("I6", life.describe() + " has said that it stopped, and its data path runs");
  }
  if (e.has_log_gap()) run.judge.gap_told(Generation(e.log_gap().generation()), e.log_gap().renumbers());
  // One that is delivered again was true once.
  if (e.has_report() && Generation(e.report().generation()) > life.generation()) {
    for (const wire::Position& p : e.report().positions()) {
      const auto done = life.engine().rounds_done(GroupId(p.group()), Version(p.version()));
      const bool true_to_life = done && *done >= p.rounds();
      if (!true_to_life && life.alive() && (!run.judge.committed() || p.version() >= run.judge.committed()->value)) {
        return run.world.violated(
            "I6", life.describe() + " counts as further than it is in version " + std::to_string(p.version()));
      }
    }
  }
  if (e.has_leave() && e.leave().finalize() && !life.program_done()) {
    run.world.violated("I6", life.describe() + " counts as finalized, and its program runs");
  }
  if (e.has_heartbeat() && !life.was_member_of(Generation(e.heartbeat().generation()))) {
    run.world.violated(
        "I6", life.describe() + " counts as heard in generation " + std::to_string(e.heartbeat().generation()));
  }
  if (e.has_heartbeat() && e.heartbeat().rounds_finished() > life.rounds_finished()) {
    run.world.violated("I6", life.describe() + " counts as further than it is");
  }
}

}  // namespace warren::chaos

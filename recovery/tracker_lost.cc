// A job that cannot go on, because what it would go on from is lost
// (docs/decisions/0022-a-job-that-is-lost.md).
#include "recovery/tracker_machine.h"
#include "recovery/tracker_transitions.h"

namespace warren {

// All hosts of the plan have answered that they do not hold it.
void TrackerMachine::on_checkpoint_lost(std::size_t rank, const wire::LogGap& g, TimeMs now, Effects& effects) {
  if (committed_ != Version(g.checkpoint().version()) || committed_timeline_.value != g.checkpoint().timeline()) {
    // It waits for an answer, and is told with the next plan what there is to be loaded now.
    count(Transition::other_checkpoint_lost);
    return end_epoch(Code::kPeerLost, name(rank) + " cannot load a checkpoint that is not the newest any more", {},
                     Ending::kResumes, now, effects);
  }
  const std::string what = "what it would go on from is lost, as " + name(rank) + " says: " + g.reason();
  bool others_have = false;
  for (std::size_t other = 0; other < members_.size(); ++other) {
    others_have = others_have || (other != rank && members_[other].has_loaded);
  }
  if (!shrinks() || !others_have) return lose_job(what, now, effects);
  // Those who need not load it go on without this rank, whose next life comes in with the next checkpoint.
  count(Transition::newcomer_cannot_load);
  const Incarnation life(plan_.members(static_cast<int>(rank)).incarnation());
  lose(rank);
  interrupt(Code::kPeerLost, what, {static_cast<std::uint32_t>(rank)}, now, effects);
  refuse(life, Code::kUnavailable, what + "; the job goes on without this worker", effects, true);
}

void TrackerMachine::lose_job(const std::string& what, TimeMs now, Effects& effects) {
  count(Transition::job_lost);
  doubted_.clear();
  forget_what_leavers_say();
  end_epoch(Code::kUnavailable, what, {}, Ending::kEndsJob, now, effects);
  // Who waits in vain is told as well.
  for (const auto& [worker, spare] : spares_) refuse(spare.life, Code::kUnavailable, interrupt_.reason(), effects);
  spares_.clear();
  spares_by_incarnation_.clear();
}

// What it brings may be what was missing: then all gather again, and see; once all have stopped, so that nothing is
// left of the epoch that was ended.
bool TrackerMachine::refuse_lost(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  if (!lost()) return false;
  const bool brings = (join.has_held() && join.held().run() == plan_.run()) ||
                      (join.has_logged() && join.logged().run() == plan_.run());
  if (!brings) {
    count(Transition::join_refused_lost);
    refuse(who, Code::kUnavailable, interrupt_.reason(), effects);
    return true;
  }
  if (!acting_) return false;
  if (state_ == State::kInterrupted) {
    // It asks again.
    tell_heard(who, effects);
    return true;
  }
  count(Transition::lost_job_taken_up);
  // As if all had died, and nobody had looked for it yet.
  interrupt_.set_ends_job(false);
  interrupt_.set_resume(true);
  since_ = now;
  persist(effects);
  log(Severity::kInfo, "lost_job_taken_up",
      "worker " + join.worker_id() + " on host " + join.host_id() + " holds something of job " + options_.job +
          ", which was given up: its workers gather again",
      effects, {{"worker", join.worker_id()}});
  return false;
}

}  // namespace warren

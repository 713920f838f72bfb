// What follows where full logs have given up results that a new life would need
// (docs/decisions/0028-a-full-log.md).
#include <algorithm>

#include "recovery/base/text.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"

namespace warren {

namespace {

GivenUp from_wire(const wire::GivenUp& g) {
  return {Timeline(g.timeline()), Version(g.version())};
}

}  // namespace

bool TrackerMachine::counts(const GivenUp& given_up) const {
  Timeline oldest = timeline_;
  for (const wire::Kept& k : plan_.kept()) oldest = std::min(oldest, Timeline(k.timeline()));
  return given_up.timeline >= oldest && !given_up.obsolete(committed_);
}

std::optional<TrackerMachine::Lack> TrackerMachine::lack() const {
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const auto& given_up = members_[rank].given_up;
    if (!absent(rank) && given_up && counts(*given_up)) return Lack{given_up->version, name(rank)};
  }
  for (const auto& [worker, w] : waiting_) {
    const std::string who = worker_on_host(worker, w.member.host_id());
    if (w.report && w.report->has_given_up() && counts(from_wire(w.report->given_up()))) {
      return Lack{Version(w.report->given_up().version()), who};
    }
    const wire::Logged& logged = w.in_memory();
    if (logged.has_given_up() && logged.run() == plan_.run() && counts(from_wire(logged.given_up()))) {
      return Lack{Version(logged.given_up().version()), who};
    }
  }
  return std::nullopt;
}

std::string TrackerMachine::lack_text(const Lack& lack) {
  return "the full log of " + lack.who + " has given up results of " + of_program(lack.version) +
         ", which a new life needs";
}

void TrackerMachine::take_log_fill(std::size_t rank, const wire::Heartbeat& heartbeat, Effects& effects) {
  Member& m = members_[rank];
  m.log.reset();
  if (heartbeat.has_log()) m.log = heartbeat.log();
  m.given_up.reset();
  if (heartbeat.log().has_given_up()) m.given_up = from_wire(heartbeat.log().given_up());
  // Most often nobody's log is full, and a job has thousands of ranks.
  if (suspended_ || m.given_up) look_at_protection(effects);
}

// Once for all ranks: their logs are full at about the same time.
void TrackerMachine::look_at_protection(Effects& effects) {
  const auto lacks = lack();
  if (lacks.has_value() == suspended_) return;
  suspended_ = lacks.has_value();
  if (!suspended_) {
    count(Transition::protection_resumed);
    return log(Severity::kInfo, "protection_resumed",
               "job " + options_.job +
                   " is protected again: " + (committed_ ? program_version() + " is committed" : "it starts again") +
                   ", and all results since are logged",
               effects);
  }
  count(Transition::protection_suspended);
  log(Severity::kWarning, "protection_suspended",
      "job " + options_.job + " is not protected: " + lack_text(*lacks) + "; " + loss_would() +
          (lacks->version == kPreamble ? "" : ", until the next version is committed") +
          "; take checkpoints more often",
      effects);
}

std::string TrackerMachine::loss_would() const {
  if (shrinks()) return "a worker that is lost comes in again once a version is committed";
  return committed_ ? "a loss takes all processes back to " + program_version()
                    : "a loss ends the job, as no version is committed";
}

bool TrackerMachine::gives_way_to_new_lives(TimeMs now, Effects& effects) {
  if (!has_places() || !interrupt_.resume()) return false;
  std::string newcomer;
  for (const auto& [worker, w] : waiting_) {
    if (!w.report) newcomer = worker_on_host(worker, w.member.host_id());
  }
  const auto lacks = lack();
  if (newcomer.empty() || !lacks) return false;
  undo_unprotected(newcomer + " has to take up a rank's rounds, and " + lack_text(*lacks), now, effects);
  return true;
}

void TrackerMachine::undo_unprotected(const std::string& what, TimeMs now, Effects& effects) {
  if (committed_) {
    count(Transition::unprotected_rolled_back);
    return roll_back(Code::kUnavailable, what, now, effects);
  }
  count(Transition::unprotected_lost);
  lose_job(Code::kExhausted, what + "; no version is committed to which the job could go back", now, effects);
  // They bring nothing that would help.
  std::vector<std::string> workers;
  for (const auto& [worker, w] : waiting_) workers.push_back(worker);
  for (const std::string& worker : workers) {
    const Incarnation life = waiting_.at(worker).id();
    remove_waiting(worker);
    refuse(life, Code::kExhausted, interrupt_.reason(), effects);
  }
}

}  // namespace warren

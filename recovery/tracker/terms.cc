// Whether this tracker may decide: terms, and what workers have promised (promises.h).
#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"

namespace warren {

using tracker_effect::Send;

bool TrackerMachine::promises_us(const wire::Envelope& e) const {
  return Term(e.term()) == term_ && e.receiver() == options_.self.value;
}

bool TrackerMachine::may_act(Incarnation who, const wire::Envelope& e, TimeMs now, Effects& effects) {
  const Term heard(e.term());
  const bool ours = promises_us(e);
  if (heard > term_ || (heard == term_ && !ours)) {
    // No job has come so far: who says so would use the numbers up. And a job that is finished here goes on elsewhere.
    const bool ended_here = retired_.contains(who);
    if (heard.value >= kMaxGeneration / 2 || (state_ == State::kFinished && !ended_here)) {
      count(Transition::out_of_turn);
      return false;
    }
    count(Transition::term_raised);
    if (state_ == State::kFinished) {
      // A plan had fenced it before the job was finished, and it obeys another tracker, which may be gone.
      term_ = heard.next();
      refuse_stale(who, effects);
      return false;
    }
    term_ = heard.next();
    promises_.renew(now);
    if (rebuilding_) {
      for (auto& [life, answer] : rebuilding_->strangers) answer.Clear();  // of an older term: they are asked again
    }
    if (resized_) {
      // They ask again, and promise.
      clear_waiting();
      undo_resize();
    }
    acting_ = members_.empty();
    arm(now + interval_ms());
  } else if (ours) {
    take_promise(who, e, now);
  }
  if (acting_) return true;
  if (ours && has_majority(now)) {
    count(Transition::promised);
    acting_ = true;
    // Before any of it is told.
    if (std::exchange(journal_is_older_, false)) persist(effects);
    // Nothing was looked at meanwhile. (Who wants another world size has waited for the members.)
    if (now < promises_.heard() + timeout_ms()) {
      for (Member& m : members_) m.heard = std::max(m.heard, now);
    }
    waiting_.excuse(now);
    leavers_.excuse(now);
    leavers_.prolong(now + timeout_ms());
    since_ = std::max(since_, now);
    arm(now + interval_ms());
    // Their words of meanwhile went by. They need not wait until it is time to repeat them.
    for (const auto& [worker, life] : promises_.lives()) {
      if (life != who) ask_again(life, effects);
    }
    return true;
  }
  if (!rank_of(who) && !e.has_join()) {
    if (!asked_in_vain_.contains(who)) learn_newer_plan(who, e, now, effects);
    return false;
  }
  // That is no decision about the job. (A member's new life would have the settings of its last one.)
  if (e.has_join() && now >= promises_.asked() + timeout_ms() &&
      (refuse_settings(who, e.join(), effects) || refuse_lost(who, e.join(), now, effects))) {
    return false;
  }
  // The journal has that decision: the job is lost, and the tracker before may have ended before this member heard so.
  if (ours && lost() && rank_of(who) && now >= promises_.asked() + timeout_ms()) {
    send_interrupt(*rank_of(who), effects);
    return false;
  }
  if (ours) {
    // It waits, and hears that it does not wait for nothing.
    tell_heard(who, effects);
  } else {
    count(Transition::promise_asked);
    ask_again(who, effects);
  }
  return false;
}

void TrackerMachine::ask_again(Incarnation who, Effects& effects) const {
  wire::Envelope ask = envelope_to(who);
  ask.mutable_heartbeat_reply();
  effects.emplace_back(Send{who, std::move(ask)});
}

// It need not say at once again what it has said.
void TrackerMachine::tell_heard(Incarnation who, Effects& effects) const {
  wire::Envelope heard = envelope_to(who);
  heard.mutable_heartbeat_reply()->set_beat(1);
  effects.emplace_back(Send{who, std::move(heard)});
}

void TrackerMachine::take_promise(Incarnation who, const wire::Envelope& e, TimeMs now) {
  if (acting_ || promises_.size() >= 2 * members_.size()) return;
  // Also of a life that is fenced: it hears so from a tracker that acts, and its next one takes its place.
  if (const auto rank = rank_of(who)) {
    promises_.take(plan_.members(static_cast<int>(*rank)).worker_id(), who, now);
  } else if (e.has_join() && differing_setting(e.join().settings()).empty()) {
    // A spare is always there, whoever else is; and it may forget whom it has promised.
    if ((e.join().spare() || e.join().called() != 0) && !place_of(e.join().worker_id())) return;
    promises_.take(e.join().worker_id(), who, now);
  } else if (e.has_join() && wants_resize(e.join())) {
    promises_.take_for_size(e.join().worker_id(), who, e.join().settings().world_size());
  } else {
    return;
  }
  count(Transition::promise_taken);
}

bool TrackerMachine::has_majority(TimeMs now) const {
  // The members of a large job come one by one, and each asks: not before it can be.
  if (logged() && !members_.empty() && promises_.too_few(present())) return false;
  const auto silent = static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.silent; }));
  const auto from = [this](const std::string& worker) {
    const auto place = place_of(worker);
    if (!place) return Promises::From::kStranger;
    if (absent(*place)) return Promises::From::kAbsentMember;
    return members_[*place].silent ? Promises::From::kSilentMember : Promises::From::kMember;
  };
  return promises_.suffice({present() - silent, absent_, from}, now, timeout_ms());
}

void TrackerMachine::log_promises(Effects& effects) {
  count(Transition::promises_logged);
  std::vector<std::string> missing;
  for (std::size_t rank = 0; rank < members_.size() && missing.size() < kMaxMissingNames; ++rank) {
    const std::string& worker = plan_.members(static_cast<int>(rank)).worker_id();
    if (!members_[rank].silent && !absent(rank) && !promises_.contains(worker)) missing.push_back(worker);
  }
  log(Severity::kWarning, "waiting_for_promises",
      "this tracker decides nothing for job " + options_.job + " before more than half of its " +
          std::to_string(present()) + " workers have come to it, and " + std::to_string(promises_.size()) +
          " have (if another tracker serves them, stop this one); not here: " + comma_list(missing),
      effects);
}

}  // namespace warren

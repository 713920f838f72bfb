// A job that cannot go on, because what it would go on from is lost; and one that nobody needs any more
// (docs/decisions/0022-a-job-that-is-lost.md).
#include <algorithm>

#include "recovery/base/text.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"

namespace warren {

// All hosts of the plan have answered that they do not hold it.
void TrackerMachine::on_checkpoint_lost(std::size_t rank, const wire::LogGap& g, TimeMs now, Effects& effects) {
  if (committed_ != Version(g.checkpoint().version()) || committed_timeline_.value != g.checkpoint().timeline()) {
    // It waits for an answer, and is told with the next plan what there is to be loaded now.
    count(Transition::other_checkpoint_lost);
    return end_generation(Code::kPeerLost, name(rank) + " cannot load a checkpoint that is not the newest any more", {},
                          Ending::kResumes, now, effects);
  }
  const std::string what = "what it would go on from is lost, as " + name(rank) + " says: " + g.reason();
  bool others_have = false;
  for (std::size_t other = 0; other < members_.size(); ++other) {
    others_have = others_have || (other != rank && members_[other].has_loaded);
  }
  if (!shrinks() || !others_have) {
    note_asked_in_vain(now);
    return lose_job(Code::kUnavailable, what, now, effects);
  }
  // Those who need not load it go on without this rank, whose next life comes in with the next checkpoint.
  count(Transition::newcomer_cannot_load);
  out_of_reach_of_all_ = OutOfReach{*committed_, committed_timeline_, {}, what};
  for (const wire::Member& m : plan_.members()) {
    if (!m.absent()) out_of_reach_of_all_->hosts.insert(m.host_id());
  }
  for (const wire::Member& m : plan_.servers()) out_of_reach_of_all_->hosts.insert(m.host_id());
  const Incarnation life(plan_.members(static_cast<int>(rank)).incarnation());
  lose(rank);
  interrupt(Code::kPeerLost, what, {static_cast<std::uint32_t>(rank)}, now, effects);
  refuse(life, Code::kUnavailable, what + "; the job goes on without this worker", effects, true);
}

bool TrackerMachine::comes_in_vain() const {
  return out_of_reach_of_all_ && committed_ == out_of_reach_of_all_->version &&
         committed_timeline_ == out_of_reach_of_all_->timeline;
}

void TrackerMachine::look_for_what_is_out_of_reach(const Waiting& w) {
  if (!out_of_reach_of_all_ || w.report || !w.holds()) return;
  if (!out_of_reach_of_all_->hosts.contains(w.member.host_id())) out_of_reach_of_all_.reset();
}

bool TrackerMachine::lose_if_too_few_have_loaded(TimeMs now, Effects& effects) {
  if (!shrinks() || !comes_in_vain() || !has_places() || !interrupt_.resume() || waiting_.survivors() == 0)
    return false;
  if (loaded_survivors() >= settings_.min_workers()) return false;
  lose_job(Code::kUnavailable,
           out_of_reach_of_all_->why + ", and " + std::to_string(loaded_survivors()) +
               " that need not load it are fewer than the " + std::to_string(settings_.min_workers()) +
               " with which the job may go on",
           now, effects);
  return true;
}

void TrackerMachine::lose_job(Code code, const std::string& what, TimeMs now, Effects& effects) {
  count(Transition::job_lost);
  doubted_.clear();
  leavers_.forget_what_they_said();
  end_generation(code, what, {}, Ending::kEndsJob, now, effects);
  // Who waits in vain is told as well.
  for (const auto& [worker, spare] : spares_) refuse(spare.life, code, interrupt_.reason(), effects);
  spares_.clear();
}

LostJob::Sources TrackerMachine::brought_by(const std::string& host_id, const wire::Held* held,
                                            const wire::Logged& logged) const {
  return planned() ? LostJob::brought_by(host_id, held, logged, plan_.run()) : LostJob::Sources();
}

// Before the plan in which all of these are asked.
void TrackerMachine::note_who_is_asked() {
  LostJob::Sources brought;
  std::set<std::string> hosts;
  for (const auto& [worker, w] : waiting_) {
    hosts.insert(w.member.host_id());
    if (!w.report) brought.merge(brought_by(w.member.host_id(), w.held ? &*w.held : nullptr, w.logged));
  }
  lost_job_.ask(std::move(brought), hosts);
}

void TrackerMachine::note_asked_in_vain(TimeMs now) {
  lost_job_.note_in_vain(now, now + limits::kLookAgainRoundTimeouts * timeout_ms(), 2 * members_.size());
}

// What it brings may be what was missing: then all gather again, and see; once all have stopped, so that nothing is
// left of the generation that was ended.
bool TrackerMachine::refuse_lost(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  if (!lost()) return false;
  if (ended_for_good()) {
    refuse(who, Code(interrupt_.code()), interrupt_.reason(), effects);
    return true;
  }
  // What was looked at in vain a moment ago does not take it up: of lives that are started again and again each would,
  // and who waits never heard the verdict.
  const auto brought = brought_by(join.host_id(), join.has_held() ? &join.held() : nullptr, join.logged());
  const bool brings = lost_job_.may_take_up(brought, now);
  if (!brings && !join.spare() && may_hope(who, join, now, effects)) return true;
  if (!brings) {
    count(Transition::join_refused_lost);
    refuse(who, Code::kUnavailable,
           interrupt_.reason() + (brought.empty() ? ""
                                                  : " (what host " + join.host_id() +
                                                        " has kept was looked at, and is looked at again in " +
                                                        seconds_text(lost_job_.looks_again_at(brought) - now) + ")"),
           effects);
    return true;
  }
  if (!acting_) return false;
  if (state_ == State::kInterrupted) {
    // It asks again.
    tell_heard(who, effects);
    return true;
  }
  count(Transition::lost_job_taken_up);
  lost_job_.take_up(brought);
  // As if all had died, and nobody had looked for it yet.
  interrupt_.set_ends_job(false);
  interrupt_.set_resume(true);
  since_ = now;
  persist(effects);
  log(Severity::kInfo, "lost_job_taken_up",
      worker_on_host(join.worker_id(), join.host_id()) + " holds something of job " + options_.job +
          ", which was given up: its workers gather again",
      effects, {{"worker", join.worker_id()}});
  return false;
}

// Workers come one by one, and the first need not be the one whose host has kept something. Who asks again before the
// time is up, as it does every quarter of that time, is told the verdict then.
bool TrackerMachine::may_hope(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  const LostJob::Hope hope = lost_job_.hope(who, now, timeout_ms(), 2 * members_.size());
  if (hope == LostJob::Hope::kNone) return false;
  count(Transition::lost_job_waits);
  if (hope == LostJob::Hope::kBegins) {
    log(Severity::kInfo, "lost_job_waits",
        worker_on_host(join.worker_id(), join.host_id()) + " has come to job " + options_.job +
            ", which is lost; it is refused in " + seconds_text(timeout_ms()) +
            " unless another comes whose host has kept something of the job: " + interrupt_.reason(),
        effects, {{"worker", join.worker_id()}});
  }
  tell_heard(who, effects);
  return true;
}

Status TrackerMachine::may_forget(TimeMs now) const {
  // Who has not heard of that yet hears that it is over all the same.
  if (lost()) return {};
  const std::string what = "job " + options_.job;
  if (state_ == State::kFinished) {
    if (now >= next_repeat_ || !finished_lives_.empty()) return {};
    return {Code::kUnavailable, what +
                                    " was finished by this tracker's life before, and workers may not have heard of it "
                                    "yet; try again in " +
                                    std::to_string(next_repeat_ - now) + " ms, or give --force"};
  }
  std::size_t there = 0;
  std::string names;
  const auto add = [&](const std::string& who, TimeMs heard) {
    if (now >= heard + std::max<std::int64_t>(timeout_ms(), 1) || ++there > kNamesInText) return;
    names += (names.empty() ? "" : ", ") + who + " (heard " + seconds_text(now - heard) + " ago)";
  };
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const std::string& worker = plan_.members(static_cast<int>(rank)).worker_id();
    if (members_[rank].state != MemberState::kGone && !waiting_.contains(worker)) add(name(rank), members_[rank].heard);
  }
  for (const auto& [worker, w] : waiting_) add("worker " + worker, w.heard);
  for (const auto& [worker, spare] : spares_) add("spare " + worker, spare.heard);
  for (const auto& [life, server] : leavers_.servers()) add("worker " + server.member.worker_id(), server.heard);
  // Of those who wait until this tracker decides something, or tell it what it does not know, no more is known.
  if (!acting_ && promises_.size() != 0 && there == 0) add("a worker that has come back", promises_.heard());
  if (rebuilding_) add("a member whose plan the journal does not hold", now);
  if (there == 0) return {};
  return {Code::kRefused, what + " lives: " + names + (there > kNamesInText ? " and others" : "") +
                              "; end its workers first (one that was killed counts until it has been silent for " +
                              seconds_text(timeout_ms()) + "), or give --force"};
}

void TrackerMachine::forget(const std::string& why, Effects& effects) {
  if (state_ == State::kFinished) return;  // whoever asks is told that it is finished
  const auto tell = [&](Incarnation life) { send_refused(life, Code::kClosed, why, effects); };
  for (const auto& [life, rank] : rank_by_incarnation_) {
    if (members_[rank].state != MemberState::kGone && !waiting_.contains(life)) tell(life);
  }
  for (const auto& [life, worker] : waiting_.workers()) tell(life);
  for (const auto& [life, worker] : spares_.workers()) tell(life);
  for (const auto& [life, server] : leavers_.servers()) tell(life);
  for (const auto& [life, until] : lost_job_.hopes()) tell(life);
  if (!rebuilding_) return;
  for (const auto& [life, answer] : rebuilding_->strangers) tell(life);
}

}  // namespace warren

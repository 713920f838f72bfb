// A life leaves the job: by finalize, by giving up, or because its machine is needed elsewhere. A life that is
// preempted may serve its host's log for a while (worker_effect::Serve).
#include <algorithm>
#include <map>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/worker/texts.h"
#include "recovery/worker/transitions.h"
#include "recovery/worker/worker_machine.h"

namespace warren {

using worker_effect::Send;

void WorkerMachine::send_finalize(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_leave()->set_generation(plan_.generation());
  e.mutable_leave()->set_finalize(true);
  e.mutable_leave()->set_version(last_version_->value);
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_leave(const std::string& reason, std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_leave()->set_generation(plan_.generation());
  e.mutable_leave()->set_reason(wire_text(reason));
  e.mutable_leave()->set_preempted(preempted_);
  effects.emplace_back(Send{std::move(e)});
}

// How far this life and dead ones of its host have come. What is in flight its next life begins anew, unless all of it
// is there: somebody who is lost may have completed it. What is too much to say is as good as lost.
void WorkerMachine::send_serves(std::uint64_t left_ms, std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  wire::Leave& l = *e.mutable_leave();
  l.set_generation(std::max(served_.generation(), plan_.generation()));
  l.set_reason(drain_->reason);
  l.set_preempted(true);
  l.set_serves_ms(left_ms);
  if (left_ms != 0) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, const wire::Position*> furthest;  // by (group, version)
    std::map<std::pair<std::uint64_t, std::uint64_t>, const wire::Setup*> setups;       // by (group, name)
    const auto take = [&](const auto& positions) {
      for (const wire::Position& p : positions) {
        const wire::Position*& most = furthest[{p.group(), p.version()}];
        if (most == nullptr || p.rounds() > most->rounds()) most = &p;
      }
    };
    take(standing_.positions);
    for (const wire::Setup& s : standing_.setups) setups[{s.group(), s.name()}] = &s;
    const wire::Logged& dead = standing_.logged;
    if (dead.run() == plan_.run() && dead.timeline() == plan_.timeline()) {
      take(dead.positions());
      for (const wire::Setup& s : dead.setups()) setups.try_emplace({s.group(), s.name()}, &s);
    }
    wire::Logged& logged = *l.mutable_logged();
    logged.set_run(plan_.run());
    logged.set_timeline(plan_.timeline());
    std::size_t ranges = 0;
    const auto copy_final = [&ranges](const auto& from, auto& to, std::size_t most) {
      const auto more = static_cast<std::size_t>(from.final_size());
      if (more == 0 || from.total_bytes() == 0 || ranges + more > most) return;
      ranges += more;
      *to.mutable_final() = from.final();
      to.set_total_bytes(from.total_bytes());
    };
    for (const auto& [key, most] : furthest) {
      if (logged.positions_size() == static_cast<int>(limits::kMaxPositions)) break;
      wire::Position p;
      p.set_group(key.first);
      p.set_version(key.second);
      p.set_rounds(most->rounds());
      copy_final(*most, p, limits::kMaxLoggedRanges);
      if (p.rounds() != 0 || p.final_size() != 0) *logged.add_positions() = std::move(p);
    }
    ranges = 0;
    for (const auto& [key, most] : setups) {
      if (l.setups_size() == static_cast<int>(limits::kMaxSetups)) break;
      wire::Setup s;
      s.set_group(key.first);
      s.set_name(key.second);
      s.set_timeline(most->timeline());
      s.set_done(most->done());
      copy_final(*most, s, limits::kMaxSetupRangesPerReport);
      if (s.done() || s.final_size() != 0) *l.add_setups() = std::move(s);
    }
  }
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::on_finished(const wire::Finished& finished, std::vector<WorkerEffect>& effects) {
  if (state_ != State::kLeaving || finished.generation() != plan_.generation()) return count(Transition::out_of_turn);
  count(Transition::finished);
  state_ = State::kFinished;
  effects.emplace_back(worker_effect::Finished{});
}

void WorkerMachine::finalize(Version last, TimeMs now, std::vector<WorkerEffect>& effects) {
  switch (state_) {
    case State::kIdle:
    case State::kJoining:
    case State::kSpare: return leave({}, now, effects);
    case State::kMember:
      count(Transition::leaving);
      last_version_ = last;
      state_ = State::kLeaving;
      since_ = heard_ = now;
      next_send_ = now + interval_ms();
      next_complaint_ = now + kWaitLogIntervalMs;
      return send_finalize(effects);
    case State::kStopping:
    case State::kSuspended:
      // Said with the next plan.
      count(Transition::finalize_deferred);
      last_version_ = last;
      return;
    case State::kLeaving:
    case State::kBroken:
    case State::kServing:
    case State::kFinished:
    case State::kFailed: return;
  }
}

void WorkerMachine::leave(const std::string& reason, TimeMs now, std::vector<WorkerEffect>& effects) {
  const Status gave_up(Code::kClosed, "this worker left job " + options_.job + (reason.empty() ? "" : ": " + reason));
  switch (state_) {
    case State::kIdle: return fail(State::kFailed, gave_up, effects);
    case State::kJoining:
      count(Transition::gave_up_joining);
      send_leave(reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kSpare:
      count(Transition::gave_up_spare);
      send_leave(reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kMember:
      if (may_serve(now)) {
        leaves_to_serve_ = true;
        return stop(Generation(plan_.generation()).next(), gave_up, true, effects);
      }
      count(Transition::gave_up_member);
      send_leave(reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kLeaving:
      count(Transition::gave_up_leaving);
      // Where nothing is logged its word stands: its rounds are done, and the other ranks finish without it. Otherwise
      // it must be replaced, and the others hear at once why.
      if (options_.join.settings().replicas() > 0) send_leave(reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kSuspended:
      if (may_serve(now)) {
        count(Transition::serving_suspended);
        return begin_to_serve(now, effects);
      }
      count(Transition::gave_up_suspended);
      send_leave(reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kStopping:
    case State::kBroken:
    case State::kServing:
    case State::kFinished:
    case State::kFailed: return;
  }
}

// Where one copy is all there is, or is held by all hosts, who goes would be no help.
bool WorkerMachine::may_serve(TimeMs now) const {
  const wire::JobSettings& settings = options_.join.settings();
  return serves_ && plan_.generation() != 0 && !last_version_ && settings.replicas() > 1 &&
         settings.min_workers() == 0 && drain_ && now < drain_->by;
}

void WorkerMachine::begin_to_serve(TimeMs now, std::vector<WorkerEffect>& effects) {
  state_ = State::kServing;
  since_ = heard_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + kWaitLogIntervalMs;
  const std::int64_t left_ms = std::max<std::int64_t>(1, drain_->by - now);
  log(Severity::kInfo, "serving",
      "this worker has left job " + options_.job + ", and serves what its host has logged for " + waited_text(left_ms) +
          " at most: until a version newer than that is committed",
      effects);
  send_serves(static_cast<std::uint64_t>(left_ms), effects);
}

void WorkerMachine::on_served_plan(const wire::Plan& plan, TimeMs now, std::vector<WorkerEffect>& effects) {
  const auto named = std::ranges::find_if(
      plan.servers(), [&](const wire::Member& m) { return m.incarnation() == options_.self.value; });
  // Only rounds that the first plan calls done may be served. Without that plan none are.
  const bool next = named != plan.servers().end() && plan.base_generation() == 0 &&
                    plan.generation() > served_.generation() &&
                    (served_.generation() != 0 || named->since() == plan.generation());
  if (!next) return count(Transition::serves_plan_stale);
  count(Transition::serves_plan);
  served_ = plan;
  effects.emplace_back(worker_effect::Serve{plan});
  // Another plan names it only once the tracker knows that it has this one.
  send_serves(static_cast<std::uint64_t>(std::max<std::int64_t>(1, drain_->by - now)), effects);
}

void WorkerMachine::end_serving(const std::string& why, std::vector<WorkerEffect>& effects) {
  state_ = State::kFailed;
  log(Severity::kInfo, "served", "this worker need not serve what its host has logged any more: " + why, effects);
  effects.emplace_back(worker_effect::Left{});
}

void WorkerMachine::drain(TimeMs by, const std::string& reason, bool serves, TimeMs now,
                          std::vector<WorkerEffect>& effects) {
  preempted_ = true;
  serves_ = serves_ || serves;
  const TimeMs latest = std::min(by, now + limits::kMaxDrainMs);
  if (drain_ && drain_->by <= latest) return;
  count(Transition::draining);
  begin_drain(latest, reason, now, effects);
}

// A life that waits for a plan is asked again with the next plan, if it still holds up the others then.
void WorkerMachine::on_leave_request(const wire::LeaveRequest& request, TimeMs now,
                                     std::vector<WorkerEffect>& effects) {
  if (state_ != State::kMember || request.generation() != plan_.generation())
    return count(Transition::leave_request_stale);
  if (drain_) return count(Transition::leave_request_repeated);
  count(Transition::leave_requested);
  begin_drain(now + static_cast<std::int64_t>(request.within_ms()), request.reason(), now, effects);
  effects.emplace_back(worker_effect::Drain{drain_->by, drain_->reason});
}

void WorkerMachine::begin_drain(TimeMs latest, const std::string& reason, TimeMs now,
                                std::vector<WorkerEffect>& effects) {
  drain_ = Draining{latest, wire_text(reason)};
  log(Severity::kWarning, "draining",
      "this worker has been told to leave (" + drain_->reason +
          "): it does so when no call is under way, at the latest in " +
          waited_text(std::max<std::int64_t>(0, latest - now)),
      effects);
  if (state_ == State::kMember) send_heartbeat(now, effects);
}

}  // namespace warren

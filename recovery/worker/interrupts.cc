// The end of a generation: the data path stops, and only then the worker answers, with Stopped or with a report (I6).
#include <algorithm>
#include <utility>

#include "recovery/wire/codec.h"
#include "recovery/worker/transitions.h"
#include "recovery/worker/worker_machine.h"

namespace warren {

using worker_effect::Send;
using worker_effect::StopDataPath;

void WorkerMachine::send_stopped(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_stopped()->set_generation(stop_generation_.value);
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_report(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  wire::Report& r = *e.mutable_report();
  r.set_generation(stop_generation_.value);
  r.set_version(standing_.version.value);
  r.set_plan_generation(needs_whole_plan_ ? 0 : plan_.generation());
  r.set_timeline(plan_.timeline());
  r.set_committed_version(committed_.value);
  r.set_committed_timeline(committed_timeline_.value);
  r.mutable_positions()->Add(standing_.positions.begin(), standing_.positions.end());
  r.mutable_setups()->Add(standing_.setups.begin(), standing_.setups.end());
  if (standing_.given_up) *r.mutable_given_up() = *standing_.given_up;
  // Where both do not fit, what only dead lives have seen is computed again.
  const std::size_t bytes = e.ByteSizeLong() + standing_.logged.ByteSizeLong() + 64;
  if (standing_.logged.ByteSizeLong() != 0 && bytes <= kMaxWorkerMessageBytes) *r.mutable_logged() = standing_.logged;
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::stop(Generation generation, Status why, bool resume, std::vector<WorkerEffect>& effects) {
  state_ = State::kStopping;
  stop_generation_ = generation;
  stop_why_ = std::move(why);
  resume_ = resume;
  effects.emplace_back(StopDataPath{stop_generation_, stop_why_, resume, given_up_});
}

void WorkerMachine::suspend(TimeMs now, std::vector<WorkerEffect>& effects) {
  state_ = State::kSuspended;
  welcome_.clear_missing();  // of an earlier wait
  since_ = heard_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + kWaitLogIntervalMs;
  send_report(effects);
}

// The failure that an interrupt tells of, seen from this rank: the peer is another rank than this one.
Status WorkerMachine::said_by(const wire::Interrupt& interrupt) const {
  Status said(static_cast<Code>(interrupt.code()), interrupt.reason());
  const wire::About& about = interrupt.about();
  const auto at = static_cast<int>(about.rank());
  const bool own =
      about.has_rank() && at < plan_.members_size() && plan_.members(at).incarnation() == options_.self.value;
  if (about.has_rank() && !own) {
    said = said.about(Rank(static_cast<std::int32_t>(about.rank())));
  } else if (about.has_peer()) {
    said = said.about(Rank(static_cast<std::int32_t>(about.peer())));
  }
  return about.round().empty() ? said : said.about(about.round());
}

void WorkerMachine::on_interrupt(const wire::Interrupt& interrupt, TimeMs now, std::vector<WorkerEffect>& effects) {
  const Generation generation(interrupt.generation());
  const Status said = said_by(interrupt);
  // With a log, what ends all lives without being the program's fault sends the job back to its newest checkpoint.
  const bool rolled_back = !interrupt.resume() && !interrupt.ends_job() && options_.join.settings().replicas() != 0 &&
                           (said.code() == Code::kUnavailable || said.code() == Code::kPeerLost ||
                            said.code() == Code::kCorrupt || said.code() == Code::kTimeout);
  const Status why = rolled_back ? said.because_of_this(Code::kRolledBack, "job " + options_.job + " was rolled back")
                     : interrupt.ends_job() ? said.because_of_this("job " + options_.job + " cannot go on")
                                            : said.because_of_this("job " + options_.job + " was interrupted");
  switch (state_) {
    case State::kJoining:
      // The plan that made this life a member has not arrived and will not: nothing runs that would have to be stopped.
      stop_generation_ = generation;
      stop_why_ = why;
      log(Severity::kWarning, "interrupted", why.describe(), effects);
      if (interrupt.resume()) {
        count(Transition::suspended_joining);
        // The tracker has forgotten with its plan what this life's host has of lives before, and nobody else may have
        // it.
        standing_ = Standing();
        standing_.logged = options_.join.logged();
        standing_.logged.clear_lives();
        return suspend(now, effects);
      }
      count(Transition::interrupted_joining);
      send_stopped(effects);
      return fail(State::kBroken, why, effects);
    case State::kMember:
    case State::kLeaving:
      if (generation <= Generation(plan_.generation())) return count(Transition::interrupt_stale);
      count(state_ == State::kMember ? Transition::interrupted : Transition::interrupted_leaving);
      log(Severity::kWarning, "interrupted", why.describe(), effects);
      return stop(generation, why, interrupt.resume(), effects);
    case State::kStopping:
      // The data path is stopping already, and nothing newer was installed: only the answer changes.
      count(Transition::interrupted_stopping);
      if (generation < stop_generation_) return;
      stop_generation_ = generation;
      if (!interrupt.resume() && resume_) {
        resume_ = false;
        stop_why_ = why;
      }
      return;
    case State::kSuspended:
      if (generation < stop_generation_) return count(Transition::interrupt_stale);
      stop_generation_ = generation;
      stop_why_ = why;
      if (interrupt.resume()) {
        count(Transition::interrupted_suspended);
        return send_report(effects);
      }
      count(Transition::ended_suspended);
      log(Severity::kWarning, "interrupted", why.describe(), effects);
      send_stopped(effects);
      return fail(State::kBroken, why, effects);
    case State::kBroken:
      count(Transition::stopped_repeated);
      stop_generation_ = std::max(stop_generation_, generation);
      return send_stopped(effects);
    default: return count(Transition::out_of_turn);
  }
}

void WorkerMachine::on_stopped(Generation generation, Standing standing, TimeMs now,
                               std::vector<WorkerEffect>& effects) {
  if (state_ != State::kStopping || generation <= Generation(plan_.generation()))
    return count(Transition::stopped_stale);
  if (fenced_) {
    count(Transition::fenced_stopped);
    return fail(State::kFailed, stop_why_, effects, given_up_);
  }
  if (resume_) {
    standing_ = std::move(standing);
    if (leaves_to_serve_) {
      count(Transition::serving);
      return begin_to_serve(now, effects);
    }
    count(Transition::suspended);
    return suspend(now, effects);
  }
  count(Transition::stopped);
  send_stopped(effects);
  fail(State::kBroken, stop_why_, effects);
}

}  // namespace warren

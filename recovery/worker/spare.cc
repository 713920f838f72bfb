// A worker that waits as a spare: it follows checkpoints, is called to a place, and says what its host holds.
#include <utility>

#include "recovery/worker/transitions.h"
#include "recovery/worker/worker_machine.h"

namespace warren {

using worker_effect::Called;
using worker_effect::Follow;
using worker_effect::Spare;

void WorkerMachine::wait_as_spare(TimeMs now, std::vector<WorkerEffect>& effects) {
  const bool looked = !options_.join.spare();
  count(looked ? Transition::spare_returned : Transition::spare);
  state_ = State::kSpare;
  since_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + static_cast<std::int64_t>(options_.join.settings().round_timeout_ms());
  called_ = Generation();
  unbegun_since_.reset();
  // Words about this host may be untrue by the time that the spare is called.
  options_.join.set_spare(true);
  options_.join.set_called(0);
  options_.join.clear_held();
  options_.join.clear_logged();
  if (options_.follows) *options_.join.mutable_followed() = {};
  follows_ = Version();
  log(Severity::kInfo, "spare_waits",
      shrinks() ? "this worker waits until job " + options_.job +
                      " takes it in: when a checkpoint is committed, or in the place of a worker that is lost"
                : "no rank of job " + options_.job + " is free: this worker waits as a spare until one is lost",
      effects);
  effects.emplace_back(Spare{looked});
}

void WorkerMachine::follow(const wire::Follow& what, std::vector<WorkerEffect>& effects) {
  const wire::Followed& had = options_.join.followed();
  const bool other_run = what.run() != had.run();
  const bool newer = other_run || what.generation() > had.generation();
  // Whose members are asked is not older than the commit: who was given up since may have logged something else.
  if (!options_.follows || (newer && !what.has_plan()) || (!other_run && what.generation() < had.generation()) ||
      (!newer && Version(what.version()) < follows_)) {
    return count(Transition::follow_stale);
  }
  count(Transition::follows);
  follows_ = Version(what.version());
  follows_timeline_ = Timeline(what.timeline());
  Follow follow{follows_, follows_timeline_, {}};
  if (newer) follow.plan = what.plan();
  // The checkpoint that it held before goes.
  wire::Followed& has = *options_.join.mutable_followed();
  has.Clear();
  has.set_generation(what.generation());
  has.set_run(what.run());
  effects.emplace_back(std::move(follow));
}

void WorkerMachine::followed(Version version, Timeline timeline) {
  if (state_ != State::kSpare || version != follows_ || timeline != follows_timeline_) return;
  options_.join.mutable_followed()->set_version(version.value);
  options_.join.mutable_followed()->set_timeline(timeline.value);
}

void WorkerMachine::on_called(const wire::Called& called, TimeMs now, std::vector<WorkerEffect>& effects) {
  const Generation generation(called.generation());
  const wire::Join& join = options_.join;
  if (state_ == State::kJoining && (join.spare() || (join.called() != 0 && generation > Generation(join.called())))) {
    // It was not heard to wait; or what it has said of its host is out of date.
    count(Transition::called_again);
    wait_as_spare(now, effects);
    // Then it begins anew, if it has looked before, and is called again.
    if (std::get<Spare>(effects.back()).looked) return;
  }
  if (state_ != State::kSpare) return count(Transition::out_of_turn);
  if (generation <= called_) return count(Transition::called_repeated);
  if (called_ != Generation()) {
    // It looks already, and what it finds is of an earlier moment: it begins anew, and is called again.
    count(Transition::called_again);
    called_ = Generation();
    effects.emplace_back(Spare{true});
    return;
  }
  count(Transition::called);
  called_ = generation;
  log(Severity::kInfo, "spare_called",
      shrinks() ? "this worker is called to come into job " + options_.job
                : "a rank of job " + options_.job + " was lost: this worker is called to take its place",
      effects);
  effects.emplace_back(Called{generation, called.stale()});
}

void WorkerMachine::looked(Generation generation, std::optional<wire::Held> held, wire::Logged logged, TimeMs now,
                           std::vector<WorkerEffect>& effects) {
  if (state_ != State::kSpare || generation != called_) return count(Transition::looked_stale);
  count(Transition::looked);
  state_ = State::kJoining;
  since_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + kWaitLogIntervalMs;
  wire::Join& join = options_.join;
  join.set_spare(false);
  join.set_called(generation.value);
  join.clear_followed();
  if (held) *join.mutable_held() = std::move(*held);
  if (logged.ByteSizeLong() != 0) *join.mutable_logged() = std::move(logged);
  send_join(effects);
}

}  // namespace warren

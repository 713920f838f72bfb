// A member's load and its vote for a checkpoint. Both are repeated until they are answered.
#include <utility>

#include "recovery/worker/transitions.h"
#include "recovery/worker/worker_machine.h"

namespace warren {

using worker_effect::Committed;
using worker_effect::Loaded;
using worker_effect::Send;

void WorkerMachine::send_load(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_load();
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_vote(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  *e.mutable_vote() = vote_;
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::load(TimeMs, std::vector<WorkerEffect>& effects) {
  count(Transition::loading);
  loading_ = true;
  vote_.Clear();
  if (state_ == State::kMember) send_load(effects);
}

void WorkerMachine::on_loaded(const wire::Loaded& loaded, std::vector<WorkerEffect>& effects) {
  if (!loading_ || state_ != State::kMember) return count(Transition::out_of_turn);
  count(Transition::loaded);
  loading_ = false;
  effects.emplace_back(Loaded{loaded.committed(), Version(loaded.version()), Timeline(loaded.timeline())});
}

bool WorkerMachine::may_vote(Generation generation, Version version) {
  // The commit, or the end of the generation, was faster.
  if (version <= committed_ || generation != Generation(plan_.generation()) ||
      (state_ != State::kMember && state_ != State::kLeaving)) {
    count(Transition::report_stale);
    return false;
  }
  WARREN_CHECK(vote_.version() == 0 || vote_.version() == version.value, "one version is voted for at a time");
  return true;
}

void WorkerMachine::vote(const Vote& vote, TimeMs, std::vector<WorkerEffect>& effects) {
  if (!may_vote(vote.generation, vote.version)) return;
  count(Transition::voted);
  vote_.Clear();
  vote_.set_timeline(vote.timeline.value);
  vote_.set_version(vote.version.value);
  vote_.set_generation(plan_.generation());
  *vote_.mutable_state() = vote.state;
  vote_.mutable_positions()->Add(vote.positions.begin(), vote.positions.end());
  setups_ = vote.setups;
  vote_.mutable_setups()->Add(setups_.begin(), setups_.end());
  vote_.set_local_hash(vote.local_hash);
  vote_.mutable_copies()->Add(vote.copies.begin(), vote.copies.end());
  send_vote(effects);
}

void WorkerMachine::tell_state(const StateWord& word, TimeMs, std::vector<WorkerEffect>& effects) {
  if (!may_vote(word.generation, word.version)) return;
  count(Transition::state_told);
  vote_.Clear();
  vote_.set_timeline(word.timeline.value);
  vote_.set_version(word.version.value);
  vote_.set_generation(plan_.generation());
  *vote_.mutable_state() = word.state;
  vote_.set_lacks(true);
  send_vote(effects);
}

void WorkerMachine::committed(Version version, Timeline timeline, std::vector<WorkerEffect>& effects) {
  if (version <= committed_) return;
  count(Transition::committed);
  committed_ = version;
  committed_timeline_ = timeline;
  if (vote_.version() <= version.value) vote_.Clear();
  effects.emplace_back(Committed{version, timeline});
}

}  // namespace warren

#include "chaos/sim/oracle.h"

#include <algorithm>
#include <utility>

namespace warren::chaos {

Oracle::Oracle(const Program& program, std::uint64_t salt, Kept kept, std::optional<Version> base, Oracle* from,
               std::set<Rank> absent)
    : program_(program), salt_(salt), absent_(std::move(absent)), base_(base), kept_(std::move(kept)) {
  const std::size_t ranks = program.groups().front().members.size();
  states_.resize(ranks);
  deferred_.resize(ranks);
  if (!base) return;
  auto& states = saved_[*base];
  for (std::size_t r = 0; r < ranks; ++r) {
    const ProgramState* state = from == nullptr ? nullptr : from->state_at(*base, Rank(static_cast<std::int32_t>(r)));
    states.push_back(state == nullptr ? ProgramState() : *state);
  }
}

void Oracle::settle() {
  for (std::size_t r = 0; r < states_.size(); ++r) {
    states_[r].global += deferred_[r].global;
    states_[r].local += deferred_[r].local;
    deferred_[r] = {};
  }
}

void Oracle::run_to(std::size_t step) {
  const auto& steps = program_.steps();
  while (next_ <= step && next_ < steps.size()) {
    const ProgramStep& s = steps[next_];
    ++next_;
    run(s);
    if (!base_ || next_ != program_.setup_end()) continue;
    settle();
    next_ = program_.position_after_load(*base_);
  }
}

void Oracle::run(const ProgramStep& step) {
  if (step.kind == StepKind::kLoad) {
    settle();
    if (!base_) return;
    const auto& saved = saved_.at(*base_);
    for (std::size_t r = 0; r < states_.size(); ++r) states_[r] = {saved[r].global, saved[r].local, states_[r].setup};
    return;
  }
  if (step.kind == StepKind::kCheckpoint) {
    settle();
    for (ProgramState& state : states_) Program::settle(step, state);
    saved_[step.version] = states_;
    return;
  }
  if (step.wait_before) settle();
  if (step.setup && step.setup != step.index) return;
  const auto& members = program_.members(step);
  Expected e;
  const auto kept = kept_.find(step.index);
  if (kept != kept_.end()) e = kept->second;
  for (std::size_t place = 0; kept == kept_.end() && place < members.size(); ++place) {
    const auto rank = static_cast<std::size_t>(members[place].value);
    e.keys.push_back(program_.input_key(step, static_cast<std::int32_t>(place), states_[rank], salt_));
    if (absent_.contains(members[place])) continue;
    e.contributors.push_back(members[place]);
    e.contributed.push_back(e.keys.back());
  }
  const std::size_t results = shared_result(step.collective) ? 1 : members.size();
  for (std::size_t place = 0; kept == kept_.end() && place < results; ++place) {
    e.outputs.push_back(program_.expected(step, static_cast<std::int32_t>(place), e.contributed));
  }
  for (std::size_t place = 0; place < members.size(); ++place) {
    const auto at = static_cast<std::int32_t>(place);
    if (!program_.place(step, members[place])) continue;
    const auto rank = static_cast<std::size_t>(members[place].value);
    Program::fold(step, e.of(at), step.blocking ? states_[rank] : deferred_[rank]);
  }
  expected_.emplace(step.index, std::move(e));
}

const Oracle::Expected* Oracle::expected(std::size_t step) {
  step = program_.steps()[step].setup.value_or(step);
  run_to(step);
  const auto it = expected_.find(step);
  return it == expected_.end() ? nullptr : &it->second;
}

const ProgramState* Oracle::state_at(Version version, Rank rank) {
  auto it = saved_.find(version);
  if (it == saved_.end()) {
    if (base_ && version < *base_) return nullptr;
    for (const ProgramStep& step : program_.steps()) {
      if (step.kind == StepKind::kCheckpoint && step.version == version) run_to(step.index);
    }
    it = saved_.find(version);
    if (it == saved_.end()) return nullptr;
  }
  return &it->second[static_cast<std::size_t>(rank.value)];
}

}  // namespace warren::chaos

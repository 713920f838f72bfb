#include "worker/rounds/known_rounds.h"

#include <algorithm>

#include "recovery/base/limits.h"

namespace warren::worker {

wire::Setup done_setup(const RoundId& round) {
  wire::Setup s;
  s.set_group(round.group.value);
  s.set_name(round.sequence.value);
  s.set_timeline(round.timeline.value);
  s.set_done(true);
  return s;
}

void KnownRounds::install() {
  for (auto& [name, known] : setups_) known.done = known.completed;
  for (const RoundsPlan::Setup& s : plan_.setups) {
    Setup& known = setups_[{s.group, s.name}];
    known.timeline = s.timeline;
    known.done = known.done || s.done;
  }
}

Timeline KnownRounds::oldest_timeline() const {
  Timeline oldest = plan_.timeline;
  for (const RoundsPlan::Kept& k : plan_.kept) oldest = std::min(oldest, k.timeline);
  return oldest;
}

KnownRounds::Known KnownRounds::known_of(const RoundId& round) const {
  if (is_setup(round)) {
    const auto it = setups_.find({round.group, round.sequence});
    if (it != setups_.end() && it->second.done) return {true, {}, false};
    for (const RoundsPlan::Setup& s : plan_.setups) {
      if (s.group == round.group && s.name == round.sequence) return {false, s.final, false};
    }
    return {};
  }
  const RoundsPlan::Frontier* f = frontier_of(round.group, round.version);
  if (f == nullptr || round.sequence.value > f->rounds) return {};
  if (round.sequence.value < f->rounds) return {true, {}, false};
  return {false, f->final, f->closed};
}

std::shared_ptr<const std::vector<Rank>> KnownRounds::contributors_to(const RoundId& round) const {
  const auto found = plan_.contributors.find(round.timeline);
  return found == plan_.contributors.end() ? nullptr : found->second;
}

const RoundsPlan::RingOrder* KnownRounds::ring_order(Version version) const {
  const RoundsPlan::RingOrder* newest = nullptr;
  for (const RoundsPlan::RingOrder& o : plan_.orders) newest = o.from <= version ? &o : newest;
  return newest;
}

RoundId KnownRounds::setup_round(GroupId group, Sequence name) const {
  const auto it = setups_.find({group, name});
  return {it == setups_.end() ? plan_.timeline : it->second.timeline, group, kPreamble, name};
}

bool KnownRounds::call_setup(GroupId group, Sequence name, std::uint64_t bytes) {
  const auto it = setups_.find({group, name});
  if (it != setups_.end() && it->second.called) return true;
  if (setups_called_ == limits::kMaxSetups || bytes > limits::kMaxSetupBytes - setup_bytes_) return false;
  setups_called_++;
  setup_bytes_ += bytes;
  setups_.try_emplace({group, name}, Setup{.timeline = plan_.timeline}).first->second.called = true;
  return true;
}

void KnownRounds::complete_setup(GroupId group, Sequence name) {
  Setup& known = setups_.at({group, name});
  known.done = known.completed = true;
}

bool KnownRounds::completed_setup(GroupId group, Sequence name) const {
  const auto it = setups_.find({group, name});
  return it != setups_.end() && it->second.completed;
}

std::vector<wire::Setup> KnownRounds::setups_done() const {
  std::vector<wire::Setup> done;
  for (const auto& [key, known] : setups_) {
    if (known.completed) done.push_back(done_setup({known.timeline, key.first, kPreamble, key.second}));
  }
  return done;
}

SetupsInUse KnownRounds::setups_in_use() const {
  SetupsInUse in_use{plan_.timeline, {}};
  for (const auto& [key, known] : setups_) {
    if (known.timeline < plan_.timeline) in_use.earlier.push_back({known.timeline, key.first, kPreamble, key.second});
  }
  std::ranges::sort(in_use.earlier);
  return in_use;
}

}  // namespace warren::worker

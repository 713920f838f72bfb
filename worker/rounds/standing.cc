// How far this life is: what it reports when it is interrupted, and what of the log is still needed.
#include "worker/rounds/engine_parts.h"

#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "worker/rounds/logged.h"
#include "worker/schedule/copies.h"

namespace warren::worker {

WorkerMachine::Standing Engine::standing() const {
  WorkerMachine::Standing standing;
  standing.version = version_;
  std::map<std::pair<GroupId, Version>, wire::Position> positions;
  for (const auto& [key, rounds] : closed_) {
    wire::Position& p = positions[key];
    p.set_group(key.first.value);
    p.set_version(key.second.value);
    p.set_rounds(rounds);
    p.set_closed(true);
  }
  std::size_t ranges = 0;
  for (const auto& [id, group] : groups_) {
    const wire::Position& p = positions[{id, version_}] = position_of(*group, false);
    ranges += static_cast<std::size_t>(p.final_size());
  }
  if (ranges > limits::kMaxRangesPerReport) {
    // Only what stands final in buffers of this life must be known: it may stand where an input was. Whatever else its
    // host holds is known from those who have it in theirs, or is computed again from inputs that are all there.
    ranges = 0;
    for (const auto& [id, group] : groups_) {
      wire::Position& p = positions[{id, version_}] = position_of(*group, true);
      const auto room = static_cast<int>(limits::kMaxRangesPerReport - ranges);
      // What is left out even so ends its round with an error that says so (begin()).
      if (p.final_size() > room) p.mutable_final()->DeleteSubrange(room, p.final_size() - room);
      ranges += static_cast<std::size_t>(p.final_size());
    }
  }
  for (auto& [key, p] : positions) standing.positions.push_back(std::move(p));
  standing.setups = setups_done();
  add_setups_in_flight(standing.setups);
  standing.logged = logged_further(standing);
  if (recall_ != nullptr) standing.given_up = given_up_in(recall_->log());
  return standing;
}

// Rounds of this timeline that dead lives of this host have begun and this one has not.
wire::Logged Engine::logged_further(const WorkerMachine::Standing& standing) const {
  if (recall_ == nullptr) return {};
  wire::Logged all = logged_on(recall_->reader(), plan_.run);
  if (all.timeline() != plan_.timeline.value) return {};
  wire::Logged further;
  further.set_run(all.run());
  further.set_timeline(all.timeline());
  for (wire::Position& p : *all.mutable_positions()) {
    const auto own = std::find_if(standing.positions.begin(), standing.positions.end(), [&](const wire::Position& o) {
      return o.group() == p.group() && o.version() == p.version();
    });
    if (own == standing.positions.end() || p.rounds() > own->rounds()) *further.add_positions() = std::move(p);
  }
  for (wire::Setup& s : *all.mutable_setups()) {
    const bool told = std::any_of(standing.setups.begin(), standing.setups.end(),
                                  [&](const wire::Setup& o) { return o.group() == s.group() && o.name() == s.name(); });
    if (!told) *further.add_setups() = std::move(s);
  }
  return further;
}

// The round that a group is in may have to be finished from what is logged of it, and messages whose calls have
// returned are sent from there.
bool Engine::needs(const RecordKey& record) const {
  const auto of = [&](const auto& entry) {
    const Group& group = *entry.second;
    if (record.kind == RecordKind::kMessage) return group.points.owes(record);
    return group.active != nullptr && record == result_key(group.active->round);
  };
  return std::ranges::any_of(groups_, of) || std::ranges::any_of(departed_, of);
}

// Also of those that this rank has not called: what others of its host have published. Before this timeline none was
// left in flight.
void Engine::add_setups_in_flight(std::vector<wire::Setup>& setups) const {
  if (recall_ == nullptr) return;
  std::vector<std::pair<wire::Setup, Ranges>> in_flight;
  std::size_t ranges = 0;
  for (const auto& [id, group] : groups_) {
    for (const RecordKey& key : recall_->reader().list(RecordKind::kSetup, plan_.timeline, id, kPreamble,
                                                       Sequence(kSetupBit), Sequence(UINT64_MAX), limits::kMaxSetups)) {
      // Also of one that the plan calls done: should that prove wrong, this is what is left of it.
      const bool completed = known_.completed_setup(id, key.round.sequence);
      if (completed || setups.size() + in_flight.size() == limits::kMaxSetups) continue;
      auto& [s, held] = in_flight.emplace_back(wire::Setup(), recall_->reader().held(key));
      s.set_group(id.value);
      s.set_name(key.round.sequence.value);
      s.set_timeline(plan_.timeline.value);
      if (!held.empty()) s.set_total_bytes(whole_bytes(recall_->reader(), key));
      ranges += held.intervals().size();
    }
  }
  // As for other rounds: what stands final in buffers of this life comes first.
  const bool own = ranges > limits::kMaxSetupRangesPerReport;
  ranges = 0;
  for (auto& [s, held] : in_flight) {
    const Group& group = *groups_.at(GroupId(s.group()));
    const bool active = group.active != nullptr && group.active->round.sequence.value == s.name();
    if (own) held = active ? held.intersect(group.have) : Ranges();
    for (const Interval& i : held.intervals()) {
      // What is left out even so ends its round with an error that says so (begin()).
      if (ranges++ >= limits::kMaxSetupRangesPerReport) break;
      wire::ByteRange& range = *s.add_final();
      range.set_begin(i.begin);
      range.set_end(i.end);
    }
    if (s.final_size() == 0) s.clear_total_bytes();
    setups.push_back(std::move(s));
  }
  std::sort(setups.begin(), setups.end(), [](const wire::Setup& a, const wire::Setup& b) {
    return std::pair(a.group(), a.name()) < std::pair(b.group(), b.name());
  });
}

std::optional<std::uint64_t> Engine::rounds_done(GroupId id, Version version) const {
  const auto it = groups_.find(id);
  if (version == version_ && it != groups_.end()) return it->second->rounds_done;
  const auto over = closed_.find({id, version});
  return over == closed_.end() ? std::nullopt : std::optional(over->second);
}

// `own`: of what is final, only what stands in this life's buffers.
wire::Position Engine::position_of(const Group& group, bool own) const {
  wire::Position p;
  p.set_group(group.id.value);
  p.set_version(version_.value);
  const std::uint64_t done = *rounds_done(group.id, version_);
  p.set_rounds(done);
  if (recall_ == nullptr) return p;
  // Also of a round that this rank has not entered: what others of its host have published.
  const RoundId round = round_of(group.id, Sequence(done));
  Ranges held = recall_->reader().held({RecordKind::kRound, round});
  if (own) held = group.active != nullptr && group.active->round == round ? held.intersect(group.have) : Ranges();
  for (const Interval& i : held.intervals()) {
    wire::ByteRange& range = *p.add_final();
    range.set_begin(i.begin);
    range.set_end(i.end);
  }
  say_of_whole(recall_->reader(), {RecordKind::kRound, round}, p);
  return p;
}

void Engine::remember(const Group& group) {
  if (recall_ == nullptr) {  // no new life asks, and no commit would end it
    closed_is_complete_ = false;
    return;
  }
  closed_[{group.id, version_}] = std::max(closed_[{group.id, version_}], group.next_sequence.value);
}

std::vector<wire::Position> Engine::positions_of(Version version) const {
  std::vector<wire::Position> positions;
  for (const auto& [key, rounds] : closed_) {
    if (key.second != version) continue;
    wire::Position& p = positions.emplace_back();
    p.set_group(key.first.value);
    p.set_version(version.value);
    p.set_rounds(rounds);
    p.set_closed(true);
  }
  return positions;
}

}  // namespace warren::worker

// How far this life is: what it reports when it is interrupted, and what of the log is still needed.
#include "worker/rounds/engine.h"

#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "worker/rounds/logged.h"
#include "worker/schedule/copies.h"

namespace warren::worker {

WorkerMachine::Standing Engine::standing() const {
  WorkerMachine::Standing standing;
  standing.version = shared_.version;
  std::map<std::pair<GroupId, Version>, wire::Position> positions;
  for (const auto& [key, rounds] : closed_.all()) positions[key] = ClosedRounds::position_of(key, rounds);
  std::size_t ranges = 0;
  for (const auto& [id, group] : groups_.present()) {
    const wire::Position& p = positions[{id, shared_.version}] = position_of(*group, false);
    ranges += static_cast<std::size_t>(p.final_size());
  }
  if (ranges > limits::kMaxRangesPerReport) {
    // Only what stands final in buffers of this life must be known: it may stand where an input was. Whatever else its
    // host holds is known from those who have it in theirs, or is computed again from inputs that are all there.
    ranges = 0;
    for (const auto& [id, group] : groups_.present()) {
      wire::Position& p = positions[{id, shared_.version}] = position_of(*group, true);
      const auto room = static_cast<int>(limits::kMaxRangesPerReport - ranges);
      // What is left out even so ends its round with an error that says so (GroupRounds::begin).
      if (p.final_size() > room) p.mutable_final()->DeleteSubrange(room, p.final_size() - room);
      ranges += static_cast<std::size_t>(p.final_size());
    }
  }
  for (auto& [key, p] : positions) standing.positions.push_back(std::move(p));
  standing.setups = setups_done();
  add_setups_in_flight(standing.setups);
  standing.logged = logged_further(standing);
  if (shared_.recall != nullptr) standing.given_up = given_up_in(shared_.recall->log());
  return standing;
}

// Rounds of this timeline that dead lives of this host have begun and this one has not.
wire::Logged Engine::logged_further(const WorkerMachine::Standing& standing) const {
  if (shared_.recall == nullptr) return {};
  wire::Logged all = logged_on(shared_.recall->reader(), shared_.plan.run);
  if (all.timeline() != shared_.plan.timeline.value) return {};
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

Inquiry::Answer Engine::say(const RoundId& round, std::span<const std::uint64_t> sites) const {
  const Group* const group = groups_.find(round.group);
  if (!shared_.open || group == nullptr || shared_.recall == nullptr) return {};
  if (const Fingerprint* const begun = group->rounds.begun(round)) return {RoundWord::kRound, *begun};
  // A life that is further ahead than that has logged it.
  const auto logged = shared_.recall->reader().info(result_key(round));
  if (logged.ok() && logged.value()) return {RoundWord::kRound, logged.value()->fingerprint};
  if (shared_.version == round.version) {
    if (const auto said = next_round_.say(round, sites)) return *said;
    if (round.sequence.value < group->rounds.done()) return {RoundWord::kGone, {}};
    return {rounds_over_ && group->rounds.next() <= round.sequence ? RoundWord::kOver : RoundWord::kLater, {}};
  }
  const auto over = closed_.rounds_of(round.group, round.version);
  if (!over) return {};
  return {*over <= round.sequence.value ? RoundWord::kOver : RoundWord::kGone, {}};
}

// The round that a group is in may have to be finished from the log. Messages whose calls have returned are sent from
// there.
bool Engine::needs(const RecordKey& record) const {
  const auto of = [&](const auto& entry) {
    const Group& group = *entry.second;
    if (record.kind == RecordKind::kMessage) return group.points.owes(record);
    return group.rounds.active() != nullptr && record == result_key(group.rounds.active()->round);
  };
  return std::ranges::any_of(groups_.present(), of) || std::ranges::any_of(groups_.departed(), of);
}

// Also of those that this rank has not called: what others of its host have published. Before this timeline none was
// left in flight.
void Engine::add_setups_in_flight(std::vector<wire::Setup>& setups) const {
  if (shared_.recall == nullptr) return;
  std::vector<std::pair<wire::Setup, Ranges>> in_flight;
  std::size_t ranges = 0;
  for (const auto& [id, group] : groups_.present()) {
    for (const RecordKey& key :
         shared_.recall->reader().list(RecordKind::kSetup, shared_.plan.timeline, id, kPreamble, Sequence(kSetupBit),
                                       Sequence(UINT64_MAX), limits::kMaxSetups)) {
      // Also of one that the plan calls done: should that prove wrong, this is what is left of it.
      const bool completed = shared_.known.completed_setup(id, key.round.sequence);
      if (completed || setups.size() + in_flight.size() == limits::kMaxSetups) continue;
      auto& [s, held] = in_flight.emplace_back(wire::Setup(), shared_.recall->reader().held(key));
      s.set_group(id.value);
      s.set_name(key.round.sequence.value);
      s.set_timeline(shared_.plan.timeline.value);
      if (!held.empty()) s.set_total_bytes(whole_bytes(shared_.recall->reader(), key));
      ranges += held.intervals().size();
    }
  }
  // As for other rounds: what stands final in buffers of this life comes first.
  const bool own = ranges > limits::kMaxSetupRangesPerReport;
  ranges = 0;
  for (auto& [s, held] : in_flight) {
    const GroupRounds& rounds = groups_.find(GroupId(s.group()))->rounds;
    const bool active = rounds.active() != nullptr && rounds.active()->round.sequence.value == s.name();
    if (own) held = active ? held.intersect(rounds.have()) : Ranges();
    for (const Interval& i : held.intervals()) {
      // What is left out even so ends its round with an error that says so (GroupRounds::begin).
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
  const Group* const group = groups_.find(id);
  return version == shared_.version && group != nullptr ? group->rounds.done() : closed_.rounds_of(id, version);
}

// `own`: of what is final, only what stands in this life's buffers.
wire::Position Engine::position_of(const Group& group, bool own) const {
  wire::Position p;
  p.set_group(group.id.value);
  p.set_version(shared_.version.value);
  const std::uint64_t done = group.rounds.done();
  p.set_rounds(done);
  if (shared_.recall == nullptr) return p;
  // Also of a round that this rank has not entered: what others of its host have published.
  const RoundId round = shared_.known.round_of(group.id, shared_.version, Sequence(done));
  const Call* const active = group.rounds.active();
  Ranges held = shared_.recall->reader().held({RecordKind::kRound, round});
  if (own) held = active != nullptr && active->round == round ? held.intersect(group.rounds.have()) : Ranges();
  for (const Interval& i : held.intervals()) {
    wire::ByteRange& range = *p.add_final();
    range.set_begin(i.begin);
    range.set_end(i.end);
  }
  say_of_whole(shared_.recall->reader(), {RecordKind::kRound, round}, p);
  return p;
}

}  // namespace warren::worker

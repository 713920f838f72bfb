#include "chaos/sim/completed_rounds.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>

#include "recovery/base/check.h"
#include "recovery/base/ranges.h"
#include "storage/host_log.h"

namespace warren::chaos {

void CompletedRounds::add(const RoundId& round) {
  std::uint64_t& rounds = rounds_[{round.group, round.version}];
  rounds = std::max(rounds, round.sequence.value + 1);
}

std::optional<std::uint64_t> CompletedRounds::all_there(const wire::Plan& plan, const RoundId& round) const {
  std::set<std::string> answer;
  std::set<Incarnation> lives;
  for (const auto* who : {&plan.members(), &plan.servers()}) {
    for (const wire::Member& m : *who) {
      if (m.absent()) continue;
      answer.insert(m.host_id());
      lives.insert(Incarnation(m.incarnation()));
    }
  }
  const auto log = HostLog::create(Incarnation(1), heap_segment(std::size_t{64} << 10)).value();
  for (const auto& [host, segments] : hosts_.all()) {
    if (!answer.contains(host)) continue;
    // Lives that look later know the logs that a launcher holds: the join of a life that was over before may arrive
    // late.
    const auto last = std::ranges::find_if(segments.rbegin(), segments.rend(),
                                           [&](const Hosts::Segment& s) { return lives.contains(s.life); });
    const bool late = last != segments.rend() && !last->running;
    const auto looked = late ? static_cast<std::size_t>(std::distance(last, segments.rend())) : segments.size();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const Hosts::Segment& s = segments[i];
      const bool known = (s.kept && i < looked) || !s.holders.empty() || lives.contains(s.life);
      if (!known) continue;
      WARREN_CHECK(log->attach(s.life, s.memory->bytes(), s.memory).ok(), "a segment that is there is one");
    }
  }
  const RecordKey key{RecordKind::kRound, round};
  const auto info = log->reader()->info(key);
  if (!info.ok() || !info.value() || info.value()->total_bytes == 0) return std::nullopt;
  const bool all = log->reader()->held(key).covers(0, info.value()->total_bytes);
  return all ? std::optional(info.value()->total_bytes) : std::nullopt;
}

void CompletedRounds::check(const wire::Plan& plan, bool excused) {
  std::erase_if(rounds_, [&](const auto& c) {
    return c.first.second != kPreamble && plan.committed() && c.first.second < Version(plan.committed_version());
  });
  for (auto& entry : rounds_) {
    const std::pair<GroupId, Version>& key = entry.first;
    std::uint64_t& completed = entry.second;
    const auto p = std::ranges::find_if(plan.frontier(), [&](const wire::Position& f) {
      return GroupId(f.group()) == key.first && Version(f.version()) == key.second;
    });
    std::uint64_t rounds = 0;
    Ranges final;
    if (p != plan.frontier().end()) {
      rounds = p->rounds();
      for (const wire::ByteRange& r : p->final()) final.add(r.begin(), r.end());
    }
    if (rounds >= completed) continue;
    const RoundId round{Timeline(plan.timeline()), key.first, key.second, Sequence(rounds)};
    const auto bytes = excused ? std::nullopt : all_there(plan, round);
    if (bytes && !final.covers(0, *bytes)) {
      return world_.violated("I4", to_string(round) +
                                       " has been completed and all of it is there, and it is computed " +
                                       "again in generation " + std::to_string(plan.generation()));
    }
    // The plan after this one has to call all of it final as well.
    if (bytes) continue;
    completed = rounds;
  }
}

}  // namespace warren::chaos

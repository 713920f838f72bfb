#include "recovery/decide/deadlock.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace warren {
namespace {

// A long chain of ranks that wait for one that is not blocked may take more: the next look goes on from nothing.
constexpr int kMostPasses = 64;
constexpr std::size_t kMostNamed = 8;

// How far a rank is in the rounds of a group: the first that it has not begun.
using Place = std::pair<std::uint64_t, std::uint64_t>;  // version, sequence
Place place_of(const wire::CurrentRound& r) {
  return {r.version(), r.sequence()};
}
Place place_of(const wire::BegunRounds& g) {
  return {g.version(), g.rounds()};
}

bool is_receive(const wire::CurrentRound& r) {
  return r.collective() == static_cast<std::uint32_t>(Collective::kPoint);
}

// Whether no rank gets its result before each other one has entered the round.
bool needs_all(const wire::CurrentRound& r) {
  switch (static_cast<Collective>(r.collective())) {
    case Collective::kBarrier: return true;
    case Collective::kAllreduce:
    case Collective::kAllgather:
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv:
    case Collective::kAllToAll: return r.count() != 0;
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kAllgatherv:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kPoint:
    case Collective::kAllToAllv: return false;
  }
  return false;
}

const wire::BegunRounds* begun_in(const RankReport& report, std::uint64_t group) {
  const auto found = std::ranges::find(report.blocked->begun(), group, &wire::BegunRounds::group);
  return found == report.blocked->begun().end() ? nullptr : &*found;
}

// How far this rank is in the rounds of a group that it is in; nothing: nobody can tell. A group that it has not made
// begins at the first round of the version that the rank is in.
std::optional<Place> place_in(const RankReport& report, std::uint64_t group) {
  if (const wire::BegunRounds* const begun = begun_in(report, group); begun != nullptr) return place_of(*begun);
  const wire::BegunRounds* const world = begun_in(report, kWorldGroup.value);
  if (!report.blocked->complete() || world == nullptr) return std::nullopt;
  return Place(world->version(), 0);
}

class Circles {
 public:
  Circles(std::span<const RankReport> reports, std::int64_t round_timeout_ms) : reports_(reports) {
    std::int64_t older_ms = 0;
    for (const RankReport& r : reports) {
      if (says(r)) older_ms = std::max(older_ms, r.age_ms);
    }
    // A rank that was blocked for a round timeout before the oldest report is blocked at one moment with all others.
    for (const RankReport& r : reports) {
      stuck_.push_back(says(r) && r.age_ms < round_timeout_ms &&
                       static_cast<std::int64_t>(r.blocked->blocked_ms()) - (older_ms - r.age_ms) >= round_timeout_ms);
    }
  }

  // Leaves the ranks of which no call can end. False: it was too long a way.
  bool run() {
    for (int pass = 0; pass < kMostPasses; pass++) {
      look_at_groups();
      bool changed = false;
      for (const RankReport& r : reports_) {
        if (!is_stuck(r.rank)) continue;
        const bool all =
            std::ranges::all_of(r.blocked->calls(), [&](const auto& c) { return waits_for(r, c) != kNoRank; });
        if (all) continue;
        stuck_[static_cast<std::size_t>(r.rank.value)] = false;
        changed = true;
      }
      if (!changed) return true;
    }
    return false;
  }

  // A stuck rank that has not begun what this call of a stuck rank needs; kNoRank: none, and so the call may end.
  [[nodiscard]] Rank waits_for(const RankReport& waiter, const wire::CurrentRound& call) const {
    if (is_receive(call)) return waits_for_message(waiter, call);
    if (is_setup(round_of(call))) return kNoRank;
    if (needs_all(call)) {
      const auto last = last_of_.find(call.group());
      if (last != last_of_.end() && last->second.first <= place_of(call)) return last->second.second;
    }
    for (const std::uint32_t peer : call.waiting_for()) {
      const Rank rank(static_cast<std::int32_t>(peer));
      if (!is_stuck(rank)) continue;
      const auto place = place_in(reports_[peer], call.group());
      if (place && *place <= place_of(call)) return rank;
    }
    return kNoRank;
  }

  [[nodiscard]] bool is_stuck(Rank rank) const {
    return static_cast<std::size_t>(rank.value) < stuck_.size() && stuck_[static_cast<std::size_t>(rank.value)];
  }

 private:
  [[nodiscard]] static bool says(const RankReport& r) {
    return r.blocked != nullptr && !r.finalizing && r.blocked->calls_size() != 0;
  }

  // Of each group the stuck rank that is least far.
  void look_at_groups() {
    last_of_.clear();
    for (const RankReport& r : reports_) {
      if (!is_stuck(r.rank)) continue;
      for (const wire::BegunRounds& g : r.blocked->begun()) look_at(g.group(), place_of(g), r.rank);
      // Ranks that have not made the group name it nowhere: those that wait for them do.
      for (const wire::CurrentRound& call : r.blocked->calls()) {
        if (!needs_all(call)) continue;
        for (const std::uint32_t peer : call.waiting_for()) {
          const Rank rank(static_cast<std::int32_t>(peer));
          if (!is_stuck(rank)) continue;
          if (const auto place = place_in(reports_[peer], call.group())) look_at(call.group(), *place, rank);
        }
      }
    }
  }

  void look_at(std::uint64_t group, const Place& place, Rank rank) {
    const auto [at, added] = last_of_.try_emplace(group, place, rank);
    if (!added && place < at->second.first) at->second = {place, rank};
  }

  [[nodiscard]] Rank waits_for_message(const RankReport& waiter, const wire::CurrentRound& call) const {
    if (call.waiting_for_size() != 1) return kNoRank;
    const std::uint32_t peer = call.waiting_for(0);
    const Rank sender(static_cast<std::int32_t>(peer));
    if (!is_stuck(sender)) return kNoRank;
    std::uint64_t sent = 0;
    for (const wire::SentMessages& s : reports_[peer].blocked->sent()) {
      if (s.group() != call.group() || static_cast<std::int64_t>(s.peer()) != waiter.rank.value) continue;
      if (s.leaving()) return kNoRank;
      sent = s.messages();
    }
    return sent == call.count() ? sender : kNoRank;
  }

  std::span<const RankReport> reports_;
  std::vector<bool> stuck_;                                  // by rank; those of which it is not known yet among them
  std::map<std::uint64_t, std::pair<Place, Rank>> last_of_;  // by group
};

std::string call_text(const wire::CurrentRound& r) {
  if (is_receive(r)) return "recv (tag " + std::to_string(r.root()) + ")";
  return to_string(fingerprint_of(r)) + " in " + to_string(round_of(r));
}

}  // namespace

std::optional<std::string> find_deadlock(std::span<const RankReport> reports, std::int64_t round_timeout_ms,
                                         const RankName& name) {
  Circles search(reports, round_timeout_ms);
  if (!search.run()) return std::nullopt;
  const auto first = std::ranges::find_if(reports, [&](const RankReport& r) { return search.is_stuck(r.rank); });
  if (first == reports.end()) return std::nullopt;
  // From one to the next until one comes again, with which the circle begins.
  struct Hop {
    Rank rank;
    const wire::CurrentRound* call;
  };
  std::vector<Hop> hops;
  Rank at = first->rank;
  while (std::ranges::find(hops, at, &Hop::rank) == hops.end()) {
    const RankReport& r = reports[static_cast<std::size_t>(at.value)];
    hops.push_back({at, &r.blocked->calls(0)});
    at = search.waits_for(r, r.blocked->calls(0));
  }
  hops.erase(hops.begin(), std::ranges::find(hops, at, &Hop::rank));
  std::string text = "calls wait for each other in a circle and cannot end: ";
  for (std::size_t i = 0; i < hops.size() && i < kMostNamed; i++) {
    const Rank next = hops[(i + 1) % hops.size()].rank;
    text += (i == 0 ? "" : "; ") + name(hops[i].rank) + " waits in " + call_text(*hops[i].call) + " for rank " +
            std::to_string(next.value);
  }
  if (hops.size() > kMostNamed) text += "; and " + std::to_string(hops.size() - kMostNamed) + " ranks more";
  return text;
}

}  // namespace warren

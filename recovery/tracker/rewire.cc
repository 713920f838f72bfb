// What is done about a link that holds up all ranks, beyond saying so: its bytes go by way of others
// (docs/decisions/0012). The arithmetic stays, and so do the bits; unless the user has given leave that the ring goes
// around it, from a later version on.
#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"

namespace warren {

namespace {
RankPair pair_in(const Verdict& v) {
  return pair_of(static_cast<std::uint32_t>(v.rank.value), static_cast<std::uint32_t>(v.peer.value));
}
// Whether today's ring uses the link between the hosts of the two, and the best one does not.
bool avoids(const RingProblem& problem, const std::vector<std::uint32_t>& best, const RankPair& pair) {
  const HostPair link = host_pair(problem.hosts[pair.a], problem.hosts[pair.b]);
  const auto uses = [&](const std::vector<std::uint32_t>& order) {
    const std::vector<HostPair> links = links_of(problem, order);
    return std::ranges::find(links, link) != links.end();
  };
  return uses(problem.current) && !uses(best);
}
std::string text_of(const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}
}  // namespace

std::int64_t TrackerMachine::rewire_after_ms() const {
  return straggler_limits(timeout_ms()).window_ms;
}

bool TrackerMachine::takes_detour(const RankPair& pair) const {
  return std::ranges::any_of(plan_.detours(), [&](const wire::Detour& d) { return RankPair{d.a(), d.b()} == pair; });
}

std::set<RankPair> TrackerMachine::slow_links(const std::vector<StragglerWatch::Standing>& standing) const {
  std::set<RankPair> slow;
  for (const wire::Detour& d : plan_.detours()) slow.insert({d.a(), d.b()});
  for (const StragglerWatch::Standing& s : standing) {
    if (s.verdict.blame == Blame::kSlowLink) slow.insert(pair_in(s.verdict));
  }
  return slow;
}

std::map<RankPair, std::uint32_t> TrackerMachine::links_to_avoid() const {
  // Whose bytes go straight again is the worse one.
  constexpr std::uint32_t kByWayOfOthers = 1, kStraight = 2;
  std::map<RankPair, std::uint32_t> slow;
  for (const auto& [pair, why] : hopeless_) slow[pair] = kStraight;
  for (const wire::Detour& d : plan_.detours()) slow[{d.a(), d.b()}] = kByWayOfOthers;
  return slow;
}

RingProblem TrackerMachine::ring_around(const std::map<RankPair, std::uint32_t>& slow) const {
  RingProblem problem;
  std::map<std::string_view, std::uint32_t> numbers;
  for (const wire::Member& m : plan_.members()) {
    const auto number = static_cast<std::uint32_t>(numbers.size());
    problem.hosts.push_back(numbers.try_emplace(m.host_id(), number).first->second);
    problem.absent.push_back(m.absent());
  }
  for (const auto& [pair, slowness] : slow) {
    std::uint32_t& known = problem.slowness[host_pair(problem.hosts[pair.a], problem.hosts[pair.b])];
    known = std::max(known, slowness);
  }
  if (plan_.orders().empty()) {
    problem.current.resize(problem.hosts.size());
    std::iota(problem.current.begin(), problem.current.end(), 0u);
  } else {
    const auto& ranks = plan_.orders(plan_.orders_size() - 1).ranks();
    problem.current.assign(ranks.begin(), ranks.end());
  }
  return problem;
}

// Rounds are in the version that is committed and in later ones, in which so at most two orders are in force.
bool TrackerMachine::may_reorder() const {
  if (!reorders()) return false;
  return plan_.orders().empty() || plan_.orders(plan_.orders_size() - 1).from_version() < next_version().value;
}

// Why the bytes of this link take no other way; empty: they may.
std::string TrackerMachine::no_way(const RankPair& pair, const std::set<RankPair>& slow) const {
  if (const auto it = hopeless_.find(pair); it != hopeless_.end()) return it->second;
  if (plan_.detours_size() == static_cast<int>(limits::kMaxDetours)) {
    return "those of " + std::to_string(limits::kMaxDetours) + " links go by way of others already, which is the limit";
  }
  for (const std::uint32_t rank : {pair.a, pair.b}) {
    const auto slow_links = std::ranges::count_if(slow, [&](const RankPair& p) { return p.a == rank || p.b == rank; });
    if (slow_links > 1) {
      return "rank " + std::to_string(rank) + " has " + std::to_string(slow_links) +
             " slow links: what all of them share is slow";
    }
  }
  return find_ways(plan_.members(), pair, slow).obstacle;
}

void TrackerMachine::foresee_ways(std::vector<StragglerWatch::Standing>& standing, TimeMs now) const {
  if (!rewires()) return;
  const std::set<RankPair> slow = slow_links(standing);
  // Found once for all of them: it takes longest.
  std::optional<RingProblem> ring;
  std::vector<std::uint32_t> best;
  if (may_reorder() && !slow.empty()) {
    auto avoided = links_to_avoid();
    for (const RankPair& pair : slow) avoided.try_emplace(pair, 1);
    ring = ring_around(avoided);
    best = find_ring(*ring);
  }
  for (StragglerWatch::Standing& s : standing) {
    if (s.verdict.blame != Blame::kSlowLink) continue;
    const RankPair pair = pair_in(s.verdict);
    const std::int64_t left_ms = s.since + rewire_after_ms() - now;
    const std::string when = left_ms <= 0 ? " now" : " in " + seconds_text(left_ms);
    std::string& next = s.verdict.next;
    if (takes_detour(pair)) {
      next = "bytes that go by way of others go straight again" + when;
    } else if (const std::string why = no_way(pair, slow); !why.empty()) {
      next = "its bytes take the same way: " + why;
    } else {
      const std::int64_t wait_ms = std::max(left_ms, no_rewire_before_ - now);
      next = "its bytes go by way of " + text_of(find_ways(plan_.members(), pair, slow).relays) +
             (wait_ms <= 0 ? " now" : " in " + seconds_text(wait_ms));
      if (ring && avoids(*ring, best, pair)) {
        next += ", and two checkpoints later the ring goes past it in another order";
      }
    }
  }
}

void TrackerMachine::rewire(const std::vector<Verdict>& found, TimeMs now, Effects& effects) {
  if (!rewires()) return;
  // Who has not come up, is about to go or replays changes what links have to carry.
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& m = members_[rank];
    const bool steady = m.state == MemberState::kActive && m.activity && !m.activity->replaying() && !m.draining;
    if (!steady && !absent(rank)) return;
  }
  const std::vector<StragglerWatch::Standing> standing = watch_.standing();
  const std::set<RankPair> slow = slow_links(standing);
  std::set<RankPair> change;
  std::string text;
  std::erase_if(no_ways_, [&](const auto& n) { return !slow.contains(n.first); });
  for (const StragglerWatch::Standing& s : standing) {
    const Verdict& v = s.verdict;
    const bool again = std::ranges::any_of(found, [&](const Verdict& f) { return f.key() == v.key(); });
    if (v.blame != Blame::kSlowLink || !again || now < s.since + rewire_after_ms()) continue;
    const RankPair pair = pair_in(v);
    const bool undone = takes_detour(pair);
    if (!undone) {
      const std::string why = no_way(pair, slow);
      if (!why.empty() && no_ways_[pair] != why) {
        count(Transition::rewire_obstructed);
        no_ways_[pair] = why;
        log(Severity::kWarning, "not_rewired",
            "the bytes between " + name(pair.a) + " and " + name(pair.b) +
                " take the same way, which has been slow for " + seconds_text(now - s.since) + ": " + why,
            effects, {{"rank", std::to_string(pair.a)}, {"peer", std::to_string(pair.b)}});
      }
      if (!why.empty() || now < no_rewire_before_) continue;
    }
    if (!change.insert(pair).second) continue;
    if (undone) {
      count(Transition::rewire_undone);
      // What has come of it is known, for as long as these lives are there.
      hopeless_.emplace(pair, "by way of others they were as slow");
    } else {
      count(Transition::rewired);
    }
    if (change.size() == 1) {
      text = "the link between " + name(pair.a) + " and " + name(pair.b) + " has been slow for " +
             seconds_text(now - s.since) +
             (undone ? " by way of others, too: its bytes go straight again" : ": its bytes go by way of others");
    }
  }
  if (change.empty()) return;
  if (change.size() > 1) text += " (and " + std::to_string(change.size() - 1) + " more links change)";
  rewired_ = std::move(change);
  no_rewire_before_ = now + replacement_pause_ms();
  end_generation(Code::kPeerLost, text, {}, Ending::kResumes, now, effects);
}

void TrackerMachine::choose_detours(const wire::Plan& before, TimeMs now, Effects& effects) {
  const std::set<RankPair> change = std::exchange(rewired_, {});
  const std::set<RankPair> broken = std::exchange(broken_detours_, {});
  no_ways_.clear();
  // What was measured was so between these lives.
  const auto lives_on = [&](std::uint32_t rank) {
    const auto i = static_cast<int>(rank);
    return i < before.members_size() && i < plan_.members_size() && !plan_.members(i).absent() &&
           plan_.members(i).incarnation() == before.members(i).incarnation();
  };
  const auto same = [&](const RankPair& pair) { return lives_on(pair.a) && lives_on(pair.b); };
  std::erase_if(hopeless_, [&](const auto& entry) { return !same(entry.first); });
  std::erase_if(broken_before_, [&](const RankPair& pair) { return !same(pair); });
  std::set<RankPair> slow = change;
  for (const wire::Detour& d : before.detours()) {
    const RankPair pair = {d.a(), d.b()};
    // A slow link is better than one that does not come up. Once may have been chance: it is tried again after a pause.
    if (broken.contains(pair) && same(pair) && std::ranges::all_of(d.relays(), lives_on)) {
      const std::string why = "by way of " + text_of({d.relays().begin(), d.relays().end()}) + " its connections broke";
      if (!broken_before_.insert(pair).second) hopeless_.emplace(pair, why);
      no_rewire_before_ = now + replacement_pause_ms();
      count(Transition::detour_broken);
      log(Severity::kWarning, "not_rewired",
          "from generation " + std::to_string(generation_.value) + " on the bytes between " + name(pair.a) + " and " +
              name(pair.b) + " go straight: " + why,
          effects, {{"rank", std::to_string(pair.a)}, {"peer", std::to_string(pair.b)}});
      continue;
    }
    slow.insert(pair);
  }
  std::erase_if(slow, [&](const RankPair& pair) { return !same(pair) || hopeless_.contains(pair); });
  for (const RankPair& pair : slow) {
    if (plan_.detours_size() == static_cast<int>(limits::kMaxDetours)) break;
    const Ways ways = find_ways(plan_.members(), pair, slow);
    if (ways.relays.empty()) {
      count(Transition::detour_dropped);
      log(Severity::kWarning, "not_rewired",
          "from generation " + std::to_string(generation_.value) + " on the bytes between " + name(pair.a) + " and " +
              name(pair.b) + " go straight: " + ways.obstacle,
          effects, {{"rank", std::to_string(pair.a)}, {"peer", std::to_string(pair.b)}});
      continue;
    }
    wire::Detour& d = *plan_.add_detours();
    d.set_a(pair.a);
    d.set_b(pair.b);
    d.mutable_relays()->Add(ways.relays.begin(), ways.relays.end());
    if (!change.contains(pair)) continue;
    no_rewire_before_ = now + replacement_pause_ms();
    log(Severity::kInfo, "rewired",
        "from generation " + std::to_string(generation_.value) + " on the bytes between " + name(pair.a) + " and " +
            name(pair.b) + " go by way of " + text_of(ways.relays),
        effects, {{"rank", std::to_string(pair.a)}, {"peer", std::to_string(pair.b)}});
  }
}

Version TrackerMachine::newest_begun() const {
  Version newest = next_version();
  for (const auto& [worker, w] : waiting_) {
    if (w.report) newest = std::max(newest, Version(w.report->version()));
  }
  for (const wire::Position& p : plan_.frontier()) newest = std::max(newest, Version(p.version()));
  return newest;
}

void TrackerMachine::choose_order(const wire::Plan& before, Effects& effects) {
  if (before.members_size() == plan_.members_size()) {
    *plan_.mutable_orders() = before.orders();
    // Nobody computes a round of a version before the committed one.
    const std::uint64_t oldest = committed_.value_or(version_of_program(0)).value;
    if (plan_.orders_size() > 1 && plan_.orders(1).from_version() <= oldest) {
      plan_.mutable_orders()->DeleteSubrange(0, 1);
    }
  }
  if (!may_reorder()) return;
  const std::map<RankPair, std::uint32_t> slow = links_to_avoid();
  if (slow.empty()) return;
  const RingProblem problem = ring_around(slow);
  const std::vector<std::uint32_t> found = find_ring(problem);
  if (found == problem.current) return;
  count(Transition::reordered);
  wire::RingOrder& order = *plan_.add_orders();
  order.set_from_version(first_unbegun().value);
  order.mutable_ranks()->Add(found.begin(), found.end());
  std::string past;
  std::size_t links = 0;
  for (const auto& [pair, slowness] : slow) {
    if (!avoids(problem, found, pair)) continue;
    if (++links == 1) past = "the link between " + name(pair.a) + " and " + name(pair.b);
  }
  if (links == 0) past = "links that are slower";
  if (links > 1) past += " and " + std::to_string(links - 1) + " more";
  const std::string version = std::to_string(order.from_version() - version_of_program(0).value);
  log(Severity::kInfo, "reordered",
      "from version " + version + " on the ring goes past " + past +
          " in another order of hosts, and allreduces by it round otherwise",
      effects, {{"from_version", version}});
}

}  // namespace warren

// What is done about a link that holds up all ranks, beyond saying so: its bytes go by way of others
// (docs/decisions/0012). The arithmetic stays, and so do the bits; unless the user has given leave that the ring goes
// around it, from a later version on.
#include <algorithm>
#include <numeric>
#include <optional>

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
}  // namespace

std::int64_t TrackerMachine::rewire_after_ms() const {
  return straggler_limits(timeout_ms()).window_ms;
}

std::map<RankPair, std::uint32_t> TrackerMachine::links_to_avoid() const {
  // Whose bytes go straight again is the worse one.
  constexpr std::uint32_t kByWayOfOthers = 1, kStraight = 2;
  std::map<RankPair, std::uint32_t> slow;
  for (const auto& [pair, why] : rewiring_.hopeless()) slow[pair] = kStraight;
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

void TrackerMachine::foresee_ways(std::vector<StragglerWatch::Standing>& standing, TimeMs now) const {
  if (!rewires()) return;
  const std::set<RankPair> slow = Rewiring::slow_links(plan_, standing);
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
    if (Rewiring::takes_detour(plan_, pair)) {
      next = "bytes that go by way of others go straight again" + when;
    } else if (const std::string why = rewiring_.obstacle(plan_, pair, slow); !why.empty()) {
      next = "its bytes take the same way: " + why;
    } else {
      const std::int64_t wait_ms = std::max(left_ms, rewiring_.not_before() - now);
      next = "its bytes go by way of " + text_of_ranks(find_ways(plan_.members(), pair, slow).relays) +
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
  const Rewiring::Look look =
      rewiring_.look(plan_, watch_.standing(), found, now, rewire_after_ms(), replacement_pause_ms());
  for (const Rewiring::Look::Obstructed& o : look.obstructed) {
    count(Transition::rewire_obstructed);
    log_not_rewired("the bytes between " + ends_of(o.link.pair) + " take the same way, which has been slow for " +
                        seconds_text(now - o.link.since) + ": " + o.why,
                    o.link.pair, effects);
  }
  if (look.changes.empty()) return;
  for (const Rewiring::Look::Change& c : look.changes) {
    count(c.undone ? Transition::rewire_undone : Transition::rewired);
  }
  const Rewiring::Look::Change& first = look.changes.front();
  std::string text =
      "the link between " + ends_of(first.link.pair) + " has been slow for " + seconds_text(now - first.link.since) +
      (first.undone ? " by way of others, too: its bytes go straight again" : ": its bytes go by way of others");
  if (look.changes.size() > 1) text += " (and " + std::to_string(look.changes.size() - 1) + " more links change)";
  end_generation(Code::kPeerLost, text, {}, Ending::kResumes, now, effects);
}

std::string TrackerMachine::ends_of(const RankPair& pair) const {
  return name(pair.a) + " and " + name(pair.b);
}

void TrackerMachine::log_not_rewired(const std::string& text, const RankPair& pair, Effects& effects) const {
  log(Severity::kWarning, "not_rewired", text, effects,
      {{"rank", std::to_string(pair.a)}, {"peer", std::to_string(pair.b)}});
}

void TrackerMachine::choose_detours(const wire::Plan& before, TimeMs now, Effects& effects) {
  using Kind = Rewiring::Choice::Kind;
  const std::string from = "from generation " + std::to_string(generation_.value) + " on the bytes between ";
  for (const Rewiring::Choice& c : rewiring_.choose(before, plan_, now, replacement_pause_ms())) {
    if (c.kind != Kind::kRewired) {
      count(c.kind == Kind::kBroke ? Transition::detour_broken : Transition::detour_dropped);
      log_not_rewired(from + ends_of(c.pair) + " go straight: " + c.why, c.pair, effects);
      continue;
    }
    wire::Detour& d = *plan_.add_detours();
    d.set_a(c.pair.a);
    d.set_b(c.pair.b);
    d.mutable_relays()->Add(c.relays.begin(), c.relays.end());
    if (!c.is_new) continue;
    log(Severity::kInfo, "rewired", from + ends_of(c.pair) + " go by way of " + text_of_ranks(c.relays), effects,
        {{"rank", std::to_string(c.pair.a)}, {"peer", std::to_string(c.pair.b)}});
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
    if (++links == 1) past = "the link between " + ends_of(pair);
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

#include "recovery/tracker/rewiring.h"

#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"

namespace warren {

namespace {
RankPair pair_in(const Verdict& v) {
  return pair_of(static_cast<std::uint32_t>(v.rank.value), static_cast<std::uint32_t>(v.peer.value));
}
// Whether the rank has the same life in both plans.
bool lives_on(const wire::Plan& before, const wire::Plan& plan, std::uint32_t rank) {
  const auto i = static_cast<int>(rank);
  return i < before.members_size() && i < plan.members_size() && !plan.members(i).absent() &&
         plan.members(i).incarnation() == before.members(i).incarnation();
}
bool live_on(const wire::Plan& before, const wire::Plan& plan, const RankPair& pair) {
  return lives_on(before, plan, pair.a) && lives_on(before, plan, pair.b);
}
}  // namespace

std::string text_of_ranks(const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kMost; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}

bool Rewiring::takes_detour(const wire::Plan& plan, const RankPair& pair) {
  return std::ranges::any_of(plan.detours(), [&](const wire::Detour& d) { return RankPair{d.a(), d.b()} == pair; });
}

std::set<RankPair> Rewiring::slow_links(const wire::Plan& plan, const std::vector<StragglerWatch::Standing>& standing) {
  std::set<RankPair> slow;
  for (const wire::Detour& d : plan.detours()) slow.insert({d.a(), d.b()});
  for (const StragglerWatch::Standing& s : standing) {
    if (s.verdict.blame == Blame::kSlowLink) slow.insert(pair_in(s.verdict));
  }
  return slow;
}

std::string Rewiring::obstacle(const wire::Plan& plan, const RankPair& pair, const std::set<RankPair>& slow) const {
  if (const auto it = hopeless_.find(pair); it != hopeless_.end()) return it->second;
  if (plan.detours_size() == static_cast<int>(limits::kMaxDetours)) {
    return "those of " + std::to_string(limits::kMaxDetours) + " links go by way of others already, which is the limit";
  }
  for (const std::uint32_t rank : {pair.a, pair.b}) {
    const auto slow_links = std::ranges::count_if(slow, [&](const RankPair& p) { return p.a == rank || p.b == rank; });
    if (slow_links > 1) {
      return "rank " + std::to_string(rank) + " has " + std::to_string(slow_links) +
             " slow links: what all of them share is slow";
    }
  }
  return find_ways(plan.members(), pair, slow).obstacle;
}

Rewiring::Look Rewiring::look(const wire::Plan& plan, const std::vector<StragglerWatch::Standing>& standing,
                              const std::vector<Verdict>& found, TimeMs now, std::int64_t after_ms,
                              std::int64_t pause_ms) {
  const std::set<RankPair> slow = slow_links(plan, standing);
  std::erase_if(obstacles_, [&](const auto& o) { return !slow.contains(o.first); });
  Look look;
  std::set<RankPair> changing;
  for (const StragglerWatch::Standing& s : standing) {
    const Verdict& v = s.verdict;
    const bool again = std::ranges::any_of(found, [&](const Verdict& f) { return f.key() == v.key(); });
    if (v.blame != Blame::kSlowLink || !again || now < s.since + after_ms) continue;
    const RankPair pair = pair_in(v);
    const bool undone = takes_detour(plan, pair);
    if (!undone) {
      const std::string why = obstacle(plan, pair, slow);
      if (!why.empty() && std::exchange(obstacles_[pair], why) != why)
        look.obstructed.push_back({{pair, s.since}, why});
      if (!why.empty() || now < not_before_) continue;
    }
    if (!changing.insert(pair).second) continue;
    // The other way has not helped, and does not while these lives are there.
    if (undone) hopeless_.emplace(pair, "by way of others they were as slow");
    look.changes.push_back({{pair, s.since}, undone});
  }
  if (!changing.empty()) {
    changing_ = std::move(changing);
    not_before_ = now + pause_ms;
  }
  return look;
}

std::vector<Rewiring::Choice> Rewiring::choose(const wire::Plan& before, const wire::Plan& plan, TimeMs now,
                                               std::int64_t pause_ms) {
  const std::set<RankPair> changing = std::exchange(changing_, {});
  const std::set<RankPair> broken = std::exchange(broken_, {});
  obstacles_.clear();
  // Measurements hold between the same two lives alone.
  const auto same = [&](const RankPair& pair) { return live_on(before, plan, pair); };
  std::erase_if(hopeless_, [&](const auto& entry) { return !same(entry.first); });
  std::erase_if(broken_before_, [&](const RankPair& pair) { return !same(pair); });
  std::vector<Choice> choices;
  std::set<RankPair> slow = changing;
  for (const wire::Detour& d : before.detours()) {
    const RankPair pair = {d.a(), d.b()};
    const bool same_ways = std::ranges::all_of(d.relays(), [&](std::uint32_t r) { return lives_on(before, plan, r); });
    if (!broken.contains(pair) || !same(pair) || !same_ways) {
      slow.insert(pair);
      continue;
    }
    // A slow link is better than one that does not come up. Once may have been chance: it is tried again after a pause.
    Choice choice{Choice::Kind::kBroke, pair, {d.relays().begin(), d.relays().end()}, {}};
    choice.why = "by way of " + text_of_ranks(choice.relays) + " its connections broke";
    if (!broken_before_.insert(pair).second) hopeless_.emplace(pair, choice.why);
    not_before_ = now + pause_ms;
    choices.push_back(std::move(choice));
  }
  std::erase_if(slow, [&](const RankPair& pair) { return !same(pair) || hopeless_.contains(pair); });
  std::size_t detours = 0;
  for (const RankPair& pair : slow) {
    if (detours == limits::kMaxDetours) break;
    Ways ways = find_ways(plan.members(), pair, slow);
    const bool is_new = changing.contains(pair);
    if (ways.relays.empty()) {
      choices.push_back({Choice::Kind::kNoWay, pair, {}, std::move(ways.obstacle)});
      continue;
    }
    ++detours;
    if (is_new) not_before_ = now + pause_ms;
    choices.push_back({Choice::Kind::kRewired, pair, std::move(ways.relays), {}, is_new});
  }
  return choices;
}

}  // namespace warren

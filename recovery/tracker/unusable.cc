// A link that ends one generation after the other, in none of which anything gets done, is unusable: traffic that
// a firewall drops, memory that one rank of a host cannot map. Another way is taken if there is one: two ranks of one
// host count as two hosts, and send each other bytes by TCP; bytes between hosts go by way of others. Where there is
// none, the job ends when its workers would no longer wait for each other to join.
#include <algorithm>

#include "recovery/base/limits.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"

namespace warren {

void TrackerMachine::note_futile(const Evidence& e) {
  if (!logged()) return;
  futile_.note(static_cast<std::uint32_t>(e.reporter), static_cast<std::uint32_t>(e.peer), e.text,
               Generation(plan_.generation()), since_);
}

bool TrackerMachine::has_untried_way(const RankPair& pair) const {
  const auto host = [&](std::uint32_t rank) { return plan_.members(static_cast<int>(rank)).host_id(); };
  if (host(pair.a) == host(pair.b)) return true;
  return rewires() && !Rewiring::takes_detour(plan_, pair) && !rewiring_.hopeless().contains(pair) &&
         !find_ways(plan_.members(), pair, {pair}).relays.empty();
}

// True: there is nothing more to wait for, and the job has ended.
bool TrackerMachine::end_for_unusable(TimeMs now, Effects& effects) {
  const std::int64_t patience_ms = join_timeout_ms_ == 0 ? limits::kDefaultJoinTimeoutMs : join_timeout_ms_;
  const auto found = std::ranges::find_if(futile_.all(), [&](const auto& f) {
    return f.second.is_unusable() && now - *f.second.since >= patience_ms && !has_untried_way(f.first);
  });
  if (found == futile_.all().end()) return false;
  const auto& [pair, link] = *found;
  count(Transition::unusable_ended);
  std::string text = name(pair.a) + " and " + name(pair.b) +
                     " have no usable link: " + std::to_string(link.generations) +
                     " generations in a row have ended because of it in " + seconds_text(now - *link.since) +
                     ", and no round was completed in them";
  if (!link.why_a.empty()) text += "; rank " + std::to_string(pair.a) + " says: " + link.why_a;
  if (!link.why_b.empty()) text += "; rank " + std::to_string(pair.b) + " says: " + link.why_b;
  futile_.clear();
  lose_job(Code::kUnavailable, text, now, effects);
  return true;
}

// Before places are given: those who wait are on the hosts that they have named, but for those that share no memory.
void TrackerMachine::set_apart(Effects& effects) {
  std::map<std::uint32_t, const Waiting*> by_rank;
  for (const auto& [worker, w] : waiting_) {
    const auto place = place_by_worker_.find(worker);
    if (place != place_by_worker_.end()) by_rank[static_cast<std::uint32_t>(place->second)] = &w;
  }
  const auto shares = [&](const RankPair& pair) {
    const auto a = by_rank.find(pair.a), b = by_rank.find(pair.b);
    return a != by_rank.end() && b != by_rank.end() && a->second->member.host_id() == b->second->member.host_id();
  };
  while (true) {
    // The rank that has most of these links: it is the one that maps nothing.
    const std::optional<FutileLinks::Worst> worst = futile_.worst_rank(shares);
    if (!worst) return;
    const wire::Member& member = by_rank.at(worst->rank)->member;
    const std::string before = member.host_id();
    const std::string rank = std::to_string(worst->rank);
    const std::string suffix = ":rank-" + rank;
    waiting_.move_to_host(member.worker_id(), before.substr(0, limits::kMaxHostIdBytes - suffix.size()) + suffix);
    // Its links are new ones.
    futile_.judge_anew(worst->rank);
    count(Transition::set_apart);
    log(Severity::kWarning, "set_apart",
        "rank " + rank + " (worker " + member.worker_id() +
            ") counts as a host of its own from now on, and exchanges bytes by TCP: it shares no memory with " +
            (worst->ranks > 2 ? std::to_string(worst->links) + " other ranks" : "another rank") + " of host " + before +
            ", as their own logs say",
        effects, {{"rank", rank}});
  }
}

// Once the next plan's frontier and lives are known, before its detours are chosen.
void TrackerMachine::look_at_futile(const wire::Plan& before) {
  const auto same_life = [&](std::uint32_t rank) {
    const auto i = static_cast<int>(rank);
    return i < before.members_size() && i < plan_.members_size() && !plan_.members(i).absent() &&
           plan_.members(i).incarnation() == before.members(i).incarnation();
  };
  const auto same = [](const auto& a, const auto& b) {
    return std::ranges::equal(
        a, b, [](const auto& x, const auto& y) { return x.SerializeAsString() == y.SerializeAsString(); });
  };
  const bool stands_still = same(before.frontier(), plan_.frontier()) && same(before.setups(), plan_.setups()) &&
                            before.timeline() == plan_.timeline();
  if (!stands_still) futile_.clear();
  futile_.forget_if([&](const RankPair& pair) { return !same_life(pair.a) || !same_life(pair.b); });
  if (!rewires()) return;
  std::vector<RankPair> changing;
  for (const auto& [pair, link] : futile_.all()) {
    const auto& a = plan_.members(static_cast<int>(pair.a));
    const auto& b = plan_.members(static_cast<int>(pair.b));
    if (!link.is_unusable() || a.host_id() == b.host_id()) continue;
    if (Rewiring::takes_detour(before, pair) || rewiring_.hopeless().contains(pair)) continue;
    if (!find_ways(plan_.members(), pair, {pair}).relays.empty()) changing.push_back(pair);
  }
  for (const RankPair& pair : changing) {
    rewiring_.change_with_next_plan(pair);
    futile_.judge_anew(pair);
  }
}

}  // namespace warren

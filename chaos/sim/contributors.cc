#include "chaos/sim/contributors.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "recovery/wire/codec.h"

namespace warren::chaos {

// The ranks that a plan goes on without.
std::set<Rank> absent_of(const wire::Plan& plan) {
  std::set<Rank> absent;
  for (const wire::Member& m : plan.members()) {
    if (m.absent()) absent.insert(Rank(static_cast<std::int32_t>(m.rank())));
  }
  return absent;
}

void Contributors::look(const wire::Plan& before, const wire::Plan& plan, const StragglerJudge& stragglers) {
  const std::set<Rank> absent = absent_of(plan), absent_before = absent_of(before);
  const std::string in_generation = " in generation " + std::to_string(plan.generation());
  const auto known = absent_.find(Timeline(plan.timeline()));
  if (known != absent_.end() && known->second != absent) {
    return world_.violated("I2", "the contributors change within timeline " + std::to_string(plan.timeline()));
  }
  absent_[Timeline(plan.timeline())] = absent;
  check_absences(plan);
  if (absent.size() + std::max<std::size_t>(job_.min_workers(), 1) > static_cast<std::size_t>(plan.members_size()) ||
      (!shrinks() && !absent.empty())) {
    return world_.violated("Shrink", std::to_string(absent.size()) + " of " + std::to_string(plan.members_size()) +
                                         " ranks are absent" + in_generation);
  }
  // Times of the tracker are whole milliseconds, and those at which it writes what its disk refuses at first are not.
  const Micros grace_us = static_cast<Micros>(job_.grace_ms()) * 1000 - 1000;
  const bool timed = world_.fault_counts()[static_cast<std::size_t>(Fault::disk_failure)] == 0;
  bool shrunk = false;
  for (const wire::Member& m : plan.members()) {
    if (!m.absent()) continue;
    const bool first = before.members().empty();
    if (is_vacant(m)) {
      if (job_.elastic_start() && (first || is_vacant(before.members(static_cast<int>(m.rank()))))) continue;
      return world_.violated(
          "Shrink", "nobody is said to have had the place of rank " + std::to_string(m.rank()) + in_generation);
    }
    over_.try_emplace(Incarnation(m.incarnation()), Generation(plan.generation()));
    if (absent_before.contains(Rank(static_cast<std::int32_t>(m.rank())))) continue;
    shrunk = true;
    const std::string who = "rank " + std::to_string(m.rank());
    if (first) {
      return world_.violated("Shrink", who + " is absent in the job's first plan");
    }
    // A rank that was asked to leave is not waited for.
    const bool asked = stragglers.told_to_leave(Incarnation(m.incarnation()));
    if (timed && !asked && interrupted_at_us_ && world_.now_us() < *interrupted_at_us_ + grace_us) {
      std::string why = who + " is absent ";
      why.append(std::to_string(world_.now_us() - *interrupted_at_us_))
          .append(" us after the interrupt")
          .append(in_generation);
      return world_.violated("Shrink", why);
    }
  }
  shrunk_ += shrunk ? 1 : 0;
  grown_ += std::ranges::includes(absent, absent_before) ? 0 : 1;
}

void Contributors::forget_after(Generation generation, Timeline timeline) {
  std::erase_if(absent_, [&](const auto& a) { return a.first > timeline; });
  std::erase_if(over_, [&](const auto& o) { return o.second > generation; });
}

// Compares the contributors of each timeline that the plan names.
void Contributors::check_absences(const wire::Plan& plan) const {
  std::map<Timeline, std::set<Rank>> said;
  for (const wire::Absence& a : plan.absences()) {
    for (const std::uint32_t rank : a.ranks())
      said[Timeline(a.timeline())].insert(Rank(static_cast<std::int32_t>(rank)));
  }
  std::set<Timeline> named{Timeline(plan.timeline())};
  for (const wire::Kept& k : plan.kept()) named.insert(Timeline(k.timeline()));
  for (const Timeline t : named) {
    const auto known = absent_.find(t);
    if (known == absent_.end() || known->second == said[t]) continue;
    return world_.violated("I2", "the plan of generation " + std::to_string(plan.generation()) +
                                     " names other contributors of timeline " + std::to_string(t.value) +
                                     " than its rounds have");
  }
}

}  // namespace warren::chaos

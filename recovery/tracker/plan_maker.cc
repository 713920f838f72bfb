#include "recovery/tracker/plan_maker.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/wire/codec.h"

namespace warren {

namespace {

bool digit(char c) {
  return c >= '0' && c <= '9';
}

// Takes the number at the start of `text` off, without leading zeros.
std::string_view take_number(std::string_view& text) {
  std::size_t n = 0;
  while (n < text.size() && digit(text[n])) ++n;
  std::string_view number = text.substr(0, n);
  text.remove_prefix(n);
  while (number.size() > 1 && number[0] == '0') number.remove_prefix(1);
  return number;
}

// Worker 9 before worker 10: numbers in names are compared by value.
bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (digit(a[0]) && digit(b[0])) {
      const std::string_view x = take_number(a), y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
}

}  // namespace

void PlanMaker::seat(std::vector<Worker> workers, const TopologyPlanner& planner) {
  workers_ = std::move(workers);
  std::sort(workers_.begin(), workers_.end(), [](const Worker& a, const Worker& b) {
    return natural_less(a.member->worker_id(), b.member->worker_id());
  });
  find_empty_places();
  const std::vector<PlannerInput> inputs = planner_inputs();
  PlannerOutput out = planner(inputs);
  const std::size_t n = inputs.size();
  WARREN_CHECK(out.rank.size() == n && out.local_rank.size() == n && out.local_size.size() == n,
               "the planner plans for everybody");
  by_rank_.assign(n, nullptr);
  for (std::size_t i = 0; i < n; ++i) {
    const auto rank = static_cast<std::size_t>(out.rank[i].value);
    WARREN_CHECK(out.rank[i].value >= 0 && rank < n && by_rank_[rank] == nullptr &&
                     (i >= workers_.size() || !empty_.contains(rank)),
                 "ranks are a permutation");
    WARREN_CHECK(!inputs[i].rank || *inputs[i].rank == out.rank[i], "a worker keeps its rank over its lives");
    if (i < workers_.size()) by_rank_[rank] = &workers_[i];
  }
  local_rank_ = std::move(out.local_rank);
  local_size_ = std::move(out.local_size);
}

void PlanMaker::find_empty_places() {
  empty_.clear();
  if (workers_.size() >= settings_.world_size()) return;
  for (std::size_t rank = first() ? workers_.size() : 0; rank < settings_.world_size(); ++rank) empty_.insert(rank);
  for (const Worker& w : workers_) {
    if (w.rank) empty_.erase(static_cast<std::size_t>(w.rank->value));
  }
}

std::vector<PlannerInput> PlanMaker::planner_inputs() const {
  std::vector<PlannerInput> inputs;
  for (const Worker& w : workers_) {
    inputs.push_back({w.member->worker_id(), w.member->host_id(), w.member->domain_id(), w.rank});
  }
  for (const std::size_t rank : empty_) {
    const wire::Member& m = first() ? wire::Member::default_instance() : before_.members(static_cast<int>(rank));
    inputs.push_back({m.worker_id(), m.host_id(), m.domain_id(), Rank(static_cast<std::int32_t>(rank))});
  }
  return inputs;
}

Timeline PlanMaker::timeline(Timeline newest, const PlanStart& start) const {
  if (start.ends_timeline) newest = newest.next();
  const bool survived = std::ranges::any_of(workers_, [](const Worker& w) { return w.survives; });
  if (survived || start.goes_on || settings_.replicas() == 0) return newest;
  return after_all_that_is_left(newest);
}

Timeline PlanMaker::after_all_that_is_left(Timeline newest) const {
  for (const Worker& w : workers_) {
    const wire::Logged& logged = *w.logged;
    if (first()) {
      // A job that begins anew: its journal was lost, and too few of its members have told what they know.
      const bool left = logged.positions_size() != 0 || logged.setups_size() != 0;
      if (left) newest = std::max(newest, Timeline(logged.timeline()).next());
      continue;
    }
    // The journal may be older than what the job's members had.
    if (logged.run() == before_.run()) newest = std::max(newest, Timeline(logged.timeline()));
    if (w.held == nullptr) continue;
    for (const wire::HeldRounds& r : w.held->rounds()) {
      if (r.timeline() < UINT32_MAX / 2) newest = std::max(newest, Timeline(r.timeline()));
    }
  }
  return first() ? newest : newest.next();
}

wire::Plan PlanMaker::make(const Facts& facts, PlanStart start) const {
  wire::Plan plan;
  // The first plan's first life names the run.
  plan.set_run(first() ? by_rank_.front()->member->incarnation() : before_.run());
  plan.set_generation(facts.generation.value);
  *plan.mutable_settings() = settings_;
  for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) add_member(rank, facts.generation, plan);
  for (const wire::Member* server : facts.servers) *plan.add_servers() = *server;
  plan.set_timeline(facts.timeline.value);
  for (wire::Position& p : start.frontier) {
    p.clear_total_bytes();
    p.clear_empty();
    if (p.rounds() != 0 || p.final_size() != 0 || p.closed()) *plan.add_frontier() = std::move(p);
  }
  for (wire::Kept& k : start.kept) *plan.add_kept() = std::move(k);
  for (wire::Setup& s : start.setups) *plan.add_setups() = std::move(s);
  name_absences(plan);
  plan.set_committed(facts.committed.has_value());
  plan.set_committed_version(facts.committed.value_or(Version()).value);
  plan.set_committed_timeline(facts.committed_timeline.value);
  return plan;
}

void PlanMaker::add_member(std::size_t rank, Generation generation, wire::Plan& plan) const {
  const Worker* const w = by_rank_[rank];
  wire::Member& m = *plan.add_members();
  if (w != nullptr) {
    m = *w->member;
  } else if (!first()) {
    m = before_.members(static_cast<int>(rank));
  }
  m.set_rank(static_cast<std::uint32_t>(rank));
  m.set_absent(w == nullptr);
  if (is_vacant(m)) return;
  m.set_local_rank(local_rank_[rank]);
  m.set_local_size(local_size_[rank]);
  m.set_fresh(w != nullptr && !w->survives);
  if (m.fresh()) m.set_since(generation.value);
  // In a world of another size the rank had another worker.
  if (!other_world_ && !first()) m.set_lives(before_.members(static_cast<int>(rank)).lives());
  if (m.fresh()) m.set_lives(m.lives() + 1);
}

// Whose inputs are missing in the rounds that the plan names.
void PlanMaker::name_absences(wire::Plan& plan) const {
  std::map<std::uint32_t, wire::Absence> named;
  for (const wire::Absence& a : before_.absences()) {
    const bool used = std::ranges::any_of(plan.kept(), [&](const auto& k) { return k.timeline() == a.timeline(); });
    if (used) named[a.timeline()] = a;
  }
  for (const wire::Member& m : plan.members()) {
    if (!m.absent()) continue;
    wire::Absence& own = named[plan.timeline()];
    own.set_timeline(plan.timeline());
    own.add_ranks(m.rank());
  }
  for (auto& [timeline, a] : named) *plan.add_absences() = std::move(a);
}

}  // namespace warren

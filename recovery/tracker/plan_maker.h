// Makes the next plan: which worker has which rank, in which timeline the plan is, and what it says. Pure.
//
// The machine decides when a plan is made, and with whom. It then calls seat(), timeline() and make() in this order,
// and adds the ways around slow links to what make() returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/tracker/plan_start.h"
#include "recovery/tracker/topology_planner.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

class PlanMaker {
 public:
  // A life that waits for the plan. The objects stay the caller's.
  struct Worker {
    const wire::Member* member = nullptr;  // its rank and its place on its host are still to be found
    bool survives = false;                 // it goes on in the same life
    const wire::Held* held = nullptr;      // a new life: what its disk holds; null: nothing
    const wire::Logged* logged = nullptr;  // what the memory of a new life's host holds
    std::optional<Rank> rank;              // that it has had, or takes; none: it gets one
  };
  // All that make() says beside the seats and the start.
  struct Facts {
    Generation generation;
    Timeline timeline, committed_timeline;
    std::optional<Version> committed;
    std::vector<const wire::Member*> servers;
  };

  // `before`: the plan that the next one follows; generation 0: none. `settings`: the job's. `other_world`: the world
  // size has changed, so that no rank of `before` lives on. All of them outlive this object.
  PlanMaker(const wire::Plan& before, const wire::JobSettings& settings, bool other_world)
      : before_(before), settings_(settings), other_world_(other_world) {}
  PlanMaker(const PlanMaker&) = delete;
  PlanMaker& operator=(const PlanMaker&) = delete;

  // Gives all workers their ranks. Places stay empty where workers are fewer than the world size: the ones that nobody
  // has, in a new job the last ones. `planner` decides in the order of worker ids, 9 before 10.
  void seat(std::vector<Worker> workers, const TopologyPlanner& planner);
  [[nodiscard]] std::size_t world_size() const { return by_rank_.size(); }
  [[nodiscard]] std::size_t empty() const { return empty_.size(); }
  // Null: the place stays empty.
  [[nodiscard]] const Worker* at(std::size_t rank) const { return by_rank_[rank]; }

  // The timeline of a plan that starts so, where the newest is `newest`. A new timeline begins when ranks change, or
  // when no life goes on and results are logged. In the second case it is later than any of which a disk or a host's
  // memory tells. So nothing that is left there is taken for a result of the new timeline (I6).
  [[nodiscard]] Timeline timeline(Timeline newest, const PlanStart& start) const;

  // The plan, without detours and ring orders.
  [[nodiscard]] wire::Plan make(const Facts& facts, PlanStart start) const;

 private:
  [[nodiscard]] bool first() const { return before_.generation() == 0; }
  void find_empty_places();
  [[nodiscard]] std::vector<PlannerInput> planner_inputs() const;
  [[nodiscard]] Timeline after_all_that_is_left(Timeline newest) const;
  void add_member(std::size_t rank, Generation generation, wire::Plan& plan) const;
  void name_absences(wire::Plan& plan) const;

  const wire::Plan& before_;
  const wire::JobSettings& settings_;
  bool other_world_;
  std::vector<Worker> workers_;  // by worker id
  std::set<std::size_t> empty_;  // ranks
  std::vector<const Worker*> by_rank_;
  std::vector<std::uint32_t> local_rank_, local_size_;  // by rank
};

}  // namespace warren

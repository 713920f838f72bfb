// The ranks without whose inputs rounds are computed, by timeline, in a job that goes on without lost ranks (mode
// shrink), and the lives that the job goes on without.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "chaos/sim/straggler_judge.h"
#include "chaos/sim/world.h"
#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"

namespace warren::chaos {

// The ranks that a plan goes on without.
[[nodiscard]] std::set<Rank> absent_of(const wire::Plan& plan);

class Contributors {
 public:
  Contributors(World& world, const wire::JobSettings& job) : world_(world), job_(job) {}

  // The newest plan's end is announced.
  void interrupted() {
    if (!interrupted_at_us_) interrupted_at_us_ = world_.now_us();
  }
  // Looks at a new plan beside the one before.
  void look(const wire::Plan& before, const wire::Plan& plan, const StragglerJudge& stragglers);
  void plan_made() { interrupted_at_us_.reset(); }
  // Plans of later generations and timelines were seen by nobody who left anything.
  void forget_after(Generation generation, Timeline timeline);

  [[nodiscard]] const std::set<Rank>& absent(Timeline timeline) { return absent_[timeline]; }
  // The job has gone on without this life.
  [[nodiscard]] bool is_over(Incarnation life) const { return over_.contains(life); }
  // How many plans go on without ranks that the ones before had, and with ones that those had not.
  [[nodiscard]] std::uint64_t shrunk() const { return shrunk_; }
  [[nodiscard]] std::uint64_t grown() const { return grown_; }

 private:
  void check_absences(const wire::Plan& plan) const;
  [[nodiscard]] bool shrinks() const { return job_.min_workers() > 0; }

  World& world_;
  const wire::JobSettings& job_;
  std::map<Timeline, std::set<Rank>> absent_;
  std::map<Incarnation, Generation> over_;   // since when
  std::optional<Micros> interrupted_at_us_;  // when the newest plan's end was first announced
  std::uint64_t shrunk_ = 0, grown_ = 0;
};

}  // namespace warren::chaos

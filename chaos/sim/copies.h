// Counts the failure domains that hold what is logged, and decides which of them may be lost. A job survives as many
// losses as it has replicas to spare (docs/invariants.md, I4), until the lost records have been logged again elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "chaos/sim/launchers.h"
#include "chaos/sim/run.h"
#include "chaos/sim/tracker_faults.h"

namespace warren::chaos {

class Copies {
 public:
  Copies(Run& run, const Launchers& launchers, const TrackerFaults& tracker_faults)
      : run_(run), launchers_(launchers), tracker_faults_(tracker_faults) {}
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Whether the job survives the loss of this failure domain now, or need not.
  [[nodiscard]] bool may_lose(const std::string& domain);
  void domain_lost(const std::string& domain);
  // Nobody answers any more for what this host holds. That is a loss as far as others do not hold enough of it.
  void no_copy_left(const std::string& host, const std::string& domain);
  // Of the newest plan.
  [[nodiscard]] bool answers_for(const std::string& host) const { return hosts_of_plan_.contains(host); }
  // A machine in this domain is being taken away, or has been.
  void taken(const std::string& domain) { taken_domains_.insert(domain); }
  // There is a new plan.
  void plan_changed();
  // I4: who has caught up has logged again what was lost, however often all were interrupted on the way.
  void check_refill();

 private:
  [[nodiscard]] std::vector<SimWorker*> caught_up() const;
  [[nodiscard]] std::size_t copies(const std::vector<SimWorker*>& members, std::span<const Rank> ranks) const;
  [[nodiscard]] static bool lies(const std::vector<SimWorker*>& members, const RecordKey& key, std::size_t needed);
  [[nodiscard]] std::optional<RoundId> short_of_copies(const std::vector<SimWorker*>& members) const;
  [[nodiscard]] bool refilled() const;
  [[nodiscard]] std::size_t least_copies() const;
  void leave_hosts();
  void forget_losses();

  Run& run_;
  const Launchers& launchers_;
  const TrackerFaults& tracker_faults_;
  std::set<std::string> lost_domains_;                   // and not refilled yet
  std::size_t least_copies_ = SIZE_MAX;                  // in any plan since
  std::map<std::string, std::string> hosts_of_plan_;     // with their domains
  std::map<std::uint32_t, std::string> domain_of_rank_;  // in the last plan that has it
  std::set<std::string> taken_domains_;
  std::optional<Version> followed_in_;  // the newest version when a rank went where another had gone before
  std::uint64_t checked_refill_ = 0;    // in this generation
};

}  // namespace warren::chaos

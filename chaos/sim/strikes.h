// Strikes a run's workers and machines: with the faults that its seed has drawn, and at the places that options state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "chaos/sim/control_network.h"
#include "chaos/sim/copies.h"
#include "chaos/sim/faults.h"
#include "chaos/sim/kill_point.h"
#include "chaos/sim/launchers.h"
#include "chaos/sim/run.h"
#include "chaos/sim/second_tracker.h"
#include "chaos/sim/sim_tracker.h"
#include "chaos/sim/sim_transport.h"
#include "chaos/sim/tracker_faults.h"

namespace warren::chaos {

class Strikes {
 public:
  struct Targets {
    DataNetwork& data;
    ControlNetwork& control;
    SimTracker& tracker;
    TrackerFaults& tracker_faults;
    SecondTracker& second_tracker;
    Copies& copies;
  };
  Strikes(Run& run, Launchers& launchers, const Targets& targets)
      : run_(run),
        launchers_(launchers),
        data_(targets.data),
        control_(targets.control),
        tracker_(targets.tracker),
        tracker_faults_(targets.tracker_faults),
        second_tracker_(targets.second_tracker),
        copies_(targets.copies) {}
  Strikes(const Strikes&) = delete;
  Strikes& operator=(const Strikes&) = delete;

  // All that comes by itself, until it is calm.
  void schedule();
  // A life passes a place where it may be killed; true: it dies there, by doomed().
  [[nodiscard]] bool killed_at(std::size_t life, KillPoint point, std::uint64_t passage);
  void doomed(std::size_t life);
  // A life has been suspended, or begins to replay: an opportunity to strike again.
  void on_recovery();
  [[nodiscard]] bool is_taken(const std::string& host) const { return taken_.contains(host); }
  // The log of a machine that is being taken away counts as long as somebody there answers for it: a rank, or a life
  // that serves.
  void look_at_taken();

 private:
  void inject(Fault fault, std::function<void()> strike);
  void inject_on_any(Fault fault, std::function<void(SimWorker&)> strike);
  void schedule_losses();
  void schedule_leaving();
  void schedule_trouble();
  void schedule_tracker();
  void hang_now_and_then();
  void kill(SimWorker& life, bool silently);
  void lose_host(const std::string& host);
  void take_machine(const SimWorker& life, Micros within_us);
  void lose_machine(const std::string& host);
  void lose_domain(const std::string& domain);
  [[nodiscard]] std::string some_domain();
  void all_die();
  void lose_cluster(bool gently, bool with_disks = false);
  void lose_disks();
  void strike_again();

  Run& run_;
  Launchers& launchers_;
  DataNetwork& data_;
  ControlNetwork& control_;
  SimTracker& tracker_;
  TrackerFaults& tracker_faults_;
  SecondTracker& second_tracker_;
  Copies& copies_;
  std::uint64_t new_hosts_ = 0;
  std::map<std::string, std::string> taken_;  // machines that are being taken away, with their domains
  enum class Doom : std::uint8_t { kAlone, kHost, kCluster, kDisks };
  std::map<std::size_t, Doom> doom_;  // by life: what goes with it
  std::optional<bool> silently_;      // who dies now
};

}  // namespace warren::chaos

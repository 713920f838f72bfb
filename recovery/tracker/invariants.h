// Checks of a tracker's machine: that it is consistent, and that it has changed only as it may since the last look.
//
// For tests and the simulator, which look after every event. Costs O(ranks) a look. A broken invariant ends the process
// (WARREN_CHECK).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/tracker/tracker_machine.h"

namespace warren {

class TrackerInvariants {
 public:
  // `machine` has taken all events of an earlier look, in one life of the tracker. A new life begins with a new object:
  // its journal may be an older copy.
  void look(const TrackerMachine& machine);

 private:
  // The newest plan, as far as later plans depend on it.
  struct Plan {
    Generation generation;
    std::uint64_t run = 0;
    Timeline timeline;
    std::vector<std::uint64_t> lives;                                       // by rank
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> done;  // rounds by (group, version)
  };
  // A machine as it was at the last look.
  struct Seen {
    TrackerMachine::State state{};
    Term term;
    Generation generation;
    Timeline timeline, committed_timeline;
    std::optional<Version> committed;
    bool distrusts = false;      // the frontier of `plan` has proved wrong
    std::vector<bool> has_gone;  // by rank of `plan`
  };

  static void check_generations(const TrackerMachine& m);
  static void check_indexes(const TrackerMachine& m);
  static void check_waiting(const TrackerMachine& m);
  static void check_spares(const TrackerMachine& m);
  static void check_servers(const TrackerMachine& m);
  static void check_members(const TrackerMachine& m);
  static void check_votes(const TrackerMachine& m);
  static void check_bounds(const TrackerMachine& m);

  static Seen see(const TrackerMachine& m);
  static Plan note(const TrackerMachine& m);
  void check_change(const TrackerMachine& m) const;
  void check_same_plan(const TrackerMachine& m) const;
  void check_next_plan(const TrackerMachine& m) const;

  std::optional<Seen> seen_;  // none before the first look
  Plan plan_;
};

}  // namespace warren

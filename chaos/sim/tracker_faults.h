// Faults of a run's tracker. Its process dies; its disk is lost, or replaced by an older copy. Its journal is then made
// up again from what members tell.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "chaos/sim/control_network.h"
#include "chaos/sim/launchers.h"
#include "chaos/sim/run.h"
#include "chaos/sim/sim_tracker.h"

namespace warren::chaos {

class TrackerFaults {
 public:
  TrackerFaults(Run& run, Launchers& launchers, SimTracker& tracker, ControlNetwork& control)
      : run_(run), launchers_(launchers), tracker_(tracker), control_(control) {}
  TrackerFaults(const TrackerFaults&) = delete;
  TrackerFaults& operator=(const TrackerFaults&) = delete;

  // The tracker's process dies, and comes back in at most so long.
  void crash(bool with_journal, Micros most_us);
  // All processes have gone, and the tracker's journal too, where what disks know of the job serves in its place.
  void lose_journal();
  void restore_journal();
  // Between two of its effects.
  void tracker_died();
  // Members, or disks, have to tell what the journal held.
  [[nodiscard]] bool journal_is_away() const { return (journal_lost_ || rebuilding_) && !tracker_.has_journal(); }
  // A record is in the tracker's journal.
  void stored(const std::string& record);
  // Journals that were made up from what members told.
  [[nodiscard]] std::uint64_t rebuilt() const { return rebuilt_; }
  // Whether this message to a life does not arrive (SimOptions::lone_commit).
  [[nodiscard]] bool withholds(std::size_t life, const std::string& bytes) const;
  // After each event.
  void watch();

 private:
  void lose_record();
  [[nodiscard]] std::uint64_t newest_plan() const;
  [[nodiscard]] bool members_can_tell() const;
  void watch_rebuilding();
  void watch_lone_commit();
  void has_rebuilt(const std::string& record);

  Run& run_;
  Launchers& launchers_;
  SimTracker& tracker_;
  ControlNetwork& control_;
  bool journal_lost_ = false;
  // The journal was lost and members live; from then until the tracker has made it up again.
  struct Rebuilding {
    std::uint64_t message_faults = 0;  // when it was lost
    bool hopeless = false;             // at some time too few could tell what they know
  };
  std::optional<Rebuilding> rebuilding_;
  std::uint64_t rebuilt_ = 0;
  bool lone_commit_done_ = false;
};

}  // namespace warren::chaos

// A second tracker, on a copy of the journal, that some workers reach for a while instead of the job's own.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "chaos/sim/control_network.h"
#include "chaos/sim/launchers.h"
#include "chaos/sim/run.h"
#include "chaos/sim/sim_tracker.h"
#include "chaos/sim/twin_tracker.h"

namespace warren::chaos {

class SecondTracker {
 public:
  // `send`: to a life.
  SecondTracker(Run& run, Launchers& launchers, const SimTracker& tracker, ControlNetwork& control,
                TwinTracker::SendDown send)
      : run_(run), launchers_(launchers), tracker_(tracker), control_(control), send_(std::move(send)) {}
  SecondTracker(const SecondTracker&) = delete;
  SecondTracker& operator=(const SecondTracker&) = delete;

  void start();
  void end();
  // A message of a life; false: it goes to the job's own tracker.
  bool receive(std::size_t life, const std::string& bytes);

 private:
  [[nodiscard]] bool reaches(std::size_t life) const;
  void reconnect();

  Run& run_;
  Launchers& launchers_;
  const SimTracker& tracker_;
  ControlNetwork& control_;
  const TwinTracker::SendDown send_;
  std::unique_ptr<TwinTracker> twin_;
  std::vector<std::unique_ptr<TwinTracker>> retired_;  // events may still name them
  std::set<std::size_t> slots_;                        // whose lives it answers
};

}  // namespace warren::chaos

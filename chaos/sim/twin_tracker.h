// A tracker that somebody has started by mistake, on a copy of the journal, beside the one that serves the job. It is
// reached by at most half of the job's workers, so it must decide nothing (docs/invariants.md, "Trackers").
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/world.h"
#include "recovery/tracker/invariants.h"
#include "recovery/tracker/tracker_machine.h"

namespace warren::chaos {

class TwinTracker {
 public:
  using SendDown = std::function<void(std::size_t life, const std::string& bytes)>;
  // `record`: of a job that has a plan.
  TwinTracker(World& world, const std::string& job, const std::string& record, SendDown send);
  TwinTracker(const TwinTracker&) = delete;
  TwinTracker& operator=(const TwinTracker&) = delete;

  void receive(std::size_t life, const std::string& bytes);
  void end() { ended_ = true; }

 private:
  void tick();
  void carry_out(std::optional<std::size_t> life, const std::vector<TrackerEffect>& effects);
  void forge_promises(const wire::Envelope& said, std::vector<TrackerEffect>& effects);

  World& world_;
  const SendDown send_;
  const Incarnation self_;
  const std::string record_;
  std::optional<TrackerMachine> machine_;
  TrackerInvariants invariants_;
  std::uint64_t term_ = 0;  // its newest
  bool ended_ = false;
};

}  // namespace warren::chaos

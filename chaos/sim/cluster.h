// A whole job from one seed: a tracker, its workers and their launchers, the networks between them, what goes wrong,
// and the rules that decide whether it went well.
//
// A run has a safety phase under faults and a liveness phase in which faults stop, everybody who is missing is started,
// and everything must finish within a bounded time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "chaos/sim/faults.h"
#include "chaos/sim/kill_point.h"
#include "chaos/sim/options.h"

namespace warren::chaos {

struct SimOutcome {
  std::string verdict;  // empty: every invariant held
  std::uint64_t digest = 0;
  FaultCounts faults{};
  bool under_faults = false;
  std::uint64_t rounds = 0, events = 0, generations = 0, lives = 0;
  std::uint64_t most_events_waiting = 0;  // at once
  std::uint64_t commits = 0, rollbacks = 0, second_faults = 0;
  std::uint64_t most_pending = 0;    // versions that one life had taken and nobody had committed
  std::uint64_t kept_rounds = 0;     // that disks gave to plans after no life had survived
  std::uint64_t spills = 0;          // of memory logs that were full
  std::uint64_t given_up = 0;        // times that one gave up results
  std::uint64_t met = 0, unmet = 0;  // times that a new life asked whether the next round is its call's, by the answer
  std::uint64_t followed = 0, loaded_followed = 0;  // checkpoints that spares have held, and with which they have begun
  bool lost_for_good = false;                       // more was lost than was kept, and it was said
  std::uint64_t from_mirror = 0;                    // timelines that began from the mirror's newest checkpoint
  std::uint64_t rebuilt = 0;                        // trackers that went on from what members told
  std::uint64_t stragglers_named = 0, replaced = 0;
  std::uint64_t exchanged = 0;         // rounds that NCCL has moved among GPUs, by rank
  std::uint64_t lent = 0;              // inputs that stayed on a GPU, where others of the host have read them
  std::uint64_t from_gpus = 0;         // pieces of results that came from another rank's GPU
  std::uint64_t came_home = 0;         // of those inputs: of which something came back after an interrupt
  std::uint64_t fell = 0;              // pieces that others had taken the place of when they were read
  std::uint64_t taken_up = 0;          // partial results of another host that a GPU has gone on from
  std::uint64_t sent_on = 0;           // pieces of lent inputs that were sent to another host
  std::uint64_t copied = 0;            // likewise, that were parts of the result as they were
  std::uint64_t handed_on = 0;         // finals from other hosts that were brought to where others read them
  std::uint64_t gpus_failed = 0;       // lives that this has ended
  std::uint64_t reordered_rounds = 0;  // results for which the ring had another order than that of ranks
  std::uint64_t shrunk = 0,
                grown = 0;  // plans without ranks that the ones before had, and with ones that those had not
  std::uint64_t tracker_effects = 0;
  std::vector<std::array<std::uint64_t, kKillPoints>> passages;  // of each worker's first life
  std::int64_t virtual_ms = 0;
  std::int64_t liveness_ms = 0;  // how long it took to finish once faults had stopped
  std::string setting;           // in one line, for people
  std::vector<std::uint64_t> tracker_transitions, worker_transitions;
  std::vector<std::string> transcript;
};

[[nodiscard]] SimOutcome simulate(const SimOptions& options);

}  // namespace warren::chaos

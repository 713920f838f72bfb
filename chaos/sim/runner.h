// Many seeds, on several threads, and what they have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "chaos/sim/cluster.h"

namespace warren::chaos {

struct SeedFailure {
  std::uint64_t seed = 0;
  std::string verdict, setting;
};

struct SimReport {
  std::uint64_t seeds = 0, under_faults = 0, rounds = 0, events = 0, lives = 0;
  std::uint64_t commits = 0, rollbacks = 0;
  std::uint64_t struck_again = 0;   // seeds in which a fault struck while a rank was suspended or replayed
  std::uint64_t lost_for_good = 0;  // seeds in which a committed checkpoint was lost, as was allowed
  std::uint64_t from_mirror = 0;    // timelines that began from the mirror's newest checkpoint
  std::uint64_t rebuilt = 0;        // trackers that went on from what members told
  std::uint64_t exchanged = 0;      // rounds that NCCL has moved among GPUs, by rank
  std::uint64_t lent = 0;           // inputs that stayed on a GPU, where others of the host have read them
  std::uint64_t from_gpus = 0;      // pieces of results that came from another rank's GPU
  std::int64_t virtual_ms = 0, longest_liveness_ms = 0;
  std::uint64_t longest_liveness_seed = 0;
  std::vector<SeedFailure> failed;  // by seed
  FaultCounts faults{};
  std::vector<std::uint64_t> tracker_transitions, worker_transitions;

  void add(std::uint64_t seed, const SimOutcome& outcome);
  void add(const SimReport& other);
  // "tracker.desync", "worker.fenced_member": what no seed has exercised.
  [[nodiscard]] std::vector<std::string> transitions_unhit() const;
  // One line of JSON.
  [[nodiscard]] std::string json() const;
};

// Fewer seeds than this prove nothing about transitions.
inline constexpr std::uint64_t kSeedsForAllTransitions = 3000;

// Seeds first … last. `on_failure` is called from one thread at a time, as failures are found. A broken WARREN_CHECK
// ends the process; the seed and the line that reproduces it are printed before.
[[nodiscard]] SimReport run_seeds(std::uint64_t first, std::uint64_t last, Mutant mutant, unsigned threads,
                                  const std::function<void(const SeedFailure&)>& on_failure);

// Has a broken WARREN_CHECK name the seed of its thread. Once a process.
void name_seed_on_abort();

[[nodiscard]] std::string reproduce_command(std::uint64_t seed);

}  // namespace warren::chaos

// What can go wrong in a simulated run, and how often it does under a given seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "chaos/sim/random.h"

namespace warren::chaos {

// NAME, how its rate is meant (kPerSecond: so often a second of virtual time; kPerChance: probability at each
// opportunity), and its usual rate.
#define WARREN_FAULTS(X)                             \
  X(slow_start, kPerChance, 0.5)                     \
  X(absent_worker, kPerChance, 0.3)                  \
  X(spare_worker, kPerChance, 0.9)                   \
  X(wrong_settings, kPerSecond, 0.8)                 \
  X(twin_life, kPerSecond, 0.5)                      \
  X(death, kPerSecond, 0.8)                          \
  X(silent_death, kPerSecond, 0.5)                   \
  X(death_between_effects, kPerChance, 0.01)         \
  X(death_at_completion, kPerChance, 0.001)          \
  X(death_at_send, kPerChance, 0.001)                \
  X(death_at_return, kPerChance, 0.01)               \
  X(death_at_recall, kPerChance, 0.05)               \
  X(death_at_checkpoint, kPerChance, 0.05)           \
  X(host_loss, kPerSecond, 0.4)                      \
  X(domain_loss, kPerSecond, 0.3)                    \
  X(no_launcher, kPerChance, 0.3)                    \
  X(second_strike, kPerChance, 0.3)                  \
  X(pause, kPerSecond, 0.8)                          \
  X(gave_up, kPerSecond, 0.4)                        \
  X(slow_rank, kPerChance, 0.02)                     \
  X(slow_finalize, kPerChance, 0.1)                  \
  X(slow_stop, kPerChance, 0.5)                      \
  X(desync, kPerChance, 0.03)                        \
  X(link_cut, kPerSecond, 1.0)                       \
  X(link_late, kPerChance, 0.3)                      \
  X(bit_flip, kPerChance, 0.002)                     \
  X(fetch_lost, kPerChance, 0.05)                    \
  X(fetch_late, kPerChance, 0.1)                     \
  X(fetch_twice, kPerChance, 0.1)                    \
  X(fetch_damaged, kPerChance, 0.3)                  \
  X(connection_drop, kPerSecond, 1.0)                \
  X(message_lost, kPerChance, 0.05)                  \
  X(message_late, kPerChance, 0.1)                   \
  X(message_twice, kPerChance, 0.1)                  \
  X(message_replayed, kPerSecond, 4.0)               \
  X(message_misdirected, kPerSecond, 2.0)            \
  X(garbage, kPerSecond, 1.0)                        \
  X(tracker_crash, kPerSecond, 0.4)                  \
  X(tracker_crash_between_effects, kPerChance, 0.01) \
  X(tracker_pause, kPerSecond, 0.5)                  \
  X(tracker_loss, kPerSecond, 0.4)                   \
  X(disk_failure, kPerSecond, 0.5)                   \
  X(second_tracker, kPerSecond, 0.5)                 \
  X(all_die, kPerSecond, 1.0)                        \
  X(cluster_loss, kPerSecond, 1.0)                   \
  X(journal_loss, kPerChance, 0.3)                   \
  X(disks_loss, kPerChance, 0.4)                     \
  X(preempted, kPerSecond, 3.0)                      \
  X(link_silent, kPerSecond, 0.5)                    \
  X(stays_away, kPerChance, 0.6)                     \
  X(machine_taken, kPerSecond, 3.0)                  \
  X(first_plan_lost, kPerChance, 0.7)                \
  X(older_journal, kPerSecond, 2.0)                  \
  X(other_state, kPerChance, 0.2)

enum class Fault : std::uint8_t {
#define WARREN_X(name, meaning, rate) name,
  WARREN_FAULTS(WARREN_X)
#undef WARREN_X
};
#define WARREN_X(name, meaning, rate) +1  // NOLINT(bugprone-macro-parentheses): a term of a sum
inline constexpr std::size_t kFaults = 0 WARREN_FAULTS(WARREN_X);
#undef WARREN_X
// The last ones are drawn apart: they are for jobs that have a log, or disks, or go on without lost ranks, or came
// later than seeds that are kept.
inline constexpr std::size_t kFaultsDrawnApart = 11;

enum class RateMeaning : std::uint8_t { kPerSecond, kPerChance };
struct FaultInfo {
  const char* name;
  RateMeaning meaning;
  double rate;
};
[[nodiscard]] const FaultInfo& info(Fault fault);

using FaultCounts = std::array<std::uint64_t, kFaults>;

// Rates of one run; 0: this fault does not happen in it.
struct FaultPlan {
  std::array<double, kFaults> rates{};

  [[nodiscard]] double rate(Fault fault) const { return rates[static_cast<std::size_t>(fault)]; }
  void set(Fault fault, double rate) { rates[static_cast<std::size_t>(fault)] = rate; }
  [[nodiscard]] bool any() const;
  // Its usual rate.
  void add(Fault fault) { set(fault, info(fault).rate); }
  // One run in twelve is calm; the others have one to six kinds of fault, each rare, usual or frequent. `logged`: ranks
  // are lost and replaced, and often struck again while that is under way.
  static FaultPlan draw(Random& random, bool logged);
};

// Faults that belong together: what independent ones seldom bring about.
struct Recipe {
  FaultPlan faults;
  bool long_safety = false;         // of several intervals after which a wait is logged
  bool beyond_copies = false;       // more machines are lost than there are copies
  bool short_join_timeout = false;  // of less than the tracker's longest absence
};
inline constexpr std::size_t kRecipes = 11;
[[nodiscard]] Recipe recipe(std::size_t which);

}  // namespace warren::chaos

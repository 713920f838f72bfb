// Jobs whose workers have GPUs, among which NCCL moves the bytes of large allreduces (docs/decisions/0024-nccl.md), and
// which those of a host read in each other (docs/decisions/0023-device-loans.md). The engine, the executor and the
// schedules are those of production; what the GPUs do is chaos/sim/sim_gpu.h.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "chaos/sim/runner.h"
#include "tests/chaos/sim_scenarios.h"

namespace warren::chaos {
namespace {

// Of one of the first `workers`, at some passage through a send, a completion or a return.
SimOptions::Death at_some_moment(std::uint64_t seed, std::size_t workers) {
  static constexpr KillPoint kPoints[] = {KillPoint::kSend, KillPoint::kCompletion, KillPoint::kReturn};
  SimOptions::Death death;
  death.worker = seed / 3 % workers;
  death.at = kPoints[seed % 3];
  death.passage = death.at == KillPoint::kReturn ? seed % 17 : seed * 7 % 331;
  return death;
}

// Jobs of two to four ranks that exchange by NCCL, and of two to five that lend each other inputs.
SimOptions some_exchanging(std::uint64_t seed, bool gpus_fail) {
  SimOptions options = exchanging(2 + static_cast<std::uint32_t>(seed % 3), seed);
  options.gpus_fail = gpus_fail;
  return options;
}
SimOptions some_lending(std::uint64_t seed, bool gpus_fail) {
  SimOptions options = lending(2 + static_cast<std::uint32_t>(seed % 4), seed);
  options.gpus_fail = gpus_fail;
  return options;
}

// Counts of many seeds, added up.
struct Totals {
  std::uint64_t interrupts = 0, exchanged = 0, lent = 0, from_gpus = 0, copied = 0, came_home = 0, fell = 0;
  std::uint64_t failed = 0, taken_up = 0, sent_on = 0, handed_on = 0;
};

// The most that failures may cost a job.
enum class Cost { kNoInterrupt, kNoRollback };

// Runs the first `most` seeds, each of which must go well at this cost.
Totals run_well(std::uint64_t most, Cost cost, const std::function<SimOptions(std::uint64_t)>& options_of) {
  Totals all;
  for (std::uint64_t seed = 1; seed <= seeds(most); ++seed) {
    const SimOutcome o = simulate(options_of(seed));
    const std::uint64_t interrupts = tracker(o, "interrupted");
    EXPECT_EQ(o.verdict, "") << "seed " << seed << ": " << o.setting;
    EXPECT_EQ(cost == Cost::kNoInterrupt ? interrupts : o.rollbacks, 0u) << "seed " << seed;
    all.interrupts += interrupts;
    all.exchanged += o.exchanged;
    all.lent += o.lent;
    all.from_gpus += o.from_gpus;
    all.copied += o.copied;
    all.came_home += o.came_home;
    all.fell += o.fell;
    all.failed += o.gpus_failed;
    all.taken_up += o.taken_up;
    all.sent_on += o.sent_on;
    all.handed_on += o.handed_on;
  }
  return all;
}

TEST(Gpus, EveryInvariantHolds) {
  name_seed_on_abort();
  std::uint64_t exchanged = 0, with_faults = 0;
  for (std::uint64_t seed = 1; seed <= seeds(60); ++seed) {
    SimOptions options;
    options.seed = 80'000 + seed;
    options.gpus = true;
    const SimOutcome o = simulate(options);
    EXPECT_EQ(o.verdict, "") << "seed " << options.seed << ": " << o.setting;
    exchanged += o.exchanged;
    with_faults += o.under_faults ? o.exchanged : 0;
  }
  EXPECT_GT(exchanged, 180 / kFewer);
  EXPECT_GT(with_faults, 120 / kFewer);
}

TEST(Gpus, WithoutFaultsOneGenerationIsEnough) {
  const Totals all = run_well(40, Cost::kNoInterrupt, [](std::uint64_t seed) { return some_exchanging(seed, false); });
  EXPECT_GT(all.exchanged, 200 / kFewer);
}

// NCCL fails, and brings other bits, in ranks that live: it costs generations, and no results.
TEST(Gpus, NcclFailsAndTheJobGoesOn) {
  const Totals all = run_well(40, Cost::kNoRollback, [](std::uint64_t seed) { return some_exchanging(seed, true); });
  EXPECT_GT(all.interrupts, 15 / kFewer);
  EXPECT_GT(all.exchanged, 200 / kFewer);
}

// At each passage through a send, a completion or a return, while turns, words and finals are on their way.
TEST(Gpus, ARankDiesAtAnyMoment) {
  const Totals all = run_well(60, Cost::kNoRollback, [](std::uint64_t seed) {
    SimOptions options = some_exchanging(seed, false);
    options.deaths.push_back(at_some_moment(seed, 2));
    options.deaths.back().with_host = seed % 5 == 0;
    return options;
  });
  EXPECT_GT(all.exchanged, 200 / kFewer);
}

// Ranks of one host combine inputs on a GPU where they lie, and results go from one to the other.
TEST(Loans, WithoutFaultsOneGenerationIsEnough) {
  const Totals all = run_well(15, Cost::kNoInterrupt, [](std::uint64_t seed) {
    SimOptions options = some_lending(seed, false);
    // The first calls of a life have nothing mapped.
    options.many_versions = true;
    return options;
  });
  EXPECT_GT(all.lent, 200 / kFewer);
  EXPECT_GT(all.from_gpus, 200 / kFewer);
  EXPECT_GT(all.copied, 20 / kFewer);
}

// While inputs are lent and results are read; GPUs that take longer than a timeout end lives, too.
TEST(Loans, ARankDiesAtAnyMoment) {
  const Totals all = run_well(60, Cost::kNoRollback, [](std::uint64_t seed) {
    SimOptions options = some_lending(seed, true);
    options.deaths.push_back(at_some_moment(seed, 2));
    return options;
  });
  EXPECT_GT(all.lent, 150 / kFewer);
  EXPECT_GT(all.from_gpus, 150 / kFewer);
  EXPECT_GT(all.interrupts, 40 / kFewer);
  EXPECT_GT(all.came_home, 2 / kFewer) << "inputs are lent while generations end";
  EXPECT_GT(all.fell, 0u) << "results are read while others take their place";
  EXPECT_GT(all.failed, 0u);
}

// Those of two hosts reduce on their GPUs, too, and what crosses goes by the CPU.
TEST(Loans, AmongSeveralHosts) {
  const Totals all = run_well(16, Cost::kNoInterrupt, [](std::uint64_t seed) {
    SimOptions options = lending_apart(seed);
    options.gpus_fail = false;
    options.many_versions = true;
    return options;
  });
  EXPECT_GT(all.lent, 300 / kFewer);
  EXPECT_GT(all.taken_up, 1000 / kFewer);
  EXPECT_GT(all.sent_on, 400 / kFewer);
  EXPECT_GT(all.copied, 20 / kFewer);
  EXPECT_GT(all.handed_on, 1000 / kFewer);
}

TEST(Loans, ARankOfSeveralHostsDiesAtAnyMoment) {
  const Totals all = run_well(60, Cost::kNoRollback, [](std::uint64_t seed) {
    SimOptions options = lending_apart(seed);
    options.gpus_fail = true;
    options.deaths.push_back(at_some_moment(seed, 3));
    return options;
  });
  EXPECT_GT(all.lent, 400 / kFewer);
  EXPECT_GT(all.taken_up, 4000 / kFewer);
  EXPECT_GT(all.sent_on, 1500 / kFewer);
  EXPECT_GT(all.handed_on, 4000 / kFewer);
  EXPECT_GT(all.interrupts, 40 / kFewer);
  EXPECT_GT(all.came_home, 10 / kFewer);
}

// Whatever faults are drawn.
TEST(Loans, EveryInvariantHolds) {
  std::uint64_t lent = 0, from_gpus = 0;
  for (std::uint64_t seed = 1; seed <= seeds(40); ++seed) {
    SimOptions options = lending(2 + static_cast<std::uint32_t>(seed % 4), seed);
    options.faults.reset();
    const SimOutcome o = simulate(options);
    EXPECT_EQ(o.verdict, "") << "seed " << seed << ": " << o.setting;
    if (!o.under_faults) continue;
    lent += o.lent;
    from_gpus += o.from_gpus;
  }
  EXPECT_GT(lent, 100 / kFewer);
  EXPECT_GT(from_gpus, 100 / kFewer);
}

TEST(Gpus, ASeedReplaysExactly) {
  for (std::uint64_t seed = 1; seed <= seeds(8); ++seed) {
    SimOptions options;
    options.seed = 90'000 + seed;
    options.gpus = true;
    const SimOutcome once = simulate(options), again = simulate(options);
    EXPECT_EQ(once.digest, again.digest) << "seed " << options.seed;
    EXPECT_EQ(once.exchanged, again.exchanged) << "seed " << options.seed;
  }
}

}  // namespace
}  // namespace warren::chaos

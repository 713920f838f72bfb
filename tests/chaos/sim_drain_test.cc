// Machines that are taken away with notice: who leaves stays as a server, so that what it held is not lost before it
// goes (docs/decisions/0012, "What a drain leaves behind").
#include <gtest/gtest.h>

#include "recovery/worker/worker_machine.h"
#include "tests/chaos/sim_scenarios.h"

namespace warren::chaos {
namespace {

std::uint64_t worker(const SimOutcome& o, std::string_view name) {
  return taken(o.worker_transitions, WorkerMachine::transition_names(), name);
}

TEST(Drain, AnotherMachineMayBeLostWhileOneThatIsTakenAwayServes) {
  std::uint64_t served = 0, told = 0;
  for (std::uint64_t seed = 1; seed <= seeds(400); ++seed) {
    SimOptions options = noticed(seed);
    // Rounds of a group of one rank lie on its host alone. When one of them is missed, all servers are dismissed (I3),
    // and three jobs of a thousand begin again for it. So every second job has no groups.
    const bool has_groups = Random::mix(seed) % 2 == 0;
    if (!has_groups) options.groups = false;
    const SimOutcome outcome = simulate(options);
    ASSERT_EQ(outcome.verdict, "") << "seed " << seed << ": " << outcome.setting;
    EXPECT_FALSE(outcome.lost_for_good) << "seed " << seed;
    if (!has_groups) {
      EXPECT_EQ(outcome.rollbacks, 0u) << "seed " << seed << ": " << outcome.setting;
    }
    served += tracker(outcome, "server_taken");
    told += worker(outcome, "serves_plan");
  }
  EXPECT_GT(served, seeds(300));
  EXPECT_GT(told, seeds(300));
}

// The checkpoint that it has left behind is committed, and with its going a result of the version after that would be
// lost: the tracker dismissed it then.
TEST(Drain, WhoHadGoneBeyondACommitServesUntilTheNext) {
  for (const std::uint64_t seed : std::vector<std::uint64_t>{100001, 100026, 100548, 100799, 101470, 101479}) {
    const SimOutcome outcome = simulate(noticed(seed));
    EXPECT_EQ(outcome.verdict, "") << "seed " << seed << ": " << outcome.setting;
    EXPECT_EQ(outcome.rollbacks, 0u) << "seed " << seed << ": " << outcome.setting;
    EXPECT_GT(tracker(outcome, "server_beyond_commit"), 0u) << "seed " << seed;
  }
}

// The generation whose plan is the first that names it ends a moment later, before it has said that it has the plan: it
// was named no more, and the checkpoint was lost of which it had the only copy.
TEST(Drain, WhoServesIsGivenTimeToHearOfItsFirstPlan) {
  SimOptions options;
  options.seed = 134;
  options.chances = {{Chance::inferred, 0},     {Chance::full_logs, 0},     {Chance::repeats, 0},
                     {Chance::reorders, 0},     {Chance::launcher_each, 0}, {Chance::sees, 2},
                     {Chance::machine_taken, 0}};
  const SimOutcome outcome = simulate(options);
  EXPECT_EQ(outcome.verdict, "") << outcome.setting;
  EXPECT_FALSE(outcome.lost_for_good);
  EXPECT_GT(tracker(outcome, "server_awaited"), 0u);
}

// Two ranks leave one machine at once, and one of them serves for both. It read what the other had logged in memory,
// but not what it had spilled to the disk: once the host of the other copies was taken away too, the job began again.
TEST(Drain, WhatTheLastServerOfAHostReadsIsAlsoWhatThoseWhoLeftWithItHadSpilled) {
  SimOptions options;
  options.seed = 960061247;
  options.chances = {{Chance::disks, 0},         {Chance::spills, 0},         {Chance::spares, 0},
                     {Chance::spares_more, 2},   {Chance::spares_at, 5183},   {Chance::sees, 2},
                     {Chance::machine_taken, 0}, {Chance::first_plan_lost, 0}};
  const SimOutcome outcome = simulate(options);
  EXPECT_EQ(outcome.verdict, "") << outcome.setting;
  EXPECT_EQ(outcome.rollbacks, 0u);
  EXPECT_GT(tracker(outcome, "server_taken"), 0u);
}

// A rank has returned a result and is lost with its machine; of its copies one is with a rank that was in that round,
// and is taken away in the same moment. It is not computed again.
TEST(Drain, WhoIsTakenAwayInTheMiddleOfARoundThatAnotherHadCompletedServesIt) {
  std::uint64_t served = 0;
  for (std::uint64_t seed = 1; seed <= seeds(600); ++seed) {
    const SimOutcome outcome = simulate(noticed_as_another_dies(seed));
    ASSERT_EQ(outcome.verdict, "") << "seed " << seed << ": " << outcome.setting;
    EXPECT_FALSE(outcome.lost_for_good) << "seed " << seed;
    EXPECT_EQ(outcome.rollbacks, 0u) << "seed " << seed << ": " << outcome.setting;
    served += tracker(outcome, "server_taken");
  }
  EXPECT_GT(served, seeds(300));
}

// The tracker is started again meanwhile, or elsewhere with nothing: it goes on counting on who serves.
TEST(Drain, TheTrackerComesAndGoesWhileSomebodyServes) {
  std::uint64_t served = 0, unknown = 0;
  for (std::uint64_t seed = 1; seed <= seeds(300); ++seed) {
    SimOptions options = noticed(seed);
    if (seed % 3 == 0) options.notices.front().then.reset();
    options.faults->add(seed % 3 == 0 ? Fault::tracker_loss : Fault::tracker_crash);
    const SimOutcome outcome = simulate(options);
    ASSERT_EQ(outcome.verdict, "") << "seed " << seed << ": " << outcome.setting;
    served += tracker(outcome, "server_heard");
    unknown += tracker(outcome, "server_unknown");
  }
  EXPECT_GT(served, seeds(300));
  EXPECT_GT(unknown, 0u);
}

// A commit ends it: nothing that is needed lies with who has left alone.
TEST(Drain, WhoServesGoesWithTheNextCommitAndTheJobNeedsItNoMore) {
  std::uint64_t dismissed = 0;
  for (std::uint64_t seed = 1; seed <= seeds(100); ++seed) {
    SimOptions options = noticed(seed);
    options.notices.front().then.reset();
    const SimOutcome outcome = simulate(options);
    ASSERT_EQ(outcome.verdict, "") << "seed " << seed << ": " << outcome.setting;
    EXPECT_EQ(outcome.rollbacks, 0u) << "seed " << seed;
    dismissed += tracker(outcome, "server_dismissed");
  }
  EXPECT_GT(dismissed, seeds(50));
}

// One after the other, faster than the job commits: one serves where there are two copies, and who comes after it goes
// at once.
TEST(Drain, AsManyServeAsThereAreCopiesToSpare) {
  std::uint64_t refused = 0, served = 0;
  for (std::uint64_t seed = 1; seed <= seeds(200); ++seed) {
    SimOptions options = noticed(seed);
    options.world_size = 4;
    options.hosts = {"a", "b", "c", "d"};
    options.replicas = 2 + static_cast<std::uint32_t>(seed % 2);
    options.notices.front().then.reset();
    for (std::size_t w = 1; w < 3; ++w) {
      SimOptions::Notice more = options.notices.front();
      more.worker = w;
      more.passage += seed / 5 % 3 * w;
      options.notices.push_back(more);
    }
    const SimOutcome outcome = simulate(options);
    ASSERT_EQ(outcome.verdict, "") << "seed " << seed << ": " << outcome.setting;
    refused += tracker(outcome, "server_refused");
    served += tracker(outcome, "server_taken");
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(served, seeds(200));
}

}  // namespace
}  // namespace warren::chaos

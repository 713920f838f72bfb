// Fixed seeds, and that a seed is all that a run depends on.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "chaos/sim/program.h"
#include "chaos/sim/runner.h"
#include "tests/chaos/sim_scenarios.h"
#include "worker/schedule/schedule.h"

namespace warren::chaos {
namespace {

TEST(Sim, EveryInvariantHolds) {
  name_seed_on_abort();
  const std::uint64_t many = kFewer > 1 ? 50 : 250;  // the stage `sim` runs thousands
  const SimReport report = run_seeds(1, many, Mutant::none, 2, nullptr);
  EXPECT_EQ(report.seeds, many);
  for (const SeedFailure& f : report.failed) {
    ADD_FAILURE() << "seed " << f.seed << ": " << f.verdict << "\n  " << f.setting << "\n  "
                  << reproduce_command(f.seed);
  }
  EXPECT_GT(report.struck_again, report.seeds / 10);
  EXPECT_GT(report.commits, report.seeds / 2);
  EXPECT_GE(report.under_faults * 10, report.seeds * 9);
  EXPECT_GT(report.rounds, 10'000 / kFewer);
  if (kFewer > 1) return;
  EXPECT_LT(report.transitions_unhit().size(), 30u);  // `warren sim` takes all in 3,000 seeds
  for (std::size_t f = 0; f < kFaults; ++f) {
    EXPECT_GT(report.faults[f], 0u) << info(static_cast<Fault>(f)).name << " never happened";
  }
}

// The judge once took for wrong: a second machine lost while set-up rounds of the timeline before were not refilled;
// and set-up rounds that were made again from a checkpoint, after the only copy of their results was lost.
TEST(Sim, LossesOfSetUpRoundsAreJudgedRightly) {
  SimOptions options;
  options.seed = 3850;
  options.chances = {{Chance::full_logs, 0},
                     {Chance::repeats, 0},
                     {Chance::reorders, 0},
                     {Chance::launcher_each, 0},
                     {Chance::sees, 2}};
  EXPECT_EQ(simulate(options).verdict, "");
  options.seed = 700454;
  options.chances = {{Chance::repeats, 0}, {Chance::reorders, 0}, {Chance::launcher_each, 0}, {Chance::sees, 1}};
  EXPECT_EQ(simulate(options).verdict, "");
}

// The tracker once called a round done by what a rank had told that left, and that nobody had any more: the others of
// its host had died before the next plan.
TEST(Sim, WhatWhoLeftHadInFlightIsNotCalledDone) {
  SimOptions options;
  options.seed = 333127534;
  options.chances = {{Chance::full_logs, 0},     {Chance::repeats, 0}, {Chance::reorders, 0},
                     {Chance::launcher_each, 0}, {Chance::sees, 2},    {Chance::machine_taken, 0}};
  EXPECT_EQ(simulate(options).verdict, "");
}

// A simulated life that was leaving once stopped for good when its GPU failed, and was given a plan before it had gone.
TEST(Sim, WhoseGpuFailsWhileItLeavesMayGetAPlan) {
  SimOptions options;
  options.seed = 127135017;
  options.chances = {
      {Chance::recipe, 0},          {Chance::recipe_of, 3},      {Chance::disks, 0},    {Chance::spills, 0},
      {Chance::keeps_processes, 0}, {Chance::stays_wired, 0},    {Chance::sees, 1},     {Chance::gpus, 0},
      {Chance::gpus_algorithm, 0},  {Chance::gpus_few_bytes, 0}, {Chance::gpus_fail, 0}};
  EXPECT_EQ(simulate(options).verdict, "");
  options.seed = 127159041;
  options.chances = {{Chance::recipe, 0},         {Chance::recipe_of, 3},      {Chance::stays_wired, 0},
                     {Chance::sees, 1},           {Chance::process_stays, 0},  {Chance::gpus, 0},
                     {Chance::gpus_algorithm, 0}, {Chance::gpus_few_bytes, 0}, {Chance::gpus_fail, 0}};
  EXPECT_EQ(simulate(options).verdict, "");
}

// A life whose first plan is lost once reported nothing of what its host has of lives before.
TEST(Sim, WhatOnlyTheMemoryOfANewLifesHostHasStaysDone) {
  SimOptions options;
  options.seed = 3884;
  options.chances = {{Chance::repeats, 0}, {Chance::reorders, 0},    {Chance::launcher_each, 0},
                     {Chance::sees, 1},    {Chance::link_silent, 0}, {Chance::first_plan_lost, 0}};
  EXPECT_EQ(simulate(options).verdict, "");
}

// Sums of whole hosts, by leaders, through all kinds of faults, and with ranks whose next life is on another host.
TEST(Sim, HierarchicalAllreducesKeepTheInvariants) {
  std::uint64_t rounds = 0;
  for (const auto& hosts : {std::vector<std::string>{"a", "a", "b"}, {"a", "a", "b", "b"}, {"a", "b", "a", "b", "c"}}) {
    for (const char* algorithm : {"ring", "butterfly"}) {
      for (std::uint64_t seed = 1; seed <= seeds(40); ++seed) {
        SimOptions options;
        options.seed = seed;
        options.world_size = static_cast<std::uint32_t>(hosts.size());
        options.hosts = hosts;
        options.algorithm = algorithm;
        options.collective = Collective::kAllreduce;
        options.lends = true;
        const SimOutcome outcome = simulate(options);
        EXPECT_EQ(outcome.verdict, "") << algorithm << ", " << hosts.size() << " ranks, seed " << seed;
        rounds += outcome.rounds;
      }
    }
  }
  EXPECT_GT(rounds, 10'000 / kFewer);
}

TEST(Sim, ASeedReplaysExactly) {
  for (std::uint64_t seed = 1; seed <= seeds(60); ++seed) {
    SimOptions options;
    options.seed = seed;
    const SimOutcome first = simulate(options);
    const SimOutcome second = simulate(options);
    ASSERT_EQ(first.digest, second.digest) << "seed " << seed;
    ASSERT_EQ(first.events, second.events) << "seed " << seed;
    // Watching changes nothing.
    options.transcript = true;
    const SimOutcome watched = simulate(options);
    ASSERT_EQ(first.digest, watched.digest) << "seed " << seed;
    ASSERT_FALSE(watched.transcript.empty());
  }
}

TEST(Sim, SeedsDiffer) {
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 1; seed <= seeds(40); ++seed) {
    SimOptions options;
    options.seed = seed;
    digests.insert(simulate(options).digest);
  }
  EXPECT_EQ(digests.size(), seeds(40));
}

TEST(Sim, ThreadsDoNotMeet) {
  const SimReport one = run_seeds(1, seeds(40), Mutant::none, 1, nullptr);
  const SimReport four = run_seeds(1, seeds(40), Mutant::none, 4, nullptr);
  EXPECT_EQ(one.events, four.events);
  EXPECT_EQ(one.rounds, four.rounds);
  EXPECT_EQ(one.tracker_transitions, four.tracker_transitions);
}

// The oracle is judged by hand where that is short.
TEST(Program, ExpectsWhatAHandWouldCompute) {
  Random random(3);
  const Program program(random, {.world_size = 3});
  const std::vector<std::uint64_t> keys{11, 12, 13};
  ProgramStep step;
  step.index = 1;
  step.collective = Collective::kAllgather;
  step.type = DataType::kI32;
  step.count = 2;
  std::vector<std::byte> all;
  for (std::int32_t r = 0; r < 3; ++r) {
    const auto input = program.input(step, r, keys[static_cast<std::size_t>(r)]);
    ASSERT_EQ(input.size(), 8u);
    all.insert(all.end(), input.begin(), input.end());
  }
  EXPECT_EQ(program.expected(step, 1, keys), all);
  EXPECT_EQ(program.judge(step, 1, keys, all, program.expected(step, 1, keys)), "");
  all[9] ^= std::byte{1};
  EXPECT_NE(program.judge(step, 1, keys, all, program.expected(step, 1, keys)), "");

  step.collective = Collective::kAllreduce;
  step.type = DataType::kF16;
  step.op = ReduceOp::kAverage;
  step.count = 64;
  // Sums of multiples of 3, divided by 3: whole numbers from −3 to 3, as f16.
  const auto high = std::to_integer<int>(program.expected(step, 0, keys)[1]);
  const std::set<int> known{0xc2, 0xc0, 0xbc, 0x00, 0x3c, 0x40, 0x42};
  EXPECT_TRUE(known.contains(high)) << high;

  step.type = DataType::kF32AsI8;
  step.count = 2;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    step.op = op;
    const auto blocks = program.expected(step, 0, keys);
    ASSERT_EQ(blocks.size(), 2 * kI8BlockBytes);
    std::set<int> values;
    for (std::size_t block = 0; block < 2; ++block) {
      float scale = 0;
      std::memcpy(&scale, blocks.data() + block * kI8BlockBytes, sizeof scale);
      EXPECT_EQ(scale, op == ReduceOp::kSum ? 3.0f : 1.0f);
      EXPECT_EQ(std::to_integer<int>(blocks[block * kI8BlockBytes + sizeof scale]), 127);
      for (std::size_t v = 1; v < kI8BlockValues; ++v) {
        values.insert(std::to_integer<std::int8_t>(blocks[block * kI8BlockBytes + sizeof scale + v]));
      }
    }
    EXPECT_EQ(values, (std::set<int>{-3, -2, -1, 0, 1, 2, 3}));
  }
}

TEST(Report, AddsUpAndNamesWhatWasNeverTaken) {
  SimOptions options;
  options.seed = 2;
  options.faults.emplace();
  const SimOutcome calm = simulate(options);
  EXPECT_EQ(calm.verdict, "");
  SimReport report;
  report.add(2, calm);
  const auto unhit = report.transitions_unhit();
  EXPECT_NE(std::find(unhit.begin(), unhit.end(), "tracker.desync"), unhit.end());
  EXPECT_EQ(std::find(unhit.begin(), unhit.end(), "tracker.finished"), unhit.end());
  EXPECT_NE(report.json().find("\"seeds\": 1, \"failed\": []"), std::string::npos) << report.json();
}

}  // namespace
}  // namespace warren::chaos

// Jobs that go on without ranks that were lost, and take them in again (docs/decisions/0020-shrink.md). That each
// result has the inputs of the contributors that its call names, and of no others, is judged in every run (I2).
#include <gtest/gtest.h>

#include <algorithm>

#include "chaos/sim/runner.h"
#include "tests/chaos/sim_scenarios.h"

namespace warren::chaos {
namespace {

// Longer than a run is disturbed.
constexpr std::int64_t kForGoodUs = 60'000'000;
// So long that the others have noticed it and gone on.
constexpr std::int64_t kLongUs = 80'000;

// Each rank on a machine of its own, and any number of them is enough at once.
SimOptions shrinking(std::uint32_t world_size, std::uint64_t seed) {
  SimOptions options = calm(world_size, seed);
  options.shrinks = true;
  options.min_workers = 1;
  options.grace_ms = 0;
  options.replicas = 2;
  options.disks = false;
  options.hosts = {"a", "b", "c", "d", "e"};
  options.hosts.resize(world_size);
  options.late = 0;
  return options;
}

std::uint64_t passages(const SimOutcome& o, std::size_t worker, KillPoint point) {
  return o.passages[worker][static_cast<std::size_t>(point)];
}

TEST(Shrink, EveryInvariantHolds) {
  name_seed_on_abort();
  std::uint64_t shrunk = 0, grown = 0, finished = 0, dropped = 0, short_of_some = 0;
  for (std::uint64_t seed = 1; seed <= seeds(200); ++seed) {
    SimOptions options;
    options.seed = 50'000 + seed;
    options.shrinks = true;
    const SimOutcome o = simulate(options);
    EXPECT_EQ(o.verdict, "") << "seed " << options.seed << ": " << o.setting;
    shrunk += o.shrunk;
    grown += o.grown;
    finished += tracker(o, "attempt_finished");
    dropped += tracker(o, "attempt_dropped");
    short_of_some += tracker(o, "begun_short");
  }
  EXPECT_GT(short_of_some, 10 / kFewer);
  EXPECT_GT(shrunk, 80 / kFewer);
  EXPECT_GT(grown, 40 / kFewer);
  EXPECT_GT(finished, 5 / kFewer);
  EXPECT_GT(dropped, 0u);
}

TEST(Shrink, NobodyIsGivenUpWhereNothingGoesWrong) {
  for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
    const SimOutcome o = simulate(shrinking(2 + static_cast<std::uint32_t>(seed % 4), seed));
    ASSERT_EQ(o.verdict, "") << "seed " << seed;
    EXPECT_EQ(o.shrunk, 0u) << "seed " << seed;
    EXPECT_EQ(tracker(o, "interrupted"), 0u) << "seed " << seed;
  }
}

// A ring of three, of which any rank dies at each of its frames, so also when exactly
// one segment is final; and another one as the rest runs the round again.
TEST(Shrink, ARingLosesARankAndAnotherInTheRerun) {
  std::uint64_t finished = 0, dropped = 0, twice = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SimOptions options = shrinking(3, seed);
    options.algorithm = "ring";
    options.collective = Collective::kAllreduce;
    options.replicas = 2 + static_cast<std::uint32_t>(seed % 2);
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "");
    for (std::size_t worker = 0; worker < 3; ++worker) {
      const std::uint64_t sends = passages(whole, worker, KillPoint::kSend);
      for (std::uint64_t at = 0; at < sends; at += 1 + sends / seeds(16)) {
        SimOptions one = options;
        one.deaths = {{.worker = worker, .at = KillPoint::kSend, .passage = at, .away_us = kForGoodUs}};
        const SimOutcome first = simulate(one);
        ASSERT_EQ(first.verdict, "") << "seed " << seed << ", worker " << worker << ", frame " << at;
        ASSERT_EQ(first.rollbacks, 0u) << "seed " << seed << ", worker " << worker << ", frame " << at;
        finished += tracker(first, "attempt_finished");
        dropped += tracker(first, "attempt_dropped");
        // As far as the first loss all went as it would have.
        const std::size_t other = (worker + 1 + at % 2) % 3;
        for (std::uint64_t more = 0; more < 4; ++more) {
          SimOptions two = one;
          two.deaths.push_back({.worker = other, .at = KillPoint::kSend, .passage = at + more, .away_us = kForGoodUs});
          const SimOutcome o = simulate(two);
          ASSERT_EQ(o.verdict, "") << "seed " << seed << ", workers " << worker << " and " << other << ", frames " << at
                                   << " and " << at + more;
          twice += o.shrunk > 1;
        }
      }
    }
  }
  EXPECT_GT(finished, 0u);
  EXPECT_GT(dropped, 10 / kFewer);
  EXPECT_GT(twice, 10 / kFewer);
}

// Two die at the same frame of theirs. Of the second one the others may have lost no link when the generation is ended
// for the first, and they close their links then.
TEST(Shrink, OfTwoThatDieAtOnceNeitherIsWaitedForUntilItIsFenced) {
  std::uint64_t struck = 0, told = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SimOptions options = shrinking(5, seed);
    options.algorithm = seed % 2 == 0 ? "ring" : "star";
    options.collective = Collective::kAllreduce;
    options.replicas = 3;
    options.round_timeout_ms = 5000;
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "");
    const std::uint64_t sends = passages(whole, 1, KillPoint::kSend);
    for (std::uint64_t at = 1; at < sends; at += 1 + sends / seeds(40)) {
      SimOptions two = options;
      for (const std::size_t worker : {1u, 3u}) {
        two.deaths.push_back({.worker = worker,
                              .at = KillPoint::kSend,
                              .passage = at - (worker == 3 ? at % 2 : 0),
                              .away_us = kForGoodUs,
                              .silently = false});
      }
      const SimOutcome o = simulate(two);
      ASSERT_EQ(o.verdict, "") << "seed " << seed << ", frame " << at;
      EXPECT_EQ(tracker(o, "fenced"), 0u) << "seed " << seed << ", frame " << at;
      struck += o.shrunk > 0;
      told += tracker(o, "suspect_told");
    }
  }
  EXPECT_GT(struck, 40 / kFewer);
  EXPECT_GT(told, 0u);
}

// Every algorithm, with results of any length: whoever has returned was right, whatever the others do then.
TEST(Shrink, EveryAlgorithmLosesARankAtItsReturn) {
  std::uint64_t shrunk = 0;
  for (const char* algorithm : {"star", "tree", "butterfly", "ring", "direct"}) {
    for (std::uint64_t seed = 1; seed <= seeds(8); ++seed) {
      SimOptions options = shrinking(3 + static_cast<std::uint32_t>(seed % 2), seed);
      options.algorithm = algorithm;
      options.replicas = 2 + static_cast<std::uint32_t>(seed % 2);
      options.lends = seed % 4 == 0;
      const SimOutcome whole = simulate(options);
      ASSERT_EQ(whole.verdict, "") << algorithm << ", seed " << seed;
      for (std::size_t worker = 0; worker < 3; ++worker) {
        for (const KillPoint point : {KillPoint::kReturn, KillPoint::kCompletion}) {
          const std::uint64_t most = passages(whole, worker, point);
          for (std::uint64_t at = 0; at < most; at += 1 + most / seeds(8)) {
            SimOptions one = options;
            one.deaths = {{.worker = worker,
                           .at = point,
                           .passage = at,
                           .with_host = at % 2 == 1,
                           .away_us = at % 3 == 0 ? kForGoodUs : kLongUs}};
            const SimOutcome o = simulate(one);
            ASSERT_EQ(o.verdict, "") << algorithm << ", seed " << seed << ", worker " << worker << ", passage " << at;
            ASSERT_EQ(o.rollbacks, 0u) << algorithm << ", seed " << seed << ", worker " << worker << ", passage " << at;
            shrunk += o.shrunk;
          }
        }
      }
    }
  }
  EXPECT_GT(shrunk, 100 / kFewer);
}

// A shrinking job with checkpoints enough.
SimOptions with_checkpoints(std::uint32_t world_size, std::uint64_t first_seed) {
  SimOptions options = shrinking(world_size, first_seed);
  while (simulate(options).commits < 3) ++options.seed;
  return options;
}

// A rank is lost when it has logged its part of a checkpoint, or is about to vote; it comes back, and another one is
// lost at its own part of one, or in its replay, or is the one that has just come in.
TEST(Shrink, TheSetChangesDuringACheckpointAndDuringReplay) {
  std::uint64_t shrunk = 0, grown = 0;
  for (std::uint64_t seed = 10; seed < 14; ++seed) {
    const SimOptions options = with_checkpoints(3, seed * 10);
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "");
    for (std::size_t worker = 0; worker < 3; ++worker) {
      for (const KillPoint point : {KillPoint::kCheckpoint, KillPoint::kEffect}) {
        const std::uint64_t most = passages(whole, worker, point);
        for (std::uint64_t at = 0; at < most; at += 1 + most / seeds(6)) {
          const std::size_t other = (worker + 1) % 3;
          const SimOptions::Death first{.worker = worker, .at = point, .passage = at, .away_us = kLongUs};
          const SimOptions::Death seconds[] = {
              {.worker = other, .at = KillPoint::kCheckpoint, .passage = at, .away_us = kLongUs},
              {.worker = worker, .at = KillPoint::kRecall, .passage = at % 3, .attempt = 1, .away_us = kLongUs},
              {.worker = worker, .at = KillPoint::kCheckpoint, .passage = 0, .attempt = 1, .away_us = kForGoodUs},
              {.worker = other, .at = KillPoint::kReturn, .passage = at + 5, .away_us = kLongUs}};
          for (const SimOptions::Death& second : seconds) {
            SimOptions one = options;
            one.deaths = {first, second};
            const SimOutcome o = simulate(one);
            ASSERT_EQ(o.verdict, "") << "seed " << options.seed << ", worker " << worker << ", passage " << at
                                     << ", then worker " << second.worker;
            shrunk += o.shrunk;
            grown += o.grown;
          }
        }
      }
    }
  }
  EXPECT_GT(shrunk, 100 / kFewer);
  EXPECT_GT(grown, 50 / kFewer);
}

// The grace ends while the lost rank's next life joins: either it is one of the next plan, or it waits for a commit.
TEST(Shrink, TheGraceEndsAsTheLostRankReturns) {
  std::uint64_t shrunk = 0, waited = 0;
  for (std::uint64_t seed = 20; seed < 24; ++seed) {
    SimOptions options = with_checkpoints(3, seed * 10);
    options.grace_ms = 20;
    const SimOutcome whole = simulate(options);
    const std::uint64_t returns = passages(whole, 1, KillPoint::kReturn);
    ASSERT_EQ(whole.verdict, "");
    for (std::uint64_t at = 0; at < returns; at += 1 + returns / seeds(4)) {
      // Others hear of the loss, and the join takes its time.
      for (std::int64_t away_us = 12'000; away_us < 40'000; away_us += 700) {
        SimOptions one = options;
        one.deaths = {{.worker = 1, .at = KillPoint::kReturn, .passage = at, .away_us = away_us}};
        const SimOutcome o = simulate(one);
        ASSERT_EQ(o.verdict, "") << "seed " << options.seed << ", return " << at << ", away for " << away_us << " us";
        ++(o.shrunk > 0 ? shrunk : waited);
      }
    }
  }
  EXPECT_GT(shrunk, 20 / kFewer);
  EXPECT_GT(waited, 20 / kFewer);
}

// It begins with those that are there, and takes the others in, whatever else goes wrong meanwhile: with as many
// machines as copies, more, or fewer.
TEST(Shrink, WhoComesLateComesIn) {
  std::uint64_t begun = 0, grown = 0;
  for (std::uint64_t seed = 1; seed <= seeds(40); ++seed) {
    SimOptions options = shrinking(2 + static_cast<std::uint32_t>(seed % 4), 400 + seed);
    options.late = 1 + static_cast<std::uint32_t>(seed / 4 % (*options.world_size - 1));
    options.replicas = 1 + static_cast<std::uint32_t>(seed % 3);
    options.round_timeout_ms = 100;
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "") << "seed " << options.seed;
    begun += tracker(whole, "begun_short");
    grown += whole.grown;
    for (const KillPoint point : {KillPoint::kReturn, KillPoint::kCheckpoint}) {
      const std::uint64_t most = passages(whole, 0, point);
      for (std::uint64_t at = 0; at < most; at += 1 + most / seeds(4)) {
        SimOptions one = options;
        one.deaths = {{.worker = 0, .at = point, .passage = at, .away_us = at % 2 == 0 ? kForGoodUs : kLongUs}};
        const SimOutcome o = simulate(one);
        ASSERT_EQ(o.verdict, "") << "seed " << options.seed << ", passage " << at;
        grown += o.grown;
      }
    }
  }
  EXPECT_GT(begun, 10 / kFewer);
  EXPECT_GT(grown, 20 / kFewer);
}

// With fewer than the least number of workers a job waits.
TEST(Shrink, TooFewWait) {
  for (std::uint64_t seed = 1; seed <= seeds(10); ++seed) {
    SimOptions options = shrinking(3, seed);
    options.min_workers = 2;
    options.deaths = {{.worker = 0, .at = KillPoint::kReturn, .passage = 1, .away_us = 400'000},
                      {.worker = 1, .at = KillPoint::kReturn, .passage = 1, .away_us = 300'000}};
    const SimOutcome o = simulate(options);
    ASSERT_EQ(o.verdict, "") << "seed " << seed;
  }
}

// Scenario 10: the tracker dies before each of its effects, as a job shrinks and grows; with its journal, too.
TEST(Shrink, TheTrackerDiesBeforeEachEffect) {
  std::uint64_t shrunk = 0, grown = 0, rebuilt = 0;
  for (std::uint64_t seed = 30; seed < 33; ++seed) {
    for (const bool journal : {false, true}) {
      SimOptions options = with_checkpoints(3, seed * 10);
      options.deaths = {{.worker = 1, .at = KillPoint::kReturn, .passage = 2, .away_us = kLongUs}};
      options.journal_dies_too = journal;
      const SimOutcome whole = simulate(options);
      ASSERT_EQ(whole.verdict, "") << "seed " << options.seed;
      const std::uint64_t effects = std::min<std::uint64_t>(whole.tracker_effects, 250);
      for (std::uint64_t at = 0; at < effects; at += kFewer) {
        SimOptions one = options;
        one.tracker_dies_before_effect = at;
        const SimOutcome o = simulate(one);
        ASSERT_EQ(o.verdict, "") << "seed " << options.seed << ", before effect " << at;
        shrunk += o.shrunk;
        grown += o.grown;
        rebuilt += o.rebuilt;
      }
    }
  }
  EXPECT_GT(shrunk, 100 / kFewer);
  EXPECT_GT(grown, 50 / kFewer);
  EXPECT_GT(rebuilt, 50 / kFewer);
}

// It stopped the others in each of four hundred generations, because what it would have had to load was lost.
TEST(Shrink, WhoCannotLoadIsNotCalledAgainWhileThatVersionStands) {
  SimOptions options;
  options.seed = 2519;
  options.chances = {{Chance::spares, 0},   {Chance::spares_more, 2}, {Chance::spares_at, 209}, {Chance::follows, 0},
                     {Chance::replaces, 0}, {Chance::sees, 2},        {Chance::shrinks, 0}};
  const SimOutcome o = simulate(options);
  EXPECT_EQ(o.verdict, "") << o.setting;
  EXPECT_GT(tracker(o, "newcomer_cannot_load"), 0u);
}

// Some wait to come in, and others as spares, in a job that takes long to its next checkpoint. The tracker has one
// timer: what they say over and over adds no other.
TEST(Shrink, WordsOfThoseWhoWaitLeaveNoTimersBehind) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SimOptions options = shrinking(5, seed);
    options.late = 2;
    options.spares = 3;
    options.round_timeout_ms = 100;
    options.replace_after_ms = 0;
    options.straggler =
        Straggler{.what = Straggler::What::kProgram, .rank = Rank(0), .drag_us = 300'000, .judged = false};
    const SimOutcome o = simulate(options);
    ASSERT_EQ(o.verdict, "") << "seed " << seed;
    EXPECT_GT(tracker(o, "spare_repeated"), 400u) << "seed " << seed;
    EXPECT_LT(o.most_events_waiting, 200u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace warren::chaos

// Runs in which a life or a machine ends at one place, for every place.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/chaos/sim_scenarios.h"

namespace warren::chaos {
namespace {

// Every place where a life can end, in every passage: without a log all begin again, with one the job goes on where it
// was, and its results are those of an undisturbed run (I9).
struct Ending {
  const char* name;
  KillPoint at;
  std::uint32_t replicas;
  bool with_host;
};

class DiesAtEachPassage : public ::testing::TestWithParam<Ending> {};

TEST_P(DiesAtEachPassage, IsSurvived) {
  const Ending e = GetParam();
  std::uint64_t struck = 0, survivors = 0;
  for (std::uint64_t seed = 11; seed <= 14; ++seed) {
    SimOptions options = calm(3, seed);
    options.replicas = e.replicas;
    options.hosts = {"a", "b", "c"};
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "");
    ASSERT_EQ(whole.passages.size(), 3u);
    for (std::size_t worker = 0; worker < 3; ++worker) {
      const std::uint64_t passages = whole.passages[worker][static_cast<std::size_t>(e.at)];
      const std::uint64_t stride = 1 + passages / seeds(60);
      for (std::uint64_t at = 0; at < passages; at += stride) {
        SimOptions one = options;
        one.deaths.push_back({worker, e.at, at, e.with_host});
        const SimOutcome o = simulate(one);
        ASSERT_EQ(o.verdict, "") << "seed " << seed << ", worker " << worker << ", passage " << at;
        ASSERT_EQ(o.rollbacks, 0u) << "seed " << seed << ", worker " << worker << ", passage " << at;
        struck += o.lives > 3;
        survivors += tracker(o, "planned_with_survivors");
      }
    }
  }
  EXPECT_GT(struck, 0u);
  if (e.replicas > 0) {
    EXPECT_GT(survivors, 0u);
  }
}

// Ranks die at each place; a spare that has followed checkpoints begins with the one that it holds, if it is the
// newest.
TEST(Scenario, SparesThatFollowBeginWithWhatTheyHold) {
  for (const bool follows : {true, false}) {
    std::uint64_t followed = 0, began = 0, taken = 0;
    for (std::uint64_t seed = 1; seed <= seeds(60); ++seed) {
      SimOptions options = calm(3, seed);
      options.replicas = 2;
      options.hosts = {"a", "b", "c"};
      options.spares = 1;
      options.follows = follows;
      options.many_versions = true;
      const KillPoint at = seed % 2 == 0 ? KillPoint::kReturn : KillPoint::kCheckpoint;
      options.deaths.push_back({seed % 3, at, seed / 2 % 8});
      const SimOutcome o = simulate(options);
      ASSERT_EQ(o.verdict, "") << "seed " << seed;
      EXPECT_EQ(o.rollbacks, 0u) << "seed " << seed;
      taken += tracker(o, "spare_called");
      followed += o.followed;
      began += o.loaded_followed;
    }
    EXPECT_GT(taken, 0u);
    EXPECT_EQ(followed > 0, follows);
    EXPECT_EQ(began > 0, follows) << followed << " were held";
  }
}

INSTANTIATE_TEST_SUITE_P(Scenario, DiesAtEachPassage,
                         ::testing::Values(Ending{"effect", KillPoint::kEffect, 0, false},
                                           Ending{"logged_effect", KillPoint::kEffect, 1, false},
                                           Ending{"completion", KillPoint::kCompletion, 1, false},
                                           Ending{"send", KillPoint::kSend, 1, false},
                                           Ending{"return", KillPoint::kReturn, 1, false},
                                           Ending{"checkpoint", KillPoint::kCheckpoint, 1, false},
                                           Ending{"host_at_completion", KillPoint::kCompletion, 2, true},
                                           Ending{"host_at_send", KillPoint::kSend, 2, true},
                                           Ending{"host_at_return", KillPoint::kReturn, 2, true},
                                           Ending{"host_at_return_of_three", KillPoint::kReturn, 3, true},
                                           Ending{"host_at_checkpoint", KillPoint::kCheckpoint, 2, true}),
                         [](const auto& test) { return std::string(test.param.name); });

// Whose links do not exist yet, or not any more, when its process dies is missed by those who want to connect to it, or
// wait for its log: all the same it is not silence alone that tells.
TEST(Scenario, AProcessThatDiesBetweenTwoGenerationsIsNotWaitedForUntilItIsSilent) {
  std::uint64_t struck = 0;
  for (std::uint64_t seed = 11; seed <= 14; ++seed) {
    SimOptions options = calm(3, seed);
    options.replicas = 2;
    options.hosts = {"a", "b", seed % 2 == 0 ? "a" : "c"};
    options.round_timeout_ms = 5000;
    // So that each wants links to all others. (A star's leaf waits for its root, and that for what the dead has
    // logged.)
    options.algorithm = "ring";
    options.collective = Collective::kAllreduce;
    options.groups = options.lends = false;
    // Nor from a mirror: a rank that reads its state there asks nobody.
    options.disks = false;
    // The first death makes a generation end, the second strikes as the next one begins.
    SimOptions first = options;
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "");
    const std::uint64_t returns = whole.passages[0][static_cast<std::size_t>(KillPoint::kReturn)];
    first.deaths = {
        {.worker = 0, .at = KillPoint::kReturn, .passage = returns / 2, .away_us = 1000, .silently = false}};
    const SimOutcome once = simulate(first);
    ASSERT_EQ(once.verdict, "");
    for (const std::size_t worker : {1u, 2u}) {
      const std::uint64_t effects = once.passages[worker][static_cast<std::size_t>(KillPoint::kEffect)];
      for (std::uint64_t at = 0; at < effects; at += 1 + effects / seeds(60)) {
        SimOptions two = first;
        two.deaths.push_back(
            {.worker = worker, .at = KillPoint::kEffect, .passage = at, .away_us = 20'000'000, .silently = false});
        const SimOutcome o = simulate(two);
        ASSERT_EQ(o.verdict, "") << "seed " << seed << ", worker " << worker << ", effect " << at;
        EXPECT_EQ(tracker(o, "member_silent"), 0u) << "seed " << seed << ", worker " << worker << ", effect " << at;
        ++struck;
      }
    }
  }
  EXPECT_GT(struck, 100 / kFewer);
}

// Two new processes wait at the same place, each with a call that the other one does not make there: one that a process
// makes once, and one that recurs. Nobody knows which is the next round, and all processes start again (docs/decisions/
// 0010). The second one dies after the commit of the version and before its first round.
TEST(Scenario, NewProcessesAskForDifferentCallsAtOnePlace) {
  SimOptions options = calm(2, 196);
  options.replicas = 1;
  options.hosts = {"a", "b"};
  options.inferred = true;
  std::uint64_t met = 0, found = 0;
  options.deaths = {{.worker = 0, .at = KillPoint::kReturn, .passage = 15}};
  const SimOutcome once = simulate(options);
  ASSERT_EQ(once.verdict, "");
  const std::uint64_t effects = once.passages[1][static_cast<std::size_t>(KillPoint::kEffect)];
  for (std::uint64_t effect = 0; effect < effects; ++effect) {
    SimOptions two = options;
    two.deaths.push_back({.worker = 1, .at = KillPoint::kEffect, .passage = effect});
    const SimOutcome o = simulate(two);
    ASSERT_EQ(o.verdict, "") << "effect " << effect;
    if (o.rollbacks == 0) continue;
    ++met;
    two.mutant = Mutant::takes_any_question;
    found += !simulate(two).verdict.empty();
  }
  EXPECT_GT(met, 0u) << "no death struck at such a moment: another seed has to be found";
  EXPECT_EQ(found, met);
}

// The owner, or its machine, is lost after a peer has returned (docs/invariants.md, I1 and I3).
TEST(Scenario, TheOwnersMachineIsLostAfterOneRankReturned) {
  const std::vector<std::vector<std::string>> placements = {
      {"a", "a"}, {"a", "a", "b", "b"}, {"a", "a", "a", "b"}, {"a", "b", "c"}};
  for (const auto& hosts : placements) {
    const bool one_host =
        std::count(hosts.begin(), hosts.end(), hosts.front()) == static_cast<std::ptrdiff_t>(hosts.size());
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      SimOptions options = calm(static_cast<std::uint32_t>(hosts.size()), seed);
      options.replicas = one_host ? 1 : 2;
      options.hosts = hosts;
      options.groups = false;  // one within a machine has one copy
      const SimOutcome whole = simulate(options);
      ASSERT_EQ(whole.verdict, "");
      for (std::size_t worker = 0; worker < hosts.size(); ++worker) {
        const std::uint64_t returns = whole.passages[worker][static_cast<std::size_t>(KillPoint::kReturn)];
        for (std::uint64_t at = 0; at < returns; at += 1 + returns / seeds(12)) {
          SimOptions one = options;
          one.deaths.push_back({worker, KillPoint::kReturn, at, !one_host});
          const SimOutcome o = simulate(one);
          ASSERT_EQ(o.verdict, "") << hosts.size() << " ranks, seed " << seed << ", worker " << worker << ", return "
                                   << at;
          ASSERT_EQ(o.rollbacks, 0u) << hosts.size() << " ranks, seed " << seed << ", worker " << worker << ", return "
                                     << at;
        }
      }
    }
  }
}

// Scenario 2 and 6, wait mode: every algorithm, a rank dies at any of its frames, and its new life at any of its own.
TEST(Scenario, EveryAlgorithmIsStruckTwice) {
  for (const char* algorithm : {"star", "tree", "butterfly", "ring", "direct"}) {
    for (std::uint64_t seed = 1; seed <= seeds(12); ++seed) {
      SimOptions options = calm(3 + static_cast<std::uint32_t>(seed % 3), seed);
      options.replicas = 2 + static_cast<std::uint32_t>(seed % 2);
      options.algorithm = algorithm;
      const SimOutcome whole = simulate(options);
      ASSERT_EQ(whole.verdict, "");
      for (int i = 0; i < 6; ++i) {
        Random random(seed * 100 + static_cast<std::uint64_t>(i));
        SimOptions one = options;
        for (std::uint32_t attempt = 0; attempt < 2; ++attempt) {
          const std::size_t worker = random.below(*options.world_size);
          const std::uint64_t sends = whole.passages[worker][static_cast<std::size_t>(KillPoint::kSend)];
          if (sends > 0) one.deaths.push_back({worker, KillPoint::kSend, random.below(sends), false, attempt});
        }
        const SimOutcome o = simulate(one);
        ASSERT_EQ(o.verdict, "") << algorithm << ", seed " << seed << ", variant " << i;
        ASSERT_EQ(o.rollbacks, 0u) << algorithm << ", seed " << seed << ", variant " << i;
      }
    }
  }
}

// Scenario 4: a rank has returned from a round whose results differ by rank, or that one rank feeds, and has scribbled
// over its buffers; then links break, or any other rank dies, alone or with its machine, at any frame.
TEST(Scenario, TheFirstSenderReturnsAndScribbles) {
  std::uint64_t struck = 0;
  for (const Collective collective : {Collective::kReduceScatter, Collective::kReduce, Collective::kBroadcast}) {
    for (std::uint64_t seed = 21; seed <= 24; ++seed) {
      SimOptions options = calm(3 + static_cast<std::uint32_t>(seed % 2), seed);
      options.replicas = 2;
      options.hosts = {"a", "b", "c", "d"};
      options.groups = false;
      options.collective = collective;
      const SimOutcome whole = simulate(options);
      ASSERT_EQ(whole.verdict, "");
      const auto where = [&](const char* what, std::size_t worker, std::uint64_t at) {
        return std::string(to_string(collective)) + ", seed " + std::to_string(seed) + ", " + what + " " +
               std::to_string(worker) + " at " + std::to_string(at);
      };
      SimOptions cut = options;
      cut.faults->set(Fault::link_cut, 100.0);
      const SimOutcome c = simulate(cut);
      ASSERT_EQ(c.verdict, "") << where("links", 0, 0);
      ASSERT_EQ(c.rollbacks, 0u) << where("links", 0, 0);
      for (std::size_t worker = 0; worker < *options.world_size; ++worker) {
        for (const KillPoint point : {KillPoint::kSend, KillPoint::kReturn}) {
          const std::uint64_t passages = whole.passages[worker][static_cast<std::size_t>(point)];
          for (std::uint64_t at = 0; at < passages; at += 1 + passages / seeds(12)) {
            SimOptions one = options;
            one.deaths.push_back({worker, point, at, at % 2 == 1});
            const SimOutcome o = simulate(one);
            ASSERT_EQ(o.verdict, "") << where("worker", worker, at);
            ASSERT_EQ(o.rollbacks, 0u) << where("worker", worker, at);
            struck += tracker(o, "planned_with_survivors");
          }
        }
      }
    }
  }
  EXPECT_GT(struck, 50 / kFewer);
}

}  // namespace
}  // namespace warren::chaos

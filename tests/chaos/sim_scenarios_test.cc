// Runs in which one thing goes wrong at one place, for every place.
#include <gtest/gtest.h>

#include <algorithm>

#include "chaos/sim/cluster.h"
#include "chaos/sim/runner.h"
#include "recovery/tracker_machine.h"
#include "recovery/worker_machine.h"

namespace warren::chaos {
namespace {

std::uint64_t taken(const std::vector<std::uint64_t>& counts, std::span<const char* const> names,
                    std::string_view name) {
  const auto at = std::find(names.begin(), names.end(), name);
  EXPECT_NE(at, names.end()) << name;
  return counts[static_cast<std::size_t>(at - names.begin())];
}
std::uint64_t tracker(const SimOutcome& o, std::string_view name) {
  return taken(o.tracker_transitions, TrackerMachine::transition_names(), name);
}

SimOptions calm(std::uint32_t world_size, std::uint64_t seed) {
  SimOptions options;
  options.seed = seed;
  options.world_size = world_size;
  options.faults.emplace();
  options.round_timeout_ms = 500;
  options.survivable = true;
  return options;
}

TEST(Scenario, NothingGoesWrong) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    for (const std::uint32_t size : {1u, 2u, 3u, 5u, 16u}) {
      const SimOutcome o = simulate(calm(size, seed));
      ASSERT_EQ(o.verdict, "") << "K=" << size << " seed " << seed;
      ASSERT_EQ(o.lives, size);
      ASSERT_EQ(tracker(o, "interrupted"), 0u);
      ASSERT_EQ(tracker(o, "finished"), 1u);
    }
  }
}

TEST(Scenario, TheTrackerDiesBeforeEachEffectOfAJob) {
  const std::uint64_t effects = simulate(calm(3, 11)).tracker_effects;
  ASSERT_GT(effects, 20u);
  std::uint64_t restored = 0;
  for (std::uint64_t at = 0; at < std::min<std::uint64_t>(effects, 120); ++at) {
    SimOptions options = calm(3, 11);
    options.tracker_dies_before_effect = at;
    const SimOutcome o = simulate(options);
    ASSERT_EQ(o.verdict, "") << "before effect " << at;
    restored += tracker(o, "restored_running") + tracker(o, "restored_finished");
  }
  EXPECT_GT(restored, 0u);
}

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
      const std::uint64_t stride = 1 + passages / 60;
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

// DESIGN section 12, scenario 0: the owner, or its machine, is lost after a peer has returned.
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
        for (std::uint64_t at = 0; at < returns; at += 1 + returns / 12) {
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
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
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
          for (std::uint64_t at = 0; at < passages; at += 1 + passages / 12) {
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
  EXPECT_GT(struck, 50u);
}

// A job with checkpoints enough, of three ranks on machines of their own.
SimOptions checkpoints(std::uint64_t first_seed) {
  SimOptions options = calm(3, first_seed);
  options.replicas = 2;
  options.hosts = {"a", "b", "c"};
  while (simulate(options).commits < 3) ++options.seed;
  return options;
}

// Scenario 7: a rank dies when it has voted, or is about to; its new life loads; votes of others arrive late; and the
// tracker dies, before it persists the commit, before it announces it, and after.
TEST(Scenario, AVoterDiesAndTheTrackerToo) {
  std::uint64_t restored = 0, voided = 0;
  for (std::uint64_t seed = 30; seed < 34; ++seed) {
    SimOptions options = checkpoints(seed * 10);
    options.faults->set(Fault::message_late, 0.3);
    for (const KillPoint point : {KillPoint::kCheckpoint, KillPoint::kEffect}) {
      SimOptions one = options;
      const SimOutcome whole = simulate(options);
      ASSERT_EQ(whole.verdict, "");
      const std::uint64_t passages = whole.passages[1][static_cast<std::size_t>(point)];
      for (std::uint64_t at = 0; at < passages; at += 1 + passages / 5) {
        one.deaths = {{1, point, at, false}};
        one.tracker_dies_before_effect.reset();
        const SimOutcome death = simulate(one);
        ASSERT_EQ(death.verdict, "") << "seed " << options.seed << ", passage " << at;
        for (std::uint64_t effect = 0; effect < death.tracker_effects; effect += 1 + death.tracker_effects / 12) {
          one.tracker_dies_before_effect = effect;
          const SimOutcome o = simulate(one);
          ASSERT_EQ(o.verdict, "") << "seed " << options.seed << ", passage " << at << ", effect " << effect;
          ASSERT_EQ(o.rollbacks, 0u) << "seed " << options.seed << ", passage " << at << ", effect " << effect;
          restored += tracker(o, "restored_running") + tracker(o, "restored_interrupted");
          voided += tracker(o, "load_answered");
        }
      }
    }
  }
  EXPECT_GT(restored, 50u);
  EXPECT_GT(voided, 50u);
}

// Scenario 8: a rank that replays comes to checkpoints that the others have taken, while the next one is pending and
// others wait to take theirs; in groups too; it dies again on its way, and the tracker is away.
TEST(Scenario, AReplayingRankCallsCheckpoint) {
  std::uint64_t again = 0, commits = 0;
  for (std::uint64_t seed = 40; seed < 44; ++seed) {
    SimOptions options = checkpoints(seed * 10);
    options.groups = true;
    options.faults->set(Fault::slow_rank, 0.2);
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "");
    const std::uint64_t passages = whole.passages[2][static_cast<std::size_t>(KillPoint::kReturn)];
    for (std::uint64_t at = 0; at < passages; at += 1 + passages / 6) {
      SimOptions one = options;
      one.deaths.push_back({2, KillPoint::kReturn, at, false});
      // Its second life dies where it takes a checkpoint, or in its replay.
      one.deaths.push_back({2, KillPoint::kCheckpoint, 0, false, 1});
      one.deaths.push_back({2, KillPoint::kRecall, at % 3, false, 2});
      const SimOutcome deaths = simulate(one);
      ASSERT_EQ(deaths.verdict, "") << "seed " << options.seed << ", return " << at;
      again += deaths.lives > 4;
      for (std::uint64_t effect = 0; effect < deaths.tracker_effects; effect += 1 + deaths.tracker_effects / 10) {
        one.tracker_dies_before_effect = effect;
        const SimOutcome o = simulate(one);
        ASSERT_EQ(o.verdict, "") << "seed " << options.seed << ", return " << at << ", effect " << effect;
        ASSERT_EQ(o.rollbacks, 0u) << "seed " << options.seed << ", return " << at << ", effect " << effect;
        commits += o.commits;
      }
    }
  }
  EXPECT_GT(again, 5u);
  EXPECT_GT(commits, 100u);
}

// Scenario 9, as far as memory goes: as many machines are lost as there are copies, with votes under way; what goes on
// starts from the newest committed checkpoint, or says that it is lost, and never serves what was undone.
TEST(Scenario, ARollbackAfterAsManyLossesAsCopies) {
  std::uint64_t rolled_back = 0, went_on = 0;
  for (std::uint64_t seed = 50; seed < 56; ++seed) {
    SimOptions options = checkpoints(seed * 10);
    options.replicas = 1 + static_cast<std::uint32_t>(seed % 2);
    options.survivable = false;
    options.faults->set(Fault::message_late, 0.2);
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "");
    for (const KillPoint point : {KillPoint::kCheckpoint, KillPoint::kReturn, KillPoint::kSend}) {
      const std::uint64_t passages = whole.passages[0][static_cast<std::size_t>(point)];
      for (std::uint64_t at = 0; at < passages; at += 1 + passages / 12) {
        SimOptions one = options;
        for (std::size_t worker = 0; worker < *options.replicas; ++worker) {
          one.deaths.push_back({worker, point, at, true});
        }
        const SimOutcome o = simulate(one);
        ASSERT_EQ(o.verdict, "") << "seed " << options.seed << ", passage " << at;
        rolled_back += o.rollbacks;
        went_on += o.rollbacks > 0 && !o.lost_for_good;
      }
    }
  }
  EXPECT_GT(rolled_back, 0u);
  EXPECT_GT(went_on, 0u);
}

// A set-up round of which the only copy goes with a machine, because the job or the group keeps one: all set-up rounds
// are made again, also from a state that a checkpoint has brought, and the job goes on.
TEST(Scenario, LostSetUpRoundsAreMadeAgain) {
  std::uint64_t before_commits = 0, after_commits = 0;
  for (std::uint64_t seed = 60; seed < 100; ++seed) {
    SimOptions options = calm(2 + static_cast<std::uint32_t>(seed % 2), seed);
    options.replicas = 1 + static_cast<std::uint32_t>(seed / 2 % 2);
    options.hosts = {"a", "b", "c"};
    options.survivable = false;
    const SimOutcome whole = simulate(options);
    ASSERT_EQ(whole.verdict, "");
    for (std::size_t worker = 0; worker < *options.world_size; ++worker) {
      const std::uint64_t passages = whole.passages[worker][static_cast<std::size_t>(KillPoint::kReturn)];
      for (std::uint64_t at = 0; at < passages; at += 1 + passages / 8) {
        SimOptions one = options;
        one.deaths.push_back({worker, KillPoint::kReturn, at, true});
        const SimOutcome o = simulate(one);
        ASSERT_EQ(o.verdict, "") << "seed " << seed << ", worker " << worker << ", return " << at;
        const std::uint64_t gaps = tracker(o, "log_gap_of_setup");
        if (!o.lost_for_good) (o.commits == 0 ? before_commits : after_commits) += gaps;
      }
    }
  }
  EXPECT_GT(before_commits, 0u);
  EXPECT_GT(after_commits, 10u);
}

// Scenario 10: the tracker dies before each of its effects while a rank is being replaced.
TEST(Scenario, TheTrackerDiesBeforeEachEffectOfARecovery) {
  SimOptions options = calm(3, 12);
  options.replicas = 2;
  options.hosts = {"a", "b", "c"};
  options.deaths.push_back({1, KillPoint::kReturn, 2, true});
  const SimOutcome whole = simulate(options);
  ASSERT_EQ(whole.verdict, "");
  std::uint64_t survivors = 0;
  for (std::uint64_t at = 0; at < std::min<std::uint64_t>(whole.tracker_effects, 200); ++at) {
    SimOptions one = options;
    one.tracker_dies_before_effect = at;
    const SimOutcome o = simulate(one);
    ASSERT_EQ(o.verdict, "") << "before effect " << at;
    survivors += tracker(o, "planned_with_survivors");
  }
  EXPECT_GT(survivors, 0u);
}

struct OneFault {
  Fault fault;
  double rate;
  const char* must_be_taken;  // of the tracker's transitions, over all seeds; empty: nothing special
};

class OneFaultAtATime : public ::testing::TestWithParam<OneFault> {};

TEST_P(OneFaultAtATime, IsSurvived) {
  const auto [fault, rate, must_be_taken] = GetParam();
  std::uint64_t struck = 0, hits = 0;
  // At least 40 seeds, and more until the transition was taken: which seed takes it first changes with every schedule.
  const auto unmet = [&] { return *must_be_taken != '\0' && hits == 0; };
  for (std::uint64_t seed = 1; seed <= 40 || (unmet() && seed <= 2000); ++seed) {
    SimOptions options = calm(2 + static_cast<std::uint32_t>(seed % 4), seed);
    options.faults->set(fault, rate);
    options.round_timeout_ms = 200;
    const SimOutcome o = simulate(options);
    ASSERT_EQ(o.verdict, "") << "seed " << seed;
    struck += o.faults[static_cast<std::size_t>(fault)];
    if (*must_be_taken != '\0') hits += tracker(o, must_be_taken);
  }
  EXPECT_GT(struck, 0u);
  if (*must_be_taken != '\0') {
    EXPECT_GT(hits, 0u) << must_be_taken;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scenario, OneFaultAtATime,
    ::testing::Values(
        OneFault{Fault::slow_start, 1.0, ""}, OneFault{Fault::twin_life, 20.0, "join_replaced_member"},
        OneFault{Fault::message_twice, 0.5, "join_repeated"}, OneFault{Fault::connection_drop, 10.0, ""},
        OneFault{Fault::message_lost, 0.3, "plan_repeated"}, OneFault{Fault::silent_death, 10.0, "member_silent"},
        OneFault{Fault::death, 10.0, "link_broken"}, OneFault{Fault::pause, 10.0, "stale_life"},
        OneFault{Fault::link_cut, 50.0, "evidence_of_one_link"}, OneFault{Fault::bit_flip, 0.02, "round_failed"},
        OneFault{Fault::desync, 0.05, "desync"}, OneFault{Fault::tracker_crash, 5.0, "restored_running"},
        OneFault{Fault::tracker_pause, 10.0, "slept"}, OneFault{Fault::disk_failure, 20.0, ""},
        OneFault{Fault::wrong_settings, 10.0, "settings_refused"}, OneFault{Fault::gave_up, 10.0, "member_left"}),
    [](const auto& test) { return std::string(chaos::info(test.param.fault).name); });

// All processes end at once, wherever the first worker is; the disks keep what was written until then.
TEST(Scenario, AllProcessesEndAtOnceAndTheDisksGoOn) {
  std::uint64_t kept = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    for (std::uint64_t at = 0; at < 12; ++at) {
      SimOptions options = calm(3, seed);
      options.replicas = 2;
      options.disks = true;
      options.hosts = {"a", "b", "c"};
      options.deaths.push_back({0, KillPoint::kReturn, at, false, 0, true});
      const SimOutcome o = simulate(options);
      ASSERT_EQ(o.verdict, "") << "seed " << seed << ", after call " << at;
      EXPECT_EQ(o.rollbacks, 0u) << "seed " << seed << ", after call " << at;
      kept += o.kept_rounds;
    }
  }
  EXPECT_GT(kept, 100u) << "rounds that are on disk are not run again";
}

}  // namespace
}  // namespace warren::chaos

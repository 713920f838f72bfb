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

TEST(Scenario, AWorkerDiesBeforeEachEffectOfItsLife) {
  SimOptions options = calm(3, 12);
  options.worker_dies = {1, UINT64_MAX};
  const SimOutcome whole = simulate(options);
  ASSERT_EQ(whole.verdict, "");
  ASSERT_GT(whole.first_life_effects, 5u);
  for (std::uint64_t at = 0; at < std::min<std::uint64_t>(whole.first_life_effects, 60); ++at) {
    for (std::size_t worker = 0; worker < 3; ++worker) {
      SimOptions one = calm(3, 12);
      one.worker_dies = {worker, at};
      const SimOutcome o = simulate(one);
      ASSERT_EQ(o.verdict, "") << "worker " << worker << " before effect " << at;
      ASSERT_GE(o.lives, 3u);
    }
  }
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

}  // namespace
}  // namespace warren::chaos

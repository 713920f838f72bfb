#include "worker/session/spare_core.h"

#include <gtest/gtest.h>

namespace warren::worker {
namespace {

using namespace std::chrono_literals;

TEST(SpareCore, IsFreeWhileYieldsAreShort) {
  SpareCore core;
  for (int call = 0; call < 10'000; call++) {
    core.called();
    for (int i = 0; i < 30; i++) core.yielded(500ns);
    ASSERT_TRUE(core.free());
  }
}

TEST(SpareCore, IsNotFreeWhereOthersRunInMostWaits) {
  SpareCore core;
  for (int call = 0; call < 100; call++) {
    core.called();
    core.yielded(20us);
  }
  EXPECT_FALSE(core.free());
}

// A heartbeat, or an interrupt, takes the core for a moment.
TEST(SpareCore, WhatRunsNowAndThenCountsForNothing) {
  SpareCore core;
  for (int call = 0; call < 10'000; call++) {
    core.called();
    core.yielded(call % 16 == 0 ? 50us : 500ns);
    ASSERT_TRUE(core.free());
  }
}

// However long it was crowded.
TEST(SpareCore, IsFreeAgainSoonAfterTheOthersHaveGone) {
  SpareCore core;
  for (int call = 0; call < 100'000; call++) core.yielded(1ms);
  ASSERT_FALSE(core.free());
  int calls = 0;
  while (!core.free() && calls < 1000) {
    core.called();
    calls++;
  }
  EXPECT_LT(calls, 1000);
}

TEST(SpareCore, SleepIsSoonerWhereYieldsLastForTimeSlices) {
  SpareCore core;
  for (int i = 0; i < 3; i++) {
    ASSERT_FALSE(core.sleep_is_sooner());
    core.yielded(4ms);
  }
  EXPECT_TRUE(core.sleep_is_sooner());
  int sleeps = 0;
  while (core.sleep_is_sooner() && sleeps < 1000) {
    core.slept();
    sleeps++;
  }
  EXPECT_GT(sleeps, 500) << "a try costs a slice";
  EXPECT_LT(sleeps, 1000);
  core.yielded(4ms);
  EXPECT_TRUE(core.sleep_is_sooner()) << "one try shows that they are still there";
}

TEST(SpareCore, ASliceNowAndThenCountsForNothing) {
  SpareCore core;
  for (int i = 0; i < 100'000; i++) {
    core.yielded(i % 1000 == 0 ? 4ms : 500ns);
    ASSERT_FALSE(core.sleep_is_sooner());
  }
}

// Ranks that outnumber the cores compute for a while, and wait for each other again.
TEST(SpareCore, YieldsToRanksThatReduceAreNoSlices) {
  SpareCore core;
  for (int i = 0; i < 1000; i++) {
    core.yielded(900us);
    ASSERT_FALSE(core.sleep_is_sooner());
  }
}

}  // namespace
}  // namespace warren::worker

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

// Sleeps until a yield is tried again.
int sleeps(SpareCore& core) {
  int slept = 0;
  for (; core.sleep_is_sooner() && slept < 100'000; slept++) core.slept();
  return slept;
}

TEST(SpareCore, SleepIsSoonerWhereYieldsLastForTimeSlices) {
  SpareCore core;
  for (int i = 0; i < 3; i++) {
    ASSERT_FALSE(core.sleep_is_sooner());
    core.yielded(4ms);
  }
  const int first = sleeps(core);
  EXPECT_GT(first, 500) << "a try costs a slice";
  core.yielded(4ms);
  EXPECT_EQ(sleeps(core), 2 * first) << "they are still there";
  for (int i = 0; i < 100; i++) {
    core.yielded(4ms);
    EXPECT_LT(sleeps(core), 100'000);
  }
  for (int i = 0; i < 1000; i++) core.yielded(500ns);
  EXPECT_FALSE(core.sleep_is_sooner());
  for (int i = 0; i < 3; i++) core.yielded(4ms);
  EXPECT_EQ(sleeps(core), first) << "they had gone";
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

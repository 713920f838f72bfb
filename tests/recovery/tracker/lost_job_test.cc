#include "recovery/tracker/lost_job.h"

#include <gtest/gtest.h>

namespace warren::test {
namespace {

constexpr std::uint64_t kRun = 7;
constexpr std::size_t kMost = 4;
const LostJob::Source kDiskOfA{"a", LostJob::From::kDisk};
const LostJob::Source kLauncherOfA{"a", LostJob::From::kLauncher};
const LostJob::Source kDiskOfB{"b", LostJob::From::kDisk};
const LostJob::Source kMirror{"", LostJob::From::kMirror};

wire::Held held(std::uint64_t run, bool mirrored = false) {
  wire::Held h;
  h.set_run(run);
  h.set_mirrored(mirrored);
  return h;
}

wire::Logged kept(std::uint64_t run) {
  wire::Logged l;
  l.set_run(run);
  return l;
}

TEST(LostJob, AHostBringsWhatItsDiskAndItsLauncherHaveKeptOfTheRun) {
  const wire::Held disk = held(kRun), other = held(8);
  EXPECT_EQ(LostJob::brought_by("a", nullptr, {}, kRun), LostJob::Sources{});
  EXPECT_EQ(LostJob::brought_by("a", &other, kept(8), kRun), LostJob::Sources{});
  EXPECT_EQ(LostJob::brought_by("a", &disk, kept(kRun), kRun), (LostJob::Sources{kDiskOfA, kLauncherOfA}));
}

TEST(LostJob, AMirrorIsOneForAllHosts) {
  const wire::Held mirrored = held(kRun, true);
  EXPECT_EQ(LostJob::brought_by("a", &mirrored, {}, kRun), LostJob::Sources{kMirror});
  EXPECT_EQ(LostJob::brought_by("b", &mirrored, {}, kRun), LostJob::Sources{kMirror});
}

TEST(LostJob, WhatWasLookedAtInVainTakesTheJobUpAWhileLater) {
  LostJob job;
  EXPECT_FALSE(job.may_take_up({}, TimeMs{0}));
  EXPECT_TRUE(job.may_take_up({kDiskOfA}, TimeMs{0}));
  job.ask({kDiskOfA}, {"a"});
  job.note_in_vain(TimeMs{10}, TimeMs{110}, kMost);
  EXPECT_FALSE(job.may_take_up({kDiskOfA}, TimeMs{109}));
  EXPECT_EQ(job.looks_again_at({kDiskOfA, kDiskOfB}), TimeMs{110});
  EXPECT_TRUE(job.may_take_up({kDiskOfA, kDiskOfB}, TimeMs{109}));  // nobody has asked b
  EXPECT_TRUE(job.may_take_up({kDiskOfA}, TimeMs{110}));
}

TEST(LostJob, WhatTookItUpAndWasNotAskedMayDoSoOnceMore) {
  LostJob job;
  for (const bool again : {false, true}) {
    job.take_up({kDiskOfA});
    job.ask({}, {"b"});  // the life of host a died before the plan
    job.note_in_vain(TimeMs{10}, TimeMs{110}, kMost);
    EXPECT_EQ(job.may_take_up({kDiskOfA}, TimeMs{20}), !again);
  }
}

TEST(LostJob, WhatTookItUpIsAskedWithAnyRankOfItsHost) {
  LostJob job;
  job.take_up({kDiskOfA, kMirror});
  job.ask({}, {"a"});
  job.note_in_vain(TimeMs{10}, TimeMs{110}, kMost);
  EXPECT_FALSE(job.may_take_up({kDiskOfA}, TimeMs{20}));
  EXPECT_FALSE(job.may_take_up({kMirror}, TimeMs{20}));  // any host has it
}

TEST(LostJob, SoManyThatWereNotAskedAreRemembered) {
  LostJob job;
  job.take_up({kDiskOfA, kDiskOfB});
  job.note_in_vain(TimeMs{10}, TimeMs{110}, 1);
  EXPECT_TRUE(job.may_take_up({kDiskOfA}, TimeMs{20}));
  EXPECT_FALSE(job.may_take_up({kDiskOfB}, TimeMs{20}));
}

TEST(LostJob, ALifeHopesForAWhileThatAnotherBringsSomething) {
  LostJob job;
  EXPECT_EQ(job.hope(Incarnation(10), TimeMs{0}, 100, kMost), LostJob::Hope::kBegins);
  EXPECT_EQ(job.hope(Incarnation(10), TimeMs{99}, 100, kMost), LostJob::Hope::kStays);
  EXPECT_EQ(job.hopes().size(), 1u);
  EXPECT_EQ(job.hope(Incarnation(10), TimeMs{100}, 100, kMost), LostJob::Hope::kNone);
  EXPECT_TRUE(job.hopes().empty());
}

TEST(LostJob, SoManyHope) {
  LostJob job;
  EXPECT_EQ(job.hope(Incarnation(10), TimeMs{0}, 100, 1), LostJob::Hope::kBegins);
  EXPECT_EQ(job.hope(Incarnation(11), TimeMs{1}, 100, 1), LostJob::Hope::kNone);
  EXPECT_EQ(job.hope(Incarnation(10), TimeMs{1}, 100, 1), LostJob::Hope::kStays);
  // A life that does not ask again makes room.
  EXPECT_EQ(job.hope(Incarnation(11), TimeMs{200}, 100, 1), LostJob::Hope::kBegins);
}

TEST(LostJob, NobodyHopesOnceItIsTakenUp) {
  LostJob job;
  (void)job.hope(Incarnation(10), TimeMs{0}, 100, kMost);
  job.take_up({kDiskOfA});
  EXPECT_TRUE(job.hopes().empty());
}

}  // namespace
}  // namespace warren::test

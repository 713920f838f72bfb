// A log that fills up is told of once, with what to do, and again for the next version.
#include "worker/session/log_fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warren::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

TEST(LogFill, HalfFullIsSaidOnceALifeWithRoundsSinceTheNewestCommit) {
  LogFill fill(LogFull::kSuspend, false);
  fill.gathers_from(TimeMs{1000}, 0);
  fill.gathers_from(TimeMs{5000}, 40);  // a version is committed
  EXPECT_THAT(
      fill.half_full(Rank(3), TimeMs{7000}, 50, 4096),
      Optional(HasSubstr("rank 3's log is half full after 10 rounds in 2.0 s without a checkpoint: as many more, "
                         "and its 4096 bytes")));
  EXPECT_EQ(fill.half_full(Rank(3), TimeMs{8000}, 60, 4096), std::nullopt);
}

TEST(LogFill, AFullLogThatEndsCallsSaysSo) {
  LogFill fill(LogFull::kError, false);
  EXPECT_THAT(fill.half_full(Rank(0), TimeMs{1}, 1, 1), Optional(HasSubstr("then calls fail (--log_full=error)")));
}

TEST(LogFill, GivingUpIsSaidOnceAVersionAndItsEndToo) {
  LogFill fill(LogFull::kSuspend, false);
  EXPECT_EQ(fill.whole_again(Version(3), false), std::nullopt) << "nothing was given up";
  EXPECT_THAT(
      fill.gives_up(Rank(0), Version(4), Version(3)),
      Optional(HasSubstr("until the next checkpoint is committed a loss takes all processes back to version 2")));
  EXPECT_EQ(fill.gives_up(Rank(0), Version(4), Version(3)), std::nullopt);
  EXPECT_EQ(fill.whole_again(Version(4), true), std::nullopt) << "results that are needed are still given up";
  EXPECT_THAT(fill.whole_again(Version(4), false), Optional(HasSubstr("version 3 is committed")));
  EXPECT_NE(fill.gives_up(Rank(0), Version(5), Version(4)), std::nullopt);
}

TEST(LogFill, WhatALossDoesFollowsFromWhatIsCommittedAndFromTheMode) {
  EXPECT_THAT(LogFill(LogFull::kSuspend, false).gives_up(Rank(0), Version(1), std::nullopt),
              Optional(HasSubstr("a loss ends the job, as nothing is committed to go back to")));
  EXPECT_THAT(LogFill(LogFull::kSuspend, false).gives_up(Rank(0), kPreamble, Version(2)),
              Optional(HasSubstr("from now on a loss takes all processes back to version 1")));
  EXPECT_THAT(LogFill(LogFull::kSuspend, true).gives_up(Rank(0), Version(1), std::nullopt),
              Optional(HasSubstr("a loss keeps its worker out until a version is committed")));
}

}  // namespace
}  // namespace warren::worker

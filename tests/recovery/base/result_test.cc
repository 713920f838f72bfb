#include "recovery/base/result.h"

#include <gtest/gtest.h>

#include <memory>

#include "recovery/base/ids.h"

namespace warren {
namespace {

TEST(Status, SuccessIsEmpty) {
  const Status s;
  EXPECT_TRUE(s.ok());
  EXPECT_EQ(s.code(), Code::kOk);
  EXPECT_EQ(s.message(), "");
  EXPECT_EQ(s.describe(), "");
}

TEST(Status, CausesFormAChainAndKeepTheCode) {
  const Status why(Code::kRefused, "world size 4 is not the job's 8");
  const Status top = why.because_of_this("the tracker refused").because_of_this("cannot join job x");
  EXPECT_EQ(top.code(), Code::kRefused);
  EXPECT_EQ(top.message(), "cannot join job x");
  EXPECT_EQ(top.describe(), "cannot join job x: the tracker refused: world size 4 is not the job's 8");
  EXPECT_EQ(why.describe(), "world size 4 is not the job's 8");
  EXPECT_EQ(why.because_of_this(Code::kClosed, "gone").code(), Code::kClosed);
}

TEST(Status, SaysWhatItIsAbout) {
  const RoundId round{Timeline(0), kWorldGroup, Version(4), Sequence(17)};
  const Status why = Status(Code::kPeerLost, "closed by the other end").about(Rank(2));
  const Status top = why.because_of_this("the link broke").about(round).because_of_this("cannot reduce");
  EXPECT_EQ(top.peer(), Rank(2));
  EXPECT_EQ(top.round(), "3.17");
  EXPECT_EQ(top.describe(), "cannot reduce: the link broke: closed by the other end");
  EXPECT_EQ(why.round(), "");
  EXPECT_EQ(top.about(Rank(5)).peer(), Rank(5)) << "the newest link counts";
  EXPECT_EQ(Status().peer(), kNoRank);
  EXPECT_EQ(Status(Code::kTimeout, "late").peer(), kNoRank);
  EXPECT_EQ(Status(Code::kTimeout, "late").about({Timeline(0), GroupId(0x1f), Version(0), Sequence(3)}).round(),
            "p.3 of group 1f");
}

TEST(Result, HoldsAValueOrAReason) {
  Result<std::unique_ptr<int>> value(std::make_unique<int>(7));
  ASSERT_TRUE(value.ok());
  EXPECT_TRUE(value.status().ok());
  EXPECT_EQ(*std::move(value).value(), 7);
  const Result<int> failure(Status(Code::kTimeout, "late"));
  EXPECT_FALSE(failure.ok());
  EXPECT_EQ(failure.status().describe(), "late");
}

TEST(ResultDeathTest, MisuseIsABrokenInvariant) {
  const Result<int> failure(Status(Code::kTimeout, "late"));
  EXPECT_DEATH((void)failure.value(), "value\\(\\) of a failed Result");
  EXPECT_DEATH((void)Result<int>(Status()), "a Result without a value needs a reason");
  EXPECT_DEATH((void)Status().because_of_this("x"), "success causes nothing");
  EXPECT_DEATH((void)Status(Code::kOk, "x"), "a failure has a code");
}

TEST(Code, EveryCodeHasAName) {
  for (int i = 0; i <= 12; ++i) EXPECT_NE(to_string(static_cast<Code>(i)), "unknown");
  EXPECT_EQ(to_string(static_cast<Code>(13)), "unknown");
}

TEST(RoundId, ReadsAsPeopleWriteIt) {
  EXPECT_EQ(to_string(RoundId{Timeline(0), kWorldGroup, Version(4), Sequence(17)}), "round 3.17");
  EXPECT_EQ(to_string(RoundId{Timeline(0), GroupId(0x1f), Version(0), Sequence(0)}), "round p.0 of group 1f");
  EXPECT_EQ(to_string(RoundId{Timeline(2), kWorldGroup, Version(0), Sequence(1)}), "round p.1 on timeline 2");
  EXPECT_LT((RoundId{Timeline(0), kWorldGroup, Version(3), Sequence(17)}),
            (RoundId{Timeline(1), kWorldGroup, Version(0), Sequence(0)}));
}

}  // namespace
}  // namespace warren

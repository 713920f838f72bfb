#include "worker/rounds/trouble.h"

#include <gtest/gtest.h>

namespace warren::worker {
namespace {

const Status kLinkBroke(Code::kUnavailable, "the link broke"), kBadFunction(Code::kInvalidArgument, "it threw");

TEST(Trouble, TheFirstFailureCountsAndNamesItsPeer) {
  Trouble trouble;
  EXPECT_FALSE(trouble.failed());
  trouble.fail(kLinkBroke, Rank(3));
  trouble.fail(kBadFunction, kNoRank);
  const auto failure = trouble.take_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->status.code(), kLinkBroke.code());
  EXPECT_EQ(failure->status.peer(), Rank(3));
  EXPECT_EQ(failure->peer, Rank(3));
  EXPECT_FALSE(trouble.take_failure()) << "once";
  EXPECT_TRUE(trouble.failed()) << "nothing begins any more";
}

TEST(Trouble, AProgramsFailureTakesThePlaceOfOthers) {
  Trouble trouble;
  trouble.fail(kLinkBroke, Rank(3));
  trouble.fail_by_program(kBadFunction);
  ASSERT_NE(trouble.failure(), nullptr);
  EXPECT_TRUE(trouble.failure()->by_program);
  trouble.end_generation();
  EXPECT_TRUE(trouble.failed()) << "no other generation mends it";
  EXPECT_TRUE(trouble.take_failure()->by_program);
}

TEST(Trouble, EndsWithItsGeneration) {
  Trouble trouble;
  trouble.fail(kLinkBroke, Rank(3));
  trouble.lack({.reason = "no host holds it", .setup = {}});
  EXPECT_TRUE(trouble.has_gap());
  trouble.end_generation();
  EXPECT_FALSE(trouble.failed() || trouble.has_gap());
  EXPECT_FALSE(trouble.take_failure());
  EXPECT_FALSE(trouble.take_gap());
}

}  // namespace
}  // namespace warren::worker

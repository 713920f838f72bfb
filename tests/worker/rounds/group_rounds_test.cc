#include "worker/rounds/group_rounds.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/worker/rounds/scripted_round.h"
#include "tests/worker/sum_call.h"

namespace warren::worker {
namespace {

// Rank 0's group, whose links take everything and bring nothing: a round of one member is over at once, one of two
// waits.
class GroupRoundsTest : public testing::Test {
 protected:
  GroupRoundsTest() {
    shared_.plan.generation = Generation(1);
    shared_.plan.self = Rank(0);
    shared_.plan.world_size = 2;
    shared_.plan.chunk_bytes = 4096;
    shared_.open = true;
  }
  struct Sum : Call {
    explicit Sum(std::size_t count = 4) : values(count, 3) { make_sum(spec, values.data(), count); }
    std::vector<std::uint64_t> values;
  };
  [[nodiscard]] std::unique_ptr<GroupRounds> group_of(std::vector<Rank> members) {
    return std::make_unique<GroupRounds>(shared_, kWorldGroup, 0, std::move(members), 0, 0);
  }
  [[nodiscard]] std::string wait_of(const GroupRounds& rounds) const {
    return rounds.describe_wait("rank 0").value_or("");
  }

  Scripted transport_;
  RoundBoard board_;
  SharedByGroups shared_{transport_, board_};
};

TEST_F(GroupRoundsTest, ARoundOfOneMemberIsOverAtOnce) {
  const auto alone = group_of({Rank(0)});
  Sum sum;
  ASSERT_TRUE(alone->submit(sum).ok());
  EXPECT_TRUE(sum.finished && sum.status.ok());
  EXPECT_EQ(sum.values[3], 3);
  EXPECT_TRUE(alone->idle());
  EXPECT_EQ(alone->next(), Sequence(1));
  EXPECT_EQ(alone->done(), 1);
  ASSERT_NE(alone->begun(sum.round), nullptr);
  EXPECT_EQ(*alone->begun(sum.round), sum.fingerprint);
  EXPECT_EQ(alone->begun(alone->next_round()), nullptr);
  alone->begin_version();
  EXPECT_EQ(alone->next(), Sequence(0));
}

TEST_F(GroupRoundsTest, CallsWaitForTheOneBefore) {
  const auto pair = group_of({Rank(0), Rank(1)});
  Sum first, second;
  ASSERT_TRUE(pair->submit(first).ok());
  ASSERT_TRUE(pair->submit(second).ok());
  EXPECT_EQ(pair->active(), &first);
  EXPECT_EQ(shared_.calls.count(), 2);
  EXPECT_EQ(second.round.sequence, Sequence(1));
  EXPECT_EQ(wait_of(*pair).find("rank 0 waits for rank 1 in "), 0) << wait_of(*pair);
  wire::Blocked blocked;
  EXPECT_TRUE(pair->describe_blocked(blocked));
  ASSERT_EQ(blocked.calls_size(), 1);
  EXPECT_EQ(blocked.calls(0).waiting_for(0), 1);
  EXPECT_EQ(blocked.begun(0).rounds(), 1);
}

TEST_F(GroupRoundsTest, ASuspendedRoundGoesOnInTheNextGeneration) {
  const auto pair = group_of({Rank(0), Rank(1)});
  Sum sum;
  ASSERT_TRUE(pair->submit(sum).ok());
  const std::size_t posted = transport_.receives.size();
  EXPECT_GT(posted, 0);
  shared_.open = false;
  pair->suspend();
  EXPECT_EQ(pair->active(), &sum);
  EXPECT_NE(wait_of(*pair).find("waits for the next plan"), std::string::npos) << wait_of(*pair);
  shared_.plan.generation = Generation(2);
  shared_.known.install();
  pair->install();
  shared_.open = true;
  pair->resume();
  EXPECT_EQ(transport_.receives.size(), 2 * posted);
  EXPECT_FALSE(sum.finished);
}

TEST_F(GroupRoundsTest, AStopEndsTheActiveCallForItsOwnReason) {
  const auto pair = group_of({Rank(0), Rank(1)});
  Sum first, second;
  ASSERT_TRUE(pair->submit(first).ok() && pair->submit(second).ok());
  const Status over(Code::kClosed, "it is over"), own(Code::kDesync, "ranks disagree");
  pair->stop(over, own);
  EXPECT_EQ(first.status.code(), Code::kDesync);
  EXPECT_EQ(second.status.code(), Code::kClosed);
  EXPECT_TRUE(pair->idle());
  EXPECT_EQ(shared_.calls.count(), 0);
}

TEST_F(GroupRoundsTest, NothingBeginsWhileCallsMayNotMove) {
  const auto alone = group_of({Rank(0)});
  shared_.open = false;
  Sum sum;
  ASSERT_TRUE(alone->submit(sum).ok());
  EXPECT_EQ(alone->active(), nullptr);
  EXPECT_FALSE(alone->idle());
  shared_.open = true;
  alone->resume();
  alone->check();
  EXPECT_TRUE(sum.finished);
  shared_.trouble.fail(Status(Code::kUnavailable, "a link broke"), kNoRank);
  Sum later;
  ASSERT_TRUE(alone->submit(later).ok());
  EXPECT_EQ(alone->active(), nullptr);
}

TEST_F(GroupRoundsTest, ARoundBeyondTheVersionsEndIsADesync) {
  const auto alone = group_of({Rank(0)});
  shared_.plan.frontier = {{kWorldGroup, kPreamble, 0, true, {}}};
  Sum sum;
  ASSERT_TRUE(alone->submit(sum).ok());
  EXPECT_FALSE(sum.finished) << "it ends with the generation";
  ASSERT_NE(shared_.trouble.failure(), nullptr);
  EXPECT_EQ(shared_.trouble.failure()->status.code(), Code::kDesync);
}

TEST_F(GroupRoundsTest, ACallWaitsForItsPrepareFunction) {
  const auto alone = group_of({Rank(0)});
  Sum sum;
  sum.spec.prepare = [](void* /*context*/) { return std::int32_t{0}; };
  ASSERT_TRUE(alone->submit(sum).ok());
  EXPECT_EQ(shared_.calls.take_prepare(), &sum);
  EXPECT_NE(wait_of(*alone).find("prepare function"), std::string::npos) << wait_of(*alone);
  sum.prepare = Call::Prepare::kDone;
  ASSERT_TRUE(alone->prepared());
  alone->check();
  EXPECT_TRUE(sum.finished);
}

}  // namespace
}  // namespace warren::worker

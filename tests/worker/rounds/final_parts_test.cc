#include "worker/rounds/final_parts.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace warren::worker {
namespace {

// An allreduce of 8 values of 8 bytes, whose result is 64 bytes.
class FinalPartsTest : public testing::Test {
 protected:
  FinalPartsTest() {
    plan_.self = Rank(0);
    plan_.world_size = 2;
    plan_.replicas = 2;
    call_.spec.collective = Collective::kAllreduce;
    call_.spec.type = DataType::kU64;
    call_.spec.op = ReduceOp::kSum;
    call_.spec.count = output_.size();
    call_.spec.input = call_.spec.output = output_.data();
    call_.round = {Timeline(1), kWorldGroup, Version(1), Sequence(2)};
    call_.fingerprint = fingerprint_of(call_.spec, 0);
  }
  [[nodiscard]] Ranges held() { return recall_.reader().held(result_key(call_.round)); }

  RoundsPlan plan_;
  schedule::Costs costs_ = schedule::default_costs();
  GroupSchedules seats_{plan_, costs_, {Rank(0), Rank(1)}, 0};
  std::unique_ptr<HostLog> log_ =
      std::move(HostLog::create(Incarnation(1), heap_segment(std::size_t{64} << 10))).value();
  Recall recall_{*log_, [] { return TimeMs(); }, [](const Replayer::Send&) {}};
  std::vector<std::uint64_t> output_ = std::vector<std::uint64_t>(8, 5);
  Call call_;
  FinalParts parts_{&recall_, seats_};
};

TEST_F(FinalPartsTest, WhatStandsInTheOutputAloneIsNotComputedAgain) {
  EXPECT_TRUE(parts_.known_here_alone(call_).ok());
  parts_.add(Ranges(0, 16));
  EXPECT_EQ(parts_.known_here_alone(call_).code(), Code::kInternal) << "the plan should name it";
  parts_.know(Ranges(0, 32));
  EXPECT_TRUE(parts_.resumed());
  EXPECT_TRUE(parts_.known_here_alone(call_).ok());
  parts_.know({});
  parts_.lose_output();
  EXPECT_TRUE(parts_.known_here_alone(call_).ok());
}

TEST_F(FinalPartsTest, AResumedRoundLacksWhatHasNotCome) {
  EXPECT_EQ(parts_.want(call_).bytes, Ranges(0, 64)) << "all of a round that is in the log";
  parts_.know(Ranges(0, 32));
  parts_.add(Ranges(8, 16));
  const Replayer::Want want = parts_.want(call_);
  EXPECT_EQ(want.bytes, Ranges(0, 32).minus(Ranges(8, 16)));
  EXPECT_EQ(want.total_bytes, 64);
  EXPECT_EQ(want.base, reinterpret_cast<std::byte*>(output_.data()));
  parts_.begin();
  EXPECT_FALSE(parts_.resumed());
  EXPECT_TRUE(parts_.in_output().empty());
}

TEST_F(FinalPartsTest, TheOutputIsLoggedWhereThisHostDoesNotHoldIt) {
  parts_.add(Ranges(8, 24));
  parts_.log_output(call_);
  EXPECT_EQ(held(), Ranges(8, 24));
  const std::uint64_t bytes = log_->bytes_held();
  parts_.log_output(call_);
  EXPECT_EQ(log_->bytes_held(), bytes);
  parts_.know(Ranges(0, 32));
  ASSERT_TRUE(parts_.log_what_came(call_).ok());
  EXPECT_EQ(held(), Ranges(0, 32));
}

TEST_F(FinalPartsTest, AFullLogIsWhyAPartIsKnownHereAlone) {
  std::vector<std::uint64_t> large(std::size_t{64} << 10, 1);
  call_.spec.count = large.size();
  call_.spec.output = large.data();
  parts_.add(Ranges(0, large.size() * 8));
  parts_.log_output(call_);
  const Status why = parts_.known_here_alone(call_);
  EXPECT_EQ(why.code(), Code::kExhausted);
  EXPECT_NE(why.describe().find("cannot log"), std::string::npos) << why.describe();
}

TEST_F(FinalPartsTest, ARanksShareOfAResultIsLogged) {
  call_.spec.collective = Collective::kReduceScatter;
  call_.fingerprint = fingerprint_of(call_.spec, 0);
  GroupSchedules second(plan_, costs_, {Rank(1), Rank(0)}, 1);
  const FinalParts parts(&recall_, second);
  ASSERT_TRUE(parts.log(call_, Ranges(0, 128)).ok());
  EXPECT_EQ(held(), Ranges(64, 128)) << "the second half of the whole result";
}

}  // namespace
}  // namespace warren::worker

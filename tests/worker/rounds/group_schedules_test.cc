#include "worker/rounds/group_schedules.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace warren::worker {
namespace {

// An allreduce of u64 among three ranks, as it is submitted.
struct SumOfThree : Call {
  explicit SumOfThree(std::uint64_t count, schedule::Algorithm algorithm = schedule::Algorithm::kRing) {
    spec.collective = Collective::kAllreduce;
    spec.type = DataType::kU64;
    spec.op = ReduceOp::kSum;
    spec.count = count;
    reducer = Reducer::make(DataType::kU64, ReduceOp::kSum, 3).value();
    fingerprint = fingerprint_of(spec, static_cast<std::uint8_t>(algorithm));
  }
};

// A group of the ranks 1, 3 and 5 of a job, seen by rank 3.
class Seats : public testing::Test {
 protected:
  Seats() {
    plan_.generation = Generation(1);
    plan_.self = Rank(3);
    plan_.world_size = 6;
    plan_.chunk_bytes = 64;
    for (int r = 0; r < 6; r++) plan_.present.emplace_back(r);
  }
  RoundsPlan plan_;
  schedule::Costs costs_ = schedule::default_costs();
  GroupSchedules seats_{plan_, costs_, {Rank(1), Rank(3), Rank(5)}, 1};
};

TEST_F(Seats, ARequestHasTheMembersPlaces) {
  plan_.hosts = {0, 0, 1, 1, 0, 0};
  plan_.domains = {7, 7, 8, 8, 7, 9};
  plan_.shared = {{.maps = true, .cores = 4}, {.maps = false, .cores = 2}};
  seats_.place(nullptr);
  const SumOfThree call(100);
  const schedule::Request request = seats_.request_for(call);
  EXPECT_EQ(request.rank, 1);
  EXPECT_EQ(request.size, 3);
  EXPECT_EQ(std::vector(request.hosts.begin(), request.hosts.end()), (std::vector<std::uint32_t>{0, 1, 0}));
  EXPECT_EQ(std::vector(request.domains.begin(), request.domains.end()), (std::vector<std::uint32_t>{7, 8, 9}));
  EXPECT_EQ(request.host, (schedule::Host{.maps = true, .cores = 4})) << "two members share that host alone";
  EXPECT_FALSE(seats_.read_here()) << "rank 3 has its host alone";
  EXPECT_FALSE(seats_.serves_setups_alike());
}

TEST_F(Seats, ARingVisitsMembersInTheJobsOrder) {
  const RoundsPlan::RingOrder ring{Version(0), {Rank(5), Rank(4), Rank(3), Rank(2), Rank(1), Rank(0)}};
  seats_.place(&ring);
  SumOfThree call(100);
  const schedule::Request request = seats_.request_for(call);
  EXPECT_EQ(std::vector(request.order.begin(), request.order.end()), (std::vector<std::uint32_t>{2, 1, 0}));
  EXPECT_FALSE(seats_.serves_setups_alike());
  call.round.sequence = Sequence(kSetupBit | 4);
  EXPECT_TRUE(seats_.request_for(call).order.empty()) << "a set-up round is of no version";
  const RoundsPlan::RingOrder usual{Version(0), {Rank(0), Rank(1), Rank(2), Rank(3), Rank(4), Rank(5)}};
  seats_.place(&usual);
  EXPECT_TRUE(seats_.serves_setups_alike()) << "that is the order of members";
}

TEST_F(Seats, MembersAreThoseThatArePresent) {
  GroupSchedules world(plan_, costs_, plan_.present, 3);
  plan_.present = {Rank(0), Rank(3)};
  world.reseat();
  EXPECT_EQ(world.members(), plan_.present);
  EXPECT_EQ(world.rank(), 1);
  EXPECT_EQ(world.size(), 2);
}

TEST_F(Seats, ANamedAlgorithmComesBeforeTheJobs) {
  CallSpec spec = SumOfThree(100).spec;
  plan_.algorithm = schedule::Algorithm::kTree;
  EXPECT_EQ(seats_.algorithm_for(spec, 3), schedule::Algorithm::kTree);
  spec.algorithm = static_cast<std::uint8_t>(schedule::Algorithm::kRing);
  EXPECT_EQ(seats_.algorithm_for(spec, 3), schedule::Algorithm::kRing);
}

TEST_F(Seats, WhatIsKeptHoldsForOnePlacement) {
  SumOfThree call(100);
  call.schedule = seats_.schedule_for(call).value();
  EXPECT_EQ(seats_.schedule_for(call).value(), call.schedule);
  seats_.repeat(call, 3, nullptr);
  ASSERT_NE(seats_.repeats(call.spec, call.round, 3), nullptr);
  EXPECT_EQ(seats_.repeats(call.spec, call.round, 3)->schedule, call.schedule);
  EXPECT_EQ(seats_.repeats(SumOfThree(101).spec, call.round, 3), nullptr);
  seats_.place(nullptr);
  EXPECT_EQ(seats_.repeats(call.spec, call.round, 3), nullptr);
}

TEST_F(Seats, OwnersTakeTurnsEverySixteenRounds) {
  plan_.replicas = 2;
  plan_.hosts = plan_.domains = {0, 0, 0, 0, 0, 0};
  plan_.shared = {{.maps = true, .cores = 1}};
  plan_.chunk_bytes = 64 << 10;
  seats_.place(nullptr);
  SumOfThree call(8 << 10, schedule::Algorithm::kButterfly);
  ASSERT_TRUE(schedule::has_owner(seats_.request_for(call)));
  for (std::uint64_t i = 0; i < 96; i++) {
    call.round.sequence = Sequence(i);
    EXPECT_EQ(seats_.request_for(call).owner, static_cast<std::int32_t>(i / 16 % 3));
  }
  call.round.sequence = Sequence(kSetupBit | 40);
  EXPECT_EQ(seats_.request_for(call).owner, 0);
}

TEST_F(Seats, OnlyWholePiecesAreLeftOut) {
  const SumOfThree call(100);
  EXPECT_TRUE(seats_.whole_pieces(call, {}).value().empty());
  EXPECT_EQ(seats_.whole_pieces(call, Ranges(0, 800)).value(), Ranges(0, 800));
  const Ranges some = seats_.whole_pieces(call, Ranges(4, 796)).value();
  EXPECT_FALSE(some.empty());
  EXPECT_TRUE(Ranges(8, 792).minus(some).intervals().size() > 0) << "the pieces at both ends are there in part";
  const auto longer = seats_.whole_pieces(call, Ranges(0, 808));
  EXPECT_EQ(longer.status().code(), Code::kDesync);
}

TEST_F(Seats, TheRestOfARoundLeavesOutWhatIsFinal) {
  plan_.replicas = 2;
  seats_.place(nullptr);
  const SumOfThree call(100);
  const auto all = seats_.schedule_for(call).value(), rest = seats_.rest_of(call, Ranges(0, 800)).value();
  EXPECT_LT(schedule::cost(rest->schedule()).sent_elements, schedule::cost(all->schedule()).sent_elements);
}

}  // namespace
}  // namespace warren::worker

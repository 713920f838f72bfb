#include "worker/rounds/known_rounds.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "recovery/base/limits.h"

namespace warren::worker {
namespace {

constexpr GroupId kGroup(3);
constexpr Sequence kName(kSetupBit | 7);

class Known : public ::testing::Test {
 protected:
  Known() { plan_.timeline = Timeline(5); }
  RoundsPlan plan_;
  KnownRounds rounds_{plan_};
};

TEST_F(Known, ARoundHasTheNameOfTheTimelineThatHasLoggedIt) {
  plan_.kept = {{kGroup, Version(2), Timeline(3), 4}, {kGroup, Version(2), Timeline(4), 6}};
  const auto timeline_of = [&](GroupId group, Version version, std::uint64_t sequence) {
    return rounds_.round_of(group, version, Sequence(sequence)).timeline;
  };
  EXPECT_EQ(timeline_of(kGroup, Version(2), 3), Timeline(3));
  EXPECT_EQ(timeline_of(kGroup, Version(2), 4), Timeline(4));
  EXPECT_EQ(timeline_of(kGroup, Version(2), 6), Timeline(5));
  EXPECT_EQ(timeline_of(kGroup, Version(1), 3), Timeline(5));
  EXPECT_EQ(timeline_of(kWorldGroup, Version(2), 3), Timeline(5));
  EXPECT_EQ(rounds_.oldest_timeline(), Timeline(3));
}

TEST_F(Known, RoundsBelowTheFrontierAreDone) {
  plan_.frontier = {{kGroup, Version(2), 4, true, Ranges(8, 16)}};
  const auto known_of = [&](std::uint64_t sequence) {
    return rounds_.known_of(rounds_.round_of(kGroup, Version(2), Sequence(sequence)));
  };
  EXPECT_TRUE(known_of(3).done);
  EXPECT_FALSE(known_of(4).done);
  EXPECT_EQ(known_of(4).final, Ranges(8, 16));
  EXPECT_TRUE(known_of(4).beyond);
  EXPECT_TRUE(known_of(5).final.empty());
  EXPECT_FALSE(known_of(5).beyond);
  EXPECT_EQ(rounds_.frontier_of(kGroup, Version(1)), nullptr);
}

TEST_F(Known, ASetupRoundThatIsLostIsNoMoreUnlessThisLifeHasIt) {
  plan_.setups = {{kGroup, kName, Timeline(2), true, {}}};
  rounds_.install();
  const RoundId round = rounds_.setup_round(kGroup, kName);
  EXPECT_EQ(round, (RoundId{Timeline(2), kGroup, kPreamble, kName}));
  EXPECT_TRUE(rounds_.known_of(round).done);
  EXPECT_FALSE(rounds_.completed_setup(kGroup, kName));
  EXPECT_EQ(rounds_.setups_in_use().earlier, std::vector<RoundId>{round});
  plan_.setups = {};
  rounds_.install();
  EXPECT_FALSE(rounds_.known_of(round).done);
  EXPECT_TRUE(rounds_.call_setup(kGroup, kName, 8));
  rounds_.complete_setup(kGroup, kName);
  rounds_.install();
  EXPECT_TRUE(rounds_.known_of(round).done);
  ASSERT_EQ(rounds_.setups_done().size(), 1u);
  EXPECT_EQ(rounds_.setups_done()[0].timeline(), 2u);
}

TEST_F(Known, ALifeCallsABoundedNumberOfSetupRounds) {
  for (std::uint64_t i = 0; i < limits::kMaxSetups; i++) {
    ASSERT_TRUE(rounds_.call_setup(kGroup, Sequence(kSetupBit | i), 0)) << i;
  }
  const Sequence more(kSetupBit | limits::kMaxSetups);
  EXPECT_FALSE(rounds_.call_setup(kGroup, more, 0));
  EXPECT_FALSE(rounds_.knows_setup(kGroup, more)) << "it was not called";
  EXPECT_TRUE(rounds_.call_setup(kGroup, kName, 0)) << "again";
}

TEST_F(Known, TheBytesOfSetupRoundsAreBounded) {
  EXPECT_TRUE(rounds_.call_setup(kGroup, kName, limits::kMaxSetupBytes));
  EXPECT_FALSE(rounds_.call_setup(kGroup, Sequence(kSetupBit | 8), 1));
  EXPECT_TRUE(rounds_.call_setup(kGroup, Sequence(kSetupBit | 8), 0));
}

TEST_F(Known, TheNewestOrderOfARingHolds) {
  plan_.orders = {{Version(2), {Rank(1), Rank(0)}}, {Version(4), {Rank(0), Rank(1)}}};
  EXPECT_EQ(rounds_.ring_order(Version(1)), nullptr);
  EXPECT_EQ(rounds_.ring_order(Version(3)), &plan_.orders[0]);
  EXPECT_EQ(rounds_.ring_order(Version(4)), &plan_.orders[1]);
}

TEST_F(Known, AnOlderTimelinesContributorsAreThoseOfThePlan) {
  plan_.contributors[Timeline(3)] = std::make_shared<const std::vector<Rank>>(std::vector<Rank>{Rank(0)});
  EXPECT_EQ(*rounds_.contributors_to({Timeline(3), kGroup, Version(1), Sequence(0)}), std::vector<Rank>{Rank(0)});
  EXPECT_EQ(rounds_.contributors_to({Timeline(5), kGroup, Version(1), Sequence(0)}), nullptr);
}

}  // namespace
}  // namespace warren::worker

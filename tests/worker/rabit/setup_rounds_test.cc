// Which rounds are taken for set-up rounds, and what a state begins with.
#include "worker/rabit/setup_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rabit::layer {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

using Call = SetupRounds::Call;

CallPlace line(int number) {
  return {"program.cc", number, "main"};
}
std::vector<std::byte> bytes(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}
// A call that is made, and gives `value`.
void make(SetupRounds& rounds, int at, int value, std::size_t size = 3) {
  EXPECT_EQ(rounds.call(line(at)), Call{}) << "line " << at;
  rounds.gave(bytes(size, value));
}
// What a job of one rank does at the end of a version.
void end_version(SetupRounds& rounds) {
  if (rounds.deciding()) {
    rounds.decide(rounds.against());
    rounds.adopt(rounds.keys());
  }
  rounds.next_version();
}

TEST(SetupRounds, ARoundOfTheFirstVersionThatDoesNotComeBackIsOne) {
  SetupRounds rounds = SetupRounds::first();
  make(rounds, 10, 1);  // round 0: set-up
  make(rounds, 20, 2);
  make(rounds, 10, 3);  // round 2: set-up, the same place again
  make(rounds, 20, 4);
  EXPECT_TRUE(rounds.skips_checkpoint());
  end_version(rounds);
  EXPECT_FALSE(rounds.skips_checkpoint());
  make(rounds, 20, 5);
  EXPECT_TRUE(rounds.deciding());
  rounds.decide(rounds.against());
  const auto kept = rounds.kept();
  ASSERT_THAT(kept, SizeIs(2));
  EXPECT_EQ(kept[0].round, 0u);
  EXPECT_EQ(std::vector<std::byte>(kept[0].result.begin(), kept[0].result.end()), bytes(3, 1));
  EXPECT_EQ(kept[1].round, 2u);
  rounds.adopt(rounds.keys());
  rounds.next_version();
  EXPECT_THAT(rounds.table(), SizeIs(2));

  SetupRounds later = SetupRounds::loaded(rounds.table());
  EXPECT_FALSE(later.skips_checkpoint());
  EXPECT_EQ(later.call(line(10)), (Call{Call::kServed, 0}));
  EXPECT_EQ(later.call(line(20)), Call{});
  EXPECT_EQ(later.call(line(10)), (Call{Call::kServed, 2}));
  EXPECT_EQ(later.call(line(10)), Call{}) << "once more than the first life made it";
}

TEST(SetupRounds, PlacesDifferByFileLineAndFunction) {
  SetupRounds rounds = SetupRounds::first();
  make(rounds, 10, 1);
  end_version(rounds);
  EXPECT_EQ(rounds.call({"program.cc", 10, "other"}), Call{});
  EXPECT_EQ(rounds.call({"other.cc", 10, "main"}), Call{});
  end_version(rounds);
  EXPECT_THAT(rounds.table(), SizeIs(1));
}

TEST(SetupRounds, NowhereIsNoPlace) {
  SetupRounds rounds = SetupRounds::first();
  EXPECT_EQ(rounds.call({nullptr, 0, nullptr}), Call{});
  rounds.gave(bytes(1, 1));
  end_version(rounds);
  end_version(rounds);
  EXPECT_THAT(rounds.table(), IsEmpty());
}

TEST(SetupRounds, WhatOneRankSeesAgainIsNone) {
  SetupRounds rounds = SetupRounds::first();
  make(rounds, 10, 1);
  make(rounds, 11, 1);
  end_version(rounds);
  auto against = rounds.against();
  ASSERT_THAT(against, SizeIs(1));
  EXPECT_EQ(against[0], 0u);
  against[0] |= 1;  // another rank's word
  rounds.decide(against);
  ASSERT_THAT(rounds.kept(), SizeIs(1));
  EXPECT_EQ(rounds.kept()[0].round, 1u);
}

// Ranks may call one round from different places.
TEST(SetupRounds, KeysOfAllRanksAreKnown) {
  SetupRounds rounds = SetupRounds::first();
  make(rounds, 10, 1);
  make(rounds, 11, 1);
  end_version(rounds);
  rounds.decide(rounds.against());
  auto keys = rounds.keys();
  const auto own = keys;
  keys.push_back(77);
  keys.push_back(own[1]);
  rounds.adopt(keys);
  EXPECT_THAT(rounds.table(), SizeIs(3));
  EXPECT_EQ(rounds.table().at(77), 0u);
  EXPECT_EQ(rounds.table().at(own[1]), 1u);
}

// Also to a life that has loaded: it is served in its first version alone.
TEST(SetupRounds, OneThatComesBackLaterWasNone) {
  SetupRounds rounds = SetupRounds::first();
  make(rounds, 10, 1);
  make(rounds, 20, 2);
  end_version(rounds);
  make(rounds, 20, 2);
  end_version(rounds);
  make(rounds, 20, 2);
  EXPECT_EQ(rounds.call(line(10)), (Call{Call::kAgain, 0}));
  SetupRounds later = SetupRounds::loaded(rounds.table());
  EXPECT_EQ(later.call(line(10)), (Call{Call::kServed, 0}));
  end_version(later);
  EXPECT_EQ(later.call(line(10)), (Call{Call::kAgain, 0}));
}

TEST(SetupRounds, WhatIsTooLargeIsLeftOut) {
  SetupRounds rounds = SetupRounds::first();
  make(rounds, 10, 1, SetupRounds::kMaxKeptBytes);
  make(rounds, 11, 1, 1);
  make(rounds, 12, 1, 0);
  end_version(rounds);
  rounds.decide(rounds.against());
  EXPECT_EQ(rounds.left_out(), 1u);
  EXPECT_THAT(rounds.kept(), SizeIs(2));
}

TEST(SetupRounds, WhoWatchesNothingKnowsNothing) {
  SetupRounds rounds;
  make(rounds, 10, 1);
  EXPECT_FALSE(rounds.skips_checkpoint());
  EXPECT_FALSE(rounds.deciding());
  end_version(rounds);
  EXPECT_THAT(rounds.table(), IsEmpty());
}

TEST(StateHead, IsReadAsItWasWritten) {
  std::string state;
  write_head({7, {{11, 1}, {22, 2}}}, state);
  const std::size_t head_bytes = state.size();
  state += "model";
  StateHead head;
  EXPECT_EQ(read_head(state, head), head_bytes);
  EXPECT_EQ(head.version, 7u);
  EXPECT_EQ(head.table, (SetupRounds::Table{{11, 1}, {22, 2}}));
}

TEST(StateHead, WhatIsNoneIsRefused) {
  std::string state;
  write_head({7, {{11, 1}}}, state);
  StateHead head;
  for (std::size_t n = 0; n < state.size(); ++n) EXPECT_EQ(read_head(state.substr(0, n), head), 0u) << n;
  std::string other = state;
  other[0] = 'R';
  EXPECT_EQ(read_head(other, head), 0u);
  other = state;
  other[7] = 2;  // a later format
  EXPECT_EQ(read_head(other, head), 0u);
  other = state;
  other[23] = '\x7f';  // more entries than there can be
  EXPECT_EQ(read_head(other, head), 0u);
}

}  // namespace
}  // namespace rabit::layer

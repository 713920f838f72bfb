#include "worker/rounds/closed_rounds.h"

#include <gtest/gtest.h>

namespace warren::worker {
namespace {

constexpr GroupId kA(3), kB(5);

TEST(ClosedRounds, KeepTheMostThatAGroupHasDone) {
  ClosedRounds closed;
  EXPECT_FALSE(closed.rounds_of(kA, Version(2)));
  closed.close(kA, Version(2), Sequence(7));
  closed.close(kA, Version(2), Sequence(4));
  EXPECT_EQ(closed.rounds_of(kA, Version(2)), 7);
  EXPECT_FALSE(closed.rounds_of(kA, Version(3)));
  EXPECT_FALSE(closed.rounds_of(kB, Version(2)));
}

TEST(ClosedRounds, OfOlderVersionsAreObsoleteButForThePreambles) {
  ClosedRounds closed;
  for (const Version version : {kPreamble, Version(2), Version(3)}) closed.close(kA, version, Sequence(1));
  closed.committed(Version(3));
  EXPECT_EQ(closed.size(), 2);
  EXPECT_TRUE(closed.rounds_of(kA, kPreamble));
  EXPECT_FALSE(closed.rounds_of(kA, Version(2)));
  EXPECT_TRUE(closed.rounds_of(kA, Version(3)));
}

TEST(ClosedRounds, ArePositionsOfTheirVersion) {
  ClosedRounds closed;
  closed.close(kB, Version(2), Sequence(9));
  closed.close(kA, Version(2), Sequence(8));
  closed.close(kA, Version(3), Sequence(1));
  const auto positions = closed.positions_of(Version(2));
  ASSERT_EQ(positions.size(), 2);
  EXPECT_EQ(positions[0].group(), kA.value) << "by group";
  EXPECT_EQ(positions[0].rounds(), 8);
  EXPECT_EQ(positions[1].rounds(), 9);
  for (const wire::Position& p : positions) EXPECT_TRUE(p.closed() && p.version() == 2);
}

TEST(ClosedRounds, AreCompleteUntilAGroupIsNotRemembered) {
  ClosedRounds closed;
  EXPECT_TRUE(closed.complete());
  closed.forget_one();
  EXPECT_FALSE(closed.complete());
  closed.begin_version();
  EXPECT_TRUE(closed.complete());
}

}  // namespace
}  // namespace warren::worker

#include "worker/dead_segments.h"

#include <gtest/gtest.h>

namespace warren::worker {
namespace {

constexpr Incarnation kSelf(1), kMate(2), kDead(3);

std::vector<Incarnation> lives(std::initializer_list<Incarnation> l) {
  return l;
}

TEST(DeadSegments, KeepsThoseOfMembers) {
  DeadSegments segments;
  for (std::uint64_t v = 1; v < 9; v++) {
    EXPECT_TRUE(segments.committed(Version(v), lives({kMate}), lives({kSelf, kMate})).empty());
  }
}

// A new life is told with its plan what was committed while the dead one still ran: the next commit comes before what
// the dead one has logged in the version after it is obsolete. (warren chaos --seed=11 found a gap in the log.)
TEST(DeadSegments, GoOnceNothingInThemCanBeNeeded) {
  DeadSegments segments;
  EXPECT_TRUE(segments.committed(Version(7), lives({kMate, kDead}), lives({kSelf, kMate})).empty());
  EXPECT_TRUE(segments.committed(Version(8), lives({kMate, kDead}), lives({kSelf, kMate})).empty());
  EXPECT_EQ(segments.committed(Version(9), lives({kMate, kDead}), lives({kSelf, kMate})), lives({kDead}));
  EXPECT_TRUE(segments.committed(Version(10), lives({kMate}), lives({kSelf, kMate})).empty());
}

TEST(DeadSegments, GoWhenCommitsWereNotTold) {
  DeadSegments segments;
  EXPECT_TRUE(segments.committed(Version(7), lives({kDead}), lives({kSelf})).empty());
  EXPECT_EQ(segments.committed(Version(12), lives({kDead}), lives({kSelf})), lives({kDead}));
}

// It was attached before the plan that makes it a member.
TEST(DeadSegments, CountFromTheDeathOfAMember) {
  DeadSegments segments;
  EXPECT_TRUE(segments.committed(Version(3), lives({kMate}), lives({kSelf})).empty());
  EXPECT_TRUE(segments.committed(Version(4), lives({kMate}), lives({kSelf, kMate})).empty());
  EXPECT_TRUE(segments.committed(Version(8), lives({kMate}), lives({kSelf})).empty());
  EXPECT_TRUE(segments.committed(Version(9), lives({kMate}), lives({kSelf})).empty());
  EXPECT_EQ(segments.committed(Version(10), lives({kMate}), lives({kSelf})), lives({kMate}));
}

}  // namespace
}  // namespace warren::worker

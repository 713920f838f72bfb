#include "recovery/tracker/promises.h"

#include <gtest/gtest.h>

#include <string>

namespace warren::test {
namespace {

constexpr std::int64_t kPatienceMs = 100;

// By the first letter of its name: a member, a silent one, an absent one, or else a stranger.
Promises::From from(const std::string& worker) {
  switch (worker[0]) {
    case 'm': return Promises::From::kMember;
    case 's': return Promises::From::kSilentMember;
    case 'a': return Promises::From::kAbsentMember;
    default: return Promises::From::kStranger;
  }
}

Promises promised_by(std::initializer_list<const char*> workers, std::int64_t at = 0) {
  Promises p;
  p.renew(TimeMs{0});
  std::uint64_t life = 10;
  for (const char* worker : workers) p.take(worker, Incarnation(life++), TimeMs{at});
  return p;
}

bool suffice(const Promises& p, std::size_t asked, std::size_t absent = 0, std::int64_t at = 0) {
  return p.suffice({asked, absent, from}, TimeMs{at}, kPatienceMs);
}

TEST(Promises, MoreThanHalfOfTheMembersSuffice) {
  EXPECT_FALSE(suffice(promised_by({}), 1));
  EXPECT_FALSE(suffice(promised_by({"m0", "m1"}), 4));
  EXPECT_TRUE(suffice(promised_by({"m0", "m1", "m2"}), 4));
  EXPECT_TRUE(suffice(promised_by({}), 0));  // nobody has anything to promise
}

TEST(Promises, AWorkerPromisesOnceHoweverManyLivesItHas) {
  Promises p = promised_by({"m0"});
  p.take("m0", Incarnation(20), TimeMs{7});
  EXPECT_EQ(p.size(), 1u);
  EXPECT_EQ(p.lives().at("m0"), Incarnation(20));
  EXPECT_EQ(p.heard(), TimeMs{7});
  EXPECT_FALSE(suffice(p, 2));
}

TEST(Promises, SilentMembersHaveNothingToPromise) {
  EXPECT_FALSE(suffice(promised_by({"s0", "s1", "m0"}), 2));
}

TEST(Promises, AStrangerCountsOnceTheMembersHaveHadTheTimeToCome) {
  const Promises p = promised_by({"m0", "x"});
  EXPECT_FALSE(suffice(p, 3, 0, kPatienceMs - 1));
  EXPECT_TRUE(suffice(p, 3, 0, kPatienceMs));
}

TEST(Promises, AStrangerThatMayHaveComeForAFreePlaceStandsForNobody) {
  EXPECT_FALSE(suffice(promised_by({"m0", "x"}), 3, 1, kPatienceMs));
  EXPECT_TRUE(suffice(promised_by({"m0", "x", "y"}), 3, 1, kPatienceMs));
  // The absent worker has come for its place itself.
  EXPECT_TRUE(suffice(promised_by({"m0", "a0", "x"}), 3, 1, kPatienceMs));
}

TEST(Promises, AWholeWorldOfAnotherSizeSufficesWhenNoMemberComes) {
  Promises p = promised_by({}, 0);
  p.take_for_size("x", Incarnation(1), 2);
  EXPECT_FALSE(p.too_few(8));
  EXPECT_FALSE(suffice(p, 8, 0, kPatienceMs));
  p.take_for_size("y", Incarnation(2), 2);
  EXPECT_FALSE(suffice(p, 8, 0, kPatienceMs - 1));
  EXPECT_TRUE(suffice(p, 8, 0, kPatienceMs));
  p.take("m0", Incarnation(3), TimeMs{50});
  EXPECT_FALSE(suffice(p, 8, 0, kPatienceMs));
  EXPECT_TRUE(suffice(p, 8, 0, kPatienceMs + 50));
}

TEST(Promises, OnlyWorkersThatWantTheSameSizeCountTogether) {
  Promises p = promised_by({});
  p.take_for_size("x", Incarnation(1), 2);
  p.take_for_size("y", Incarnation(2), 3);
  p.take_for_size("z", Incarnation(3), 3);
  EXPECT_FALSE(suffice(p, 8, 0, kPatienceMs));
  p.take_for_size("w", Incarnation(4), 3);
  EXPECT_TRUE(suffice(p, 8, 0, kPatienceMs));
  p.take_for_size("v", Incarnation(5), 3);  // beyond the world's size
  EXPECT_TRUE(suffice(p, 8, 0, kPatienceMs));
}

TEST(Promises, AHigherTermVoidsThemAll) {
  Promises p = promised_by({"m0", "m1"});
  p.take_for_size("x", Incarnation(1), 2);
  EXPECT_FALSE(p.too_few(2));
  p.renew(TimeMs{30});
  EXPECT_EQ(p.size(), 0u);
  EXPECT_TRUE(p.too_few(2));
  EXPECT_EQ(p.asked(), TimeMs{30});
  EXPECT_EQ(p.heard(), TimeMs{30});
}

TEST(Promises, LivesThatStayKeepTheirPromises) {
  Promises p = promised_by({"m0", "m1"}, 7);
  p.take_for_size("x", Incarnation(1), 1);
  const Promises some = p.of([](Incarnation life) { return life == Incarnation(11); });
  EXPECT_EQ(some.size(), 1u);
  EXPECT_TRUE(some.contains("m1"));
  EXPECT_EQ(some.heard(), TimeMs{7});
  EXPECT_TRUE(some.too_few(2));  // nobody asks for another world size
}

}  // namespace
}  // namespace warren::test

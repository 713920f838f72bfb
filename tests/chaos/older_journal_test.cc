#include "chaos/sim/older_journal.h"

#include <gtest/gtest.h>

namespace warren::chaos {
namespace {

wire::JobRecord record(std::uint64_t generation, std::uint64_t committed = 0, std::uint64_t life = 1) {
  wire::JobRecord r;
  r.mutable_plan()->set_generation(generation);
  r.mutable_plan()->add_members()->set_incarnation(life);
  r.mutable_plan()->add_frontier()->set_rounds(5);
  r.set_committed(committed != 0);
  r.set_committed_version(committed);
  return r;
}

class OlderJournalTest : public ::testing::Test {
 protected:
  OlderJournalTest() {
    for (std::uint64_t generation = 1; generation <= 4; ++generation)
      EXPECT_FALSE(journal_.stored(record(generation), {}));
    journal_.restored(Generation(4));
  }
  World world_{1, {}, Mutant::none, false};
  OlderJournal journal_{world_};
};

TEST_F(OlderJournalTest, WhatItHasHeldIsNotMadeNow) {
  const auto copy = journal_.stored(record(2), {{{}, Generation(3), {}}, {{}, Generation(1), {}}});
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->heard, Generation(3)) << "a life was told, and may tell";
  EXPECT_EQ(copy->plan.generation(), 2);
  EXPECT_FALSE(copy->missed);
  EXPECT_TRUE(journal_.lacks_plans());
  EXPECT_TRUE(journal_.stored(record(3), {})) << "learned";
  EXPECT_TRUE(journal_.lacks_plans());
  wire::JobRecord on_disk = record(4);
  on_disk.mutable_plan()->clear_frontier();
  const auto learned = journal_.stored(on_disk, {});
  ASSERT_TRUE(learned);
  EXPECT_EQ(learned->heard, Generation(4));
  EXPECT_FALSE(journal_.lacks_plans());
  EXPECT_FALSE(journal_.stored(record(5), {}));
}

TEST_F(OlderJournalTest, WhoTellsIsHeededWhenItMakesAPlan) {
  (void)journal_.stored(record(1), {});
  const auto made = journal_.stored(record(2, 0, 9), {{{}, Generation(3), {}, true}});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->heard, Generation(3)) << "the plan that it makes is judged by that one";
  EXPECT_EQ(made->plan.generation(), 1);
  EXPECT_TRUE(made->missed);
  EXPECT_FALSE(journal_.lacks_plans());
}

TEST_F(OlderJournalTest, OfWhoHasNotComeItKnowsNothing) {
  (void)journal_.stored(record(1), {});
  const auto made = journal_.stored(record(3, 0, 9), {{{}, Generation(4), {}}});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->heard, Generation(2));
}

TEST_F(OlderJournalTest, NorOfWhoIsHeardLate) {
  (void)journal_.stored(record(1), {});
  world_.count(Fault::message_late);
  const auto made = journal_.stored(record(2, 0, 9), {{{}, Generation(4), {}, true}});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->heard, Generation(1));
}

TEST_F(OlderJournalTest, ACommitIsForgottenWithThoseWhoWereToldOfIt) {
  EXPECT_FALSE(journal_.forgets(Version(3), record(4, 2), {}, {{Incarnation(1), {}, Version(3)}}));
  EXPECT_TRUE(journal_.lacks_commit());
  EXPECT_TRUE(journal_.forgets(Version(3), record(4, 2), {},
                               {{Incarnation(1), {}, Version(2)}, {Incarnation(99), {}, Version(3)}}));
  EXPECT_FALSE(journal_.lacks_commit());
  EXPECT_FALSE(journal_.forgets(Version(3), record(4, 2), {}, {})) << "once";
}

TEST_F(OlderJournalTest, ACommitThatIsLearnedIsNotForgotten) {
  EXPECT_FALSE(journal_.forgets(Version(3), record(4, 2), {}, {{Incarnation(1), {}, Version(3)}}));
  EXPECT_FALSE(journal_.forgets(Version(3), record(4, 3), {}, {}));
  EXPECT_FALSE(journal_.lacks_commit());
}

}  // namespace
}  // namespace warren::chaos

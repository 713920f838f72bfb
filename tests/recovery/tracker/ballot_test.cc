#include "recovery/tracker/ballot.h"

#include <gtest/gtest.h>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

constexpr Version kNext{2};

std::string rank_of_ballot(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

wire::Vote vote_for_next(std::uint64_t rounds = 3) {
  wire::Vote v;
  v.set_version(kNext.value);
  *v.add_positions() = position(1, rounds);
  return v;
}

wire::Vote with_state(wire::Vote vote, std::uint64_t bytes) {
  vote.mutable_state()->set_global_bytes(bytes);
  vote.mutable_state()->set_piece_bytes(64);
  vote.mutable_state()->add_hashes(7);
  return vote;
}

wire::Vote lacking(wire::Vote vote) {
  vote.set_lacks(true);
  return vote;
}

TEST(Ballot, ARankVotesOnce) {
  Ballot b;
  EXPECT_TRUE(b.empty());
  EXPECT_FALSE(b.repeats(0, vote_for_next()));
  EXPECT_FALSE(b.take(0, vote_for_next(), TimeMs{5}));
  EXPECT_TRUE(b.repeats(0, vote_for_next()));
  EXPECT_FALSE(b.repeats(1, vote_for_next()));
  (void)b.take(1, vote_for_next(), TimeMs{9});
  EXPECT_EQ(b.votes(), 2u);
  EXPECT_EQ(b.since(), TimeMs{5});
  EXPECT_DEATH((void)b.take(1, vote_for_next(), TimeMs{9}), "a rank votes once");
}

TEST(Ballot, AStateMayComeBeforeItsVote) {
  Ballot b;
  EXPECT_TRUE(b.take(0, lacking(with_state(vote_for_next(), 8)), {}));
  EXPECT_EQ(b.votes(), 0u);
  EXPECT_EQ(b.states(), 1u);
  EXPECT_TRUE(b.repeats(0, lacking(with_state(vote_for_next(), 8))));
  EXPECT_FALSE(b.repeats(0, with_state(vote_for_next(), 8)));
  EXPECT_FALSE(b.take(0, with_state(vote_for_next(), 8), {}));  // it is known
  EXPECT_EQ(b.votes(), 1u);
  EXPECT_EQ(b.states(), 1u);
}

TEST(Ballot, ALoadVoidsAllThatARankHasSaid) {
  Ballot b;
  (void)b.take(0, with_state(vote_for_next(), 8), {});
  (void)b.take(1, lacking(with_state(vote_for_next(), 8)), {});
  EXPECT_TRUE(b.drop(0));
  EXPECT_FALSE(b.drop(0));
  EXPECT_FALSE(b.drop(1));
  EXPECT_TRUE(b.empty());
  EXPECT_EQ(b.bytes(), 0u);
}

TEST(Ballot, CountsWhatItKeeps) {
  Ballot b;
  const wire::Vote vote = with_state(vote_for_next(), 8);
  const std::size_t bytes = b.bytes_of(0, vote);
  EXPECT_GT(bytes, b.bytes_of(0, vote_for_next()));
  EXPECT_EQ(b.bytes_of(0, lacking(vote)), vote.state().ByteSizeLong());
  (void)b.take(0, lacking(vote), {});
  EXPECT_EQ(b.bytes_of(0, vote), vote_for_next().ByteSizeLong());
  (void)b.take(0, vote, {});
  EXPECT_EQ(b.bytes(), bytes);
  b.check(kNext, Timeline(), [](std::size_t rank) { return rank == 0; });
  b.clear();
  EXPECT_EQ(b.bytes(), 0u);
}

TEST(Ballot, NamesRanksThatCountDifferentRounds) {
  Ballot b;
  (void)b.take(0, vote_for_next(3), {});
  (void)b.take(1, vote_for_next(3), {});
  EXPECT_EQ(b.differing_counts(rank_of_ballot), "");
  (void)b.take(2, vote_for_next(4), {});
  EXPECT_EQ(b.differing_counts(rank_of_ballot), "rank 0 has done 3 rounds in version 0, rank 2 has done 4");
}

TEST(Ballot, NamesRanksThatHaveGivenDifferentStates) {
  Ballot b;
  (void)b.take(0, with_state(vote_for_next(), 8), {});
  (void)b.take(1, with_state(vote_for_next(), 8), {});
  EXPECT_EQ(b.differing_states(rank_of_ballot), "");
  (void)b.take(2, lacking(with_state(vote_for_next(), 9)), {});
  EXPECT_NE(b.differing_states(rank_of_ballot).find("rank 2"), std::string::npos);
}

TEST(Ballot, HasTheSetUpRoundsOfEachVote) {
  Ballot b;
  wire::Vote vote = vote_for_next();
  *vote.add_setups() = setup(0, 7, true);
  (void)b.take(0, vote, {});
  (void)b.take(1, vote_for_next(), {});
  const auto lists = b.setups();
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(lists[0]->size(), 1);
  EXPECT_TRUE(lists[1]->empty());
}

TEST(Ballot, ChecksWhoseVotesStand) {
  Ballot b;
  (void)b.take(0, vote_for_next(), {});
  const auto all = [](std::size_t) { return true; };
  b.check(kNext, Timeline(), all);
  EXPECT_DEATH(b.check(kNext.next(), Timeline(), all), "votes are for the next version");
  EXPECT_DEATH(b.check(kNext, Timeline(1), all), "votes are for the next version, in this timeline");
  EXPECT_DEATH(b.check(kNext, Timeline(), [](std::size_t) { return false; }), "no longer than the life that gave it");
}

}  // namespace
}  // namespace warren::test

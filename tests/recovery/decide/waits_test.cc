#include "recovery/decide/waits.h"

#include <gtest/gtest.h>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

using Rounds = std::vector<wire::CurrentRound>;

struct World {
  std::vector<Rounds> rounds;
  std::vector<bool> finalizing = std::vector<bool>(rounds.size(), false);
  std::int64_t finalizing_ms = 5000;
  std::vector<std::int64_t> ages_ms = std::vector<std::int64_t>(rounds.size(), 0);
  const wire::Activity* activity = nullptr;  // of rank 0

  std::vector<RankReport> reports() const {
    std::vector<RankReport> list;
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      list.push_back({Rank(static_cast<int>(i)), finalizing[i], true, 10 + i, rounds[i], finalizing_ms, ages_ms[i],
                      i == 0 ? activity : nullptr});
    }
    return list;
  }
  std::string disagreement(bool sites = true) const {
    const auto found =
        find_disagreement(reports(), 5000, sites, [](Rank r) { return "rank " + std::to_string(r.value) + " (w)"; });
    return found ? found->text : "";
  }
  std::string waits() const {
    std::string text;
    for (const WaitLine& line : describe_waits(reports(), 1000)) text += line.text + "\n";
    return text;
  }
};

wire::CurrentRound at(wire::CurrentRound r, std::uint64_t site) {
  r.set_site(site);
  return r;
}

TEST(Waits, EqualCallsAgreeAndDifferentOnesDoNot) {
  EXPECT_EQ((World{{{round(1, 8, {1}, 0)}, {round(1, 8, {0}, 0)}}}.disagreement()), "");
  EXPECT_EQ((World{{{round(1, 8, {1}, 0)}, {round(2, 9, {0}, 0)}}}.disagreement()), "");
  EXPECT_EQ((World{{{round(1, 8, {1}, 0)}, {}, {round(1, 9, {0}, 0)}}}.disagreement()),
            "rank 0 (w) called allreduce(f32, sum, count 8), rank 2 (w) called allreduce(f32, sum, count 9), both as "
            "round p.1");
}

TEST(Waits, CallSitesCountOnlyWhenAsked) {
  const World w{{{at(round(1, 8, {}, 0), 5 | kSiteCompared)}, {at(round(1, 8, {}, 0), 6 | kSiteCompared)}}};
  EXPECT_NE(w.disagreement(true), "");
  EXPECT_EQ(w.disagreement(false), "");
  // An unknown site hides no difference between the others.
  const World hidden{
      {{round(1, 8, {}, 0)}, {at(round(1, 8, {}, 0), 5 | kSiteCompared)}, {at(round(1, 8, {}, 0), 6 | kSiteCompared)}}};
  EXPECT_NE(hidden.disagreement(), "");
}

TEST(Waits, PointToPointRoundsAreNotCompared) {
  wire::CurrentRound a = round(1, 8, {1}, 9000), b = round(1, 9, {0}, 9000);
  a.set_collective(11);
  b.set_collective(11);
  EXPECT_EQ((World{{{a}, {b}}}.disagreement()), "");
}

TEST(Waits, WhoWaitsForTheWholeTimeoutForARankThatWaitsInALaterRoundDisagreesOrHasLostBytes) {
  const auto world = [](std::uint64_t mine_ms, std::uint64_t theirs_ms, std::uint32_t waits_for, std::uint64_t group) {
    wire::CurrentRound theirs = round(2, 9, {waits_for}, theirs_ms);
    theirs.set_group(group);
    return World{{{round(1, 8, {1}, mine_ms)}, {theirs}, {}}}.disagreement();
  };
  EXPECT_EQ(
      world(6000, 5000, 0, 0),
      "rank 0 (w) has waited 6 s for rank 1 (w) with allreduce(f32, sum, count 8) in round p.1, which has waited 5 s "
      "for rank 0 with allreduce(f32, sum, count 9) in round p.2");
  EXPECT_EQ(world(6000, 4999, 0, 0), "");
  EXPECT_EQ(world(4999, 6000, 0, 0), "");
  // Whomever it waits for: it has done the round that it is waited for in.
  EXPECT_EQ(
      world(6000, 5000, 2, 0),
      "rank 0 (w) has waited 6 s for rank 1 (w) with allreduce(f32, sum, count 8) in round p.1, which has waited 5 s "
      "for rank 2 with allreduce(f32, sum, count 9) in round p.2");
  EXPECT_EQ(world(6000, 6000, 0, 7), "");  // groups may be used in any order
  // Both have begun both: they are behind, not at odds.
  const Rounds both_a{round(1, 8, {1}, 6000), round(2, 9, {1}, 6000)},
      both_b{round(1, 8, {0}, 6000), round(2, 9, {0}, 6000)};
  EXPECT_EQ((World{{both_a, both_b}}.disagreement()), "");
}

TEST(Waits, ARankThatIsBehindAndWaitsForAnotherHoldsUpNobody) {
  EXPECT_EQ((World{{{round(2, 8, {1}, 6000)}, {round(1, 9, {2}, 6000)}, {}}}.disagreement()), "");
  // The numbers of set-up rounds are names: none is later.
  const auto named = [](std::uint64_t n, std::uint32_t waits_for) {
    return round(kSetupBit | n, 8, {waits_for}, 6000);
  };
  EXPECT_EQ((World{{{named(1, 1)}, {named(2, 2)}, {}}}.disagreement()), "");
  EXPECT_NE((World{{{named(1, 1)}, {named(2, 0)}, {}}}.disagreement()), "");
}

TEST(Waits, LostBytesLookLikeADisagreementThatIsNotProven) {
  const World w{{{round(1, 8, {1}, 6000)}, {round(2, 9, {0}, 5000)}}};
  const auto found = find_disagreement(w.reports(), 5000, true, [](Rank) { return std::string(); });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->a, Rank(0));
  EXPECT_EQ(found->wait, (Wait{round_of(round(1, 8, {}, 0)), kNoRank}));
  const World proven{{{round(1, 8, {1}, 0)}, {round(1, 9, {0}, 0)}}};
  EXPECT_EQ(find_disagreement(proven.reports(), 5000, true, [](Rank) { return std::string(); })->wait, std::nullopt);
}

// The second time is the last one, however often what was sent is sent again meanwhile.
TEST(Waits, AWaitForMessagesIsTheSameAfterTheyWereSentAgain) {
  const auto wait = [](std::uint64_t moves) {
    World w{{{round(1, 8, {1}, 20'000)}, {}}};
    w.rounds[0][0].set_collective(11);
    w.rounds[0][0].set_shape(moves);
    w.finalizing[1] = true;
    w.finalizing_ms = 20'000;
    const auto reports = w.reports();
    return find_disagreement(reports, 5000, true, [](Rank) { return std::string(); })->wait;
  };
  EXPECT_EQ(wait(3), wait(4));
  EXPECT_EQ(wait(3)->of_messages, Rank(0));
}

// A link that is slow has bytes on their way long after their sender has gone on.
TEST(Waits, WhoseBytesStillComeIsWaitedFor) {
  World w{{{round(1, 8, {1}, 6000)}, {round(2, 9, {0}, 5000)}}};
  wire::Activity told;
  wire::LinkActivity& link = *told.add_links();
  link.set_peer(1);
  link.set_quiet_ms(4999);
  w.activity = &told;
  EXPECT_EQ(w.disagreement(), "");
  link.set_quiet_ms(5000);
  EXPECT_NE(w.disagreement(), "");
  link.set_quiet_ms(0);
  link.set_peer(2);
  EXPECT_NE(w.disagreement(), "") << "of another rank";
}

// Simulated seed 9510938: rank 1 waited long in a round, went on, and died before it could say so.
TEST(Waits, TheLastWordOfARankThatIsNotHeardAnyMoreIsNoDisagreement) {
  World w{{{round(1, 8, {1}, 5100)}, {round(2, 8, {0}, 5100)}}};
  EXPECT_NE(w.disagreement(), "");
  w.ages_ms = {0, 200};
  EXPECT_EQ(w.disagreement(), "") << "200 ms ago rank 0 had waited for 4900 ms";
  w.rounds[0] = {round(1, 8, {1}, 5200)};
  EXPECT_NE(w.disagreement(), "") << "5000 ms";
  w.ages_ms = {301, 200};
  EXPECT_EQ(w.disagreement(), "") << "301 ms ago rank 1 had waited for 4999 ms";
}

TEST(Waits, WaitingForARankThatHasFinalizedIsADisagreementOnceTheTimeIsUp) {
  World w{{{round(1, 8, {1}, 4999)}, {}}};
  w.finalizing[1] = true;
  EXPECT_EQ(w.disagreement(), "");
  w.rounds[0][0].set_waited_ms(5000);
  EXPECT_EQ(w.disagreement(),
            "rank 0 (w) has waited 5 s for rank 1 (w) with allreduce(f32, sum, count 8) in round p.1, but rank 1 has "
            "called finalize after 11 rounds");
  w.finalizing_ms = 4999;  // what rank 0 has said may be older
  EXPECT_EQ(w.disagreement(), "");
}

// What it has sent, it may have to send again: over a link that has a round timeout to come up.
TEST(Waits, AMessageOfARankThatHasFinalizedIsWaitedForTwiceAsLong) {
  World w{{{round(1, 8, {1}, 9999)}, {}}};
  w.rounds[0][0].set_collective(11);
  w.finalizing[1] = true;
  w.finalizing_ms = 10000;
  EXPECT_EQ(w.disagreement(), "");
  w.rounds[0][0].set_waited_ms(10000);
  EXPECT_EQ(w.disagreement(),
            "rank 0 (w) has waited 10 s for rank 1 (w) with a send or recv after round p.1, but rank 1 has called "
            "finalize after 11 rounds");
  w.finalizing_ms = 9999;
  EXPECT_EQ(w.disagreement(), "");
}

TEST(Waits, OneLineARoundNamesTheRankThatIsNotThere) {
  // In a ring each waits for its left neighbour; rank 3 has not come.
  const World w{{{round(1, 8, {3}, 2000)}, {round(1, 8, {0}, 3000)}, {round(1, 8, {1}, 2000)}, {}}};
  EXPECT_EQ(w.waits(),
            "rank 0 waits for rank 3 in round p.1 since 2 s (as do 2 more ranks in this round); rank 3 is alive "
            "and has finished 13 rounds\n");
  EXPECT_EQ((World{{{round(1, 8, {1}, 999)}, {}}}.waits()), "");
  const World two{{{round(1, 8, {1}, 1000)}, {round(1, 8, {0}, 1000)}}};
  EXPECT_EQ(two.waits(),
            "rank 0 waits for rank 1 in round p.1 since 1 s (as does 1 more rank in this round); rank 1 is "
            "alive and has finished 11 rounds\n");
}

TEST(Waits, ARankThatIsInNoCallIsToldHowLongItIsWaitedFor) {
  World w{{{round(1, 8, {1, 2}, 4000)}, {}, {round(1, 8, {1}, 6000)}, {}}};
  EXPECT_EQ(awaited_outside(w.reports()), (std::vector<std::int64_t>{0, 6000, 0, 0})) << "rank 2 is in a call";
  w.finalizing[1] = true;
  EXPECT_EQ(awaited_outside(w.reports()), (std::vector<std::int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(awaited_outside((World{{{round(1, 8, {9}, 9000)}}}.reports())), (std::vector<std::int64_t>{0}));
}

TEST(Waits, RanksOutsideTheWorldAreNobody) {
  EXPECT_EQ((World{{{round(1, 8, {9}, 9000)}}}.disagreement()), "");
  EXPECT_EQ((World{{{round(1, 8, {9}, 9000)}}}.waits()), "");
}

}  // namespace
}  // namespace warren::test

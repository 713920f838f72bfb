#include "recovery/decide/frontier.h"

#include <gtest/gtest.h>

#include "recovery/base/limits.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

struct Said {
  std::uint64_t version;
  std::vector<wire::Position> positions;
};

// Rank i reports `said[i]`.
std::string merged(const std::vector<Said>& said, const std::vector<wire::Position>& before = {},
                   std::optional<Version> committed = {}, const std::vector<wire::Position>& in_memory = {},
                   const std::vector<wire::Position>& by_leavers = {}) {
  std::vector<wire::Report> reports(said.size());
  std::vector<RankPositions> by_rank;
  for (std::size_t i = 0; i < said.size(); ++i) {
    reports[i].set_generation(2);
    reports[i].set_version(said[i].version);
    for (const wire::Position& p : said[i].positions) *reports[i].add_positions() = p;
    EXPECT_TRUE(validate(reports[i]).ok()) << validate(reports[i]).describe();
    by_rank.push_back({Rank(static_cast<std::int32_t>(i)), &reports[i]});
  }
  std::vector<const wire::Position*> earlier;
  for (const wire::Position& p : before) earlier.push_back(&p);
  std::vector<const wire::Position*> logged;
  for (const wire::Position& p : in_memory) logged.push_back(&p);
  std::vector<const wire::Position*> served;
  for (const wire::Position& p : by_leavers) served.push_back(&p);
  const auto frontier = merge_frontier(by_rank, earlier, logged, served, committed,
                                       [](Rank rank) { return "rank " + std::to_string(rank.value); });
  if (!frontier.ok()) return std::string(to_string(frontier.status().code())) + ": " + frontier.status().describe();
  std::string text;
  for (const wire::Position& p : frontier.value()) text += (text.empty() ? "" : " ") + render(p);
  return text;
}

TEST(Frontier, IsWhatTheFurthestHasCompleted) {
  EXPECT_EQ(merged({{1, {position(1, 4)}}, {1, {position(1, 7)}}, {0, {}}}), "1.7");
  EXPECT_EQ(merged({{1, {position(1, 7)}}, {1, {position(1, 4)}}}), "1.7");
  EXPECT_EQ(merged({{0, {}}, {0, {}}}), "");
  EXPECT_EQ(merged({{0, {position(0, 0)}}}), "");
}

// Of ranks that are dead: they had completed, and may have returned, what came before.
TEST(Frontier, CountsWhatOnlyMemoryKnows) {
  EXPECT_EQ(merged({{1, {position(1, 4)}}}, {}, {}, {position(1, 7)}), "1.7");
  EXPECT_EQ(merged({{1, {position(1, 8)}}}, {}, {}, {position(1, 7)}), "1.8");
  EXPECT_EQ(merged({{1, {position(1, 4)}}}, {}, Version(3), {position(2, 7)}), "") << "of an obsolete version";
}

// Who is gone may have completed a round of which all is there, and no other: no member can get what is in flight.
TEST(Frontier, WhatWhoHasLeftHoldsOfARoundCountsIfItMakesItWhole) {
  const std::vector<Said> half = {{1, {position(1, 4, false, {{0, 8}})}}};
  EXPECT_EQ(merged(half, {}, {}, {}, {in_flight(1, 4, 8, 16, 16)}), "1.5");
  EXPECT_EQ(merged(half, {}, {}, {}, {in_flight(1, 4, 8, 15, 16)}), "1.4[0,8)");
  EXPECT_EQ(merged(half, {}, {}, {}, {position(1, 4, false, {{8, 16}})}), "1.4[0,8)") << "how long it is nobody knows";
  EXPECT_EQ(merged({{1, {in_flight(1, 4, 0, 8, 24)}}}, {}, {}, {}, {in_flight(1, 4, 8, 16, 16)}), "1.4[0,8)")
      << "they do not agree";
  EXPECT_EQ(merged({{1, {position(1, 5)}}}, {}, {}, {}, {in_flight(1, 4, 0, 16, 16)}), "1.5");
  EXPECT_EQ(merged({{1, {position(1, 3, false, {{0, 8}})}}}, {}, {}, {}, {in_flight(1, 4, 0, 8, 16)}), "1.4");
  EXPECT_EQ(merged({{1, {position(1, 4)}}}, {}, {}, {}, {in_flight(1, 4, 0, 8, 16), in_flight(1, 4, 8, 16, 16)}),
            "1.5");
  // Simulated seed 1149941251: if it stayed in flight, it would not be served, and be lost with the host that has it.
  EXPECT_EQ(merged({{1, {in_flight(1, 4, 0, 16, 16)}}}, {}, {}, {}, {in_flight(1, 4, 8, 16, 16)}), "1.5");
  EXPECT_EQ(merged({{1, {in_flight(1, 4, 0, 16, 16)}}}), "1.4[0,16)");
  // It contradicts nobody.
  EXPECT_EQ(merged({{1, {position(1, 4, true)}}}, {}, {}, {}, {in_flight(1, 4, 0, 16, 16)}), "1.4|");
  EXPECT_EQ(merged(half, {}, Version(2), {}, {in_flight(1, 4, 8, 16, 16)}), "");
}

TEST(Frontier, FinalIsTheUnionOverThoseWhoAreInThatRound) {
  EXPECT_EQ(merged({{1, {position(1, 4, false, {{0, 8}, {16, 24}})}},
                    {1, {position(1, 4, false, {{8, 12}, {100, 101}})}},
                    {1, {position(1, 3, false, {{0, 1000}})}}}),
            "1.4[0,12)[16,24)[100,101)");
  // Who has completed the round holds all of it, and is in the next one.
  EXPECT_EQ(merged({{1, {position(1, 4, false, {{0, 8}})}}, {1, {position(1, 5)}}}), "1.5");
  EXPECT_EQ(merged({{1, {position(1, 5)}}, {1, {position(1, 4, false, {{0, 8}})}}}), "1.5");
  EXPECT_EQ(merged({{1, {position(1, 0, false, {{0, 8}})}}}), "1.0[0,8)");
}

TEST(Frontier, AVersionIsClosedOnceARankOfTheGroupHasGoneOn) {
  EXPECT_EQ(merged({{2, {position(1, 9, true), position(2, 1)}}, {1, {position(1, 3)}}}), "1.9| 2.1");
  EXPECT_EQ(merged({{2, {position(1, 9), position(2, 1)}}, {1, {position(1, 3)}}}), "1.9| 2.1");
  EXPECT_EQ(merged({{1, {position(0, 2, true)}}}), "0.2|");
  EXPECT_EQ(merged({{2, {position(1, 0, true)}}}), "1.0|");
  // Rank 0 is not in group 5: that it has gone on says nothing about its rounds.
  EXPECT_EQ(merged({{2, {position(1, 9, true)}}, {1, {position(1, 3), position(1, 6, false, {}, 5)}}}), "1.9| g5:1.6");
}

TEST(Frontier, GroupsAndVersionsComeInOrder) {
  EXPECT_EQ(merged({{2, {position(1, 1, true), position(2, 1), position(1, 4, true, {}, 9)}},
                    {2, {position(0, 1, true), position(2, 3, false, {}, 5), position(2, 1, false, {}, 9)}}}),
            "0.1| 1.1| 2.1 g5:2.3 g9:1.4| g9:2.1");
}

TEST(Frontier, VersionsThatAreCommittedMatterNoMore) {
  EXPECT_EQ(merged({{4, {position(0, 3, true), position(2, 5, true), position(3, 6, true), position(4, 1)}}},
                   {position(0, 3, true), position(1, 8, true), position(3, 6, true)}, Version(3)),
            "0.3| 3.6| 4.1");
}

TEST(Frontier, WhatWasCompletedStaysSoAndWhatWasFinalOnlyIfItIsHeld) {
  const std::vector<wire::Position> before = {position(0, 3, true), position(1, 9, false, {{0, 64}})};
  EXPECT_EQ(merged({{1, {position(0, 3, true), position(1, 2)}}}, before), "0.3| 1.9");
  EXPECT_EQ(merged({{1, {position(1, 9, false, {{8, 16}})}}}, before), "0.3| 1.9[8,16)");
  EXPECT_EQ(merged({{1, {position(1, 10)}}}, before), "0.3| 1.10");
}

TEST(Frontier, ContradictionsNameBothRanks) {
  EXPECT_EQ(merged({{2, {position(1, 5, true)}}, {1, {position(1, 6)}}}),
            "desync: rank 0 has done 5 rounds in version 0 and gone on, rank 1 has done 6 rounds");
  EXPECT_EQ(merged({{1, {position(1, 6)}}, {2, {position(1, 5, true)}}}),
            "desync: rank 1 has done 5 rounds in version 0 and gone on, rank 0 has done 6 rounds");
  EXPECT_EQ(merged({{1, {position(0, 1, true)}}, {1, {position(0, 2, true)}}}),
            "desync: rank 0 has done 1 round in the preamble and gone on, rank 1 has done 2 rounds and gone on");
  EXPECT_EQ(merged({{2, {position(1, 5, true, {}, 7)}}, {1, {position(1, 5, false, {{0, 4}}, 7)}}}),
            "desync: rank 0 has done 5 rounds in version 0 of a group and gone on, rank 1 is in another one");
  EXPECT_EQ(merged({{1, {position(1, 6)}}}, {position(1, 5, true)}),
            "desync: an earlier life has done 5 rounds in version 0 and gone on, rank 0 has done 6 rounds");
  EXPECT_EQ(merged({{2, {position(1, 5, true)}}}, {position(1, 6)}),
            "desync: rank 0 has done 5 rounds in version 0 and gone on, an earlier life has done 6 rounds");
  // Of versions that matter no more, nothing is said.
  EXPECT_EQ(merged({{2, {position(1, 5, true)}}, {2, {position(1, 6, true)}}}, {}, Version(2)), "");
}

TEST(Frontier, MoreThanAPlanCanHoldIsAnError) {
  std::vector<Said> said(2);
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::uint64_t g = 0; g < limits::kMaxPositions; ++g) {
      said[i].positions.push_back(position(0, 1, false, {}, g * 2 + i));
    }
  }
  EXPECT_EQ(
      merged(said),
      "unavailable: the job stands in 32768 groups and versions and 0 pieces of results, more than a plan can hold "
      "(16384 and 65536)");
}

std::string merged_setups(const std::vector<std::vector<wire::Setup>>& said,
                          const std::vector<wire::Setup>& by_leaver = {}) {
  google::protobuf::RepeatedPtrField<wire::Setup> left;
  left.Add(by_leaver.begin(), by_leaver.end());
  const std::vector<const google::protobuf::RepeatedPtrField<wire::Setup>*> served{&left};
  std::vector<google::protobuf::RepeatedPtrField<wire::Setup>> lists(said.size());
  std::vector<const google::protobuf::RepeatedPtrField<wire::Setup>*> all;
  for (std::size_t i = 0; i < said.size(); ++i) {
    lists[i].Add(said[i].begin(), said[i].end());
    all.push_back(&lists[i]);
  }
  const auto setups = merge_setups(all, served, Timeline(9));
  if (!setups.ok()) return std::string(to_string(setups.status().code())) + ": " + setups.status().describe();
  std::string text;
  for (const wire::Setup& s : setups.value()) text += (text.empty() ? "" : " ") + render(s);
  return text;
}

TEST(Frontier, ASetupRoundIsDoneOnceAnybodyHasItAndElseIsFinalWhereAnyHostHoldsIt) {
  EXPECT_EQ(merged_setups({{}, {}}), "");
  EXPECT_EQ(merged_setups({{setup(0, 7, false, {{0, 8}})}, {setup(0, 7, false, {{4, 12}}), setup(3, 1, true)}}),
            "s7[0,12) g3:s1|");
  EXPECT_EQ(merged_setups({{setup(0, 7, false, {{0, 8}})}, {setup(0, 7, true)}}), "s7|");
  EXPECT_EQ(merged_setups({{setup(0, 7, true, {}, 2)}, {setup(0, 7, false, {{0, 8}}, 2), setup(0, 9, false)}}),
            "s7@2| s9");
  EXPECT_EQ(merged_setups({{setup(0, 7, true, {}, 2)}, {setup(0, 7, true, {}, 3)}}),
            "desync: set-up round 8000000000000007 on timeline 2 was begun in timeline 3 too");
  // Of what who has left has of one in flight, as of other rounds.
  wire::Setup rest = setup(0, 7, false, {{8, 16}});
  EXPECT_EQ(merged_setups({{setup(0, 7, false, {{0, 8}})}}, {rest}), "s7[0,8)");
  rest.set_total_bytes(16);
  EXPECT_EQ(merged_setups({{setup(0, 7, false, {{0, 8}})}}, {rest}), "s7|");
  EXPECT_EQ(merged_setups({{setup(0, 7, false, {{0, 7}})}}, {rest}), "s7[0,7)");
  EXPECT_EQ(merged_setups({{setup(0, 7, false)}}, {rest}), "s7");
  EXPECT_EQ(merged_setups({{}}, {rest}), "") << "others begin it anew";
  EXPECT_EQ(merged_setups({{setup(0, 7, false, {{0, 8}}, 2)}}, {rest}), "s7@2[0,8)") << "it was undone";
  EXPECT_EQ(merged_setups({{}}, {setup(0, 7, true)}), "s7|");
}

TEST(Frontier, MoreSetupRoundsThanAJobMayHaveAreAnError) {
  std::vector<wire::Setup> many;
  for (std::uint64_t n = 0; n <= limits::kMaxSetupsPerJob; ++n) many.push_back(setup(0, n, true));
  EXPECT_EQ(merged_setups({many}),
            "exhausted: the job has 4097 set-up rounds with 0 pieces of results, more than it may (4096 and 16384)");
  many.pop_back();
  EXPECT_EQ(merged_setups({many}).substr(0, 6), "s0| s1");
}

}  // namespace
}  // namespace warren::test

#include "recovery/held.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>

namespace warren {
namespace {

using testing::ElementsAre;

HeldReport report_with(std::vector<HeldRun> runs) {
  HeldReport r;
  r.rounds.push_back({false, Timeline(1), kWorldGroup, Version(1), std::move(runs)});
  return r;
}
std::vector<HeldRun> runs_of(const HeldReport& r) {
  return r.rounds.empty() ? std::vector<HeldRun>() : r.rounds[0].runs;
}

TEST(Held, AlikeRoundsAreOneRun) {
  std::vector<HeldRun> runs;
  for (std::uint64_t s = 3; s < 10; ++s) append_held(runs, s, 8, 1, Ranges(0, 8));
  append_held(runs, 11, 8, 1, Ranges(0, 8));   // one is missing
  append_held(runs, 12, 8, 1, Ranges(0, 4));   // held otherwise
  append_held(runs, 13, 16, 1, Ranges(0, 4));  // longer
  append_held(runs, 14, 16, 2, Ranges(0, 4));  // another call
  EXPECT_THAT(runs, ElementsAre(HeldRun{3, 7, 8, 1, Ranges(0, 8)}, HeldRun{11, 1, 8, 1, Ranges(0, 8)},
                                HeldRun{12, 1, 8, 1, Ranges(0, 4)}, HeldRun{13, 1, 16, 1, Ranges(0, 4)},
                                HeldRun{14, 1, 16, 2, Ranges(0, 4)}));
}

TEST(Held, TwoHostsHoldTogetherWhatEachHoldsInPart) {
  const HeldReport a = report_with({{0, 100, 8, 1, Ranges(0, 4)}, {100, 1, 0, 2, Ranges()}});
  const HeldReport b = report_with({{0, 60, 8, 1, Ranges(4, 8)}, {61, 10, 8, 1, Ranges(3, 8)}});
  const HeldReport both = unite(a, b);
  EXPECT_THAT(runs_of(both), ElementsAre(HeldRun{0, 60, 8, 1, Ranges(0, 8)}, HeldRun{60, 1, 8, 1, Ranges(0, 4)},
                                         HeldRun{61, 10, 8, 1, Ranges(0, 8)}, HeldRun{71, 29, 8, 1, Ranges(0, 4)},
                                         HeldRun{100, 1, 0, 2, Ranges()}));
  EXPECT_EQ(unite(b, a), both);
  EXPECT_THAT(first_gaps(both),
              ElementsAre(HeldPosition{false, Timeline(1), kWorldGroup, Version(1), 60, Ranges(0, 4)}));
}

TEST(Held, AGapAtTheBeginningAndNoGapAtAll) {
  EXPECT_THAT(first_gaps(report_with({{1, 5, 0, 1, Ranges()}})),
              ElementsAre(HeldPosition{false, Timeline(1), kWorldGroup, Version(1), 0, {}}));
  EXPECT_THAT(first_gaps(report_with({{0, 5, 0, 1, Ranges()}, {5, 2, 4, 1, Ranges(0, 4)}})),
              ElementsAre(HeldPosition{false, Timeline(1), kWorldGroup, Version(1), 7, {}}));
}

TEST(Held, WhatHostsContradictEachOtherAboutIsNotHeld) {
  const HeldReport a = report_with({{0, 10, 8, 1, Ranges(0, 8)}});
  for (const HeldRun& other : {HeldRun{4, 2, 16, 1, Ranges(0, 16)}, HeldRun{4, 2, 8, 2, Ranges(0, 8)}}) {
    const HeldReport both = unite(a, report_with({other}));
    EXPECT_EQ(first_gaps(both)[0].rounds, 4u);
    EXPECT_TRUE(first_gaps(both)[0].final.empty());
    EXPECT_EQ(first_gaps(unite(both, a))[0].rounds, 4u) << "a third cannot heal it";
  }
  HeldReport x, y;
  x.states = {{Timeline(1), Version(1), std::nullopt, 8, Ranges(0, 8)}};
  y.states = {{Timeline(1), Version(1), std::nullopt, 9, Ranges(0, 9)}, {Timeline(1), Version(1), Rank(0), 3, {}}};
  const HeldReport both = unite(x, y);
  ASSERT_EQ(both.states.size(), 2u);
  EXPECT_TRUE(both.states[0].held.empty());
  EXPECT_EQ(both.states[1], y.states[1]);
}

TEST(Held, GroupsVersionsAndMessagesAreApart) {
  HeldReport a, b;
  a.rounds = {{false, Timeline(1), GroupId(5), Version(1), {{0, 1, 0, 1, {}}}},
              {true, Timeline(1), GroupId(5), Version(1), {{0, 3, 0, 1, {}}}}};
  b.rounds = {{false, Timeline(1), GroupId(5), Version(2), {{0, 2, 0, 1, {}}}}};
  std::vector<std::uint64_t> rounds;
  for (const HeldPosition& p : first_gaps(unite(a, b))) rounds.push_back(p.rounds);
  EXPECT_THAT(rounds, ElementsAre(1, 2, 3));
}

TEST(Held, RunsAreBounded) {
  std::vector<HeldRun> runs;
  for (std::uint64_t s = 0; s < 3 * HeldReport::kMaxRuns; ++s) append_held(runs, s, s, 1, Ranges(0, s));
  EXPECT_EQ(runs.size(), HeldReport::kMaxRuns);
  EXPECT_EQ(first_gaps(report_with(runs))[0].rounds, HeldReport::kMaxRuns);
}

// Against sets of (round, byte).
TEST(Held, UnitingIsWhatSetsSay) {
  std::mt19937_64 random(1);
  const auto below = [&random](std::uint64_t n) { return random() % n; };
  for (int trial = 0; trial < 2000; ++trial) {
    HeldReport united;
    std::map<std::uint64_t, Ranges> model;
    for (int host = 0; host < 3; ++host) {
      std::vector<HeldRun> runs;
      for (std::uint64_t s = 0; s < 12; ++s) {
        if (below(4) == 0) continue;
        const Ranges held(below(3), 2 + below(3));
        append_held(runs, s, 4, 9, held);
        model[s].add(held);
      }
      united = unite(united, report_with(runs));
    }
    std::map<std::uint64_t, Ranges> got;
    for (const HeldRun& run : runs_of(united)) {
      for (std::uint64_t s = run.first; s < run.end(); ++s) got[s] = run.held;
    }
    ASSERT_EQ(got, model);
    std::uint64_t first_gap = 0;
    while (model.contains(first_gap) && model[first_gap].covers(0, 4)) ++first_gap;
    ASSERT_EQ(first_gaps(united)[0].rounds, first_gap);
    ASSERT_EQ(first_gaps(united)[0].final, model.contains(first_gap) ? model[first_gap] : Ranges());
  }
}

}  // namespace
}  // namespace warren

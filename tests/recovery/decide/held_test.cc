#include "recovery/decide/held.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>

#include "recovery/base/limits.h"

namespace warren {
namespace {

using testing::ElementsAre;

HeldReport report_with(std::vector<HeldRun> runs) {
  HeldReport r;
  r.rounds.push_back({false, Timeline(1), kWorldGroup, Version(1), std::move(runs)});
  return r;
}
std::uint64_t gap(const HeldReport& r, std::uint64_t from = 0) {
  return held_until(r, Timeline(1), kWorldGroup, Version(1), from);
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
  EXPECT_EQ(gap(both), 60u);
  EXPECT_EQ(gap(both, 61), 71u);
  EXPECT_EQ(gap(both, 64), 71u);
  EXPECT_EQ(held_until(both, Timeline(2), kWorldGroup, Version(1), 3), 3u) << "of another timeline";
}

TEST(Held, AGapAtTheBeginningAndNoGapAtAll) {
  EXPECT_EQ(gap(report_with({{1, 5, 0, 1, Ranges()}})), 0u);
  EXPECT_EQ(gap(report_with({{0, 5, 0, 1, Ranges()}, {5, 2, 4, 1, Ranges(0, 4)}})), 7u);
}

TEST(Held, WhatHostsContradictEachOtherAboutIsNotHeld) {
  const HeldReport a = report_with({{0, 10, 8, 1, Ranges(0, 8)}});
  for (const HeldRun& other : {HeldRun{4, 2, 16, 1, Ranges(0, 16)}, HeldRun{4, 2, 8, 2, Ranges(0, 8)}}) {
    const HeldReport both = unite(a, report_with({other}));
    EXPECT_EQ(gap(both), 4u);
    EXPECT_EQ(gap(unite(both, a)), 4u) << "a third cannot heal it";
    EXPECT_EQ(to_wire(both, kPreamble).rounds(0).runs_size(), 2) << "nor is it told";
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
  const HeldReport both = unite(a, b);
  ASSERT_EQ(both.rounds.size(), 3u);
  EXPECT_EQ(held_until(both, Timeline(1), GroupId(5), Version(1), 0), 1u);
  EXPECT_EQ(held_until(both, Timeline(1), GroupId(5), Version(2), 0), 2u);
}

TEST(Held, RunsAreBounded) {
  std::vector<HeldRun> runs;
  for (std::uint64_t s = 0; s < 3 * HeldReport::kMaxRuns; ++s) append_held(runs, s, s, 1, Ranges(0, s));
  EXPECT_EQ(runs.size(), HeldReport::kMaxRuns);
  EXPECT_EQ(gap(report_with(runs)), HeldReport::kMaxRuns);
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
    ASSERT_EQ(gap(united), first_gap);
  }
}

HeldRounds whole(std::uint32_t timeline, std::uint64_t version, std::uint64_t first, std::uint64_t count,
                 std::uint64_t group = 0) {
  return {false, Timeline(timeline), GroupId(group), Version(version), {{first, count, 8, 1, Ranges(0, 8)}}};
}

TEST(Held, TravelsInAMessageWithoutWhatIsObsolete) {
  HeldReport r;
  r.rounds = {whole(1, 0, 0, 4), whole(1, 1, 0, 9), whole(1, 2, 3, 7), whole(2, 2, 0, 5, 42)};
  r.rounds[2].runs.push_back({20, 1, 100, 2, Ranges(10, 30)});
  r.rounds[2].runs.back().held.add(50, 60);
  HeldReport expected = r;
  expected.rounds.erase(expected.rounds.begin() + 1);
  r.rounds.push_back({true, Timeline(1), GroupId(5), Version(2), {{0, 3, 0, 1, {}}}});
  r.states = {{Timeline(1), Version(2), std::nullopt, 8, Ranges(0, 8)}};
  EXPECT_EQ(from_wire(to_wire(r, Version(2))), expected);
}

TEST(Held, AMessageIsBounded) {
  HeldReport r;
  for (std::uint32_t version = 1; version < 6000; ++version) r.rounds.push_back(whole(1, version, 0, 1));
  EXPECT_EQ(to_wire(r, Version(1)).rounds_size(), static_cast<int>(limits::kMaxHeldRounds));
  r.rounds = {whole(1, 1, 0, 1)};
  for (std::uint64_t s = 1; s < 20'000; ++s) r.rounds[0].runs.push_back({s, 1, s, 1, {}});
  EXPECT_EQ(to_wire(r, Version(1)).rounds(0).runs_size(), static_cast<int>(limits::kMaxHeldRuns));
}

std::string kept(const HeldReport& disks, std::vector<wire::Kept> before, std::uint32_t timeline,
                 std::optional<Version> committed) {
  std::vector<const wire::Kept*> pointers;
  for (const wire::Kept& k : before) pointers.push_back(&k);
  std::string text;
  for (const wire::Kept& k : keep_rounds(disks, pointers, Timeline(timeline), committed)) {
    text += (text.empty() ? "" : " ") + std::to_string(k.group()) + "/" + std::to_string(k.version()) + "<" +
            std::to_string(k.rounds()) + "@" + std::to_string(k.timeline());
  }
  return text;
}
wire::Kept kept_below(std::uint64_t rounds, std::uint32_t timeline, std::uint64_t version) {
  wire::Kept k;
  k.set_version(version);
  k.set_timeline(timeline);
  k.set_rounds(rounds);
  return k;
}

TEST(Held, ThePreambleAndTheVersionThatAllStartFromAreKept) {
  HeldReport r;
  r.rounds = {whole(3, 0, 0, 4), whole(3, 1, 0, 9), whole(3, 2, 0, 7), whole(3, 3, 0, 5)};
  EXPECT_EQ(kept(r, {}, 3, std::nullopt), "0/0<4@3 0/1<9@3");
  EXPECT_EQ(kept(r, {}, 3, Version(2)), "0/0<4@3 0/2<7@3") << "of what comes after it nobody knows that it is all";
  EXPECT_EQ(kept(r, {}, 4, Version(2)), "") << "of a timeline that is undone";
  r.rounds = {whole(3, 2, 0, 7), whole(3, 2, 1, 7, 42)};
  EXPECT_EQ(kept(r, {}, 3, Version(2)), "0/2<7@3") << "its first one is missing";
}

TEST(Held, RoundsThatWereKeptBeforeGoOnUpToTheFirstGap) {
  HeldReport r;
  r.rounds = {whole(1, 2, 0, 12), whole(2, 2, 5, 3), whole(4, 2, 8, 5)};
  const std::vector<wire::Kept> before = {kept_below(5, 1, 2), kept_below(8, 2, 2)};
  EXPECT_EQ(kept(r, before, 4, Version(2)), "0/2<5@1 0/2<8@2 0/2<13@4");
  EXPECT_EQ(kept(r, before, 3, Version(2)), "0/2<5@1 0/2<8@2");
  r.rounds[1].runs[0].count = 2;
  EXPECT_EQ(kept(r, before, 4, Version(2)), "0/2<5@1 0/2<7@2") << "nothing behind the gap";
  r.rounds[0].runs[0].count = 4;
  EXPECT_EQ(kept(r, before, 4, Version(2)), "0/2<4@1");
  EXPECT_EQ(kept(r, before, 4, Version(3)), "") << "a newer version is committed";
}

}  // namespace
}  // namespace warren

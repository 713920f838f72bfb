#include "recovery/tracker/plan_start.h"

#include <gtest/gtest.h>

#include "recovery/base/limits.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

wire::Kept kept_until(std::uint64_t version, std::uint32_t timeline, std::uint64_t rounds, std::uint64_t group = 0) {
  wire::Kept k;
  k.set_group(group);
  k.set_version(version);
  k.set_timeline(timeline);
  k.set_rounds(rounds);
  return k;
}

// "version.timeline≤rounds" of each, in order.
std::string names(const std::vector<wire::Kept>& kept) {
  std::string text;
  for (const wire::Kept& k : kept) {
    text += (text.empty() ? "" : " ") + std::to_string(k.version()) + "@" + std::to_string(k.timeline()) + "<" +
            std::to_string(k.rounds());
  }
  return text;
}

std::string frontier_of(const PlanStart& start) {
  std::string text;
  for (const wire::Position& p : start.frontier) text += (text.empty() ? "" : " ") + render(p);
  return text;
}

PlanStart going_on(std::vector<wire::Position> frontier, std::vector<wire::Kept> kept = {}) {
  PlanStart start;
  start.frontier = std::move(frontier);
  start.kept = std::move(kept);
  start.goes_on = true;
  return start;
}

TEST(PlanStart, ARoundOfWhichAllIsFinalIsFinishedWithItsTimeline) {
  PlanStart start = going_on({in_flight(2, 5, 0, 8, 8)});
  const EndedAttempts attempts = end_timeline(start, Timeline(3));
  EXPECT_EQ(attempts.finished, 1u);
  EXPECT_EQ(attempts.dropped, 0u);
  EXPECT_TRUE(start.ends_timeline);
  EXPECT_EQ(frontier_of(start), "2.6");
  EXPECT_EQ(names(start.kept), "2@3<6");
}

TEST(PlanStart, ARoundOfWhichAPartIsFinalIsComputedAgain) {
  PlanStart start = going_on({in_flight(2, 5, 0, 7, 8)});
  const EndedAttempts attempts = end_timeline(start, Timeline(3));
  EXPECT_EQ(attempts.finished, 0u);
  EXPECT_EQ(attempts.dropped, 1u);
  EXPECT_EQ(frontier_of(start), "2.5");
  EXPECT_EQ(start.frontier.front().total_bytes(), 0u);
  EXPECT_EQ(names(start.kept), "2@3<5");
}

TEST(PlanStart, ARoundWhoseBytesNobodyKnowsIsComputedAgain) {
  PlanStart start = going_on({position(2, 0, false, {{0, 8}})});
  EXPECT_EQ(end_timeline(start, Timeline(3)).dropped, 1u);
  EXPECT_EQ(frontier_of(start), "");
  EXPECT_EQ(names(start.kept), "");
}

TEST(PlanStart, RoundsKeepTheNamesThatTheyHave) {
  PlanStart start = going_on({position(2, 7), position(3, 4)}, {kept_until(2, 1, 7), kept_until(3, 1, 2)});
  (void)end_timeline(start, Timeline(2));
  EXPECT_EQ(names(start.kept), "2@1<7 3@1<2 3@2<4");
}

TEST(PlanStart, ForgetsKeptRoundsBeyondTheFrontier) {
  PlanStart start =
      going_on({in_flight(2, 3, 0, 4, 8)}, {kept_until(2, 1, 2), kept_until(2, 2, 5), kept_until(3, 2, 1)});
  EXPECT_TRUE(drop_forgotten(start));
  EXPECT_EQ(names(start.kept), "2@1<2 2@2<3");
  EXPECT_EQ(frontier_of(start), "2.3");  // what was final belonged to a forgotten round
  EXPECT_FALSE(drop_forgotten(start));
}

TEST(PlanStart, StartsFromWhatDisksHold) {
  const PlanStart start = start_from({kept_until(2, 1, 3), kept_until(2, 2, 6), kept_until(3, 2, 1)});
  EXPECT_EQ(frontier_of(start), "2.6 3.1");
  EXPECT_EQ(names(start.kept), "2@1<3 2@2<6 3@2<1");
  EXPECT_EQ(start.rounds_from_disks(), 7u);
  EXPECT_FALSE(start.goes_on);
  EXPECT_EQ(going_on({position(2, 6)}).rounds_from_disks(), 0u);
}

TEST(PlanStart, HasNothingWhereAPlanCouldNotNameIt) {
  std::vector<wire::Kept> kept;
  for (std::uint64_t group = 0; group <= limits::kMaxPositions; ++group) kept.push_back(kept_until(2, 1, 3, group));
  const PlanStart start = start_from(std::move(kept));
  EXPECT_TRUE(start.frontier.empty());
  EXPECT_TRUE(start.kept.empty());
}

TEST(PlanStart, CountsTheAbsencesThatAPlanHasToName) {
  wire::Plan before;
  for (const std::uint32_t timeline : {1u, 2u}) {
    wire::Absence& a = *before.add_absences();
    a.set_timeline(timeline);
    a.add_ranks(0);
    a.add_ranks(timeline);
  }
  EXPECT_EQ(absences_of(going_on({}, {kept_until(2, 2, 3)}), before, 3), 5u);
  EXPECT_EQ(absences_of(going_on({}), before, 0), 0u);
}

}  // namespace
}  // namespace warren::test

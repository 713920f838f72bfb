#include "recovery/tracker/plan_maker.h"

#include <gtest/gtest.h>

#include <list>

#include "recovery/wire/codec.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

// Workers that wait, and the plan before.
class Table {
 public:
  explicit Table(std::uint32_t world_size, std::uint32_t replicas = 2) : settings_(settings(world_size, replicas)) {}

  wire::Plan& before() { return before_; }
  // A new life, whose worker has had `rank`, or nobody.
  PlanMaker::Worker& comes(const std::string& worker, std::uint64_t life, std::optional<std::int32_t> rank = {}) {
    wire::Member& m = members_.emplace_back();
    m.set_worker_id(worker);
    m.set_incarnation(life);
    m.set_host_id("host of " + worker);
    m.set_domain_id("domain of " + worker);
    workers_.push_back({&m, false, nullptr, &logged_.emplace_back(), rank ? std::optional(Rank(*rank)) : std::nullopt});
    return workers_.back();
  }
  // The life of before() goes on.
  PlanMaker::Worker& stays(std::int32_t rank) {
    members_.push_back(before_.members(rank));
    workers_.push_back({&members_.back(), true, nullptr, &logged_.emplace_back(), Rank(rank)});
    return workers_.back();
  }
  wire::Logged& logged_by_last() { return logged_.back(); }

  Timeline timeline(Timeline newest, const PlanStart& start = {}) const {
    PlanMaker maker(before_, settings_, false);
    maker.seat(workers_, plan_simply);
    return maker.timeline(newest, start);
  }
  wire::Plan make(PlanStart start = {}, bool other_world = false) const {
    PlanMaker maker(before_, settings_, other_world);
    maker.seat(workers_, plan_simply);
    PlanMaker::Facts facts{Generation(before_.generation() + 1), Timeline(before_.timeline()), Timeline(), {}, {}};
    if (start.ends_timeline) facts.timeline = facts.timeline.next();
    return maker.make(facts, std::move(start));
  }

 private:
  wire::Plan before_;
  wire::JobSettings settings_;
  std::list<wire::Member> members_;
  std::list<wire::Logged> logged_;
  std::vector<PlanMaker::Worker> workers_;
};

// "w0=10" by rank; "-" for a place that nobody has had, "(w0=10)" for an absent one.
std::string seats(const wire::Plan& plan) {
  std::string text;
  for (const wire::Member& m : plan.members()) {
    const std::string who = is_vacant(m) ? "-" : m.worker_id() + "=" + std::to_string(m.incarnation());
    text += (text.empty() ? "" : " ") + (m.absent() && !is_vacant(m) ? "(" + who + ")" : who);
  }
  return text;
}

PlanStart resumed(std::vector<wire::Position> frontier = {}) {
  PlanStart start;
  start.frontier = std::move(frontier);
  start.goes_on = true;
  return start;
}

TEST(PlanMaker, ANewJobHasItsWorkersInTheOrderOfTheirNumbers) {
  Table t(4);
  for (const auto& [worker, life] :
       {std::pair("w10", 1), std::pair("w9", 2), std::pair("w009", 3), std::pair("v", 4)}) {
    (void)t.comes(worker, static_cast<std::uint64_t>(life));
  }
  const wire::Plan plan = t.make();
  EXPECT_EQ(seats(plan), "v=4 w009=3 w9=2 w10=1");
  EXPECT_EQ(plan.run(), 4u);  // the first rank's life
  EXPECT_EQ(plan.generation(), 1u);
  for (const wire::Member& m : plan.members()) {
    EXPECT_TRUE(m.fresh());
    EXPECT_EQ(m.since(), 1u);
    EXPECT_EQ(m.lives(), 1u);
  }
}

TEST(PlanMaker, ANewJobThatBeginsShortHasItsLastPlacesEmpty) {
  Table t(3);
  (void)t.comes("b", 2);
  (void)t.comes("a", 1);
  const wire::Plan plan = t.make();
  EXPECT_EQ(seats(plan), "a=1 b=2 -");
  EXPECT_TRUE(plan.members(2).absent());
  ASSERT_EQ(plan.absences_size(), 1);
  EXPECT_EQ(plan.absences(0).ranks(0), 2u);
}

TEST(PlanMaker, ASurvivorGoesOnInItsLifeAndANewLifeIsFresh) {
  Table t(2);
  t.before() = plan_of(4, {{"w0", 10}, {"w1", 11}});
  t.before().set_run(10);
  t.before().mutable_members(1)->set_lives(3);
  (void)t.stays(0);
  (void)t.comes("w1", 21, 1);
  const wire::Plan plan = t.make(resumed());
  EXPECT_EQ(seats(plan), "w0=10 w1=21");
  EXPECT_EQ(plan.run(), 10u);
  EXPECT_FALSE(plan.members(0).fresh());
  EXPECT_TRUE(plan.members(1).fresh());
  EXPECT_EQ(plan.members(1).lives(), 4u);
  EXPECT_EQ(plan.members(1).since(), 5u);
}

TEST(PlanMaker, APlaceWhoseWorkerDoesNotComeStaysEmptyAndItsOwn) {
  Table t(3);
  t.before() = plan_of(4, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  (void)t.stays(0);
  (void)t.stays(2);
  PlanStart start = resumed({position(2, 6)});
  (void)end_timeline(start, Timeline());
  const wire::Plan plan = t.make(start);
  EXPECT_EQ(seats(plan), "w0=10 (w1=11) w2=12");
  EXPECT_EQ(plan.timeline(), 1u);
  ASSERT_EQ(plan.absences_size(), 1);
  EXPECT_EQ(plan.absences(0).timeline(), 1u);
  EXPECT_EQ(plan.absences(0).ranks(0), 1u);
}

TEST(PlanMaker, NamesOldAbsencesAsLongAsRoundsAreOfTheirTimelines) {
  Table t(2);
  t.before() = plan_of(4, {{"w0", 10}, {"w1", 11}});
  for (const std::uint32_t timeline : {1u, 2u}) {
    wire::Absence& a = *t.before().add_absences();
    a.set_timeline(timeline);
    a.add_ranks(1);
  }
  (void)t.stays(0);
  (void)t.stays(1);
  PlanStart start = resumed();
  start.kept.emplace_back().set_timeline(2);
  const wire::Plan plan = t.make(start);
  ASSERT_EQ(plan.absences_size(), 1);
  EXPECT_EQ(plan.absences(0).timeline(), 2u);
}

TEST(PlanMaker, AWorldOfAnotherSizeCountsLivesAnew) {
  Table t(1);
  t.before() = plan_of(4, {{"w0", 10}, {"w1", 11}});
  t.before().mutable_members(0)->set_lives(5);
  (void)t.comes("w0", 20);
  EXPECT_EQ(t.make({}, true).members(0).lives(), 1u);
}

TEST(PlanMaker, SaysHowFarTheJobIsButNothingEmpty) {
  Table t(1);
  t.before() = plan_of(4, {{"w0", 10}});
  (void)t.stays(0);
  const wire::Plan plan = t.make(resumed({in_flight(2, 5, 0, 4, 8), position(3, 0), position(4, 0, true)}));
  ASSERT_EQ(plan.frontier_size(), 2);
  EXPECT_EQ(render(plan.frontier(0)), "2.5[0,4)");
  EXPECT_EQ(plan.frontier(0).total_bytes(), 0u);  // of no use once it is decided
  EXPECT_EQ(render(plan.frontier(1)), "4.0|");
}

TEST(PlanMaker, ATimelineGoesOnWithALifeOrWhatLivesHaveLogged) {
  Table t(2);
  t.before() = plan_of(4, {{"w0", 10}, {"w1", 11}});
  (void)t.stays(0);
  (void)t.comes("w1", 21, 1);
  EXPECT_EQ(t.timeline(Timeline(3)), Timeline(3));
  PlanStart ended;
  ended.ends_timeline = true;
  EXPECT_EQ(t.timeline(Timeline(3), ended), Timeline(4));
  Table dead(1);
  dead.before() = plan_of(4, {{"w0", 10}});
  (void)dead.comes("w0", 20, 0);
  EXPECT_EQ(dead.timeline(Timeline(3), resumed()), Timeline(3));
  EXPECT_EQ(dead.timeline(Timeline(3)), Timeline(4));
}

TEST(PlanMaker, ANewTimelineIsLaterThanAllThatDisksAndMemoryTell) {
  Table t(2);
  t.before() = plan_of(4, {{"w0", 10}, {"w1", 11}});
  t.before().set_run(10);
  wire::Held held;
  held.add_rounds()->set_timeline(6);
  held.add_rounds()->set_timeline(UINT32_MAX - 1);  // no job has come so far
  t.comes("w0", 20, 0).held = &held;
  (void)t.comes("w1", 21, 1);
  EXPECT_EQ(t.timeline(Timeline(3)), Timeline(7));
  t.logged_by_last().set_timeline(8);
  EXPECT_EQ(t.timeline(Timeline(3)), Timeline(7));  // of another run
  t.logged_by_last().set_run(10);
  EXPECT_EQ(t.timeline(Timeline(3)), Timeline(9));
}

TEST(PlanMaker, AJobThatBeginsAnewIsLaterThanWhatLaunchersHaveKept) {
  Table t(1);
  (void)t.comes("w0", 20);
  t.logged_by_last().set_timeline(5);
  EXPECT_EQ(t.timeline(Timeline()), Timeline());
  *t.logged_by_last().add_positions() = position(1, 2);
  EXPECT_EQ(t.timeline(Timeline()), Timeline(6));
}

TEST(PlanMaker, WithoutALogThereIsOneTimeline) {
  Table t(1, 0);
  t.before() = plan_of(4, {{"w0", 10}});
  (void)t.comes("w0", 20, 0);
  EXPECT_EQ(t.timeline(Timeline()), Timeline());
}

TEST(PlanMaker, APlannerMustSeatEverybodyOnce) {
  const wire::Plan before;
  const wire::JobSettings of_two = settings(2, 2);
  wire::Member a, b;
  a.set_worker_id("a");
  b.set_worker_id("b");
  const wire::Logged logged;
  const std::vector<PlanMaker::Worker> workers = {{&a, false, nullptr, &logged, {}}, {&b, false, nullptr, &logged, {}}};
  const auto seat = [&](PlannerOutput out) {
    PlanMaker(before, of_two, false).seat(workers, [&](std::span<const PlannerInput>) { return out; });
  };
  EXPECT_DEATH(seat({{Rank(0), Rank(0)}, {0, 1}, {2, 2}}), "ranks are a permutation");
  EXPECT_DEATH(seat({{Rank(0), Rank(2)}, {0, 1}, {2, 2}}), "ranks are a permutation");
  EXPECT_DEATH(seat({{Rank(0)}, {0}, {1}}), "the planner plans for everybody");
}

}  // namespace
}  // namespace warren::test

#include "recovery/tracker/spare_bench.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "recovery/base/limits.h"

namespace warren::test {
namespace {

constexpr std::int64_t kTimeoutMs = 100;
constexpr std::int64_t kPatienceWithCalledMs = 20;

SpareBench::Spare spare(std::uint64_t life, const std::string& host = "h", std::uint64_t arrival = 1) {
  return {Incarnation(life), host, "d", arrival, TimeMs{0}, {}};
}

// s0 and s1, of hosts h0 and h1, in the order of their arrival.
SpareBench two_spares() {
  SpareBench bench;
  bench.add("s0", spare(10, "h0", 1));
  bench.add("s1", spare(11, "h1", 2));
  return bench;
}

TEST(SpareBench, ASpareComesAndGoes) {
  SpareBench bench = two_spares();
  EXPECT_EQ(bench.size(), 2u);
  EXPECT_TRUE(bench.contains(Incarnation(11)));
  ASSERT_NE(bench.find("s1"), nullptr);
  EXPECT_EQ(*bench.worker_of(Incarnation(11)), "s1");
  bench.check();
  EXPECT_EQ(bench.take("s1").life, Incarnation(11));
  EXPECT_EQ(bench.find("s1"), nullptr);
  EXPECT_EQ(bench.worker_of(Incarnation(11)), nullptr);
  EXPECT_DEATH((void)bench.take("s1"), "only a spare is taken off the bench");
  bench.check();
}

TEST(SpareBench, ASpareWaitsInOneLife) {
  SpareBench bench = two_spares();
  EXPECT_DEATH(bench.add("s0", spare(20)), "a spare waits in one life");
}

TEST(SpareBench, HasRoomForSoManySpares) {
  SpareBench bench;
  for (std::uint64_t i = 0; i < limits::kMaxSpares; ++i) {
    EXPECT_FALSE(bench.full());
    bench.add("s" + std::to_string(i), spare(10 + i));
  }
  EXPECT_TRUE(bench.full());
  bench.check();
}

TEST(SpareBench, ASpareIsCalledForARankAndAnswers) {
  SpareBench bench = two_spares();
  bench.call("s1", 3, TimeMs{5});
  EXPECT_EQ(bench.calls().at(3), "s1");
  EXPECT_EQ(bench.called_for(3).life, Incarnation(11));
  EXPECT_DEATH(bench.call("s0", 3, TimeMs{6}), "one spare is called for a rank");
  bench.check();
  const SpareBench::Spare answers = bench.take("s1");
  ASSERT_TRUE(answers.call);
  EXPECT_EQ(answers.call->place, 3u);
  EXPECT_TRUE(bench.calls().empty());
  bench.check();
}

TEST(SpareBench, ACallEndsWhenTheRankIsFreeNoMore) {
  SpareBench bench = two_spares();
  bench.call("s0", 3, TimeMs{5});
  EXPECT_TRUE(bench.end_call(3));
  EXPECT_FALSE(bench.end_call(3));
  EXPECT_FALSE(bench.at("s0").call);
  bench.call("s0", 4, TimeMs{6});
  bench.check();
}

TEST(SpareBench, ACalledSpareThatIsSilentStandsBehindTheOthers) {
  SpareBench bench = two_spares();
  bench.call("s0", 3, TimeMs{5});
  EXPECT_EQ(SpareBench::answer_due(bench.at("s0"), kPatienceWithCalledMs), TimeMs{25});
  bench.hear(Incarnation(10), TimeMs{10});
  EXPECT_TRUE(bench.overdue(TimeMs{29}, kPatienceWithCalledMs).empty());
  EXPECT_EQ(bench.overdue(TimeMs{30}, kPatienceWithCalledMs), std::vector<std::size_t>{3});
  bench.pass_over(3, 7);
  EXPECT_EQ(bench.at("s0").arrival, 7u);
  EXPECT_FALSE(bench.at("s0").call);
  EXPECT_TRUE(bench.calls().empty());
}

TEST(SpareBench, TheChoiceIsAmongThoseThatAreIdle) {
  SpareBench bench = two_spares();
  bench.call("s0", 3, TimeMs{5});
  const SpareBench::Idle idle =
      bench.those([](const std::string&, const SpareBench::Spare& s) { return !s.call.has_value(); });
  ASSERT_EQ(idle.workers, std::vector<std::string>{"s1"});
  ASSERT_EQ(idle.spares.size(), 1u);
  EXPECT_EQ(idle.spares[0].host_id, "h1");
  EXPECT_EQ(idle.spares[0].arrival, 2u);
}

TEST(SpareBench, AHostWhoseSparesWereOfNoUseIsNotCountedOnUntilTheNextInterrupt) {
  SpareBench bench = two_spares();
  bench.call("s0", 3, TimeMs{5});
  bench.call("s1", 4, TimeMs{5});
  EXPECT_EQ(bench.hosts_called(), (std::set<std::string>{"h0", "h1"}));
  bench.note_nothing_on("h0");
  bench.note_silent("h1");
  EXPECT_TRUE(bench.was_silent("h1"));
  EXPECT_TRUE(bench.hosts_called().empty());
  bench.forgive("h0");  // it was not silent: it has nothing
  bench.forgive("h1");
  EXPECT_EQ(bench.hosts_called(), std::set<std::string>{"h1"});
  bench.hold_back(true);
  EXPECT_EQ(bench.forget_interrupt(), 2u);
  EXPECT_TRUE(bench.counts_on("h0"));
  EXPECT_FALSE(bench.held_back());
  EXPECT_TRUE(bench.calls().empty());
  EXPECT_FALSE(bench.at("s0").call);
}

TEST(SpareBench, AFirstCheckpointIsNews) {
  SpareBench bench = two_spares();
  EXPECT_FALSE(bench.follow("s0", kPreamble));
  EXPECT_TRUE(bench.follow("s0", Version(2)));
  EXPECT_FALSE(bench.follow("s0", Version(3)));
  EXPECT_EQ(bench.at("s0").followed, Version(3));
}

TEST(SpareBench, PlansAreToldOneAfterTheOther) {
  SpareBench bench = two_spares();
  const Generation plan(4);
  EXPECT_TRUE(bench.may_tell_plan("s0", plan, TimeMs{0}, kTimeoutMs));
  bench.note_told("s0", plan, TimeMs{0}, std::size_t{10} << 15);  // takes 10 ms
  EXPECT_FALSE(bench.may_tell_plan("s1", plan, TimeMs{9}, kTimeoutMs));
  EXPECT_TRUE(bench.may_tell_plan("s1", plan, TimeMs{10}, kTimeoutMs));
  // The plan may have been lost on its way.
  EXPECT_FALSE(bench.may_tell_plan("s0", plan, TimeMs{99}, kTimeoutMs));
  EXPECT_TRUE(bench.may_tell_plan("s0", plan, TimeMs{100}, kTimeoutMs));
  EXPECT_TRUE(bench.may_tell_plan("s0", plan.next(), TimeMs{10}, kTimeoutMs));
}

TEST(SpareBench, NobodyIsSilentWhileTheTrackerHearsNobody) {
  SpareBench bench = two_spares();
  bench.hear(Incarnation(11), TimeMs{50});
  bench.hear(Incarnation(99), TimeMs{60});  // it is no spare
  bench.excuse(TimeMs{20});
  EXPECT_EQ(bench.at("s0").heard, TimeMs{20});
  EXPECT_EQ(bench.at("s1").heard, TimeMs{50});
}

TEST(SpareBench, ForgetsAllAtOnce) {
  SpareBench bench = two_spares();
  bench.call("s0", 3, TimeMs{5});
  bench.clear();
  EXPECT_TRUE(bench.empty());
  EXPECT_TRUE(bench.workers().empty());
  EXPECT_TRUE(bench.calls().empty());
  bench.check();
}

}  // namespace
}  // namespace warren::test

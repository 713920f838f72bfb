#include "recovery/tracker/leavers.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

constexpr Incarnation kLife{10};

wire::Member a_member(Incarnation life = kLife) {
  wire::Member m;
  m.set_incarnation(life.value);
  m.set_worker_id("w0");
  m.set_host_id("h0");
  m.set_rank(3);
  m.set_since(2);
  m.set_waits(true);
  m.set_local_size(4);
  return m;
}

// A life that has gone as far as version 2, and serves for 500 ms.
wire::Leave leave(std::uint64_t generation = 0) {
  wire::Leave l;
  l.set_generation(generation);
  l.set_serves_ms(500);
  *l.mutable_logged()->add_positions() = position(2, 7);
  *l.mutable_logged()->add_positions() = position(1, 9);
  *l.add_setups() = setup(0, 7, true);
  return l;
}

TEST(Leavers, ARankLeavesAndServes) {
  Leavers leavers;
  const Leavers::Server& s = leavers.serve(a_member(), leave(), TimeMs{100});
  EXPECT_TRUE(leavers.serves(kLife));
  EXPECT_EQ(s.newest, Version(2));
  EXPECT_EQ(s.logged.positions_size(), 2);
  EXPECT_EQ(s.setups.size(), 1);
  EXPECT_EQ(s.heard, TimeMs{100});
  EXPECT_EQ(s.until, TimeMs{600});
  // As a server it has neither place on its host nor a launcher that waits.
  EXPECT_EQ(s.member.host_id(), "h0");
  EXPECT_EQ(s.member.rank(), 3u);
  EXPECT_EQ(s.member.since(), 0u);
  EXPECT_FALSE(s.member.waits());
  EXPECT_EQ(s.member.local_size(), 0u);
  leavers.check();
}

TEST(Leavers, AServerKnowsWhatItMayServeOnceItHasThePlanThatNamesIt) {
  Leavers leavers;
  const Leavers::Server& s = leavers.serve(a_member(), leave(4), TimeMs{0});
  EXPECT_FALSE(s.unaware());  // no plan has named it
  EXPECT_FALSE(leavers.hear(kLife, leave(4), TimeMs{1}));
  leavers.name_in(Generation(5));
  EXPECT_EQ(leavers.unaware(), std::vector<Incarnation>{kLife});
  EXPECT_FALSE(leavers.hear(kLife, leave(4), TimeMs{2}));
  EXPECT_TRUE(leavers.hear(kLife, leave(5), TimeMs{3}));
  EXPECT_FALSE(leavers.hear(kLife, leave(5), TimeMs{4}));  // it did before
  EXPECT_TRUE(leavers.unaware().empty());
  leavers.name_in(Generation(6));  // the first plan counts
  EXPECT_EQ(s.member.since(), 5u);
  EXPECT_TRUE(leavers.unaware().empty());
}

TEST(Leavers, EachWordGivesAServerMoreTime) {
  Leavers leavers;
  const Leavers::Server& s = leavers.serve(a_member(), leave(), TimeMs{0});
  (void)leavers.hear(kLife, leave(), TimeMs{50});
  EXPECT_EQ(s.heard, TimeMs{50});
  EXPECT_EQ(s.until, TimeMs{550});
  // The tracker was held up.
  leavers.excuse(TimeMs{40});
  leavers.prolong(TimeMs{500});
  EXPECT_EQ(s.heard, TimeMs{50});
  EXPECT_EQ(s.until, TimeMs{550});
  leavers.excuse(TimeMs{60});
  leavers.prolong(TimeMs{700});
  EXPECT_EQ(s.heard, TimeMs{60});
  EXPECT_EQ(s.until, TimeMs{700});
}

TEST(Leavers, AServerOfTheJournalMayHaveGoneAsFarAsAnybody) {
  Leavers leavers;
  leavers.restore(a_member(), Version(4), TimeMs{10}, TimeMs{60});
  const Leavers::Server& s = leavers.servers().at(kLife);
  EXPECT_EQ(s.newest, Version(4));
  EXPECT_EQ(s.heard, TimeMs{10});
  EXPECT_EQ(s.until, TimeMs{60});
  EXPECT_TRUE(s.unaware());  // it has to say again that it has the plan
}

TEST(Leavers, AServerIsToldOnceThatItMayGo) {
  Leavers leavers;
  (void)leavers.serve(a_member(), leave(), TimeMs{0});
  EXPECT_EQ(leavers.remove(kLife).worker_id(), "w0");
  EXPECT_FALSE(leavers.serves(kLife));
  EXPECT_DEATH((void)leavers.remove(kLife), "only a server can cease to serve");
}

TEST(Leavers, FarewellsAreKeptForTheNextPlan) {
  Leavers leavers;
  leavers.say_farewell(leave(), "h0");
  leavers.say_farewell(leave(), "h1");
  ASSERT_EQ(leavers.farewells().size(), 2u);
  EXPECT_EQ(leavers.farewells()[1].host_id, "h1");
  EXPECT_EQ(leavers.farewell_bytes(), 2 * leave().ByteSizeLong());
  leavers.check();
  leavers.forget_farewells();
  EXPECT_TRUE(leavers.farewells().empty());
  EXPECT_EQ(leavers.farewell_bytes(), 0u);
}

TEST(Leavers, ARollbackUndoesWhatTheyHaveSaidAndServersStay) {
  Leavers leavers;
  (void)leavers.serve(a_member(), leave(), TimeMs{0});
  leavers.say_farewell(leave(), "h1");
  leavers.forget_what_they_said();
  const Leavers::Server& s = leavers.servers().at(kLife);
  EXPECT_EQ(s.logged.positions_size(), 0);
  EXPECT_TRUE(s.setups.empty());
  EXPECT_EQ(s.newest, kPreamble);
  EXPECT_EQ(s.until, TimeMs{500});
  EXPECT_TRUE(leavers.farewells().empty());
  leavers.check();
}

}  // namespace
}  // namespace warren::test

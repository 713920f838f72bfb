// Links that end one generation after the other, in which nothing gets done: another way, or the end.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Ranks with a log, on these hosts, which wait for half a minute to join.
class Links : public TrackerScript {
 public:
  explicit Links(std::vector<std::string> hosts, bool rewire = true)
      : TrackerScript(true, 2), hosts_(std::move(hosts)) {
    for (std::size_t rank = 0; rank < hosts_.size(); ++rank) {
      lives_.push_back(10 + rank);
      join_as(rank, rewire);
    }
    (void)breaks(0, 1);  // some rounds have been done by then
  }
  void join_as(std::size_t rank, bool rewire = true) {
    wire::Envelope e = promised(lives_[rank]);
    wire::Join& j = *e.mutable_join();
    j = test::join("w" + std::to_string(rank), hosts_[rank], static_cast<std::uint32_t>(hosts_.size()), 2);
    j.mutable_settings()->set_rewire(rewire);
    j.set_join_timeout_ms(30'000);
    (void)send(std::move(e));
  }
  // One says that it has no link to another, and all live on, having done so many rounds.
  std::string breaks(std::size_t rank, std::uint32_t peer, std::uint64_t rounds = 3,
                     const std::string& evidence = "cannot connect") {
    std::string text = link_broken(lives_[rank], generation_, peer, lives_[peer], evidence);
    text += pass(2000);
    ++generation_;
    for (const std::uint64_t life : lives_) text += report(life, generation_, 1, {position(1, rounds)});
    return text;
  }
  // Likewise, of a rank of which all others say so.
  std::string all_break(std::uint32_t peer) {
    std::string text;
    for (std::size_t rank = 0; rank < lives_.size(); ++rank) {
      if (rank != peer) text += link_broken(lives_[rank], generation_, peer, lives_[peer], "it maps nothing");
    }
    text += pass(2000);
    ++generation_;
    for (const std::uint64_t life : lives_) text += report(life, generation_, 1, {position(1, 3)});
    return text;
  }
  std::string finishes_a_round(std::size_t rank) {
    wire::Envelope e = from_worker(lives_[rank]);
    e.mutable_heartbeat()->set_generation(generation_);
    e.mutable_heartbeat()->set_beat(++beat_);
    e.mutable_heartbeat()->set_rounds_finished(++finished_);
    return send(std::move(e));
  }
  void starts_again(std::size_t rank) {
    lives_[rank] += 100;
    join_as(rank);
    ++generation_;
    for (std::size_t r = 0; r < lives_.size(); ++r) {
      if (r != rank) (void)report(lives_[r], generation_, 1, {position(1, 3)});
    }
  }
  [[nodiscard]] std::string hosts() {
    std::string text;
    for (const auto& m : machine().view(TimeMs{now()}).members) text += (text.empty() ? "" : " ") + m.host_id;
    return text;
  }
  [[nodiscard]] std::string detours() {
    std::string text;
    for (const wire::Detour& d : machine().view(TimeMs{now()}).detours) {
      text += std::to_string(d.a()) + "-" + std::to_string(d.b()) + " by";
      for (const std::uint32_t relay : d.relays()) text += " " + std::to_string(relay);
    }
    return text;
  }
  [[nodiscard]] bool lost() { return machine().view(TimeMs{now()}).lost; }

 private:
  std::vector<std::string> hosts_;
  std::vector<std::uint64_t> lives_;
  std::uint64_t generation_ = 1, beat_ = 0, finished_ = 0;
};

TEST(Unusable, ALinkBetweenHostsThatNeverComesUpGoesByWayOfOthers) {
  Links t({"a", "b", "c"});
  (void)t.breaks(0, 1);
  (void)t.breaks(1, 0);
  EXPECT_EQ(t.detours(), "") << "twice may be chance";
  (void)t.breaks(0, 1);
  EXPECT_EQ(t.detours(), "0-1 by 2");
}

TEST(Unusable, WithoutAnotherWayTheJobEndsAfterTheJoinTimeoutAndNamesBothEndsAndTheCause) {
  Links t({"a", "b"});
  std::string text;
  for (int i = 0; i < 20 && !t.lost(); ++i) {
    EXPECT_THAT(text, Not(HasSubstr("log job_lost")));
    text = t.breaks(static_cast<std::size_t>(i % 2), static_cast<std::uint32_t>(1 - i % 2), 3,
                    i % 2 == 0 ? "cannot connect to 10.0.0.2" : "nobody connects");
  }
  EXPECT_TRUE(t.lost());
  EXPECT_GE(t.now(), 30'000);
  EXPECT_THAT(text, HasSubstr("rank 0 (worker w0 on host a) and rank 1 (worker w1 on host b) have no usable link"));
  EXPECT_THAT(text, HasSubstr("and no round was completed in them; rank 0 says: cannot connect to 10.0.0.2; rank 1 "
                              "says: nobody connects"));
}

// A tracker that was started again has heard nobody join.
TEST(Unusable, ARestartedTrackerKnowsForHowLongTheWorkersWait) {
  Links t({"a", "b"});
  t.restart();
  for (int i = 0; i < 20 && !t.lost(); ++i) {
    (void)t.breaks(static_cast<std::size_t>(i % 2), static_cast<std::uint32_t>(1 - i % 2));
  }
  EXPECT_TRUE(t.lost());
}

TEST(Unusable, AJobIsSaidToBeWholeAgainOnceARoundIsDone) {
  Links t({"a", "b", "c"}, false);
  for (int i = 0; i < 4; ++i) EXPECT_THAT(t.breaks(0, 1), Not(HasSubstr("log recovered")));
  EXPECT_THAT(t.finishes_a_round(2), HasSubstr("log recovered: job j is whole again in generation 6, "));
  EXPECT_THAT(t.finishes_a_round(1), Not(HasSubstr("log recovered")));
}

TEST(Unusable, RanksOfOneHostThatShareNoMemoryBecomeHostsOfTheirOwn) {
  Links t({"a", "a", "b"});
  for (int i = 0; i < 2; ++i) (void)t.breaks(0, 1);
  EXPECT_EQ(t.hosts(), "a a b");
  EXPECT_THAT(t.breaks(0, 1), HasSubstr("log set_apart: rank 0 (worker w0) counts as a host of its own"));
  EXPECT_EQ(t.hosts(), "a:rank-0 a b");
  EXPECT_EQ(t.detours(), "");
  // The link goes by TCP; if that does not come up either, by way of others.
  for (int i = 0; i < 3; ++i) (void)t.breaks(0, 1);
  EXPECT_EQ(t.detours(), "0-1 by 2");
}

TEST(Unusable, OfThreeRanksTheOneThatMapsNothingIsSetApart) {
  Links t({"a", "a", "a"});
  for (int i = 0; i < 3; ++i) (void)t.all_break(1);
  EXPECT_EQ(t.hosts(), "a a:rank-1 a");
}

TEST(Unusable, AGenerationInWhichSomethingWasDoneCountsForTheLink) {
  Links t({"a", "b", "c"});
  for (std::uint64_t i = 0; i < 6; ++i) (void)t.breaks(0, 1, 3 + i);
  EXPECT_EQ(t.detours(), "");
  for (int i = 0; i < 6; ++i) {
    (void)t.finishes_a_round(2);
    (void)t.breaks(0, 1, 9);
  }
  EXPECT_EQ(t.detours(), "");
}

TEST(Unusable, AnotherLifeHasAnotherLink) {
  Links t({"a", "b", "c"});
  for (int i = 0; i < 2; ++i) (void)t.breaks(0, 1);
  t.starts_again(1);
  (void)t.breaks(0, 1);
  EXPECT_EQ(t.detours(), "");
}

TEST(Unusable, WhereTheUserWantsNoDetoursThereAreNone) {
  Links t({"a", "b", "c"}, false);
  for (int i = 0; i < 4; ++i) (void)t.breaks(0, 1);
  EXPECT_EQ(t.detours(), "");
}

}  // namespace
}  // namespace warren::test

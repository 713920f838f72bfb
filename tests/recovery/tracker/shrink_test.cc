// Going on without lost ranks, and with those that come back (docs/decisions/0020-shrink.md).
#include <gtest/gtest.h>

#include "recovery/base/limits.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

constexpr std::int64_t kGraceMs = 300, kTimeoutMs = 5000;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A job of three ranks, each on a host of its own unless said otherwise, that goes on with two.
class Job : public TrackerScript {
 public:
  explicit Job(std::uint32_t min_workers = 2, bool logs = false, std::int64_t grace_ms = kGraceMs)
      : TrackerScript(logs, 2), min_workers_(min_workers), grace_ms_(grace_ms) {}

  // `former`: the life whose memory its host has kept; 0: none.
  std::string joins(const std::string& worker, std::uint64_t life, const std::string& host, std::uint64_t called = 0,
                    std::uint64_t former = 0) {
    wire::Envelope e = promised(life);
    wire::Join& j = *e.mutable_join();
    j = test::join(worker, host, 3, 2);
    j.set_waits(true);
    j.set_called(called);
    if (disk_knows_) {
      j.mutable_held()->set_run(7);
      j.mutable_held()->mutable_known()->set_generation(3);
    }
    if (former != 0) {
      j.mutable_logged()->add_lives(former);
      j.mutable_logged()->set_run(10);
    }
    j.mutable_settings()->set_min_workers(min_workers_);
    j.mutable_settings()->set_grace_ms(static_cast<std::uint64_t>(grace_ms_));
    j.mutable_settings()->set_elastic_start(elastic_start_);
    return send(std::move(e));
  }
  // It is there, and has nothing new to say.
  std::string waits(const std::string& worker, std::uint64_t life, const std::string& host) {
    wire::Envelope e = promised(life);
    wire::Join& j = *e.mutable_join();
    j = test::join(worker, host, 3, 2);
    j.set_waits(true);
    j.set_spare(true);
    j.mutable_settings()->set_min_workers(min_workers_);
    j.mutable_settings()->set_grace_ms(static_cast<std::uint64_t>(grace_ms_));
    j.mutable_settings()->set_elastic_start(elastic_start_);
    return send(std::move(e));
  }
  // Of all who join from here on.
  void may_begin_short(bool may = true) { elastic_start_ = may; }
  void disks_know_a_job() { disk_knows_ = true; }
  // Time passes, and these wait: worker, life, host.
  struct Comer {
    std::string worker;
    std::uint64_t life;
    std::string host;
  };
  std::string wait_for(std::int64_t ms, const std::vector<Comer>& comers) {
    std::string text;
    for (std::int64_t left = ms; left > 0; left -= 1000) {
      text += pass(std::min<std::int64_t>(left, 1000));
      for (const Comer& c : comers) text += joins(c.worker, c.life, c.host);
    }
    return text;
  }
  // With ranks 0 and 1, or rank 0 alone.
  void begin_short(bool alone = false) {
    may_begin_short();
    std::vector<Comer> comers = {{"w0", 10, "a"}, {"w1", 11, "b"}};
    if (alone) comers.pop_back();
    for (const Comer& c : comers) (void)joins(c.worker, c.life, c.host);
    ASSERT_TRUE(has(wait_for(kTimeoutMs, comers), alone
                                                      ? "10 <- Plan generation 1 w0=10 nobody (absent) nobody (absent)"
                                                      : "10 <- Plan generation 1 w0=10 w1=11 nobody (absent)"));
  }
  void begin() {
    (void)joins("w0", 10, "a");
    (void)joins("w1", 11, "b");
    ASSERT_TRUE(has(joins("w2", 12, "c"), "10 <- Plan generation 1 w0=10 w1=11 w2=12\n"));
  }
  // Rank 2 has left, and both others have stopped in generation 2.
  std::string lose_rank_2(std::vector<wire::Position> of_0, std::vector<wire::Position> of_1) {
    (void)give_up(12, 1);
    (void)report(10, 2, 1, std::move(of_0));
    return report(11, 2, 1, std::move(of_1));
  }
  // Rank 2 is lost, the job goes on, and w2 comes back at the next commit. Ranks 0 and 1 have stopped for it.
  void take_w2_in() {
    begin();
    (void)lose_rank_2({position(1, 3)}, {position(1, 3)});
    (void)pass_alive(kGraceMs, {10, 11}, 2);
    (void)joins("w2", 13, "c");
    for (const std::uint64_t life : {10, 11}) (void)vote(life, 2, {position(1, 5, true)}, 1);
    for (const std::uint64_t life : {10, 11}) (void)report(life, 3, 2, {position(1, 5, true), position(2, 1)});
  }
  // Ranks 1 and 2 are lost, rank 0 goes on, and the tracker starts again.
  void leave_rank_0_alone() {
    begin();
    for (const std::uint64_t life : {11, 12}) (void)give_up(life, 1);
    (void)report(10, 2, 1, {position(1, 3)});
    ASSERT_TRUE(has(pass_alive(kGraceMs, {10}, 2), "w1 (absent) w2 (absent) timeline 1"));
    restart(false);
  }
  [[nodiscard]] TrackerMachine::View view() { return machine().view(TimeMs{now()}); }

 private:
  std::uint32_t min_workers_;
  std::int64_t grace_ms_;
  bool elastic_start_ = false, disk_knows_ = false;
};

// Rank 2 is lost, and the others have these positions. Returns the plan that follows.
std::string planned_after(std::vector<wire::Position> of_0, std::vector<wire::Position> of_1) {
  Job t;
  t.begin();
  (void)t.lose_rank_2(std::move(of_0), std::move(of_1));
  return t.pass_alive(kGraceMs, {10, 11}, 2);
}

TEST(Shrink, HowTheJobGoesOnIsSaid) {
  Job t(2, true);
  t.begin();
  (void)t.lose_rank_2({position(1, 3)}, {position(1, 3)});
  const std::string text = t.pass_alive(kGraceMs, {10, 11}, 2);
  EXPECT_TRUE(
      has(text,
          "log recovered: job j goes on in generation 2 without 1 of its 3 ranks, 300 ms after the tracker noticed "
          "the end of generation 1; all of them are the processes of before\n"))
      << text;
}

TEST(Shrink, GoesOnWithoutTheLostRankOnceTheGraceIsOver) {
  Job t;
  t.begin();
  EXPECT_FALSE(has(t.lose_rank_2({position(1, 3)}, {position(1, 3)}), "Plan"));
  EXPECT_FALSE(has(t.pass_alive(kGraceMs - 1, {10, 11}, 2), "Plan"));
  const std::string planned = t.pass(1);
  // What is computed from here on has other names, and says who is not in it.
  EXPECT_TRUE(has(planned,
                  "10 <- Plan generation 2 w0=10 (as before) w1=11 (as before) w2 (absent) timeline 1 1.3 1 below 3 of "
                  "timeline 0 without 2 in timeline 1\n"))
      << planned;
  EXPECT_FALSE(has(planned, "12 <- Plan"));
  EXPECT_TRUE(t.view().members[2].absent);
  // It needs nobody else: not to commit, and not to end.
  (void)t.vote(10, 2, {position(1, 4, true)}, 1);
  EXPECT_TRUE(has(t.vote(11, 2, {position(1, 4, true)}, 1), "10 <- Committed 2 timeline 1\n"));
  EXPECT_FALSE(has(t.pass_alive(2 * kTimeoutMs, {10, 11}, 2), "Pause")) << "the absent one is not missed";
  (void)t.finalize(10, 2);
  EXPECT_TRUE(has(t.finalize(11, 2), "10 <- Finished generation 2\n"));
}

TEST(Shrink, WhoIsBackWithinTheGraceIsWaitedForNoLonger) {
  Job t;
  t.begin();
  (void)t.lose_rank_2({position(1, 3)}, {position(1, 3)});
  EXPECT_TRUE(has(t.joins("w2", 13, "c"), "10 <- Plan generation 2 w0=10 (as before) w1=11 (as before) w2=13 1.3\n"))
      << "in the same timeline";
}

TEST(Shrink, ARoundWhoseWholeResultSurvivorsHoldIsCompleted) {
  EXPECT_TRUE(has(planned_after({in_flight(1, 3, 0, 8, 16)}, {in_flight(1, 3, 8, 16, 16)}),
                  "timeline 1 1.4 1 below 4 of timeline 0 without 2"));
}

TEST(Shrink, ARoundOfWhichSomethingIsMissingIsRunAgain) {
  EXPECT_TRUE(has(planned_after({in_flight(1, 3, 0, 8, 16)}, {in_flight(1, 3, 9, 16, 16)}),
                  "timeline 1 1.3 1 below 3 of timeline 0 without 2"));
  // Nobody knows how much it is, or they do not agree.
  EXPECT_TRUE(has(planned_after({position(1, 0, false, {{0, 8}})}, {position(1, 0)}),
                  "(absent) timeline 1 without 2 in timeline 1\n"));
  EXPECT_TRUE(has(planned_after({in_flight(1, 3, 0, 8, 8)}, {in_flight(1, 3, 0, 8, 16)}), "1 below 3 of timeline 0"));
}

TEST(Shrink, AResultWithoutBytesIsWholeWhereItIsPublished) {
  wire::Position published = position(1, 3);
  published.set_empty(true);
  EXPECT_TRUE(has(planned_after({published}, {position(1, 3)}), "timeline 1 1.4 1 below 4 of timeline 0 without 2"));
}

// A host had all of the round's result, said so, and was lost before anybody else had any of it.
TEST(Shrink, AWholeResultThatIsLostMeanwhileIsComputedAgainUnderAnotherName) {
  Job t;
  t.begin();
  (void)t.lose_rank_2({in_flight(1, 3, 0, 16, 16)}, {position(1, 3)});
  ASSERT_TRUE(has(t.pass_alive(kGraceMs, {10, 11}, 2), "timeline 1 1.4 1 below 4 of timeline 0 without 2"));
  (void)t.give_up(10, 2);
  (void)t.report(11, 3, 1, {position(1, 3)});
  ASSERT_TRUE(has(t.joins("w0", 14, "a"), "Plan generation 3"));
  EXPECT_TRUE(has(t.log_gap(11, 3), "11 <- Pause generation 4"));
  (void)t.report(14, 4, 0, {});
  const std::string planned = t.report(11, 4, 1, {position(1, 3)}) + t.pass_alive(kGraceMs, {14, 11}, 4);
  EXPECT_TRUE(has(planned, "timeline 2 1.3 1 below 3 of timeline 0 without 2")) << planned;
}

TEST(Shrink, WhoIsFurtherHasCompletedTheRound) {
  Job t;
  t.begin();
  (void)t.lose_rank_2({position(1, 4)}, {in_flight(1, 3, 0, 8, 16)});
  EXPECT_TRUE(has(t.pass_alive(kGraceMs, {10, 11}, 2), "timeline 1 1.4 1 below 4 of timeline 0 without 2"));
}

TEST(Shrink, NeverToFewerThanAreNeeded) {
  Job t(3);
  t.begin();
  (void)t.lose_rank_2({position(1, 3)}, {position(1, 3)});
  EXPECT_FALSE(has(t.pass_alive(60'000, {10, 11}, 2), "Plan"));
  EXPECT_TRUE(has(t.joins("w2", 13, "c"), "Plan generation 2 w0=10 (as before) w1=11 (as before) w2=13 1.3\n"));
}

TEST(Shrink, WhoComesBackWaitsAndIsTakenInWithTheNextCommit) {
  Job t;
  t.begin();
  (void)t.lose_rank_2({position(1, 3)}, {position(1, 3)});
  (void)t.pass_alive(kGraceMs, {10, 11}, 2);
  EXPECT_EQ(t.joins("w2", 13, "c"), "13 <- Welcome as a spare\n");
  (void)t.vote(10, 2, {position(1, 5, true)}, 1);
  const std::string committed = t.vote(11, 2, {position(1, 5, true)}, 1);
  EXPECT_TRUE(has(committed, "10 <- Committed 2 timeline 1\n")) << committed;
  EXPECT_TRUE(has(committed, "10 <- Pause generation 3")) << committed;
  (void)t.report(10, 3, 2, {position(1, 5, true), position(2, 1)});
  const std::string called = t.report(11, 3, 2, {position(1, 5, true), in_flight(2, 0, 0, 4, 8)});
  EXPECT_TRUE(has(called, "13 <- Called generation 3 stale\n"))
      << called << "what its host held may be of other inputs";
  const std::string planned = t.joins("w2", 13, "c", 3);
  EXPECT_TRUE(
      has(planned,
          "13 <- Plan generation 3 w0=10 (as before) w1=11 (as before) w2=13 timeline 2 2.1 2 below 1 of timeline "
          "1 without 2 in timeline 1 committed 2 in 1\n"))
      << planned;
}

TEST(Shrink, NobodyIsWaitedForThatComesInAndDoesNotAnswer) {
  Job t;
  t.take_w2_in();
  const std::string passed_over = t.pass_alive(kTimeoutMs, {10, 11}, 3);
  EXPECT_TRUE(
      has(passed_over, "10 <- Plan generation 3 w0=10 (as before) w1=11 (as before) w2 (absent) timeline 1 2.1"))
      << passed_over << "the same ranks, and so the same timeline";
}

TEST(Shrink, WhoWouldHaveToLoadWhatMayBeOutOfReachWaitsForTheNextCommit) {
  Job t(1);
  t.begin();
  (void)t.lose_rank_2({position(1, 3)}, {position(1, 3)});
  (void)t.pass_alive(kGraceMs, {10, 11}, 2);
  // With this one a second machine is gone since the beginning, and there are two copies.
  (void)t.give_up(11, 2);
  (void)t.report(10, 3, 1, {position(1, 4)});
  EXPECT_TRUE(has(t.joins("w2", 13, "c"), "13 <- Welcome 2 of 3"));
  EXPECT_TRUE(has(t.joins("w1", 14, "b"), "13 <- Welcome as a spare\n")) << "all are there";
  const std::string planned = t.pass_alive(kGraceMs, {10}, 3);
  EXPECT_TRUE(has(planned, "10 <- Plan generation 3 w0=10 (as before) w1 (absent) w2 (absent) timeline 2")) << planned;
  (void)t.joins("w1", 14, "b");
  (void)t.joins("w2", 13, "c");
  EXPECT_TRUE(has(t.vote(10, 2, {position(1, 5, true)}, 2), "10 <- Pause generation 4"));
  EXPECT_TRUE(has(t.report(10, 4, 2, {position(1, 5, true)}), "13 <- Called generation 4 stale\n"));
}

TEST(Shrink, ASuspectIsNotWaitedForLongerThanTheGrace) {
  Job t;
  t.begin();
  (void)t.link_broken(10, 1, 2, 12);
  (void)t.pass_alive(60, {10, 11}, 1);
  (void)t.report(10, 2, 1, {position(1, 3)});
  (void)t.report(11, 2, 1, {position(1, 3)});
  EXPECT_TRUE(has(t.pass_alive(kGraceMs, {10, 11}, 2), "w2 (absent) timeline 1"));
}

TEST(Shrink, ARestartedTrackerNeedsTheMembersThatAreThere) {
  Job t(1);
  t.leave_rank_0_alone();
  EXPECT_EQ(t.joins("w2", 13, "c"), "13 <- HeartbeatReply 1\n") << "whose place is empty has no say";
  // One of three, and all that are there.
  wire::Envelope e = t.promised(10);
  e.mutable_stopped()->set_generation(kMaxGeneration - 1);
  (void)t.send(std::move(e));
  EXPECT_EQ(t.joins("w2", 13, "c"), "13 <- Welcome as a spare\n");
  EXPECT_FALSE(has(t.pass_alive(2 * kTimeoutMs, {10}, 2), "Pause"));
}

// Seed 712465279: who was lost was waited for from the restart on, before anybody had heard of the interrupt.
TEST(Shrink, AfterARestartTheGraceBeginsWhenTheInterruptIsSaidAgain) {
  Job t;
  t.begin();
  (void)t.link_broken(10, 1, 2, 12);
  (void)t.pass_alive(60, {10, 11}, 1);
  t.restart();
  (void)t.give_up(12, 2);
  (void)t.report(10, 2, 1, {position(1, 3)});
  (void)t.report(11, 2, 1, {position(1, 3)});
  const std::int64_t said_ms = heartbeat_interval_ms(kTimeoutMs);
  EXPECT_FALSE(has(t.pass_alive(said_ms + kGraceMs - 1, {10, 11}, 2), "Plan"));
  EXPECT_TRUE(has(t.pass(1), "w2 (absent) timeline 1"));
}

TEST(Shrink, AJournalOlderThanTheNewestTimelineCannotGoOn) {
  Job t;
  t.begin();
  const std::string older = t.disk();
  (void)t.lose_rank_2({position(1, 3)}, {position(1, 3)});
  (void)t.pass_alive(kGraceMs, {10, 11}, 2);
  t.disk() = older;
  t.restart();
  (void)t.beat(10, 2);
  wire::Envelope e = t.promised(10);
  wire::Report& r = *e.mutable_report();
  r.set_generation(3);
  r.set_version(2);
  r.set_timeline(1);
  r.set_committed_version(2);
  r.set_committed_timeline(1);
  const std::string rolled_back = t.send(std::move(e));
  EXPECT_TRUE(has(rolled_back, "10 <- Interrupt generation 4")) << rolled_back;
  EXPECT_EQ(t.view().committed, Version(2)) << "what it has heard of since is told";
  EXPECT_EQ(t.view().timeline, Timeline(1)) << "the next one is above it";
}

// All start again from what is committed; ranks 0 and 1 come.
std::string roll_back(Job& t, bool with_memory) {
  t.begin();
  (void)t.vote(10, 2);
  (void)t.vote(11, 2);
  (void)t.vote(12, 2);
  (void)t.round_failed(10, 1, Code::kDesync, "they differ");
  (void)t.stopped(10, 2);
  (void)t.stopped(11, 2);
  (void)t.stopped(12, 2);
  std::string text;
  for (int i = 0; i < 8; ++i) {
    (void)t.joins("w0", 20, "a", 0, with_memory ? 10 : 0);
    (void)t.joins("w1", 21, "b", 0, with_memory ? 11 : 0);
    text += t.pass(1000);
  }
  return text;
}

TEST(Shrink, AfterARollbackTooItGoesOnWithThoseThatCome) {
  Job t;
  const std::string text = roll_back(t, true);
  EXPECT_TRUE(
      has(text, "20 <- Plan generation 2 w0=20 w1=21 w2 (absent) timeline 1 without 2 in timeline 1 committed 2"))
      << text;
}

TEST(Shrink, WhereThoseThatComeHoldNothingTheOthersAreWaitedFor) {
  Job t;
  EXPECT_FALSE(has(roll_back(t, false), "Plan generation 2"));
}

TEST(Shrink, WhoHasNotLoadedYetDoesNotGoOnWithoutThoseThatHoldIt) {
  Job t(1);
  t.begin();
  (void)t.vote(10, 2);
  (void)t.vote(11, 2);
  (void)t.vote(12, 2);
  // Two of three lose their machines one after the other; the second is replaced, and loads.
  (void)t.give_up(12, 1);
  (void)t.report(10, 2, 2);
  (void)t.report(11, 2, 2);
  ASSERT_TRUE(has(t.joins("w2", 13, "d"), "Plan generation 2"));
  (void)t.give_up(11, 2);
  (void)t.give_up(10, 2);
  wire::Envelope e = t.promised(13);
  e.mutable_report()->set_generation(3);
  EXPECT_FALSE(has(t.send(e), "Plan"));
  EXPECT_FALSE(has(t.pass_alive(60'000, {13}, 3), "Plan")) << "it would have nothing to load";
  EXPECT_FALSE(has(t.joins("w0", 20, "a", 0, 10), "Plan"));
  EXPECT_FALSE(has(t.pass_alive(2000, {13}, 3), "Plan")) << "two of the machines that voted are missing still";
  EXPECT_TRUE(has(t.joins("w1", 21, "b", 0, 11), "20 <- Plan generation 3 w0=20 w1=21 w2=13 (as before)"));
}

TEST(Shrink, WhoLooksForEverAtWhatItsHostHoldsHoldsUpNobodyForLong) {
  Job t;
  t.take_w2_in();
  std::string text;
  for (int i = 0; i < 7; ++i) {
    (void)t.waits("w2", 13, "c");
    text += t.pass_alive(1000, {10, 11}, 3);
  }
  EXPECT_TRUE(has(text, "10 <- Plan generation 3 w0=10 (as before) w1=11 (as before) w2 (absent)")) << text;
}

// Ranks 1 and 2 are lost, and what is committed cannot be loaded without one of their machines.
std::string lose_two(Job& t) {
  t.begin();
  for (const std::uint64_t life : {10, 11, 12}) (void)t.vote(life, 2);
  (void)t.give_up(12, 1);
  (void)t.give_up(11, 1);
  return t.report(10, 2, 2);
}

// What it would have to load may be on machines that never come back (simulated seed 812000719).
TEST(Shrink, WhoNeedsNotLoadDoesNotWaitForEverWithOneThatDoes) {
  Job t(1);
  (void)lose_two(t);
  EXPECT_FALSE(has(t.joins("w2", 13, "c"), "Plan")) << "two machines of three are out of reach, and may come back";
  EXPECT_TRUE(has(t.pass_alive(kGraceMs, {10}, 2), "10 <- Plan generation 2 w0=10 (as before) w1 (absent) w2 (absent)"))
      << t.transcript();
}

TEST(Shrink, WhoWasCalledAndIsGoneDoesNotStandForTheNextLifeOfItsHost) {
  Job t;
  (void)lose_two(t);
  std::string text = t.waits("s", 40, "b");
  text += t.pass_alive(12'000, {10}, 2);
  EXPECT_TRUE(has(text, "40 <- Called")) << text;
  text = "";
  for (int i = 0; i < 12; ++i) {
    text += t.waits("s", 41, "b");
    text += t.pass_alive(1000, {10}, 2);
  }
  EXPECT_TRUE(has(text, "41 <- Called")) << text;
}

TEST(Shrink, WhoIsCalledLateHasTheTimeToLook) {
  Job t;
  (void)lose_two(t);
  std::string text;
  const auto wait = [&](int seconds, bool spare) {
    for (int i = 0; i < seconds; ++i) {
      text += t.pass_alive(1000, {10}, 2);
      text += t.joins("w2", 23, "d");
      if (spare) text += t.waits("s", 40, "b");
    }
  };
  text += t.joins("w2", 23, "d");
  wait(12, false);
  text += t.waits("s", 40, "b");
  wait(3, true);
  EXPECT_TRUE(has(text, "40 <- Called")) << text;
  text += t.joins("s", 40, "b", 2, 11);
  EXPECT_TRUE(has(text, "10 <- Plan generation 2 w0=10 (as before) s=40 w2=23")) << text;
}

// It was counted on while it looked at its host, with which two machines of three are there.
TEST(Shrink, NoPlanIsMadeOutOfReachOnceALookerIsPassedOver) {
  Job t;
  t.begin();
  for (const std::uint64_t life : {10, 11, 12}) (void)t.vote(life, 2);
  for (const std::uint64_t life : {10, 11, 12}) (void)t.give_up(life, 1);
  std::string text;
  for (int i = 0; i < 15; ++i) {
    text += t.joins("w0", 20, "a", 0, 10);
    text += t.joins("w2", 23, "d");
    text += t.waits("w1", 21, "b");
    text += t.pass(1000);
  }
  EXPECT_TRUE(has(text, "21 <- Called")) << text;
  EXPECT_FALSE(has(text, "Plan generation 2")) << text;
}

TEST(Shrink, AnOlderJournalMayHaveAbsentRanksOfItsOwn) {
  Job t(1);
  t.begin();
  (void)t.lose_rank_2({position(1, 3)}, {position(1, 3)});
  (void)t.pass_alive(kGraceMs, {10, 11}, 2);
  const std::string older = t.disk();
  (void)t.give_up(11, 2);
  (void)t.report(10, 3, 1, {position(1, 4)});
  ASSERT_TRUE(has(t.pass_alive(kGraceMs, {10}, 3), "timeline 2"));
  t.disk() = older;
  t.restart();
  (void)t.beat(10, 3);
  wire::Envelope e = t.promised(10);
  e.mutable_report()->set_generation(4);
  e.mutable_report()->set_version(1);
  e.mutable_report()->set_timeline(2);
  EXPECT_TRUE(has(t.send(std::move(e)), "10 <- Interrupt generation 5"));
  EXPECT_EQ(t.view().timeline, Timeline(2));
}

// Places that nobody has had: settings.elastic_start.

TEST(Shrink, AJobThatMayBeginsWithThoseThatAreThereOnceNoMoreCome) {
  Job t;
  t.may_begin_short();
  (void)t.joins("w0", 10, "a");
  (void)t.joins("w1", 11, "b");
  EXPECT_FALSE(has(t.wait_for(kTimeoutMs - 1, {{"w0", 10, "a"}, {"w1", 11, "b"}}), "Plan"))
      << "members of a job that the journal has lost would be heard by then";
  const std::string planned = t.pass(1);
  EXPECT_TRUE(has(planned, "10 <- Plan generation 1 w0=10 w1=11 nobody (absent) without 2 in timeline 0\n")) << planned;
  EXPECT_TRUE(has(planned, "11 <- Plan generation 1"));
  const TrackerMachine::View v = t.view();
  EXPECT_TRUE(v.members[2].absent);
  EXPECT_EQ(v.members[2].worker_id, "");
  EXPECT_EQ(v.waits, std::vector<std::string>{"1 of the job's 3 places nobody has had yet: workers that wait for one "
                                              "come in once the next version is committed"});
  // It needs nobody else, and a tracker that is started again knows it.
  t.restart();
  EXPECT_TRUE(t.view().members[2].absent);
  (void)t.vote(10, 2, {position(1, 4, true)}, 0);
  EXPECT_TRUE(has(t.vote(11, 2, {position(1, 4, true)}, 0), "10 <- Committed 2 timeline 0\n"));
  EXPECT_FALSE(has(t.pass_alive(2 * kTimeoutMs, {10, 11}, 1), "Pause")) << "nobody is missed";
  (void)t.finalize(10, 1);
  EXPECT_TRUE(has(t.finalize(11, 1), "10 <- Finished generation 1\n"));
}

TEST(Shrink, AJobThatMayBeginShortIsNotHeldUpWhereAllAreThere) {
  Job t;
  t.may_begin_short();
  t.begin();
  EXPECT_EQ(t.view().waits, std::vector<std::string>{});
}

TEST(Shrink, AJobThatMayNotBeginsWithAll) {
  Job t;
  (void)t.joins("w0", 10, "a");
  (void)t.joins("w1", 11, "b");
  EXPECT_FALSE(has(t.wait_for(60'000, {{"w0", 10, "a"}, {"w1", 11, "b"}}), "Plan"));
  t.may_begin_short();
  EXPECT_TRUE(has(t.joins("w2", 12, "c"), "beginning with fewer workers (max_workers) on is not the job's off"));
}

TEST(Shrink, TheGraceBeginsAnewWithEachThatComes) {
  constexpr std::int64_t kLongGraceMs = 4000;
  Job t(2, false, kLongGraceMs);
  t.may_begin_short();
  (void)t.joins("w0", 10, "a");
  (void)t.wait_for(3000, {{"w0", 10, "a"}});
  (void)t.joins("w1", 11, "b");
  EXPECT_EQ(t.view().waits,
            std::vector<std::string>{"the job has 2 of its 3 workers; it begins with those that are there in 4000 ms, "
                                     "if no more come"});
  EXPECT_FALSE(has(t.wait_for(kLongGraceMs - 1, {{"w0", 10, "a"}, {"w1", 11, "b"}}), "Plan"));
  EXPECT_TRUE(has(t.pass(1), "10 <- Plan generation 1 w0=10 w1=11 nobody (absent)"));
}

TEST(Shrink, ItNeverBeginsWithFewerThanItNeeds) {
  Job t;
  t.may_begin_short();
  (void)t.joins("w0", 10, "a");
  EXPECT_FALSE(has(t.wait_for(60'000, {{"w0", 10, "a"}}), "Plan"));
  EXPECT_EQ(t.view().waits, std::vector<std::string>{"the job has 1 of its 3 workers; it begins with 2 at least"});
  (void)t.joins("w1", 11, "b");
  EXPECT_FALSE(has(t.pass(kGraceMs - 1), "Plan"));
  EXPECT_TRUE(has(t.pass(1), "10 <- Plan generation 1 w0=10 w1=11 nobody (absent)"));
}

TEST(Shrink, AfterASleepOfTheTrackersThoseWhoHaveComeMeanwhileAreHeardFirst) {
  Job t;
  t.may_begin_short();
  (void)t.joins("w0", 10, "a");
  (void)t.joins("w1", 11, "b");
  EXPECT_FALSE(has(t.sleep(2 * kTimeoutMs), "Plan"));
  EXPECT_TRUE(has(t.joins("w2", 12, "c"), "10 <- Plan generation 1 w0=10 w1=11 w2=12\n"));
}

TEST(Shrink, WhatDisksKnowOfAJobIsNotLeftBehindWithThoseThatHaveNotCome) {
  Job t;
  t.may_begin_short();
  t.disks_know_a_job();
  (void)t.joins("w0", 10, "a");
  (void)t.joins("w1", 11, "b");
  EXPECT_FALSE(has(t.wait_for(60'000, {{"w0", 10, "a"}, {"w1", 11, "b"}}), "Plan"));
  EXPECT_EQ(t.view().waits,
            std::vector<std::string>{"the job has 2 of its 3 workers; it begins with all of them: disks know of an "
                                     "earlier run, or members of one are heard"});
  EXPECT_TRUE(has(t.joins("w2", 12, "c"), "12 <- Plan generation 1"));
}

TEST(Shrink, WhoComesAfterTheBeginningComesInWithTheNextCommit) {
  Job t;
  t.begin_short();
  EXPECT_EQ(t.joins("w9", 13, "c"), "13 <- Welcome as a spare\n");
  (void)t.vote(10, 2, {position(1, 5, true)}, 0);
  const std::string committed = t.vote(11, 2, {position(1, 5, true)}, 0);
  EXPECT_TRUE(has(committed, "10 <- Pause generation 2")) << committed;
  (void)t.report(10, 2, 2, {position(1, 5, true), position(2, 1)});
  const std::string called = t.report(11, 2, 2, {position(1, 5, true), position(2, 1)});
  EXPECT_TRUE(has(called, "13 <- Called generation 2 stale\n")) << called;
  const std::string planned = t.joins("w9", 13, "c", 2);
  EXPECT_TRUE(
      has(planned,
          "13 <- Plan generation 2 w0=10 (as before) w1=11 (as before) w9=13 timeline 1 2.1 2 below 1 of timeline "
          "0 without 2 in timeline 0 committed 2 in 0\n"))
      << planned;
}

TEST(Shrink, APlaceThatNobodyHasHadIsTakenBeforeOneWhoseWorkerMayReturn) {
  Job t(1);
  t.begin_short();
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1, {position(1, 4)});
  ASSERT_TRUE(has(t.pass_alive(kGraceMs, {10}, 2), "w0=10 (as before) w1 (absent) nobody (absent) timeline 1"));
  // On the host of the one that is lost.
  (void)t.joins("w9", 13, "b");
  (void)t.vote(10, 2, {position(1, 5, true)}, 1);
  ASSERT_TRUE(has(t.report(10, 3, 2, {position(1, 5, true)}), "13 <- Called generation 3"));
  EXPECT_TRUE(has(t.joins("w9", 13, "b", 3), "13 <- Plan generation 3 w0=10 (as before) w1 (absent) w9=13"));
  // Whose place is its own.
  (void)t.joins("w1", 14, "b");
  (void)t.vote(10, 3, {}, 2);
  (void)t.vote(13, 3, {}, 2);
  (void)t.report(10, 4, 3);
  ASSERT_TRUE(has(t.report(13, 4, 3), "14 <- Called generation 4"));
  EXPECT_TRUE(has(t.joins("w1", 14, "b", 4), "Plan generation 4 w0=10 (as before) w1=14 w9=13 (as before)"));
}

// What was committed when one machine alone had a rank lies there alone.
TEST(Shrink, WhoComesInHasNoCopyOfWhatWasCommittedBefore) {
  Job t(1);
  t.begin_short(true);
  (void)t.joins("w1", 11, "b");
  ASSERT_TRUE(has(t.vote(10, 2), "10 <- Pause generation 2"));
  ASSERT_TRUE(has(t.report(10, 2, 2), "11 <- Called generation 2"));
  ASSERT_TRUE(
      has(t.joins("w1", 11, "b", 2), "11 <- Plan generation 2 w0=10 (as before) w1=11 nobody (absent) timeline 1"));
  (void)t.give_up(10, 2);
  (void)t.report(11, 3, 0);
  EXPECT_FALSE(has(t.pass_alive(60'000, {11}, 3), "Plan")) << "it would have nothing to load";
  EXPECT_TRUE(has(t.joins("w0", 20, "a", 0, 10), "11 <- Plan generation 3 w0=20 w1=11 (as before) nobody (absent)"));
}

TEST(Shrink, WhereAllAreBackWhoEverHadAPlaceNobodyIsWaitedFor) {
  Job t;
  t.begin_short();
  (void)t.vote(10, 2);
  (void)t.vote(11, 2);
  (void)t.joins("w9", 13, "c");
  (void)t.round_failed(10, 1, Code::kDesync, "they differ");
  (void)t.stopped(10, 2);
  (void)t.stopped(11, 2);
  // Their machines hold nothing any more.
  (void)t.joins("w0", 20, "a");
  EXPECT_TRUE(has(t.joins("w1", 21, "b"), "20 <- Plan generation 2 w0=20 w1=21 nobody (absent) timeline 1"));
}

TEST(Shrink, WhoMayHaveComeForAPlaceThatNobodyHasHadStandsForNoMember) {
  Job t(1);
  t.begin_short();
  t.restart(false);
  wire::Envelope e = t.promised(10);
  e.mutable_stopped()->set_generation(kMaxGeneration - 1);
  (void)t.send(e);
  (void)t.joins("w9", 13, "c");
  (void)t.pass(kTimeoutMs);
  EXPECT_EQ(t.joins("w9", 13, "c"), "13 <- HeartbeatReply 1\n") << "one of two is not more than half";
  e.set_sender(11);
  (void)t.send(e);
  EXPECT_EQ(t.joins("w9", 13, "c"), "13 <- Welcome as a spare\n");
}

// Seed 127132659: the last member is with the tracker of before, and somebody who has lost its place with a copy.
TEST(Shrink, WhoMayHaveComeForAPlaceThatIsFreeStandsForNoMember) {
  Job t(1);
  t.leave_rank_0_alone();
  (void)t.joins("w9", 13, "c");
  (void)t.pass(kTimeoutMs);
  EXPECT_EQ(t.joins("w9", 13, "c"), "13 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.joins("w1", 21, "b"), "21 <- HeartbeatReply 1\n") << "w9 may be the absent w2";
  // All three have come, so one of them has come for the member's place.
  EXPECT_TRUE(has(t.joins("w2", 22, "c"), "22 <- Welcome"));
}

// A tracker without its journal, and somebody new comes to it before the members do.
TEST(Shrink, WhoComesLateDoesNotBeginAnewWhatMembersGoOnWith) {
  Job t(1);
  t.begin_short();
  wire::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(t.disk()));
  t.disk().clear();
  t.restart(false);
  (void)t.joins("w9", 13, "c");
  EXPECT_FALSE(has(t.pass(10 * kGraceMs), "Plan"));
  EXPECT_EQ(t.beat(10, 1), "10 <- Tell 0\n");
  EXPECT_EQ(t.beat(11, 1), "11 <- Tell 0\n");
  std::string told;
  for (const std::uint64_t life : {10, 11}) {
    wire::Envelope e = from_worker(life);
    e.mutable_known()->set_generation(1);
    e.mutable_known()->set_plan_generation(1);
    *e.mutable_known()->mutable_plan() = record.plan();
    told += t.send(std::move(e));
  }
  EXPECT_TRUE(has(told, "persist generation 1 running\n")) << told;
  EXPECT_EQ(t.joins("w9", 13, "c"), "13 <- Welcome as a spare\n");
  EXPECT_TRUE(t.view().members[2].absent);
}

TEST(Shrink, WorkersThatChangeWithoutEndAndWithoutCheckpointsStartAgain) {
  Job t;
  t.begin();
  // As many changes lie behind it as a plan can tell of.
  wire::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(t.disk()));
  constexpr auto kMost = static_cast<std::uint32_t>(limits::kMaxKept);
  for (std::uint32_t i = 0; i < kMost; ++i) {
    wire::Kept& k = *record.mutable_plan()->add_kept();
    k.set_version(1);
    k.set_timeline(i);
    k.set_rounds(i + 1);
  }
  *record.mutable_plan()->add_frontier() = position(1, kMost);
  record.mutable_plan()->set_timeline(kMost);
  record.set_timeline(kMost);
  t.disk() = record.SerializeAsString();
  t.restart();
  (void)t.lose_rank_2({position(1, kMost + 1)}, {position(1, kMost + 1)});
  const std::string text = t.pass_alive(kGraceMs, {10, 11}, 2);
  EXPECT_TRUE(has(text, "10 <- Interrupt generation 3")) << text;
}

}  // namespace
}  // namespace warren::test

// Who is preempted, and goes on serving what its host has logged: how far its word counts, and when it may go.
#include <gtest/gtest.h>

#include "recovery/base/limits.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

using State = TrackerMachine::State;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// w0 = life 10 on host a, w1 = life 11 on host b, …, running in generation 1.
class Job : public TrackerScript {
 public:
  explicit Job(std::uint32_t n = 3, std::uint32_t replicas = 2, std::vector<std::string> hosts = {"a", "b", "c", "d"})
      : TrackerScript(true, replicas), n_(n), replicas_(replicas) {
    for (std::uint32_t i = 0; i < n; ++i) (void)joins(i, 10 + i, hosts[i]);
    EXPECT_EQ(machine().state(), State::kRunning);
  }
  std::string joins(std::uint64_t worker, std::uint64_t life, const std::string& host) {
    return join("w" + std::to_string(worker), life, n_, host);
  }
  std::string waits(const std::string& worker, std::uint64_t life, const std::string& host, std::uint64_t called = 0) {
    wire::Envelope e = promised(life);
    *e.mutable_join() = test::join(worker, host, n_, replicas_);
    e.mutable_join()->set_waits(true);
    e.mutable_join()->set_spare(called == 0);
    e.mutable_join()->set_called(called);
    return send(std::move(e));
  }
  [[nodiscard]] std::vector<std::string> left() {
    wire::JobRecord record;
    EXPECT_TRUE(record.ParseFromString(disk()));
    return {record.left_domains().begin(), record.left_domains().end()};
  }

 private:
  std::uint32_t n_, replicas_;
};
using Names = std::vector<std::string>;

// Rank 0 has done a round more than the others, leaves and serves; its next life is life 20 on host d, in generation 2.
void replaced(Job& t) {
  const std::string text = t.serves(10, 1, 60'000, {position(1, 3)}, {setup(0, 7, true)});
  ASSERT_TRUE(has(text,
                  "log rank_serves: rank 0 (worker w0 on host a) leaves, and serves what its host has logged for 60000 "
                  "ms at most: until a version newer than that is committed\n"))
      << text;
  ASSERT_TRUE(
      has(text, "11 <- Pause generation 2 code 5 lost 0: rank 0 (worker w0 on host a) was preempted (SIGTERM)"));
  ASSERT_TRUE(has(text, "10 <- HeartbeatReply 1\n"));
  ASSERT_FALSE(has(text, "drop 10"));
  (void)t.report(11, 2, 1, {position(1, 2)});
  (void)t.report(12, 2, 1, {position(1, 2)});
  const std::string planned = t.joins(0, 20, "d");
  ASSERT_TRUE(has(planned, "20 <- Plan generation 2 w0=20 w1=11 (as before) w2=12 (as before) 1.3 s7| served by 10\n"))
      << planned;
  ASSERT_TRUE(has(planned, "10 <- Plan generation 2 w0=20")) << planned;
}

TEST(TrackerServers, WhatWhoServesHasDoneStaysDoneAndItGoesWithTheNextCommit) {
  Job t;
  replaced(t);
  EXPECT_EQ(t.left(), Names()) << "its domain is not lost";
  EXPECT_TRUE(t.machine().counts_on(Incarnation(10)));
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).waits,
            Names{"worker w0 has left, and serves what host a has logged: until a version newer than that is "
                  "committed, for 60.0 s at "
                  "most"});
  EXPECT_TRUE(has(t.serves(10, 1, 50'000, {position(1, 3)}), "10 <- Plan generation 2")) << "it has not got it";
  EXPECT_EQ(t.serves(10, 2, 50'000, {position(1, 3)}), "10 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.beat(10, 1), "") << "it was late";
  EXPECT_EQ(t.report(10, 2, 1), "");
  (void)t.vote(11, 2);
  (void)t.vote(12, 2);
  const std::string committed = t.vote(20, 2);
  EXPECT_TRUE(has(committed, "10 <- Refused 7: version 1 is committed, and nothing older is needed\ndrop 10\n"))
      << committed;
  EXPECT_EQ(t.left(), Names());
  EXPECT_FALSE(t.machine().counts_on(Incarnation(10)));
  EXPECT_TRUE(has(t.serves(10, 2, 40'000), "10 <- Refused 7")) << "it did not hear";
}

// Rounds of the committed version, which came after its checkpoint, are in no checkpoint yet.
TEST(TrackerServers, WhoHadGoneBeyondACommitServesUntilTheNext) {
  Job t;
  (void)t.serves(10, 1, 60'000, {position(2, 1)});
  (void)t.report(11, 2, 1, {position(1, 3, true)}), (void)t.report(12, 2, 1, {position(1, 3, true)});
  EXPECT_TRUE(has(t.joins(0, 20, "d"), " served by 10\n"));
  (void)t.vote(11, 2), (void)t.vote(12, 2);
  const std::string committed = t.vote(20, 2);
  EXPECT_TRUE(has(committed, "log committed: version 1 ")) << committed;
  EXPECT_FALSE(has(committed, "10 <- Refused")) << committed;
  EXPECT_TRUE(t.machine().counts_on(Incarnation(10)));
  (void)t.vote(11, 3), (void)t.vote(12, 3);
  EXPECT_TRUE(has(t.vote(20, 3), "10 <- Refused 7: version 2 is committed, and nothing older is needed\ndrop 10\n"));
  EXPECT_FALSE(t.machine().counts_on(Incarnation(10)));
}

// The journal no longer says that it serves, as the commit is newer than the plan. Still that plan names it.
TEST(TrackerServers, WhoHadGoneBeyondACommitTellsAnOlderJournalOfALaterPlan) {
  Job t;
  (void)t.serves(10, 1, 60'000, {position(2, 1)});
  (void)t.report(11, 2, 1, {position(1, 3, true)}), (void)t.report(12, 2, 1, {position(1, 3, true)});
  EXPECT_TRUE(has(t.joins(0, 20, "d"), " served by 10\n"));
  (void)t.vote(11, 2), (void)t.vote(12, 2);
  EXPECT_TRUE(has(t.vote(20, 2), "log committed: version 1 "));
  t.restart();
  EXPECT_EQ(t.serves(10, 4, 40'000), "10 <- Tell 2\n");
}

TEST(TrackerServers, ItsDomainIsLostOnceItHasGoneWithoutACommit) {
  Job over;
  replaced(over);
  EXPECT_TRUE(
      has(over.serves(10, 2, 0), "log server_gone: worker w0 serves what host a has logged no more: its time "));
  EXPECT_EQ(over.left(), Names{"a"});

  Job silent;
  replaced(silent);
  EXPECT_TRUE(has(silent.pass_alive(5000, {11, 12, 20}, 2), "10 <- Refused 7: it has not been heard for 5000 ms\n"));
  EXPECT_EQ(silent.left(), Names{"a"});
  EXPECT_EQ(silent.machine().state(), State::kRunning) << "that interrupts nobody";

  Job late;
  replaced(late);
  (void)late.serves(10, 2, 1500);
  (void)late.beat(11, 2), (void)late.beat(12, 2), (void)late.beat(20, 2);
  EXPECT_TRUE(has(late.pass_alive(2000, {11, 12, 20}, 2), "10 <- Refused 7: its time is over\n"));
  EXPECT_EQ(late.left(), Names{"a"});

  // That a rank has come back to its host does not say that it has what lay there.
  Job back;
  (void)back.serves(10, 1, 60'000);
  (void)back.report(11, 2, 1), (void)back.report(12, 2, 1);
  EXPECT_TRUE(has(back.joins(0, 20, "a"), " served by 10\n"));
  (void)back.serves(10, 2, 0);
  EXPECT_EQ(back.left(), Names{"a"});
}

TEST(TrackerServers, NobodyComesForItsPlace) {
  Job t;
  (void)t.serves(10, 1, 60'000, {position(1, 3)});
  (void)t.report(11, 2, 1, {position(1, 2)}), (void)t.report(12, 2, 1, {position(1, 2)});
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(has(t.pass(1000), "Refused"));
    (void)t.serves(10, 1, 50'000), (void)t.report(11, 2, 1), (void)t.report(12, 2, 1);
  }
  EXPECT_TRUE(
      has(t.pass(1000), "10 <- Refused 7: the job has waited for a round timeout, and nobody has come for its "));
  (void)t.report(11, 2, 1), (void)t.report(12, 2, 1);
  const std::string planned = t.joins(0, 20, "d");
  EXPECT_TRUE(has(planned, "20 <- Plan generation 2")) << planned;
  EXPECT_FALSE(has(planned, "served by")) << planned;
  EXPECT_EQ(t.left(), Names{"a"});
}

TEST(TrackerServers, TheLastOfAHostServesAndNoMoreThanThereAreCopiesToSpare) {
  Job mates(4, 2, {"a", "a", "b", "c"});
  EXPECT_TRUE(
      has(mates.serves(10, 1, 60'000), "10 <- Refused 7: others answer for its host, or as many serve as may\n"));
  EXPECT_TRUE(has(mates.serves(11, 1, 60'000, {position(1, 3)}), "11 <- HeartbeatReply 1\n"));
  EXPECT_TRUE(has(mates.serves(12, 1, 60'000), "12 <- Refused 7")) << "two copies, one to spare";

  Job three(4, 3);
  EXPECT_TRUE(has(three.serves(10, 1, 60'000), "10 <- HeartbeatReply 1\n"));
  EXPECT_TRUE(has(three.serves(11, 1, 60'000), "11 <- HeartbeatReply 1\n"));
  EXPECT_TRUE(has(three.serves(12, 1, 60'000), "12 <- Refused 7"));

  Job two(2, 3);
  EXPECT_TRUE(has(two.serves(10, 1, 60'000), "10 <- HeartbeatReply 1\n"));
  EXPECT_TRUE(has(two.serves(11, 1, 60'000), "11 <- Refused 7")) << "no more copies than domains";

  Job one(3, 1);
  EXPECT_TRUE(has(one.serves(10, 1, 60'000), "10 <- Refused 7"));

  // Who waits to join serves nothing.
  TrackerScript waits(true, 2);
  (void)waits.join("w0", 10, 2, "a");
  wire::Envelope e = from_worker(10);
  e.mutable_leave()->set_preempted(true);
  e.mutable_leave()->set_serves_ms(1000);
  EXPECT_TRUE(has(waits.send(e), "10 <- Refused 7"));
}

TEST(TrackerServers, WhoHasReportedMayLeaveAndServe) {
  Job t;
  (void)t.give_up(11, 1);
  (void)t.report(12, 2, 1, {position(1, 2)});
  (void)t.report(10, 2, 1, {position(1, 3)});
  EXPECT_EQ(t.machine().state(), State::kGathering);
  const std::string serves = t.serves(10, 1, 60'000, {position(1, 3)});
  EXPECT_TRUE(has(serves, "10 <- HeartbeatReply 1\n")) << serves;
  EXPECT_FALSE(has(serves, "log worker_left")) << "it has said that it serves, and is no worker that waited to join";
  (void)t.joins(1, 21, "b");
  const std::string planned = t.joins(0, 20, "d");
  EXPECT_TRUE(has(planned, "20 <- Plan generation 2 w0=20 w1=21 w2=12 (as before) 1.3 served by 10\n")) << planned;
}

TEST(TrackerServers, SparesAreUsedWhileItServes) {
  for (const bool serves : {true, false}) {
    Job t;
    (void)t.waits("w3", 13, "d");
    (void)t.waits("w4", 14, "e");
    (void)t.serves(10, 1, serves ? 60'000 : 0);
    (void)t.report(11, 2, 1);
    EXPECT_FALSE(has(t.report(12, 2, 1), "<- Called")) << "its worker would not wait in turn";
    (void)t.pass(4000);
    (void)t.serves(10, 1, serves ? 50'000 : 0), (void)t.report(11, 2, 1), (void)t.report(12, 2, 1);
    (void)t.waits("w3", 13, "d"), (void)t.waits("w4", 14, "e");
    (void)t.pass(900);
    (void)t.joins(0, 20, "f");
    // Another domain goes.
    (void)t.serves(10, 2, serves ? 50'000 : 0);
    (void)t.give_up(11, 2);
    (void)t.report(12, 3, 1), (void)t.report(20, 3, 1);
    std::string text;
    for (int i = 0; i < 6; ++i) {
      text += t.pass(1000);
      (void)t.serves(10, 2, serves ? 40'000 : 0);
      (void)t.report(12, 3, 1), (void)t.report(20, 3, 1);
      (void)t.waits("w3", 13, "d"), (void)t.waits("w4", 14, "e");
    }
    EXPECT_EQ(has(text, "<- Called generation 3"), serves) << text;
  }
}

// Nobody has survived, but what was logged has: with who serves, and two copies.
TEST(TrackerServers, TheJobGoesOnFromWhatItServesWhenNobodyElseIsLeft) {
  Job t(2);
  (void)t.serves(10, 1, 60'000, {position(1, 3)});
  (void)t.give_up(11, 1);
  (void)t.joins(1, 21, "e");
  const std::string planned = t.joins(0, 20, "d");
  EXPECT_TRUE(has(planned, "20 <- Plan generation 2 w0=20 w1=21 1.3 served by 10\n")) << planned;
}

TEST(TrackerServers, ARestartedTrackerCountsOnIt) {
  Job t;
  replaced(t);
  t.restart();
  EXPECT_TRUE(t.machine().counts_on(Incarnation(10)));
  EXPECT_EQ(t.serves(10, 2, 50'000), "10 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.left(), Names());
  // One that died before it had a plan waits for it as for any member.
  Job early;
  (void)early.serves(10, 1, 60'000, {position(1, 3)});
  early.restart();
  EXPECT_TRUE(has(early.serves(10, 1, 50'000, {position(1, 3)}), "10 <- HeartbeatReply 1\n"));
  (void)early.report(11, 2, 1), (void)early.report(12, 2, 1);
  EXPECT_TRUE(has(early.joins(0, 20, "d"), " 1.3 served by 10\n"));
  // After a commit it is told to go.
  (void)early.vote(11, 2), (void)early.vote(12, 2), (void)early.vote(20, 2);
  early.restart();
  EXPECT_FALSE(early.machine().counts_on(Incarnation(10)));
  EXPECT_TRUE(has(early.serves(10, 2, 40'000), "10 <- Refused 7"));
}

// What it may serve is what the first plan that names it calls done.
TEST(TrackerServers, WhoHasNotHeardOfItsFirstPlanIsNotNamedAgain) {
  for (const bool heard : {true, false}) {
    Job t;
    replaced(t);
    if (heard) (void)t.serves(10, 2, 50'000);
    (void)t.give_up(12, 2);
    (void)t.report(11, 3, 1, {position(1, 3)}), (void)t.report(20, 3, 1, {position(1, 3)});
    std::string planned = t.joins(2, 22, "c");
    EXPECT_EQ(has(planned, "22 <- Plan"), heard) << planned;
    if (!heard) planned = t.pass_alive(1300, {11, 20, 22}, 3);
    EXPECT_EQ(has(planned, " served by 10\n"), heard) << planned;
    EXPECT_EQ(has(planned, "10 <- Refused 7: the plan that named it has not reached it\n"), !heard) << planned;
    EXPECT_EQ(t.left(), heard ? Names() : Names{"a"});
  }
}

// The tracker once wrote down that its domain was lost beside the plan of before, which knew of a later commit than the
// mirror: a record that nobody can read, and the end of the tracker.
TEST(TrackerServers, WhoHasNotHeardOfItsFirstPlanIsGoneWhereTheMirrorServes) {
  Job t;
  for (const std::uint64_t version : {2, 3}) {
    for (const std::uint64_t life : {10, 11, 12}) (void)t.vote(life, version);
  }
  (void)t.serves(10, 1, 60'000);
  (void)t.report(11, 2, 3), (void)t.report(12, 2, 3);
  const std::string replaced = t.joins(0, 20, "d");
  ASSERT_TRUE(
      has(replaced, "11 <- Plan generation 2 w0=20 w1=11 (as before) w2=12 (as before) served by 10 committed 3"))
      << replaced;
  wire::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(t.disk()));
  for (const std::uint64_t life : {11, 12, 20}) (void)t.give_up(life, 2);
  const auto begins = [&](std::uint64_t worker, const std::string& host) {
    wire::Envelope e = t.promised(30 + worker);
    *e.mutable_join() = test::join("w" + std::to_string(worker), host, 3, 2);
    wire::Held& held = *e.mutable_join()->mutable_held();
    held.set_run(record.plan().run());
    held.set_mirrored(true);
    held.mutable_known()->set_generation(1);
    held.mutable_known()->set_committed(true);
    held.mutable_known()->set_committed_version(2);
    return t.send(std::move(e));
  };
  (void)t.serves(10, 1, 50'000);
  (void)begins(0, "d"), (void)begins(1, "b");
  std::string planned = begins(2, "c");
  for (int n = 0; n < 20 && !has(planned, "Plan"); ++n) {
    planned += t.pass(300);
    for (const std::uint64_t worker : {0, 1, 2}) planned += begins(worker, worker == 0 ? "d" : worker == 1 ? "b" : "c");
  }
  EXPECT_TRUE(has(planned, "10 <- Refused 7: the plan that named it has not reached it\n")) << planned;
  EXPECT_TRUE(has(planned, "timeline 1 committed 2\n")) << planned;
}

// The generation ends while its plan is on the way to it.
TEST(TrackerServers, WhoHasHadNoTimeToHearOfItsFirstPlanHasIt) {
  Job t;
  replaced(t);
  (void)t.give_up(12, 2);
  (void)t.report(11, 3, 1, {position(1, 3)}), (void)t.report(20, 3, 1, {position(1, 3)});
  EXPECT_FALSE(has(t.joins(2, 22, "c"), "Plan"));
  EXPECT_TRUE(has(t.serves(10, 1, 50'000), "10 <- Plan generation 2 ")) << "it may be lost";
  const std::string planned = t.serves(10, 2, 50'000);
  EXPECT_TRUE(has(planned, "22 <- Plan generation 3 ")) << planned;
  EXPECT_TRUE(has(planned, " served by 10\n")) << planned;
  EXPECT_EQ(t.left(), Names());
}

wire::Setup begun(std::uint64_t n, std::uint64_t begin, std::uint64_t end, std::uint64_t total_bytes) {
  wire::Setup s = setup(0, n, false, {{begin, end}});
  s.set_total_bytes(total_bytes);
  return s;
}

// Rank 1 had completed what rank 0 was in when it left, and is lost before anybody else has: of two copies one is with
// rank 0 alone. It stays done; what nobody can have completed is computed again, without what rank 0 holds.
TEST(TrackerServers, ARoundOfWhichAllIsThereWithWhatItHoldsIsDone) {
  for (const bool whole : {true, false}) {
    Job t;
    (void)t.give_up(11, 1);
    (void)t.report(12, 2, 1, {position(1, 2, false, {{0, 64}})}, {setup(0, 7, false, {{0, 8}})});
    (void)t.report(10, 2, 1, {position(1, 2, false, {{64, 128}})}, {setup(0, 7, false, {{8, 16}})});
    (void)t.serves(10, 1, 60'000, {in_flight(1, 2, 64, whole ? 128 : 127, 128)}, {begun(7, whole ? 8 : 9, 16, 16)});
    (void)t.joins(1, 21, "e");
    const std::string planned = t.joins(0, 20, "d");
    const std::string done = whole ? " 1.3 s7|" : " 1.2[0,64) s7[0,8)";
    EXPECT_TRUE(has(planned, "w2=12 (as before)" + done + " served by 10\n")) << planned;
    // It stays so, and what it held counts no more: others have made the rest.
    (void)t.serves(10, 2, 50'000, {in_flight(1, 2, 64, 128, 128)}, {begun(7, 8, 16, 16)});
    (void)t.give_up(12, 2);
    for (const std::uint64_t life : {20u, 21u}) {
      (void)t.report(life, 3, 1, {position(1, 2, false, {{0, 64}, {127, 128}})}, {setup(0, 7, false, {{0, 9}})});
    }
    const std::string again = t.joins(2, 22, "c");
    const std::string then = whole ? done : " 1.2[0,64)[127,128) s7[0,9)";
    EXPECT_TRUE(has(again, " w2=22" + then + " served by 10\n")) << again;
  }
}

// Who may go because another rank of its host stays, and leaves a moment later.
TEST(TrackerServers, WhatEachOfAHostsRanksHasDoneStaysDone) {
  Job t(4, 2, {"a", "a", "b", "c"});
  EXPECT_TRUE(has(t.serves(10, 1, 60'000, {position(1, 4)}, {setup(0, 7, true)}), "10 <- Refused 7"));
  EXPECT_TRUE(has(t.serves(11, 1, 60'000, {position(1, 3)}, {setup(0, 8, true)}), "11 <- HeartbeatReply 1\n"));
  (void)t.report(12, 2, 1, {position(1, 2)}), (void)t.report(13, 2, 1, {position(1, 2)});
  (void)t.joins(0, 20, "d");
  const std::string planned = t.joins(1, 21, "d");
  EXPECT_TRUE(has(planned, " 1.4 s7| s8| served by 11\n")) << planned;

  // Where its host goes with it, nobody has what it says.
  Job last(4);
  (void)last.serves(10, 1, 60'000, {position(1, 3)});
  EXPECT_TRUE(has(last.serves(11, 1, 60'000, {position(1, 4)}, {setup(0, 7, true)}), "11 <- Refused 7"));
  (void)last.report(12, 2, 1, {position(1, 2)}), (void)last.report(13, 2, 1, {position(1, 2)});
  (void)last.joins(0, 20, "d");
  const std::string without = last.joins(1, 21, "e");
  EXPECT_TRUE(has(without, " 1.3 served by 10\n")) << without;
}

// What a rank held of a call that had not returned is there as long as another one of its host lives, which may have
// reported before; it goes with them, if all die before the next plan (`warren sim --seed=333127534`).
TEST(TrackerServers, WhatALeaverHadInFlightCountsWhileItsHostAnswers) {
  for (const bool lives : {true, false}) {
    Job t(4, 3, {"a", "a", "b", "c"});
    const std::string left = t.serves(11, 1, 60'000, {in_flight(1, 2, 64, 128, 128)}, {begun(7, 8, 16, 16)});
    EXPECT_TRUE(has(left, "11 <- Refused 7")) << left;
    (void)t.report(12, 2, 1, {position(1, 2, false, {{0, 64}})}, {setup(0, 7, false, {{0, 8}})});
    (void)t.report(13, 2, 1, {position(1, 2, false, {{0, 64}})}, {setup(0, 7, false, {{0, 8}})});
    if (lives) {
      (void)t.report(10, 2, 1, {position(1, 2)});
    } else {
      (void)t.give_up(10, 1);
      (void)t.joins(0, 20, "d");
    }
    const std::string planned = t.joins(1, 21, "d");
    EXPECT_TRUE(has(planned, lives ? " 1.3 s7|\n" : " 1.2[0,64) s7[0,8)\n")) << planned;
  }
}

// The journal is gone: the members name it, if it is still there then.
TEST(TrackerServers, ATrackerThatKnowsNothingDoesNotSendItAway) {
  Job t;
  replaced(t);
  wire::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(t.disk()));
  const wire::Plan plan = record.plan();
  t.disk().clear();
  t.restart(false);
  EXPECT_EQ(t.serves(10, 2, 50'000), "");
  (void)t.beat(11, 2), (void)t.beat(12, 2), (void)t.beat(20, 2);
  EXPECT_EQ(t.serves(10, 2, 50'000), "") << "while it asks";
  for (const std::uint64_t life : {11u, 12u, 20u}) {
    wire::Envelope e = from_worker(life);
    e.mutable_known()->set_generation(2);
    e.mutable_known()->set_plan_generation(2);
    *e.mutable_known()->mutable_plan() = plan;
    (void)t.send(e);
  }
  EXPECT_EQ(t.machine().state(), State::kRunning);
  EXPECT_TRUE(t.machine().counts_on(Incarnation(10)));
  EXPECT_EQ(t.serves(10, 2, 49'000), "10 <- HeartbeatReply 1\n");
}

// A tracker that decides nothing yet hears nobody: as with members, that is not their silence.
TEST(TrackerServers, ItIsNotSilentWhileTheTrackerHasNoMajority) {
  Job t;
  replaced(t);
  (void)t.serves(10, 2, 50'000);
  t.restart(false);
  for (int i = 0; i < 6; ++i) {
    (void)t.serves(10, 2, 49'000);
    wire::Envelope e = t.promised(11);
    e.mutable_heartbeat()->set_generation(2);
    (void)t.send(e);
    (void)t.pass(1000);
  }
  for (const std::uint64_t life : {12u, 20u}) {
    wire::Envelope e = t.promised(life);
    e.mutable_heartbeat()->set_generation(2);
    (void)t.send(e);
  }
  EXPECT_FALSE(has(t.pass_alive(1000, {11, 12, 20}, 2), "server_gone"));
  EXPECT_TRUE(t.machine().counts_on(Incarnation(10)));
}

// What ranks that are gone have seen proved not to be there, and is computed again: who leaves then may hold another
// attempt's.
TEST(TrackerServers, NobodyServesAfterAGapBeforeTheNextPlan) {
  Job t;
  replaced(t);
  (void)t.log_gap(20, 2);
  EXPECT_TRUE(has(t.serves(12, 2, 50'000, {position(1, 9)}), "12 <- Refused 7"));
  (void)t.report(11, 3, 1, {position(1, 2)}), (void)t.report(20, 3, 1, {position(1, 2)});
  const std::string planned = t.joins(2, 22, "e");
  EXPECT_TRUE(has(planned, " w2=22 1.2 s7|\n")) << planned;
}

// All lives end: what one had done that no plan has named is undone with the rest.
TEST(TrackerServers, ARollbackUndoesWhatNoPlanHasNamed) {
  Job t;
  (void)t.serves(10, 1, 60'000, {position(1, 3)}, {setup(0, 7, true)});
  (void)t.report(11, 2, 2, {position(1, 2, true)});
  (void)t.report(12, 2, 1, {position(1, 4)});
  EXPECT_TRUE(has(t.joins(0, 20, "d"), "has done 2 rounds in version 0 and gone on"));
  (void)t.stopped(11, 3), (void)t.stopped(12, 3);
  (void)t.joins(1, 21, "b");
  const std::string planned = t.joins(2, 22, "c");
  EXPECT_TRUE(has(planned, " w2=22 timeline 1 served by 10\n")) << planned;
}

TEST(TrackerServers, ItGoesWithACommitThatTheTrackerLearnsOfLate) {
  Job t;
  replaced(t);
  (void)t.serves(10, 2, 50'000);
  const std::string text = t.vote(11, 3);
  EXPECT_TRUE(has(text, "10 <- Refused 7: version 1 is committed, and nothing older is needed\ndrop 10\n")) << text;
  // One that has left since then may have done rounds after it.
  (void)t.serves(12, 2, 50'000, {position(3, 5)});
  wire::Envelope e = from_worker(11);
  e.mutable_report()->set_generation(3);
  e.mutable_report()->set_version(4);
  e.mutable_report()->set_committed_version(3);
  EXPECT_FALSE(has(t.send(e), "12 <- Refused"));
  EXPECT_TRUE(t.machine().counts_on(Incarnation(12)));
}

TEST(TrackerServers, AGapIsComputedAgainWithoutWhatItHolds) {
  Job t;
  replaced(t);
  const std::string text = t.log_gap(20, 2);
  EXPECT_TRUE(has(text, "10 <- Refused 7: the log misses results all the same\n")) << text;
  EXPECT_EQ(t.left(), Names{"a"});
}

TEST(TrackerServers, TheEndOfTheJobIsTold) {
  Job t;
  replaced(t);
  (void)t.finalize(11, 2), (void)t.finalize(12, 2);
  EXPECT_TRUE(has(t.finalize(20, 2), "10 <- Refused 12: the job is finished\n"));
}

}  // namespace
}  // namespace warren::test

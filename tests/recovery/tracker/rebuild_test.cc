// A tracker whose journal was lost: it goes on from what the members of the job tell.
#include <gtest/gtest.h>

#include "recovery/base/limits.h"
#include "recovery/tracker/tracker_machine.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

using State = TrackerMachine::State;

wire::Plan plan_with(std::uint64_t generation, const std::vector<std::pair<std::string, std::uint64_t>>& workers,
                     std::uint32_t replicas = 2) {
  wire::Plan p = plan_of(generation, workers);
  p.mutable_settings()->set_replicas(replicas);
  for (wire::Member& m : *p.mutable_members()) m.set_fetch_port(6000);
  return p;
}

wire::Envelope known(std::uint64_t life, std::uint64_t generation, const wire::Plan* plan, std::uint64_t committed = 0,
                     std::uint32_t timeline = 0) {
  wire::Envelope e = from_worker(life);
  wire::Known& k = *e.mutable_known();
  k.set_generation(generation);
  if (plan != nullptr) {
    k.set_plan_generation(plan->generation());
    *k.mutable_plan() = *plan;
  }
  k.set_committed(committed != 0);
  k.set_committed_version(committed);
  k.set_committed_timeline(timeline);
  return e;
}
wire::Envelope known_too(std::uint64_t life, std::uint64_t generation, std::uint64_t plan_generation,
                         std::uint64_t committed = 0, std::uint32_t timeline = 0) {
  wire::Envelope e = known(life, generation, nullptr, committed, timeline);
  e.mutable_known()->set_plan_generation(plan_generation);
  return e;
}

const std::string kAnew = "; join again [fenced]\n";

TEST(TrackerRebuild, AllMembersTellAndTheJobGoesOnWithoutAnInterrupt) {
  TrackerScript t(true, 2);
  wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  plan.set_timeline(3);
  *plan.add_frontier() = position(5, 17);
  plan.set_committed(true);
  plan.set_committed_version(5);
  plan.set_committed_timeline(2);
  EXPECT_EQ(t.beat(10, 7),
            "log rebuilding: the journal does not hold job j, and a worker is a member of it: asking its members what "
            "they know\n"
            "10 <- Tell 0\n");
  EXPECT_EQ(t.beat(10, 7), "10 <- Tell 0\n");
  EXPECT_EQ(t.send(known(10, 7, &plan, 5, 2)), "");
  EXPECT_EQ(t.beat(10, 7), "") << "it has told";
  EXPECT_EQ(t.load(11), "11 <- Tell 7\n") << "the plan need not come again";
  EXPECT_EQ(t.send(known_too(11, 7, 7, 6, 3)), "");
  EXPECT_EQ(t.finalize(12, 7), "12 <- Tell 7\n");
  EXPECT_EQ(t.send(known_too(12, 7, 7, 5, 2)),
            "persist generation 7 running timeline 3 committed 6\n"
            "log rebuilt: job j goes on in generation 7, as its members have told it\n");
  EXPECT_EQ(t.send(known_too(12, 7, 7, 5, 2)), "") << "an echo";
  EXPECT_EQ(t.machine().state(), State::kRunning);
  EXPECT_EQ(t.beat(11, 7), "11 <- HeartbeatReply 1\n");
  // The plan is the same, verbatim.
  EXPECT_EQ(t.join("w1", 11, 3),
            "11 <- Plan generation 7 w0=10 (as before) w1=11 (as before) w2=12 (as before) timeline 3 "
            "5.17 committed 5 in 2\n");
  EXPECT_EQ(t.load(10), "10 <- Loaded 6 of timeline 3\n");
  EXPECT_NE(t.finalize(12, 7).find("12 <- HeartbeatReply 0\n"), std::string::npos);
  t.restart();
  EXPECT_EQ(t.load(10), "10 <- Loaded 6 of timeline 3\n");
}

// Seed 821019502: it met the member's join among those that wait, and a check was broken.
TEST(TrackerRebuild, AMembersLateJoinToTheTrackerBeforeIsNoJoin) {
  TrackerScript t(false, 2);
  const wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  (void)t.send(known(10, 7, &plan));
  EXPECT_EQ(t.join("w0", 10, 3), "");
  EXPECT_NE(t.pass(limits::kDefaultRoundTimeoutMs + 1).find(kAnew), std::string::npos);
}

TEST(TrackerRebuild, WhoIsMissingIsLostIfMoreThanHalfHaveTold) {
  TrackerScript t(false, 2);
  const wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  (void)t.send(known(10, 7, &plan));
  (void)t.send(known_too(11, 7, 7));
  // The new life of the third asks to join meanwhile.
  EXPECT_EQ(t.join("w2", 22, 3), "22 <- Welcome 1 of 3\n");
  EXPECT_EQ(t.pass(4999), "");
  EXPECT_EQ(t.pass(1), "persist generation 7 running\n");
  const std::string got = t.join("w2", 22, 3);
  EXPECT_NE(got.find("persist generation 8 paused\n10 <- Pause generation 8"), std::string::npos) << got;
  (void)t.report(10, 8, 1, {position(1, 3)});
  EXPECT_NE(
      t.report(11, 8, 1, {position(1, 4)}).find("Plan generation 8 w0=10 (as before) w1=11 (as before) w2=22 1.4\n"),
      std::string::npos);

  TrackerScript silent(false, 2);
  (void)silent.send(known(10, 7, &plan));
  (void)silent.send(known_too(11, 7, 7));
  (void)silent.pass(5000);
  EXPECT_NE(silent.pass_alive(5000, {10, 11}, 7).find("Pause generation 8 code 5 lost 2"), std::string::npos);
}

// Two of three tell, and the third alone had heard of the newest commit: whatever it says next, that stands.
TEST(TrackerRebuild, ACommitThatOnlyAnotherMemberKnewOfIsLearnedFromIt) {
  const wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  const auto rebuilt = [&](TrackerScript& t) {
    (void)t.send(known(10, 7, &plan));
    (void)t.send(known_too(11, 7, 7));
    EXPECT_EQ(t.pass(5000), "persist generation 7 running\n");
    (void)t.vote(10, 2);
    (void)t.vote(11, 2);
    EXPECT_EQ(t.machine().view({}).committed, std::nullopt);
  };
  TrackerScript t(false, 2);
  rebuilt(t);
  EXPECT_NE(t.vote(12, 2).find("persist generation 7 running committed 2\n"), std::string::npos) << "it votes again";

  TrackerScript u(false, 2);
  rebuilt(u);
  u.restart();
  // Another member is lost first.
  (void)u.give_up(11, 7);
  (void)u.report(10, 8, 2);
  wire::Envelope report = u.promised(12);
  report.mutable_report()->set_generation(8);
  report.mutable_report()->set_version(2);
  report.mutable_report()->set_committed_version(2);
  EXPECT_NE(u.send(report).find("committed 2"), std::string::npos);
  EXPECT_NE(u.join("w1", 21, 3).find("committed 2"), std::string::npos) << "the plan says so";
  EXPECT_EQ(u.load(21), "21 <- Loaded 2 of timeline 0\n");

  // Of a timeline that was undone.
  TrackerScript old(false, 2);
  rebuilt(old);
  (void)old.give_up(11, 7);
  report.mutable_report()->set_committed_timeline(1);
  EXPECT_EQ(old.send(report).find("committed"), std::string::npos);
  EXPECT_EQ(old.machine().view({}).committed, std::nullopt);
}

TEST(TrackerRebuild, HalfOfTheMembersAreNotEnough) {
  TrackerScript t(false, 2);
  const wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}});
  (void)t.send(known(10, 7, &plan));
  (void)t.beat(99, 3);  // one of long ago
  const std::string why =
      "Refused 7: the tracker has lost what it knew of job j, and only 1 of the 2 members of its newest generation "
      "have "
      "told "
      "what they know; join again [fenced]\n";
  EXPECT_EQ(t.pass(5000), "10 <- " + why + "drop 10\n99 <- " + why + "drop 99\n");
  EXPECT_EQ(t.beat(10, 7).substr(0, 40), "10 <- Refused 7: this life is not a memb");
  (void)t.join("w0", 20, 2);
  EXPECT_NE(t.join("w1", 21, 2).find("persist generation 1 running\n"), std::string::npos);
}

TEST(TrackerRebuild, NobodyTellsAPlan) {
  TrackerScript t(false, 2);
  EXPECT_EQ(t.report(10, 7, 0), "10 <- Tell 0\n");
  EXPECT_EQ(t.send(known(10, 7, nullptr)), "");
  // All who join have to wait until it is clear that nothing is known.
  (void)t.join("w0", 20, 2);
  EXPECT_EQ(t.join("w1", 21, 2), "21 <- Welcome 2 of 2\n");
  std::string got;
  for (std::int64_t ms = 0; ms < limits::kDefaultRoundTimeoutMs; ms += 1000) {
    got += t.pass(1000);
    (void)t.join("w0", 20, 2);
    (void)t.join("w1", 21, 2);
  }
  EXPECT_NE(
      got.find("10 <- Refused 7: the tracker has lost what it knew of job j, and no member has told its plan" + kAnew),
      std::string::npos)
      << got;
  EXPECT_EQ(t.machine().state(), State::kRunning);
}

TEST(TrackerRebuild, TheNewestPlanCounts) {
  TrackerScript t(false, 2);
  // 10 and 11 were replaced in generation 8, and woke up; 12 survived.
  const wire::Plan old = plan_with(7, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  const wire::Plan plan = plan_with(8, {{"w0", 20}, {"w1", 21}, {"w2", 12}});
  (void)t.send(known(10, 7, &old));
  (void)t.send(known_too(11, 7, 7));
  (void)t.beat(12, 8);
  EXPECT_EQ(t.send(known_too(12, 8, 8)), "12 <- Tell 7\n") << "the newer plan did not come along";
  (void)t.send(known(12, 8, &plan));
  (void)t.send(known(11, 7, &old));  // late
  (void)t.send(known_too(20, 8, 8));
  EXPECT_EQ(t.machine().view({}).generation, Generation(0)) << "an older plan is no reason to be quick";
  EXPECT_EQ(t.send(known_too(21, 8, 8)), "persist generation 8 running\n");
  EXPECT_EQ(t.beat(10, 7).substr(0, 16), "10 <- Refused 7:");
}

TEST(TrackerRebuild, WhoHasHeardOfALaterGenerationIsInterruptedAnew) {
  TrackerScript t(false, 2);
  const wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}});
  EXPECT_EQ(t.report(11, 8, 1), "11 <- Tell 0\n");
  (void)t.send(known(11, 8, &plan));
  const std::string reason =
      "Pause generation 9 code 5: the tracker's journal did not hold this job, whose members have told what it was, "
      "while the job was interrupted; the ranks stop, connect "
      "again "
      "and go on\n";
  EXPECT_EQ(t.send(known_too(10, 7, 7)), "persist generation 9 paused\n10 <- " + reason + "11 <- " + reason);
  (void)t.report(10, 9, 1);
  EXPECT_NE(t.report(11, 9, 1).find("Plan generation 9"), std::string::npos);

  // Where nothing is logged, it ends all.
  TrackerScript u;
  const wire::Plan unlogged = plan_with(7, {{"w0", 10}, {"w1", 11}}, 0);
  (void)u.send(known(11, 8, &unlogged));
  EXPECT_NE(u.send(known_too(10, 7, 7)).find("10 <- Interrupt generation 9"), std::string::npos);
}

TEST(TrackerRebuild, OneWhoseFirstPlanIsOnItsWayCountsAsThere) {
  TrackerScript t(false, 2);
  const wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 21}});
  EXPECT_EQ(t.join("w1", 21, 2), "21 <- Welcome 1 of 2\n");
  EXPECT_EQ(t.send(known(10, 7, &plan)), "persist generation 7 running\n");
  EXPECT_NE(t.join("w1", 21, 2).find("21 <- Plan generation 7"), std::string::npos);
}

TEST(TrackerRebuild, WhatCannotBeTrueIsNotTaken) {
  TrackerScript t(false, 2);
  const wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}});
  EXPECT_EQ(t.send(known(99, 7, &plan)), "") << "not a member of the plan that it tells";
  EXPECT_EQ(t.send(known(10, kMaxGeneration, &plan)), "") << "nobody may use the numbers up";
  EXPECT_FALSE(t.machine().next_deadline()) << "nothing was begun";
  (void)t.send(known(10, 7, &plan, 9, 5));  // committed in a timeline that has not begun
  EXPECT_EQ(t.send(known_too(11, 7, 7)), "persist generation 7 running\n");
  EXPECT_EQ(t.machine().view({}).committed, std::nullopt);
}

// It has a record, so nobody was asked; and whom it did not know it did not answer.
TEST(TrackerRebuild, AnOlderCopyLearnsThePlanOfMembersThatItDoesNotKnow) {
  TrackerScript t(true, 2);
  (void)t.join("w0", 10, 2, "a");
  (void)t.join("w1", 11, 2, "b");
  const std::string old = t.disk();
  wire::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(old));
  wire::Plan newest = record.plan();
  newest.set_generation(4);
  newest.mutable_members(1)->set_incarnation(21);
  for (wire::Member& m : *newest.mutable_members()) m.set_since(m.rank() == 1 ? 4 : 1), m.set_fresh(m.rank() == 1);
  newest.set_committed(true);
  newest.set_committed_version(3);
  t.disk() = old;
  t.restart(false);
  EXPECT_EQ(t.beat(21, 4), "21 <- Tell 1\n");
  const auto told = [&](std::uint64_t life, const wire::Plan& plan, std::uint64_t committed) {
    wire::Envelope e = t.promised(life);
    *e.mutable_known() = known(life, 4, &plan, committed).known();
    return t.send(std::move(e));
  };
  EXPECT_EQ(t.beat(23, 4), "23 <- Tell 1\n");
  wire::Plan other = newest;
  other.set_run(99);
  EXPECT_EQ(told(23, other, 3), "") << "of a job that began anew";
  EXPECT_EQ(told(22, newest, 3), "") << "it is no member of it";
  EXPECT_EQ(t.beat(22, 4), "") << "seed 300682: it waits for an answer, and ends without one";
  EXPECT_EQ(
      told(21, newest, 4),
      "log journal_older: the journal ends at the plan of generation 1 of job j, and worker w1 on host b knows that "
      "of generation 4: it is an older copy; the tracker goes by the newer plan\n"
      "21 <- HeartbeatReply 0\n");
  EXPECT_EQ(told(21, newest, 4), "21 <- HeartbeatReply 1\n") << "one of two";
  wire::Envelope e = t.promised(10);
  e.mutable_heartbeat()->set_generation(4);
  e.mutable_heartbeat()->set_beat(1);
  EXPECT_EQ(t.send(std::move(e)),
            "persist generation 4 running committed 4\n21 <- HeartbeatReply 0\n10 <- HeartbeatReply 1\n")
      << "before anybody is told of it";
  EXPECT_EQ(t.load(10), "10 <- Loaded 4 of timeline 0\n");
  EXPECT_EQ(t.machine().state(), State::kRunning);
  EXPECT_EQ(t.beat(21, 4), "21 <- HeartbeatReply 1\n");
}

// What a tracker is told may be of another run, of the plan that it has, or made up.
TEST(TrackerRebuild, AnOlderCopyIsNotToldWhatItMustNotBelieve) {
  for (int wrong = 0; wrong < 7; ++wrong) {
    TrackerScript t(false, 2);
    for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
    wire::JobRecord record;
    ASSERT_TRUE(record.ParseFromString(t.disk()));
    wire::Plan plan = record.plan();
    plan.set_generation(4);
    plan.mutable_members(1)->set_incarnation(21);
    for (wire::Member& m : *plan.mutable_members()) m.set_since(m.rank() == 1 ? 4 : 1), m.set_fresh(m.rank() == 1);
    t.restart();
    ASSERT_EQ(t.beat(21, 4), "21 <- Tell 1\n");
    wire::Envelope e = t.promised(21);
    *e.mutable_known() = known(21, 4, &plan, 3).known();
    wire::Known& k = *e.mutable_known();
    switch (wrong) {
      case 0: k.mutable_plan()->set_run(99); break;
      case 1: k.mutable_plan()->mutable_settings()->set_replicas(3); break;
      case 2: k.mutable_plan()->mutable_settings()->set_round_timeout_ms(7000); break;
      case 3: k.set_generation(std::uint64_t{1} << 40); break;
      case 4: k.clear_plan(); break;
      case 5:
        k.clear_plan();
        k.set_plan_generation(1);
        k.set_generation(1);
        break;
      default:
        // It commits less than the plan says, in a later timeline.
        k.mutable_plan()->set_timeline(3);
        k.mutable_plan()->set_committed(true);
        k.mutable_plan()->set_committed_version(9);
        k.set_committed_version(4);
        k.set_committed_timeline(2);
    }
    (void)t.send(std::move(e));
    EXPECT_EQ(t.machine().view({}).generation, Generation(1)) << wrong;
    EXPECT_EQ(t.machine().state(), State::kRunning) << wrong;
    EXPECT_EQ(t.beat(21, 4).substr(0, 13), "21 <- Refused") << wrong;
  }
}

// An answer may never come, or be too late to be believed.
TEST(TrackerRebuild, WhoSpeaksOfALaterPlanIsNotAskedForEver) {
  TrackerScript t(false, 2);
  for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
  t.restart();
  EXPECT_EQ(t.beat(21, 4), "21 <- Tell 1\n");
  EXPECT_EQ(t.give_up(21, 4).substr(0, 13), "21 <- Refused") << "it will not answer";
  EXPECT_EQ(t.finalize(22, 4), "22 <- Tell 1\n") << "it says that again";
  (void)t.pass_alive(5000, {10, 11}, 1);
  EXPECT_EQ(t.beat(21, 4).substr(0, 13), "21 <- Refused");
  EXPECT_EQ(t.beat(22, 4).substr(0, 13), "22 <- Refused") << "a round timeout after it began to act";
}

// Two of three have gone since, and one of these comes to it: it stands for nobody in the newer plan.
TEST(TrackerRebuild, WhoHasPromisedAnOlderCopyAndIsOverDoesNotCount) {
  TrackerScript t(true, 2);
  for (std::uint64_t w : {0, 1, 2}) (void)t.join("w" + std::to_string(w), 10 + w, 3, "h" + std::to_string(w));
  wire::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(t.disk()));
  wire::Plan newest = record.plan();
  newest.set_generation(4);
  for (wire::Member& m : *newest.mutable_members()) {
    m.set_incarnation(m.rank() == 0 ? 10 : 20 + m.rank());
    m.set_since(m.rank() == 0 ? 1 : 4), m.set_fresh(m.rank() != 0);
  }
  t.restart(false);
  wire::Envelope zombie = t.promised(11);
  zombie.mutable_heartbeat()->set_generation(1);
  zombie.mutable_heartbeat()->set_beat(1);
  EXPECT_EQ(t.send(zombie), "11 <- HeartbeatReply 1\n");
  const auto tells = [&] {
    wire::Envelope e = t.promised(22);
    *e.mutable_known() = known(22, 4, &newest).known();
    return t.send(std::move(e));
  };
  EXPECT_NE(tells().find("log journal_older"), std::string::npos);
  EXPECT_EQ(tells(), "22 <- HeartbeatReply 1\n") << "one of three";
  EXPECT_EQ(t.send(zombie), "11 <- Tell 4\n") << "it is over";
  wire::Envelope e = t.promised(21);
  e.mutable_heartbeat()->set_generation(4);
  e.mutable_heartbeat()->set_beat(1);
  EXPECT_EQ(t.send(std::move(e)), "persist generation 4 running\n22 <- HeartbeatReply 0\n21 <- HeartbeatReply 1\n");
}

// The plan of generation 4, of the job that `disk` holds, with these lives.
wire::Plan later_plan(const std::string& disk, const std::vector<std::uint64_t>& lives) {
  wire::JobRecord record;
  EXPECT_TRUE(record.ParseFromString(disk));
  wire::Plan plan = record.plan();
  plan.set_generation(4);
  for (wire::Member& m : *plan.mutable_members()) {
    const bool same = m.incarnation() == lives[m.rank()];
    m.set_incarnation(lives[m.rank()]);
    m.set_since(same ? 1 : 4), m.set_fresh(!same);
  }
  return plan;
}

// Most of its workers have come to it, in lives that know nothing, and it decides. (The only life that had
// the newest plan was refused, and its number named another.)
TEST(TrackerRebuild, AnOlderCopyLearnsTheNewestPlanAlsoOnceItActs) {
  TrackerScript t(true, 2);
  for (std::uint64_t w : {0, 1, 2}) (void)t.join("w" + std::to_string(w), 10 + w, 3, "h" + std::to_string(w));
  const wire::Plan newest = later_plan(t.disk(), {20, 21, 22});
  t.restart();
  (void)t.join("w0", 30, 3, "h0");
  (void)t.join("w1", 31, 3, "h1");
  EXPECT_EQ(t.beat(22, 4), "22 <- Tell 1\n");
  wire::Envelope e = t.promised(22);
  *e.mutable_known() = known(22, 4, &newest).known();
  EXPECT_NE(t.send(std::move(e)).find("log journal_older"), std::string::npos);
  // They join again, and promise.
  const auto join_again = [&](std::uint64_t life, const std::string& n) {
    wire::Envelope again = t.promised(life);
    *again.mutable_join() = test::join("w" + n, "h" + n, 3, 2);
    return t.send(std::move(again));
  };
  (void)join_again(30, "0");
  EXPECT_NE(join_again(31, "1").find("persist generation 4 running"), std::string::npos);
  (void)join_again(30, "0");
  (void)join_again(31, "1");
  EXPECT_NE(t.report(22, 5, 1).find("Plan generation 5"), std::string::npos);
}

// It was asked again and again, and the tracker made a plan of a number that another had.
TEST(TrackerRebuild, WhoServesALaterPlanTellsIt) {
  TrackerScript t(true, 2);
  for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
  wire::Plan newest = later_plan(t.disk(), {10, 21});
  wire::Member& server = *newest.add_servers();
  server = newest.members(1);
  server.set_incarnation(11), server.set_since(4), server.set_fresh(false);
  t.restart();
  EXPECT_EQ(t.serves(11, 4, 60'000), "11 <- Tell 1\n");
  wire::Envelope e = t.promised(11);
  *e.mutable_known() = known(11, 4, &newest).known();
  EXPECT_NE(t.send(std::move(e)).find("worker w1 on host h1 knows that of generation 4"), std::string::npos);
  EXPECT_EQ(t.machine().view({}).generation, Generation(4));
}

// Simulated seed 1790000854: the next plan had a number that another had, of which a server alone knew. Its place has
// another life, and so it was taken for one that is over.
TEST(TrackerRebuild, AServerWhosePlaceIsTakenTellsALaterPlanToo) {
  TrackerScript t(true, 2);
  for (std::uint64_t w : {0, 1, 2}) (void)t.join("w" + std::to_string(w), 10 + w, 3, "h" + std::to_string(w));
  (void)t.serves(10, 1, 60'000);
  (void)t.report(11, 2, 1), (void)t.report(12, 2, 1);
  ASSERT_NE(t.join("w0", 20, 3, "h3").find(" served by 10\n"), std::string::npos);
  t.restart();
  EXPECT_EQ(t.serves(10, 4, 50'000), "10 <- Tell 2\n");
}

// What it has answered may be on its way.
TEST(TrackerRebuild, AnOlderCopyWaitsForThePlanThatItHasAskedFor) {
  TrackerScript t(false, 2);
  for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
  const wire::Plan newest = later_plan(t.disk(), {20, 21});
  t.restart();
  (void)t.pass(2500);
  (void)t.join("w0", 30, 2, "h0");
  (void)t.beat(21, 4);
  (void)t.join("w1", 31, 2, "h1");
  EXPECT_EQ(t.pass(400), "") << "after three heartbeats in all";
  EXPECT_EQ(t.pass(500), "") << "and one after it was asked";
  // Simulated seed 829007431: the next plan had a number that another had, whose member was gone before it could tell
  // it.
  EXPECT_NE(t.pass(200).find("Plan generation 5"), std::string::npos);
  EXPECT_EQ(t.beat(21, 4).substr(0, 13), "21 <- Refused") << "now there is another one";
}

// It stays with what it was told first: a member of both.
TEST(TrackerRebuild, AMemberOfBothPlansTellsTheNewest) {
  TrackerScript t(true, 2);
  for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
  const wire::Plan newest = later_plan(t.disk(), {10, 21});
  t.restart();
  EXPECT_EQ(t.beat(10, 4), "10 <- Tell 1\n");
  // Seed 618035657: what it would tell was lost on the way to it.
  wire::Envelope lost = t.promised(10);
  lost.mutable_known()->set_generation(4);
  lost.mutable_known()->set_plan_generation(4);
  EXPECT_EQ(t.send(std::move(lost)), "") << "it is too long to be told";
  EXPECT_NE(t.beat(10, 4).find("speaks of generation 4, the tracker's journal ends at generation 1"),
            std::string::npos);
}

// The plan of the tracker before lay unread while it reported, and it took it up then.
TEST(TrackerRebuild, AReportToTheTrackerBeforeIsAskedForAgain) {
  TrackerScript t(false, 2);
  for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
  (void)t.round_failed(10, 1, Code::kCorrupt, "x");
  t.restart();
  wire::Envelope e = t.promised(10);
  e.set_term(e.term() - 1);
  e.mutable_report()->set_generation(2);
  e.mutable_report()->set_version(1);
  EXPECT_EQ(t.send(std::move(e)), "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.report(10, 2, 1), "10 <- Welcome 1 of 2 missing w1\n");
}

// All have died since, and nobody is left who could tell.
TEST(TrackerRebuild, AnOlderCopyLearnsFromDisksWhenNobodyLives) {
  // Of the last one launchers have kept what lives of the newest plan had logged, and not how far these were to replay.
  for (const int what : {0, 1, 2}) {
    const bool commit_alone = what == 1, kept = what == 2;
    TrackerScript t(true, 2);
    for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
    wire::Plan newest = later_plan(t.disk(), {20, 21});
    if (commit_alone) {
      wire::JobRecord record;
      ASSERT_TRUE(record.ParseFromString(t.disk()));
      newest = record.plan();
    }
    newest.clear_frontier();
    t.restart();
    (void)t.pass(3000);
    const auto join_both = [&] {
      wire::Envelope first = t.promised(30);
      *first.mutable_join() = test::join("w0", "h0", 2, 2);
      if (kept) first.mutable_join()->mutable_logged()->add_lives(20);
      if (kept) first.mutable_join()->mutable_logged()->set_run(newest.run());
      (void)t.send(std::move(first));
      wire::Envelope e = t.promised(31);
      *e.mutable_join() = test::join("w1", "h1", 2, 2);
      if (kept) e.mutable_join()->mutable_logged()->add_lives(21);
      if (kept) e.mutable_join()->mutable_logged()->set_run(newest.run());
      wire::Held& held = *e.mutable_join()->mutable_held();
      held.set_run(newest.run());
      *held.mutable_known() = known(31, newest.generation(), &newest, 3).known();
      return t.send(std::move(e));
    };
    std::string got = join_both();
    if (commit_alone) {
      EXPECT_NE(got.find("log commit_learned: version 2 of job j"), std::string::npos) << got;
    } else {
      EXPECT_NE(
          got.find("log journal_older: the journal ends at the plan of generation 1 of job j, and the disk of host h1 "
                   "knows that of generation 4: it is an older copy"),
          std::string::npos)
          << got;
      EXPECT_NE(got.find("30 <- HeartbeatReply 0\n"), std::string::npos) << "they need not wait to join again";
      (void)join_both();
      got = join_both();
    }
    const std::string plan =
        std::string(commit_alone ? "Plan generation 2" : "Plan generation 5") + " w0=30 w1=31 timeline 1 committed 3";
    EXPECT_NE(got.find(plan), std::string::npos) << t.transcript();
  }
}

// Of worker w0 there is a mirror's copy of the newest plan, which leaves set-up rounds out.
TEST(TrackerRebuild, AnOlderCopyLearnsSetUpRoundsFromAnyDisk) {
  TrackerScript t(true, 2);
  for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
  wire::Plan newest = later_plan(t.disk(), {20, 21});
  newest.clear_frontier();
  t.restart();
  (void)t.pass(3000);
  const auto join_both = [&] {
    std::string got;
    for (std::uint64_t w : {0, 1}) {
      wire::Envelope e = t.promised(30 + w);
      *e.mutable_join() = test::join("w" + std::to_string(w), "h" + std::to_string(w), 2, 2);
      wire::Plan plan = newest;
      if (w == 1) *plan.add_setups() = setup(0, 7, true);
      wire::Held& held = *e.mutable_join()->mutable_held();
      held.set_run(plan.run());
      held.set_mirrored(w == 0);
      *held.mutable_known() = known(30 + w, plan.generation(), &plan, 3).known();
      got = t.send(std::move(e));
    }
    return got;
  };
  EXPECT_NE(join_both().find("log journal_older"), std::string::npos) << t.transcript();
  (void)join_both();
  const std::string got = join_both();
  EXPECT_NE(got.find("w0=30 w1=31 timeline 1 s7| committed 3"), std::string::npos) << t.transcript();
}

// Simulated seed 1440702907: rounds were taken from disks into a new timeline, and a life of that has not replayed them
// yet. A disk knows its plan, and does not keep that they were done. A life goes on in no other timeline.
TEST(TrackerRebuild, WhereRoundsTakenFromDisksAreForgottenALifeThatGoesOnBeginsAnew) {
  TrackerScript t(true, 2);
  for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
  wire::Plan newest = later_plan(t.disk(), {20, 21});
  newest.set_timeline(1);
  wire::Kept& kept = *newest.add_kept();
  kept.set_version(1);
  kept.set_rounds(1);
  newest.clear_frontier();
  t.restart();
  (void)t.pass(3000);
  const auto joins = [&](std::uint64_t w, std::uint64_t life, bool with_disk) {
    wire::Envelope e = t.promised(life);
    *e.mutable_join() = test::join("w" + std::to_string(w), "h" + std::to_string(w), 2, 2);
    wire::Held& held = *e.mutable_join()->mutable_held();
    held.set_run(newest.run());
    *held.mutable_known() = known(life, newest.generation(), &newest).known();
    if (!with_disk) e.mutable_join()->clear_held();
    return t.send(std::move(e));
  };
  (void)joins(0, 30, false);
  EXPECT_NE(joins(1, 31, true).find("log journal_older: "), std::string::npos) << t.transcript();
  (void)joins(1, 31, true);
  wire::Envelope e = t.promised(20);
  e.mutable_report()->set_generation(5);
  e.mutable_report()->set_plan_generation(4);
  e.mutable_report()->set_timeline(1);
  (void)t.send(std::move(e));
  const std::string got = joins(1, 31, true);
  EXPECT_NE(got.find("how many rounds that job j has taken from disks were done"), std::string::npos) << t.transcript();
  EXPECT_NE(got.find("20 <- Interrupt generation 6"), std::string::npos) << t.transcript();
}

// Simulated seed 813005887: its first plan was lost on the way to it, and a disk knows that plan but for its frontier.
TEST(TrackerRebuild, WhoDidNotGetThePlanThatADiskKnowsBeginsAnew) {
  for (const bool restarted : {false, true}) {
    TrackerScript t(true, 2);
    for (std::uint64_t w : {0, 1}) (void)t.join("w" + std::to_string(w), 10 + w, 2, "h" + std::to_string(w));
    wire::Plan newest = later_plan(t.disk(), {20, 21});
    newest.clear_frontier();
    t.restart();
    (void)t.pass(3000);
    const auto joins = [&](std::uint64_t w, std::uint64_t life) {
      wire::Envelope e = t.promised(life);
      *e.mutable_join() = test::join("w" + std::to_string(w), "h" + std::to_string(w), 2, 2);
      wire::Held& held = *e.mutable_join()->mutable_held();
      held.set_run(newest.run());
      *held.mutable_known() = known(life, newest.generation(), &newest, 3).known();
      if (w == 0) e.mutable_join()->clear_held();
      return t.send(std::move(e));
    };
    (void)joins(0, 20);
    EXPECT_NE(joins(1, 31).find("log journal_older: "), std::string::npos);
    (void)joins(1, 31);
    (void)joins(0, 20);
    if (restarted) {
      t.restart();
      (void)joins(1, 31);
      (void)joins(0, 20);
    }
    EXPECT_NE(joins(0, 20).find("20 <- Pause generation 5"), std::string::npos) << t.transcript();
    wire::Envelope e = t.promised(20);
    e.mutable_report()->set_generation(5);
    EXPECT_NE(t.send(std::move(e)).find("20 <- Refused"), std::string::npos) << t.transcript();
    (void)joins(0, 30);
    (void)joins(1, 31);
    (void)t.pass(3000);  // one that was started again waits for newer plans once more
    EXPECT_NE(t.transcript().find(" w0=30 w1=31 timeline 1 committed 3"), std::string::npos) << t.transcript();
  }
}

// The mirror served when the newest plan was made: a committed version fell.
TEST(TrackerRebuild, ACommitThatTheNewestPlanHasTakenBackIsNone) {
  TrackerScript t(false, 2);
  wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}});
  plan.set_timeline(2);
  plan.set_committed(true);
  plan.set_committed_version(4);
  plan.set_committed_timeline(1);
  (void)t.send(known(10, 7, &plan, 4, 1));
  wire::Envelope behind = known_too(11, 7, 6, 9, 1);
  *behind.mutable_known()->add_setups() = setup(0, 7, true, {}, 1);
  EXPECT_EQ(t.send(behind), "persist generation 7 running timeline 2 committed 4\n");
  EXPECT_EQ(t.machine().view({}).committed, Version(4));
}

// A spare and the workers whose places are free: nobody is told apart before the members have told who they are.
TEST(TrackerRebuild, NoMoreWaitThanThereArePlaces) {
  TrackerScript t(false, 2);
  (void)t.beat(10, 7);
  for (const auto& [worker, life] : {std::pair("x", 20), std::pair("w1", 21), std::pair("w2", 22)}) {
    EXPECT_NE(t.join(worker, static_cast<std::uint64_t>(life), 3), "");
  }
  EXPECT_EQ(t.join("w0", 23, 3), "");
}

TEST(TrackerRebuild, ATrackerThatSleptAsksAgain) {
  TrackerScript t(false, 2);
  const wire::Plan plan = plan_with(7, {{"w0", 10}, {"w1", 11}});
  (void)t.send(known(10, 7, &plan));
  EXPECT_EQ(t.sleep(60'000), "");
  EXPECT_EQ(t.send(known_too(11, 7, 7)), "persist generation 7 running\n");
}

}  // namespace
}  // namespace warren::test

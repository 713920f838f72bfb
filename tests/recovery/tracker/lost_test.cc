// A job whose committed checkpoint is lost, and one that is to be forgotten
// (docs/decisions/0022-a-job-that-is-lost.md).
#include <gtest/gtest.h>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

using State = TrackerMachine::State;

constexpr std::int64_t kTimeoutMs = 5000;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kWhy =
    "what it would go on from is lost, as rank 0 (worker w0 on host a) says: its copies are lost; if what the workers "
    "had on disk still exists, start all of them again with it (data_dir); otherwise start the job anew: under another "
    "name, or this one once it is free, by `warren forget --job=j`";
const std::string kRefusal = "Refused 2: " + kWhy + "\n";

// Two workers on hosts a and b, with two copies of everything: w0 = life 10, w1 = life 11. They have committed a
// version, and all have died. (Of a job that was begun by hand nothing is left then.)
class AllDead : public TrackerScript {
 public:
  explicit AllDead(bool logs = false) : TrackerScript(logs, 2) {
    (void)joins(0, 10);
    (void)joins(1, 11);
    (void)vote(10, 2);
    EXPECT_TRUE(has(vote(11, 2), "Committed 2"));
    (void)give_up(10, 1);
    (void)give_up(11, 1);
    EXPECT_EQ(machine().state(), State::kGathering);
  }
  wire::Envelope join_of(std::uint64_t worker, std::uint64_t life) {
    wire::Envelope e = promised(life);
    *e.mutable_join() = test::join("w" + std::to_string(worker), worker == 0 ? "a" : "b", 2, 2);
    return e;
  }
  std::string joins(std::uint64_t worker, std::uint64_t life) { return send(join_of(worker, life)); }
  // Its host's disk holds something of this job.
  std::string joins_with_disk(std::uint64_t worker, std::uint64_t life) {
    wire::Envelope e = join_of(worker, life);
    e.mutable_join()->mutable_held()->set_run(10);  // the first life of the first plan
    e.mutable_join()->mutable_held()->mutable_known()->set_generation(1);
    return send(std::move(e));
  }
  // What its launcher has kept does.
  std::string joins_with_memory(std::uint64_t worker, std::uint64_t life) {
    wire::Envelope e = join_of(worker, life);
    e.mutable_join()->mutable_logged()->set_run(10);
    e.mutable_join()->mutable_logged()->add_lives(10 + worker);
    return send(std::move(e));
  }
  std::string waits_as_spare(std::uint64_t life) {
    wire::Envelope e = promised(life);
    *e.mutable_join() = test::join("s0", "c", 2, 2);
    e.mutable_join()->set_waits(true);
    e.mutable_join()->set_spare(true);
    return send(std::move(e));
  }
  // Lives 20 and 21 are planned for, and 20 finds that the checkpoint is lost.
  std::string lose() {
    (void)joins(0, 20);
    EXPECT_TRUE(has(joins(1, 21), "Plan generation 2 w0=20 w1=21 timeline 1 committed 2 in 0"));
    EXPECT_EQ(load(20), "20 <- Loaded 2 of timeline 0\n");
    return checkpoint_lost(20, 2, 2);
  }
  void all_stop() {
    (void)stopped(20, 3);
    (void)stopped(21, 3);
    EXPECT_EQ(machine().state(), State::kGathering);
  }
  [[nodiscard]] TrackerMachine::View view() { return machine().view(TimeMs{now()}); }
};

TEST(TrackerLost, AllMembersHearThatTheJobCannotGoOnOnceThatIsStored) {
  AllDead t(true);
  const std::string said = " <- End generation 3 code 2: " + kWhy + "\n";
  EXPECT_EQ(t.lose(), "persist generation 3 lost timeline 1 committed 2\nlog job_lost: job j cannot go on: " + kWhy +
                          "\n20" + said + "21" + said);
  EXPECT_TRUE(t.view().lost);
  // Until each has said that it has stopped.
  EXPECT_EQ(t.stopped(20, 3), "log worker_stopped: rank 0 (worker w0 on host a) has stopped\ndrop 20\n");
  EXPECT_TRUE(has(t.pass(1000), "21" + said));
  EXPECT_TRUE(
      has(t.stopped(21, 3), "log gathering: all members of generation 2 of job j have stopped; it cannot go on\n"));
  // Nothing more happens, and nobody is waited for.
  EXPECT_EQ(t.pass(600'000), "");
  EXPECT_TRUE(t.view().waiting_for.empty());
}

// In that time another may come whose host has kept something.
TEST(TrackerLost, WhoJoinsLaterHearsItTooAndWaitsNoLongerThanARoundTimeout) {
  AllDead t;
  (void)t.lose();
  (void)t.stopped(20, 3);
  EXPECT_EQ(t.joins(0, 30), "30 <- HeartbeatReply 1\n");  // life 21 has not answered yet
  (void)t.stopped(21, 3);
  (void)t.pass(kTimeoutMs - 1);
  EXPECT_EQ(t.joins(0, 30), "30 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.joins(1, 31), "31 <- HeartbeatReply 1\n");
  (void)t.pass(1);
  EXPECT_EQ(t.joins(0, 30), "30 <- " + kRefusal + "drop 30\n");
  EXPECT_EQ(t.joins(1, 31), "31 <- HeartbeatReply 1\n");
  // A life that has missed it does not wait.
  EXPECT_EQ(t.beat(21, 2), "21 <- " + kRefusal + "drop 21\n");
}

TEST(TrackerLost, WhoComesFirstWaitsForOneWhoseHostHasKeptSomething) {
  AllDead t(true);
  (void)t.lose();
  t.all_stop();
  const std::string said = t.joins(0, 30);
  EXPECT_TRUE(has(said,
                  "log lost_job_waits: worker w0 on host a has come to job j, which is lost; it is refused in 5.0 "
                  "s unless another comes whose host has kept something of the job: what it would go on from"))
      << said;
  (void)t.pass(kTimeoutMs / 2);
  EXPECT_EQ(t.joins(0, 30), "30 <- HeartbeatReply 1\n") << "said once";
  EXPECT_TRUE(has(t.joins_with_disk(1, 31), "log lost_job_taken_up"));
  EXPECT_TRUE(has(t.joins(0, 30), "w0=30 w1=31 timeline 2 committed 2 in 0\n"));
}

TEST(TrackerLost, SoManyMayWaitForThatAndNoMore) {
  AllDead t;
  (void)t.lose();
  t.all_stop();
  for (std::uint64_t life = 30; life < 34; ++life) EXPECT_FALSE(has(t.joins(0, life), "Refused"));
  EXPECT_EQ(t.joins(0, 34), "34 <- " + kRefusal + "drop 34\n");
  // Those that are gone make room.
  (void)t.pass(2 * kTimeoutMs);
  EXPECT_EQ(t.joins(0, 35), "35 <- HeartbeatReply 1\n");
}

TEST(TrackerLost, ARestartedTrackerSaysIt) {
  AllDead t;
  (void)t.lose();
  t.all_stop();
  t.restart();
  (void)t.pass(kTimeoutMs);  // nobody answers what it says again
  (void)t.joins(0, 30);
  (void)t.pass(kTimeoutMs);
  EXPECT_TRUE(has(t.joins(0, 30), "30 <- " + kRefusal));
  // Also where it decides nothing else, because too few have come.
  t.restart(false);
  (void)t.joins(0, 40);
  (void)t.pass(kTimeoutMs);
  (void)t.joins(0, 40);
  (void)t.pass(kTimeoutMs);
  EXPECT_TRUE(has(t.joins(0, 40), "40 <- " + kRefusal));
}

// A simulated job of two hung so (seed 11685): its other rank had heard that the job is lost, and had gone for good.
TEST(TrackerLost, ARestartedTrackerSaysItToAMemberThatIsNotTheMajority) {
  AllDead t;
  (void)t.lose();
  t.restart(false);
  const auto waits = [&] {
    wire::Envelope e = t.promised(21);
    e.mutable_heartbeat()->set_generation(2);
    e.mutable_heartbeat()->set_beat(9);
    return t.send(std::move(e));
  };
  EXPECT_FALSE(has(waits(), "End generation 3")) << "others may come, and hear it from a tracker that decides";
  (void)t.pass(kTimeoutMs);
  EXPECT_TRUE(has(waits(), "21 <- End generation 3"));
}

TEST(TrackerLost, WhoDoesNotAnswerIsFencedAndSparesDoNotWaitOn) {
  AllDead t;
  (void)t.waits_as_spare(50);
  EXPECT_TRUE(has(t.lose(), "50 <- " + kRefusal));
  EXPECT_EQ(t.waits_as_spare(51), "51 <- " + kRefusal + "drop 51\n");
  (void)t.stopped(20, 3);
  EXPECT_TRUE(has(t.pass(5000), "drop 21\n"));
  EXPECT_EQ(t.machine().state(), State::kGathering);
}

TEST(TrackerLost, WhoBringsWhatMayHaveBeenMissingIsTakenIn) {
  for (const bool disk : {true, false}) {
    AllDead t;
    (void)t.lose();
    // Not while somebody has not stopped: it asks again.
    (void)t.stopped(20, 3);
    EXPECT_EQ(disk ? t.joins_with_disk(0, 30) : t.joins_with_memory(0, 30), "30 <- HeartbeatReply 1\n");
    (void)t.stopped(21, 3);
    EXPECT_EQ(disk ? t.joins_with_disk(0, 30) : t.joins_with_memory(0, 30),
              "persist generation 3 paused timeline 1 committed 2\n30 <- Welcome 1 of 2 missing w1\n");
    EXPECT_FALSE(t.view().lost);
    // The others need not bring anything.
    EXPECT_TRUE(has(t.joins(1, 31), "w0=30 w1=31 timeline 2 committed 2 in 0\n"));
    // And if it was in vain, all hear so again.
    EXPECT_TRUE(has(t.checkpoint_lost(30, 3, 2), "31 <- End generation 4"));
  }
}

// Lost, taken up by what w0's host a has in memory, and lost again after lives 30 and 31 were planned for.
class LostAgain : public AllDead {
 public:
  // `elsewhere`: w0's life that took it up has died, and the one that is planned for is on another host.
  explicit LostAgain(bool elsewhere = false) {
    (void)lose();
    all_stop();
    (void)joins_with_memory(0, elsewhere ? 29 : 30);
    if (elsewhere) {
      wire::Envelope e = promised(30);
      *e.mutable_join() = test::join("w0", "c", 2, 2);
      (void)send(std::move(e));
    }
    (void)joins(1, 31);
    EXPECT_TRUE(has(checkpoint_lost(30, 3, 2), "31 <- End generation 4")) << transcript();
    (void)stopped(30, 4);
    (void)stopped(31, 4);
    EXPECT_TRUE(view().lost);
  }
};

// Seed 31169: a job of one rank whose spares' host held something was taken up by each of their lives, 236 times.
TEST(TrackerLost, WhatHasTakenItUpInVainDoesSoAgainOnlyAfterAWhile) {
  LostAgain same, disk, other, later;
  EXPECT_EQ(same.joins_with_memory(0, 40), "40 <- HeartbeatReply 1\n");
  (void)same.pass(kTimeoutMs);
  const std::string refused = same.joins_with_memory(0, 40);
  EXPECT_TRUE(
      has(refused, "40 <- Refused 2: " + kWhy + " (what host a has kept was looked at, and is looked at again in 15"))
      << refused;
  EXPECT_TRUE(has(disk.joins_with_disk(0, 40), "Welcome"));
  EXPECT_TRUE(has(other.joins_with_memory(1, 41), "Welcome"));
  // What is on a host may be another thing then.
  (void)later.pass(4 * kTimeoutMs - 1);
  EXPECT_EQ(later.joins_with_memory(0, 40), "40 <- HeartbeatReply 1\n");
  (void)later.pass(1);
  EXPECT_TRUE(has(later.joins_with_memory(0, 40), "Welcome"));
}

TEST(TrackerLost, WhatWasNotAskedBecauseItsLifeDiedMayTakeItUpAgain) {
  LostAgain t(true);
  EXPECT_TRUE(has(t.joins_with_memory(0, 40), "Welcome")) << t.transcript();
}

// A worker that is no member, of a host without a place, brings the same with each of its lives.
TEST(TrackerLost, WhatIsNeverAskedTakesItUpTwiceAtOnce) {
  AllDead t;
  (void)t.lose();
  t.all_stop();
  int taken_up = 0;
  for (std::uint64_t life = 30; life < 180; life += 10) {
    wire::Envelope e = t.promised(life);
    *e.mutable_join() = test::join("s0", "c", 2, 2);
    e.mutable_join()->set_waits(true);
    e.mutable_join()->mutable_held()->set_run(10);
    e.mutable_join()->mutable_held()->mutable_known()->set_generation(1);
    taken_up += has(t.send(std::move(e)), " paused ");
    if (t.view().lost) {
      (void)t.pass(1000);
      continue;
    }
    (void)t.joins(0, life + 1);
    (void)t.joins(1, life + 2);
    (void)t.checkpoint_lost(life + 1, t.view().generation.value, 2);
    (void)t.stopped(life + 1, t.view().generation.value);
    (void)t.stopped(life + 2, t.view().generation.value);
  }
  EXPECT_EQ(taken_up, 2) << t.transcript();
}

// It may be lost again, later, for want of something else.
TEST(TrackerLost, WhatWasOfUseIsAskedAgainAtOnce) {
  AllDead t;
  (void)t.lose();
  t.all_stop();
  (void)t.joins_with_memory(0, 30);
  (void)t.joins(1, 31);
  (void)t.pass(60 * kTimeoutMs);
  (void)t.give_up(30, 3);
  (void)t.give_up(31, 3);
  (void)t.joins(0, 40);
  EXPECT_TRUE(has(t.joins(1, 41), "w0=40 w1=41")) << t.transcript();
  EXPECT_TRUE(has(t.checkpoint_lost(40, t.view().generation.value, 2), "<- End generation")) << t.transcript();
  (void)t.stopped(40, t.view().generation.value);
  (void)t.stopped(41, t.view().generation.value);
  EXPECT_TRUE(has(t.joins_with_memory(0, 50), "Welcome")) << t.transcript();
}

// A damaged mirror is the same one from whatever host.
TEST(TrackerLost, AMirrorThatWasOfNoUseIsAskedOnce) {
  AllDead t;
  (void)t.lose();
  t.all_stop();
  const auto joins_with_mirror = [&](std::uint64_t worker, std::uint64_t life) {
    wire::Envelope e = t.join_of(worker, life);
    e.mutable_join()->mutable_held()->set_run(10);
    e.mutable_join()->mutable_held()->set_mirrored(true);
    wire::Known& known = *e.mutable_join()->mutable_held()->mutable_known();
    known.set_generation(1);
    known.set_committed(true);
    known.set_committed_version(2);
    return t.send(std::move(e));
  };
  EXPECT_TRUE(has(joins_with_mirror(0, 30), "Welcome")) << t.transcript();
  (void)t.joins(1, 31);
  EXPECT_TRUE(has(t.checkpoint_lost(30, 3, 2), "31 <- End generation 4")) << t.transcript();
  (void)t.stopped(30, 4);
  (void)t.stopped(31, 4);
  EXPECT_EQ(joins_with_mirror(1, 41), "41 <- HeartbeatReply 1\n");
}

TEST(TrackerLost, AnotherRunsDisksBringNothing) {
  AllDead t;
  (void)t.lose();
  t.all_stop();
  wire::Envelope e = t.join_of(0, 30);
  e.mutable_join()->mutable_held()->set_run(99);
  e.mutable_join()->mutable_held()->mutable_known()->set_generation(1);
  EXPECT_EQ(t.send(e), "30 <- HeartbeatReply 1\n");
  (void)t.pass(kTimeoutMs);
  EXPECT_EQ(t.send(e), "30 <- " + kRefusal + "drop 30\n");
}

// Nobody waits for an answer for ever.
TEST(TrackerLost, WhoCannotLoadWhatIsNotTheNewestIsToldToLookAgain) {
  AllDead t;
  (void)t.joins(0, 20);
  (void)t.joins(1, 21);
  EXPECT_TRUE(has(t.checkpoint_lost(20, 2, 5, 1), "20 <- Pause generation 3"));
  EXPECT_FALSE(t.view().lost);
}

TEST(TrackerLost, WhatWasReportedOfAnotherGenerationEndsNothing) {
  AllDead t;
  (void)t.joins(0, 20);
  (void)t.joins(1, 21);
  EXPECT_EQ(t.checkpoint_lost(20, 1, 2), "");
  EXPECT_EQ(t.machine().state(), State::kRunning);
}

// Three ranks in mode shrink, two copies of everything. They have committed a version, and then rank 2 has died and
// come back as life 22, in generation 2, and has to load it.
class Newcomer : public TrackerScript {
 public:
  explicit Newcomer(std::uint32_t min_workers) : TrackerScript(false, 2), min_workers_(min_workers) {
    (void)joins(0, 10);
    (void)joins(1, 11);
    (void)joins(2, 12);
    for (const std::uint64_t life : {10, 11, 12}) (void)vote(life, 2);
    (void)give_up(12, 1);
    others_report(2);
    EXPECT_TRUE(has(joins(2, 22), "22 <- Plan generation 2"));
  }
  // `host`: empty: its own. `former`: the life whose memory the launcher of its host has kept; 0: none.
  std::string joins(std::uint64_t worker, std::uint64_t life, const std::string& host = "", std::uint64_t former = 0) {
    wire::Envelope e = promised(life);
    const std::string name = std::to_string(worker);
    *e.mutable_join() =
        test::join("w" + name, host.empty() ? std::string(1, static_cast<char>('a' + worker)) : host, 3, 2);
    e.mutable_join()->set_waits(true);
    e.mutable_join()->mutable_settings()->set_min_workers(min_workers_);
    e.mutable_join()->mutable_settings()->set_grace_ms(300);
    if (former != 0) {
      e.mutable_join()->mutable_logged()->set_run(10);
      e.mutable_join()->mutable_logged()->add_lives(former);
    }
    return send(std::move(e));
  }
  std::string others_report(std::uint64_t generation) { return report(10, generation, 2) + report(11, generation, 2); }

 private:
  std::uint32_t min_workers_;
};

TEST(TrackerLost, InModeShrinkOthersGoOnWithoutWhoCannotLoad) {
  Newcomer t(2);
  const std::string text = t.checkpoint_lost(22, 2, 2);
  EXPECT_TRUE(has(text, "10 <- Pause generation 3 code 5 lost 2: ")) << text;
  EXPECT_TRUE(has(text, "22 <- Refused 2: what it would go on from is lost, as rank 2 (worker w2 on host c) says"))
      << text;
  (void)t.others_report(3);
  EXPECT_TRUE(has(t.pass(300), "10 <- Plan generation 3 "));
}

// As long as that version stands it would be in vain, and stop the others each time (seed 2519 of the simulator).
TEST(TrackerLost, InModeShrinkWhoCannotLoadComesInWithTheNextVersion) {
  Newcomer t(2);
  (void)t.checkpoint_lost(22, 2, 2);
  (void)t.others_report(3);
  // Its host's memory was looked at, and did not have it.
  EXPECT_FALSE(has(t.joins(2, 32, "", 22), "Plan"));
  const std::string without = t.pass(300);
  EXPECT_TRUE(has(without, "10 <- Plan generation 3 w0=10 (as before) w1=11 (as before) w2 (absent)")) << without;
  EXPECT_FALSE(has(t.joins(2, 32, "", 22), "Pause")) << "it waits";
  // Nor is it called when the others stop for another reason.
  (void)t.link_broken(10, 3, 1, 11);
  std::string again = t.pass(300);
  again += t.others_report(4);
  EXPECT_FALSE(has(again, "32 <- Called")) << again;
  EXPECT_TRUE(has(again, "10 <- Plan generation 4 w0=10 (as before) w1=11 (as before) w2 (absent)")) << again;
  (void)t.vote(10, 3, {position(2, 0, true)}, 1);
  const std::string committed = t.vote(11, 3, {position(2, 0, true)}, 1);
  EXPECT_TRUE(has(committed, "10 <- Committed 3")) << committed;
  EXPECT_TRUE(has(committed, "10 <- Pause generation 5")) << committed;
}

TEST(TrackerLost, InModeShrinkAHostThatWasNotAskedMayHaveIt) {
  Newcomer t(2);
  (void)t.checkpoint_lost(22, 2, 2);
  (void)t.others_report(3);
  EXPECT_TRUE(has(t.joins(2, 32, "d", 12), "32 <- Plan generation 3"));
}

TEST(TrackerLost, InModeShrinkTheJobIsLostWhereThoseThatHaveLoadedAreTooFew) {
  Newcomer t(3);
  EXPECT_FALSE(has(t.checkpoint_lost(22, 2, 2), "End"));
  const std::string text = t.others_report(3);
  EXPECT_TRUE(has(text, "10 <- End generation 4")) << text;
  EXPECT_TRUE(has(text, "and 2 that need not load it are fewer than the 3 with which the job may go on")) << text;
  EXPECT_TRUE(t.machine().view(TimeMs{t.now()}).lost);
}

// And where nobody has it, the job is lost in that mode too.
TEST(TrackerLost, InModeShrinkTheJobIsLostWhereAllWouldHaveToLoad) {
  TrackerScript t(false, 2);
  const auto joins = [&](const std::string& worker, std::uint64_t life, const std::string& host) {
    wire::Envelope e = t.promised(life);
    *e.mutable_join() = test::join(worker, host, 2, 2);
    e.mutable_join()->set_waits(true);
    e.mutable_join()->mutable_settings()->set_min_workers(1);
    e.mutable_join()->mutable_settings()->set_grace_ms(300);
    return t.send(std::move(e));
  };
  (void)joins("w0", 10, "a");
  (void)joins("w1", 11, "b");
  for (const std::uint64_t life : {10, 11}) (void)t.vote(life, 2);
  (void)t.give_up(10, 1);
  (void)t.give_up(11, 1);
  (void)joins("w0", 20, "a");
  (void)joins("w1", 21, "b");
  EXPECT_TRUE(has(t.checkpoint_lost(20, 2, 2), "21 <- End generation 3"));
}

TEST(TrackerForget, AJobWithoutAnybodyMayBeForgotten) {
  AllDead t;
  EXPECT_TRUE(t.machine().may_forget(TimeMs{t.now()}).ok());
}

// Also while some of its workers have not answered yet, and may have ended without an answer.
TEST(TrackerForget, AJobThatIsLostMayBeForgottenAtOnce) {
  AllDead t;
  (void)t.lose();
  EXPECT_TRUE(t.machine().may_forget(TimeMs{t.now()}).ok());
}

TEST(TrackerForget, WhoLivesIsNamedAndHearsItWhereItIsDoneAllTheSame) {
  AllDead t;
  (void)t.joins(0, 20);
  Status may = t.machine().may_forget(TimeMs{t.now()});
  EXPECT_EQ(may.code(), Code::kRefused);
  EXPECT_EQ(may.describe(),
            "job j lives: worker w0 (heard 0.0 s ago); end its workers first (one that was killed counts until it has "
            "been silent for 5.0 s), or give --force");
  (void)t.joins(1, 21);
  (void)t.waits_as_spare(50);
  (void)t.pass(1000);
  may = t.machine().may_forget(TimeMs{t.now()});
  EXPECT_TRUE(has(may.describe(),
                  "rank 0 (worker w0 on host a) (heard 1.0 s ago), rank 1 (worker w1 on host b) (heard "
                  "1.0 s ago), spare s0 (heard 1.0 s ago)"))
      << may.describe();
  std::vector<TrackerEffect> effects;
  t.machine().forget("over", effects);
  EXPECT_EQ(render(effects),
            "20 <- Refused 7: over\ndrop 20\n21 <- Refused 7: over\ndrop 21\n"
            "50 <- Refused 7: over\ndrop 50\n");
}

TEST(TrackerForget, MembersThatARestartedTrackerHasNotHeardCountUntilTheirTimeIsOver) {
  AllDead t;
  (void)t.joins(0, 20);
  (void)t.joins(1, 21);
  t.restart(false);
  EXPECT_FALSE(t.machine().may_forget(TimeMs{t.now()}).ok());
  (void)t.pass(5000);
  EXPECT_TRUE(t.machine().may_forget(TimeMs{t.now()}).ok());
}

// Those of the tracker that has finished the job are told by it that they have finished, whatever becomes of the name.
TEST(TrackerForget, OnlyAfterARestartAFinishedJobsWorkersMayAskForARoundTimeout) {
  TrackerScript t;
  (void)t.join("w0", 10, 1);
  (void)t.finalize(10, 1);
  EXPECT_EQ(t.machine().state(), State::kFinished);
  EXPECT_TRUE(t.machine().may_forget(TimeMs{t.now()}).ok());
  EXPECT_EQ(t.machine().finished_lives().size(), 1u);
  t.restart();
  EXPECT_EQ(t.machine().state(), State::kFinished);
  EXPECT_EQ(t.machine().may_forget(TimeMs{t.now()}).code(), Code::kUnavailable);
  (void)t.pass(5000);
  EXPECT_TRUE(t.machine().may_forget(TimeMs{t.now()}).ok());
}

// ---- what status shows

TEST(TrackerView, WhoIsSilentIsSuspectBeforeItIsLost) {
  AllDead t;
  (void)t.joins(0, 20);
  (void)t.joins(1, 21);
  (void)t.pass_alive(2000, {20, 21}, 2);
  EXPECT_FALSE(t.view().members[1].suspect);
  (void)t.pass_alive(4000, {20}, 2);
  EXPECT_TRUE(t.view().members[1].alive);
  EXPECT_TRUE(t.view().members[1].suspect);
  EXPECT_FALSE(t.view().members[0].suspect);
}

TEST(TrackerView, LivesOfARankAreCountedAndNotAttemptsToJoin) {
  AllDead t;  // one life each
  const auto lives = [&](std::size_t rank) { return t.view().members.at(rank).lives; };
  EXPECT_EQ(lives(0), 1u);
  // It joins in one life after the other, and waits.
  (void)t.joins(0, 20);
  (void)t.joins(0, 21);
  (void)t.joins(0, 22);
  EXPECT_EQ(lives(0), 2u);
  (void)t.joins(1, 31);
  EXPECT_EQ(lives(0), 2u);
  EXPECT_EQ(lives(1), 2u);
  // Who survives is the same, also for a tracker that was started again.
  (void)t.give_up(31, 2);
  (void)t.report(22, 3, 2);
  (void)t.joins(1, 41);
  EXPECT_EQ(lives(0), 2u);
  EXPECT_EQ(lives(1), 3u);
  t.restart();
  EXPECT_EQ(lives(1), 3u);
}

}  // namespace
}  // namespace warren::test

// The tracker's side of recovery, where results are logged: interrupts that resume, reports, frontiers, loads, votes,
// commits, rollbacks.
#include <gtest/gtest.h>

#include <array>

#include "recovery/base/limits.h"
#include "recovery/tracker/tracker_machine.h"
#include "tests/recovery/script.h"
#include "tests/sanitized.h"

namespace warren::test {
namespace {

using State = TrackerMachine::State;

// A job of `n` with two copies of everything: w0 = life 10, w1 = life 11, …, running in generation 1.
class Logged : public TrackerScript {
 public:
  explicit Logged(std::uint64_t n = 2, bool logs = false) : TrackerScript(logs, 2), n_(n) {
    for (std::uint64_t i = 0; i < n; ++i) (void)join(i, 10 + i);
    EXPECT_EQ(machine().state(), State::kRunning);
  }
  using TrackerScript::join;
  std::string join(std::uint64_t worker, std::uint64_t life) {
    return join("w" + std::to_string(worker), life, static_cast<std::uint32_t>(n_));
  }
  // All vote for `version`.
  std::string commit(std::uint64_t version, std::uint32_t timeline = 0,
                     const std::vector<std::uint64_t>& lives = {10, 11}) {
    std::string last;
    for (const std::uint64_t life : lives) last = vote(life, version, {}, timeline);
    return last;
  }

 private:
  std::uint64_t n_;
};

// Of a life that is in `version`, and was told that it is committed.
wire::Envelope report_of_commit(const TrackerScript& t, std::uint64_t life, std::uint64_t generation,
                                std::uint64_t version) {
  wire::Envelope e = t.promised(life);
  e.mutable_report()->set_generation(generation);
  e.mutable_report()->set_version(version);
  e.mutable_report()->set_committed_version(version);
  return e;
}

const std::string kStale =
    "Refused 7: this life is not a member of job j: its generation was ended, or it was silent for longer than the "
    "round "
    "timeout; join again [fenced]\n";
const std::string kLeft1 =
    " generation 2 code 5 lost 1: rank 1 (worker w1 on host h) left without finalizing; the other ranks wait until it "
    "is "
    "started again, and go on\n";

TEST(TrackerRecovery, SurvivorsReportAndGoOnWithANewLifeOfTheLost) {
  Logged t(3, true);
  EXPECT_EQ(t.give_up(11, 1),
            "persist generation 2 paused\n"
            "log interrupted: generation 1 of job j is over: rank 1 (worker w1 on host h) left without finalizing; the "
            "other ranks wait until it is started again, and go on\n"
            "10 <- Pause" +
                kLeft1 + "12 <- Pause" + kLeft1 + "drop 11\n");
  EXPECT_EQ(
      t.report(10, 2, 1, {position(0, 3, true), position(1, 5, false, {{0, 8}})}),
      "log worker_reported: rank 0 (worker w0 on host h) has stopped in version 0 and waits for the next generation\n"
      "10 <- Welcome 1 of 3 missing w1,w2\n");
  EXPECT_EQ(t.report(10, 2, 1, {position(0, 3, true), position(1, 5, false, {{0, 8}})}),
            "10 <- Welcome 1 of 3 missing w1,w2\n");
  EXPECT_EQ(t.machine().state(), State::kInterrupted);
  EXPECT_EQ(
      t.report(12, 2, 1, {position(0, 3, true), position(1, 5, false, {{4, 16}})}),
      "log worker_reported: rank 2 (worker w2 on host h) has stopped in version 0 and waits for the next generation\n"
      "12 <- Welcome 2 of 3 missing w1\n"
      "log gathering: all members of generation 1 of job j have stopped; 2 of 3 workers are there\n");
  EXPECT_EQ(t.machine().state(), State::kGathering);
  const std::string plan = " <- Plan generation 2 w0=10 (as before) w1=21 w2=12 (as before) 0.3| 1.5[0,16)\n";
  EXPECT_EQ(t.join(1, 21),
            "log worker_joined: worker w1 on host h joined job j, which has 3 of 3 workers\n"
            "21 <- Welcome 3 of 3\n"
            "persist generation 2 running\n"
            "log planned: job j runs with 3 workers in generation 2, 2 of which go on where they were\n"
            "log recovered: job j is whole again in generation 2, 0 ms after the tracker noticed the end of generation "
            "1; with new "
            "processes: rank 1 (worker w1 on host h)\n"
            "10" +
                plan + "21" + plan + "12" + plan);
  // A plan that was lost comes again, verbatim, whichever way it is asked for.
  EXPECT_EQ(t.report(10, 2, 1), "10" + plan);
  EXPECT_EQ(t.beat(12, 1), "12" + plan);
  EXPECT_EQ(t.join(1, 21), "21" + plan);
  EXPECT_EQ(t.beat(10, 2), "10 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.beat(11, 1), "11 <- " + kStale + "drop 11\n");
}

TEST(TrackerRecovery, ThatTheJobIsWholeAgainIsSaidOnceAndSinceWhen) {
  Logged t(3, true);
  const auto said = [](const std::string& text) {
    const std::size_t at = text.find("log recovered: ");
    return at == std::string::npos ? std::string() : text.substr(at, text.find('\n', at) - at);
  };
  (void)t.link_broken(10, 1, 1, 11);
  EXPECT_EQ(said(t.pass(50)), "");  // that is an interrupt
  (void)t.report(10, 2, 1);
  (void)t.report(12, 2, 1);
  EXPECT_EQ(t.machine().state(), State::kInterrupted);
  (void)t.give_up(11, 1);
  // Whoever is lost meanwhile does not begin the time anew.
  (void)t.pass(100);
  (void)t.give_up(12, 1);
  (void)t.pass(100);
  EXPECT_EQ(said(t.join(1, 21)), "");
  const std::string whole = t.join(2, 22);
  EXPECT_EQ(said(whole),
            "log recovered: job j is whole again in generation 2, 250 ms after the tracker noticed the end of "
            "generation 1; with new "
            "processes: rank 1 (worker w1 on host h), rank 2 (worker w2 on host h)");
  EXPECT_EQ(said(t.pass_alive(20'000, {10, 21, 22}, 2)), "");
  // All of them have stopped, and go on.
  (void)t.round_failed(10, 2, Code::kCorrupt, "damaged");
  for (const std::uint64_t life : {10, 21}) (void)t.report(life, 3, 2);
  EXPECT_EQ(said(t.report(22, 3, 2)),
            "log recovered: job j is whole again in generation 3, 0 ms after the tracker noticed the end of generation "
            "2; all "
            "of them are "
            "the processes of before");
  // A tracker that is started meanwhile does not know when.
  (void)t.give_up(22, 3);
  t.restart(true);
  for (const std::uint64_t life : {10, 21}) (void)t.report(life, 4, 3);
  std::string text = t.join(2, 32);
  text += t.pass(5000);
  EXPECT_EQ(said(text),
            "log recovered: job j is whole again in generation 4; with new processes: rank 2 (worker w2 on host h)");
}

TEST(TrackerRecovery, WhatSurvivorsHaveDoneIsShownWhileTheyWaitAndInTheNextGeneration) {
  Logged t(2);
  for (const std::uint64_t life : {10, 11}) (void)t.beat(life, 1);
  const auto rounds = [&] {
    const auto view = t.machine().view(TimeMs{t.now()});
    return std::pair(view.members.at(0).rounds_finished, view.members.at(1).rounds_finished);
  };
  EXPECT_EQ(rounds(), std::pair(12ul, 12ul));
  (void)t.give_up(11, 1);
  EXPECT_EQ(rounds(), std::pair(12ul, 12ul)) << "the newest that is known";
  (void)t.report(10, 2, 1);
  EXPECT_EQ(t.machine().state(), State::kGathering);
  EXPECT_EQ(rounds(), std::pair(12ul, 12ul));
  (void)t.join(1, 21);
  EXPECT_EQ(t.machine().state(), State::kRunning);
  EXPECT_EQ(rounds(), std::pair(12ul, 0ul)) << "a new life begins at nothing";
}

TEST(TrackerRecovery, WhatLivesHaveDoneOnGpusStaysInTheSumsWhenTheyEnd) {
  Logged t(2);
  const auto beat = [&](std::uint64_t life, std::uint64_t generation, std::uint64_t number, std::uint64_t count) {
    wire::Envelope e = from_worker(life);
    e.mutable_heartbeat()->set_generation(generation);
    e.mutable_heartbeat()->set_beat(number);
    wire::GpuCounters& gpu = *e.mutable_heartbeat()->mutable_gpu();
    gpu.set_readers(1);
    gpu.set_inputs_lent(count);
    gpu.set_finals_from_gpus(10 * count);
    gpu.set_rounds_exchanged(100 * count);
    (void)t.send(e);
  };
  const auto view = [&] { return t.machine().view(TimeMs{t.now()}); };
  using Counts = std::array<std::uint64_t, 3>;
  const auto sums = [&] {
    const auto& g = view().gpu;
    return Counts{g.inputs_lent, g.finals_from_gpus, g.rounds_exchanged};
  };
  const auto of_rank = [&](std::size_t rank) {
    const auto g = view().members.at(rank).gpu;
    EXPECT_EQ(g.finals_from_gpus, 10 * g.inputs_lent);
    EXPECT_EQ(g.rounds_exchanged, 100 * g.inputs_lent);
    return std::pair(g.readers, g.inputs_lent);
  };
  beat(10, 1, 1, 5);
  beat(11, 1, 1, 4);
  EXPECT_EQ(sums(), (Counts{9, 90, 900}));
  beat(10, 1, 2, 7);
  beat(10, 1, 2, 7);
  beat(10, 1, 1, 5);
  EXPECT_EQ(sums(), (Counts{11, 110, 1100})) << "again, or late: nothing new";
  EXPECT_EQ(of_rank(0), std::pair(1ul, 7ul));
  EXPECT_EQ(of_rank(1), std::pair(1ul, 4ul));
  EXPECT_EQ(view().gpu.readers, 2u);
  (void)t.give_up(11, 1);
  EXPECT_EQ(view().gpu.readers, 1u) << "nobody reads a life that is over";
  (void)t.report(10, 2, 1);
  EXPECT_EQ(of_rank(0), std::pair(1ul, 7ul)) << "while it waits";
  (void)t.join(1, 21);
  EXPECT_EQ(of_rank(0), std::pair(1ul, 7ul)) << "in the next generation";
  EXPECT_EQ(of_rank(1), std::pair(0ul, 0ul)) << "a new life begins at nothing";
  beat(10, 2, 3, 8);
  beat(21, 2, 1, 2);
  EXPECT_EQ(of_rank(1), std::pair(1ul, 2ul));
  EXPECT_EQ(sums(), (Counts{14, 140, 1400}));
}

TEST(TrackerRecovery, EveryLossThatOthersSurviveResumes) {
  const auto paused = [](auto cause) {
    Logged t(3);
    const std::string got = cause(t);
    EXPECT_EQ(t.machine().state(), State::kInterrupted) << got;
    return got.find("persist generation 2 paused\n") != std::string::npos &&
           got.find("10 <- Pause generation 2") != std::string::npos;
  };
  EXPECT_TRUE(paused([](Logged& t) { return t.give_up(11, 1); }));
  EXPECT_TRUE(paused([](Logged& t) { return t.pass_alive(5000, {10, 12}, 1); }));
  EXPECT_TRUE(paused([](Logged& t) { return t.join(1, 21); }));
  EXPECT_TRUE(paused([](Logged& t) {
    (void)t.link_broken(10, 1, 1, 11);
    return t.pass(100);
  }));
  EXPECT_TRUE(paused([](Logged& t) { return t.round_failed(11, 1, Code::kCorrupt, "checksum"); }));
  EXPECT_TRUE(paused([](Logged& t) { return t.round_failed(11, 1, Code::kPeerLost, "link"); }));
}

// It may owe a message, or a result that is replayed.
TEST(TrackerRecovery, WhatBreaksAtARankInFinalizePausesToo) {
  Logged t(3);
  (void)t.finalize(11, 1);
  const std::string got = t.round_failed(11, 1, Code::kCorrupt, "checksum");
  EXPECT_EQ(t.machine().state(), State::kInterrupted) << got;
  EXPECT_NE(got.find("10 <- Pause generation 2"), std::string::npos) << got;
}

TEST(TrackerRecovery, WhatOnlyARestartCanMendRollsBack) {
  const auto reason = [](auto cause) {
    Logged t(2);
    (void)t.commit(2);
    (void)t.commit(3);
    const std::string got = cause(t);
    EXPECT_NE(got.find("persist generation 2 interrupted committed 3\n10 <- Interrupt generation 2"), std::string::npos)
        << got;
    return t.machine().view({t.now()}).last_interrupt;
  };
  EXPECT_EQ(
      reason([](Logged& t) { return t.round_failed(11, 1, Code::kDesync, "calls differ"); }),
      "rank 1 (worker w1 on host h) reports: calls differ; make all ranks call the same things in the same order, "
      "then start the job again: it goes on from version 2");
  EXPECT_EQ(reason([](Logged& t) { return t.round_failed(11, 1, Code::kInternal, "out of descriptors"); }),
            "rank 1 (worker w1 on host h) reports: out of descriptors; all processes start again from version 2");
  EXPECT_EQ(reason([](Logged& t) { return t.log_gap(10, 1); }),
            "rank 0 (worker w0 on host h) misses results that the log does not hold any more: round 0.3 is held by "
            "nobody; all processes start again from version 2");
  Logged fresh;
  (void)fresh.log_gap(10, 1);
  EXPECT_NE(fresh.machine().view({}).last_interrupt.find("; all processes start again from the beginning"),
            std::string::npos);
}

TEST(TrackerRecovery, WhoHasThePlanBeforeIsToldWhatHasChanged) {
  Logged t(3);
  const auto reports_from = [&](std::uint64_t life, std::uint64_t plan_generation) {
    wire::Envelope e = t.promised(life);
    e.mutable_report()->set_generation(2);
    e.mutable_report()->set_version(1);
    e.mutable_report()->set_plan_generation(plan_generation);
    return e;
  };
  (void)t.give_up(11, 1);
  (void)t.send(reports_from(10, 1));
  (void)t.send(reports_from(12, 0));
  const std::string whole = " <- Plan generation 2 w0=10 (as before) w1=21 w2=12 (as before)\n";
  const std::string changes = " <- Plan generation 2 since 1 w1=21\n";
  const std::string got = t.join(1, 21);
  EXPECT_NE(got.find("10" + changes + "21" + whole + "12" + whole), std::string::npos) << got;
  // Again, as it is asked for.
  EXPECT_EQ(t.beat(10, 1), "10" + changes);
  EXPECT_EQ(t.send(reports_from(10, 0)), "10" + whole);
  EXPECT_EQ(t.send(reports_from(12, 1)), "12" + changes);
  t.restart();
  EXPECT_EQ(t.send(reports_from(12, 1)), "12" + whole) << "the journal holds whole plans";
}

// A link that was down for a moment had swallowed what the one who is ahead had sent.
TEST(TrackerRecovery, BytesThatDoNotComeEndTheGenerationOnceAndThenTheProgramIsToBlame) {
  Logged t(2);
  (void)t.commit(2);
  const auto wait = [&t](std::uint64_t generation) {
    std::string got;
    for (std::uint64_t s = 1; s <= 8 && got.empty(); ++s) {
      (void)t.beat(10, generation, {round(17, 1024, {1}, s * 1000)});
      (void)t.beat(11, generation, {round(18, 1024, {0}, s * 1000)});
      got = t.pass(1000);
    }
    return got;
  };
  EXPECT_NE(wait(1).find("10 <- Pause generation 2"), std::string::npos);
  EXPECT_NE(t.machine().view({t.now()}).last_interrupt.find("is lost, or they call different things"),
            std::string::npos);
  (void)t.report(10, 2, 2, {position(2, 3)});
  (void)t.report(11, 2, 2, {position(2, 4)});
  ASSERT_EQ(t.machine().state(), State::kRunning);
  EXPECT_NE(wait(2).find("10 <- Interrupt generation 3 code 6"), std::string::npos);
}

// R = 3 and two losses in a row: who had finished the round, and alone held a piece of it, is gone. Whoever is in it
// still has its input.
TEST(TrackerRecovery, AGapInWhatOnlyTheLostHadSeenIsComputedAgain) {
  Logged t(3);
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1, {position(1, 5, false, {{0, 8}})});
  (void)t.report(12, 2, 1, {position(1, 6)});
  EXPECT_NE(t.join(1, 21).find(" 1.6\n"), std::string::npos);
  (void)t.give_up(12, 2);
  (void)t.report(10, 3, 1, {position(1, 5, false, {{0, 8}})});
  (void)t.report(21, 3, 1, {position(1, 2)});
  EXPECT_NE(t.join(2, 32).find(" 1.6\n"), std::string::npos) << "the log may have it";
  EXPECT_NE(t.log_gap(10, 3).find("10 <- Pause generation 4"), std::string::npos) << "it has not";
  (void)t.report(10, 4, 1, {position(1, 5, false, {{0, 8}})});
  (void)t.report(21, 4, 1, {position(1, 2)});
  EXPECT_NE(t.report(32, 4, 1, {position(1, 0)}).find(" 1.5[0,8)\n"), std::string::npos);
  EXPECT_NE(t.log_gap(10, 4).find("10 <- Interrupt generation 5"), std::string::npos) << "nobody has it any more";
}

// The members of a group are gone with all that was logged of its rounds. A tracker that was started again meanwhile
// does not know any more whose word those rounds were.
TEST(TrackerRecovery, AGapInRoundsOfAGroupWhoseMembersAreGoneIsNoRollback) {
  for (const bool restarts : {false, true}) {
    Logged t(3);
    const auto of_group = [](std::uint64_t rounds) {
      wire::Position p = position(1, rounds);
      p.set_group(9);
      return p;
    };
    (void)t.give_up(10, 1);
    (void)t.report(11, 2, 1, {position(1, 2), of_group(6)});
    (void)t.report(12, 2, 1, {position(1, 2), of_group(6)});
    (void)t.join(0, 20);
    (void)t.give_up(11, 2);
    (void)t.give_up(12, 2);
    (void)t.report(20, 3, 1, {position(1, 2)});
    (void)t.join(1, 31);
    EXPECT_NE(t.join(2, 32).find("Plan generation 3"), std::string::npos);
    if (restarts) t.restart();
    EXPECT_NE(t.log_gap(31, 3).find("31 <- Pause generation 4"), std::string::npos) << restarts;
    (void)t.report(20, 4, 1, {position(1, 2)});
    (void)t.report(31, 4, 1, {position(1, 1)});
    EXPECT_NE(t.report(32, 4, 1, {position(1, 2)}).find(" (as before) 1.2\n"), std::string::npos) << restarts;
    EXPECT_NE(t.log_gap(31, 4).find("31 <- Interrupt generation 5"), std::string::npos)
        << "a survivor has seen this one";
  }
}

// Seed 841000348: computed again under the old names, rounds met what the log still had of them, by other numbers.
TEST(TrackerRecovery, AGapAfterWhichRoundsMayBeNumberedOtherwiseIsARollback) {
  Logged t;
  (void)t.give_up(10, 1);
  (void)t.report(11, 2, 1, {position(1, 6)});
  (void)t.join(0, 20);
  (void)t.give_up(11, 2);
  (void)t.report(20, 3, 1, {position(1, 2)});
  EXPECT_NE(t.join(1, 21).find(" 1.6"), std::string::npos);
  wire::Envelope e = from_worker(21);
  e.mutable_log_gap()->set_generation(3);
  e.mutable_log_gap()->set_reason("nobody knows which it was");
  e.mutable_log_gap()->set_renumbers(true);
  EXPECT_NE(t.send(e).find("20 <- Interrupt generation 4"), std::string::npos);
}

TEST(TrackerRecovery, ARollbackEndsAllLivesAndRaisesTheTimeline) {
  Logged t;
  (void)t.commit(2);
  (void)t.vote(10, 3);
  EXPECT_EQ(t.log_gap(10, 7), "") << "of another generation";
  EXPECT_NE(t.log_gap(10, 1), "");
  EXPECT_EQ(t.report(10, 2, 2).substr(0, 31), "10 <- Interrupt generation 2 co") << "nobody survives this one";
  EXPECT_EQ(t.stopped(10, 2), "drop 10\n");
  EXPECT_EQ(t.stopped(11, 2), "drop 11\n");
  (void)t.join(0, 20);
  const std::string plan = " <- Plan generation 2 w0=20 w1=21 timeline 1 committed 2 in 0\n";
  EXPECT_EQ(t.join(1, 21),
            "21 <- Welcome 2 of 2\npersist generation 2 running timeline 1 committed 2\n20" + plan + "21" + plan);
  // What was voted for in the timeline that is undone counts no more.
  EXPECT_EQ(t.vote(20, 3, {}, 0), "");
  EXPECT_EQ(t.vote(21, 3, {}, 1), "");
  EXPECT_EQ(t.machine().view({}).votes, 1U);
  EXPECT_EQ(t.vote(20, 3, {}, 1),
            "persist generation 2 running timeline 1 committed 3\n20 <- Committed 3 timeline 1\n21 <- Committed 3 "
            "timeline 1\n");
  EXPECT_EQ(t.load(21), "21 <- Loaded 3 of timeline 1\n");
}

// What a set-up round has given may be part of what was committed.
TEST(TrackerRecovery, SetupRoundsThatAreDoneOutliveRollbacks) {
  Logged t;
  (void)t.vote(10, 2, {}, 0, {setup(0, 7, true)});
  (void)t.vote(11, 2, {}, 0, {setup(0, 7, true), setup(5, 1, true)});
  EXPECT_NE(t.give_up(11, 1), "");
  (void)t.report(10, 2, 2, {}, {setup(0, 7, true), setup(0, 8, false, {{0, 64}})});
  EXPECT_NE(t.join(1, 21).find(" s7| s8[0,64) g5:s1| committed 2 in 0\n"), std::string::npos);
  // All lives end. Whoever was in s8 is gone.
  t.restart();
  (void)t.log_gap(10, 2);
  (void)t.stopped(10, 3);
  (void)t.stopped(21, 3);
  (void)t.pass(3000);  // in which a life that has a newer plan would have been heard
  (void)t.join(0, 30);
  EXPECT_NE(t.join(1, 31).find(" timeline 1 s7| g5:s1| committed 2 in 0\n"), std::string::npos);
  // So it is not computed again in another timeline, either.
  EXPECT_NE(t.log_gap(30, 3, "nobody has it", setup(0, 7, true)).find("31 <- Interrupt generation 4"),
            std::string::npos);
}

TEST(TrackerRecovery, ASetupRoundThatTheLogHasLostIsRunAgainByAll) {
  Logged t;
  (void)t.vote(10, 2, {}, 0, {setup(0, 7, true)});
  (void)t.vote(11, 2);
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 2, {position(1, 3, true), position(2, 6)}, {setup(0, 7, true)});
  EXPECT_NE(t.join(1, 21).find(" s7|"), std::string::npos);
  EXPECT_NE(t.log_gap(21, 2, "nobody has it", setup(0, 7, true)).find("10 <- Interrupt generation 3"),
            std::string::npos);
  (void)t.stopped(10, 3);
  (void)t.stopped(21, 3);
  (void)t.join(0, 30);
  const std::string plan = t.join(1, 31);
  EXPECT_NE(plan.find(" timeline 1 committed 2"), std::string::npos) << plan;
}

// Seed 700300: the root of a broadcast was done with a call that the others do not make.
TEST(TrackerRecovery, ADesyncUndoesSetupRoundsThatAreNotCommitted) {
  for (const bool commits : {false, true}) {
    Logged t;
    if (commits) {
      (void)t.vote(10, 2, {}, 0, {setup(0, 7, true)});
      (void)t.vote(11, 2);
    }
    (void)t.give_up(11, 1);
    (void)t.report(10, 2, commits ? 2 : 1, {}, {setup(0, 7, true), setup(0, 8, true)});
    EXPECT_NE(t.join(1, 21).find(" s7| s8|"), std::string::npos);
    EXPECT_NE(t.round_failed(21, 2, Code::kDesync, "ranks disagree about s8").find("10 <- Interrupt generation 3"),
              std::string::npos);
    (void)t.stopped(10, 3);
    (void)t.stopped(21, 3);
    (void)t.join(0, 30);
    const std::string plan = t.join(1, 31);
    EXPECT_NE(plan.find(commits ? " timeline 1 s7| committed 2" : " timeline 1\n"), std::string::npos) << plan;
  }
}

// Seeds 811010581, 811014619: all that had completed it were ranks of one host, which was lost before the others had
// taken it from there.
TEST(TrackerRecovery, ASetupRoundThatOnlyTheDeadHaveSeenIsComputedAgain) {
  for (const bool restarts : {false, true}) {
    Logged t;
    (void)t.give_up(11, 1);
    (void)t.report(10, 2, 1, {}, {setup(0, 7, true), setup(0, 9, true)});
    EXPECT_NE(t.join(1, 21).find(" s7| s9|"), std::string::npos);
    (void)t.give_up(10, 2);
    (void)t.report(21, 3, 1, {}, {setup(0, 9, true)});
    EXPECT_NE(t.join(0, 30).find(" s7| s9|"), std::string::npos);
    if (restarts) t.restart();
    EXPECT_NE(t.log_gap(21, 3, "nobody has it", setup(0, 7, true)).find("30 <- Pause generation 4"), std::string::npos);
    (void)t.report(30, 4, 1);
    EXPECT_NE(t.report(21, 4, 1, {}, {setup(0, 9, true)}).find(" s9|"), std::string::npos);
    EXPECT_NE(t.log_gap(30, 4, "nobody has it", setup(0, 9, true)).find("30 <- Interrupt generation 5"),
              std::string::npos)
        << "a life goes on from what it gave";
  }
}

TEST(TrackerRecovery, WhenNobodySurvivesTheTimelineRises) {
  Logged t;
  (void)t.give_up(11, 1);
  EXPECT_EQ(t.report(10, 2, 1, {position(1, 7)}), "10 <- Welcome 1 of 2 missing w1\n");
  (void)t.join(1, 21);  // takes part
  EXPECT_EQ(t.beat(10, 2), "10 <- HeartbeatReply 1\n");
  (void)t.give_up(21, 2);
  (void)t.pass(5000);  // the survivor dies too
  EXPECT_EQ(t.machine().state(), State::kGathering);
  (void)t.join(0, 30);
  EXPECT_EQ(t.join(1, 31),
            "31 <- Welcome 2 of 2\npersist generation 3 running timeline 1\n"
            "30 <- Plan generation 3 w0=30 w1=31 timeline 1\n31 <- Plan generation 3 w0=30 w1=31 timeline 1\n");
  // Over a restart of the tracker, too.
  t.restart();
  (void)t.pass(5000);
  (void)t.join(0, 40);
  EXPECT_NE(t.join(1, 41).find("w0=40 w1=41 timeline 2\n"), std::string::npos);
}

// Rank 1's new life is behind when rank 0, which was ahead, is lost as well: what rank 0 had completed stays completed.
TEST(TrackerRecovery, TheFrontierNeverFallsBackInATimeline) {
  Logged t;
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 2, {position(0, 3, true), position(1, 9, true), position(2, 4, false, {{0, 64}})});
  EXPECT_NE(t.join(1, 21).find("0.3| 1.9| 2.4[0,64)\n"), std::string::npos);
  (void)t.give_up(10, 2);
  EXPECT_EQ(t.report(21, 3, 1, {position(0, 3, true), position(1, 2)}), "21 <- Welcome 1 of 2 missing w0\n");
  EXPECT_NE(t.join(0, 30).find("w0=30 w1=21 (as before) 0.3| 1.9| 2.4\n"), std::string::npos)
      << "what only the lost rank's host held as final is computed again";
}

TEST(TrackerRecovery, ASurvivorThatIsLostWhileItWaitsTakesItsReportWithIt) {
  Logged t(3);
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1, {position(1, 9)});
  (void)t.report(12, 2, 1, {position(1, 8)});
  // It falls silent.
  for (int i = 0; i < 5; ++i) {
    (void)t.pass(1000);
    (void)t.report(12, 2, 1, {position(1, 8)});
  }
  EXPECT_EQ(t.report(10, 2, 1, {position(1, 9)}), "10 <- " + kStale + "drop 10\n");
  (void)t.join(1, 21);
  // It is started again, and once more.
  (void)t.join(0, 20);
  EXPECT_EQ(t.machine().state(), State::kRunning);
  EXPECT_EQ(t.machine().view({}).frontier.size(), 1U);
  EXPECT_EQ(t.machine().view({}).frontier[0].rounds(), 8U);

  Logged u(3);
  (void)u.give_up(11, 1);
  (void)u.report(10, 2, 1, {position(1, 9)});
  (void)u.report(12, 2, 1, {position(1, 8)});
  EXPECT_EQ(u.join(0, 20).substr(0, 73), "10 <- Refused 7: a newer life of worker w0 has joined; if that is not mea");
  EXPECT_EQ(u.give_up(12, 1), "drop 12\n");
  (void)u.join(2, 22);
  EXPECT_NE(u.join(1, 21).find("w0=20 w1=21 w2=22 timeline 1\n"), std::string::npos);
}

TEST(TrackerRecovery, WhoDoesNotReportIsFenced) {
  Logged t;
  (void)t.round_failed(10, 1, Code::kCorrupt, "checksum");
  (void)t.report(10, 2, 1);
  for (int i = 0; i < 5; ++i) {
    (void)t.pass(1000);
    (void)t.report(10, 2, 1);
  }
  EXPECT_EQ(t.machine().state(), State::kGathering);
  EXPECT_EQ(t.report(11, 2, 1), "11 <- " + kStale + "drop 11\n");
  EXPECT_NE(t.join(1, 21).find("w0=10 (as before) w1=21\n"), std::string::npos);
}

TEST(TrackerRecovery, ReportsThatContradictEachOtherAreADesync) {
  Logged t(3);
  (void)t.vote(10, 2);
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 2, {position(1, 5, true)});
  (void)t.report(12, 2, 1, {position(1, 6)});
  const std::string text =
      "Interrupt generation 3 code 6: rank 0 (worker w0 on host h) has done 5 rounds in version 0 and gone on, rank 2 "
      "(worker w2 on host h) has done 6 rounds; make all ranks call the same things in the same order, then start "
      "the job again: it goes on from the beginning\n";
  EXPECT_EQ(t.join(1, 21), "21 <- Welcome 3 of 3\npersist generation 3 interrupted\n10 <- " + text + "12 <- " + text);
  EXPECT_EQ(t.machine().view({}).votes, 0U);
  EXPECT_EQ(t.report(10, 2, 2).substr(0, 28), "10 <- Interrupt generation 3");
  (void)t.stopped(10, 3);
  (void)t.stopped(12, 3);
  (void)t.join(0, 20);
  // Who joined meanwhile has done nothing, and stays.
  (void)t.join(1, 21);
  EXPECT_NE(t.join(2, 22).find("Plan generation 3 w0=20 w1=21 w2=22 timeline 1\n"), std::string::npos);
}

TEST(TrackerRecovery, AVersionIsCommittedWhenAllHaveVotedAndIsPersistedFirst) {
  Logged t(3, true);
  EXPECT_EQ(t.load(10), "10 <- Loaded nothing\n");
  EXPECT_EQ(t.vote(10, 2, {position(1, 5, true)}), "");
  EXPECT_EQ(t.vote(10, 2, {position(1, 5, true)}), "");
  EXPECT_EQ(t.vote(11, 2, {position(1, 5, true)}), "");
  EXPECT_EQ(t.vote(12, 3), "") << "one after the other";
  EXPECT_EQ(t.machine().view({}).votes, 2U);
  EXPECT_EQ(t.vote(99, 2), "99 <- " + kStale + "drop 99\n");
  EXPECT_EQ(t.machine().view({}).committed, std::nullopt);
  EXPECT_EQ(t.vote(12, 2, {position(1, 5, true)}),
            "persist generation 1 running committed 2\n"
            "log committed: version 1 of job j is committed\n"
            "10 <- Committed 2 timeline 0\n11 <- Committed 2 timeline 0\n12 <- Committed 2 timeline 0\n");
  EXPECT_EQ(t.vote(11, 2), "11 <- Committed 2 timeline 0\n");  // it was lost
  EXPECT_EQ(t.load(10), "10 <- Loaded 2 of timeline 0\n");
  t.restart();
  EXPECT_EQ(t.vote(11, 2), "11 <- Committed 2 timeline 0\n");
  EXPECT_EQ(t.load(10), "10 <- Loaded 2 of timeline 0\n");
  EXPECT_EQ(t.machine().view({}).committed, Version(2));
}

// A rank has pulled another one's local state, that one has died, and its next life has given something else.
TEST(TrackerRecovery, ACopyOfAnEarlierLifesLocalStateIsNotCommitted) {
  for (const std::uint64_t held : {71u, 70u}) {
    Logged t;
    const auto vote = [&](std::uint64_t life, std::uint64_t local, std::optional<std::uint32_t> copy) {
      wire::Envelope e = from_worker(life);
      wire::Vote& v = *e.mutable_vote();
      v.set_generation(1);
      v.set_version(2);
      v.set_local_hash(local);
      if (copy) {
        v.add_copies()->set_rank(*copy);
        v.mutable_copies(0)->set_hash(held);
      }
      return t.send(std::move(e));
    };
    EXPECT_EQ(vote(10, 70, std::nullopt), "");
    const std::string text = vote(11, 80, 0);
    if (held == 70) {
      EXPECT_NE(text.find("committed 2"), std::string::npos) << text;
      continue;
    }
    EXPECT_NE(text.find("holds another local state of rank 0"), std::string::npos) << text;
    EXPECT_NE(text.find("which is not committed"), std::string::npos) << text;
    EXPECT_EQ(t.machine().view({}).committed, std::nullopt);
  }
}

TEST(TrackerRecovery, ARestartedTrackerHasNoVotesUntilTheyAreRepeated) {
  Logged t;
  (void)t.vote(10, 2);
  t.restart();
  EXPECT_EQ(t.vote(11, 2), "");
  EXPECT_NE(t.vote(10, 2).find("committed 2"), std::string::npos);
}

TEST(TrackerRecovery, ALoadVoidsTheVoteOfItsRank) {
  Logged t;
  (void)t.vote(10, 2);
  EXPECT_EQ(t.load(10), "10 <- Loaded nothing\n");
  EXPECT_EQ(t.load(10), "10 <- Loaded nothing\n");
  EXPECT_EQ(t.vote(11, 2), "") << "rank 0 starts from the beginning: version 1 is not to overtake it";
  EXPECT_NE(t.vote(10, 2).find("committed 2"), std::string::npos);
}

// A vote, the loss of its rank, a late vote of another (docs/invariants.md, "Votes and commits").
TEST(TrackerRecovery, VotesDieWithTheirGeneration) {
  Logged t;
  (void)t.vote(11, 2);
  (void)t.give_up(11, 1);
  EXPECT_EQ(t.vote(10, 2), "") << "nothing is committed between interrupt and plan";
  (void)t.report(10, 2, 2);
  (void)t.join(1, 21);
  EXPECT_EQ(t.load(21), "21 <- Loaded nothing\n");
  EXPECT_EQ(t.vote(10, 2), "");
  EXPECT_EQ(t.vote(11, 2), "11 <- " + kStale + "drop 11\n");
  (void)t.round_failed(10, 2, Code::kCorrupt, "checksum");
  (void)t.report(10, 3, 2);
  (void)t.report(21, 3, 1);
  EXPECT_EQ(t.machine().state(), State::kRunning);
  EXPECT_EQ(t.vote(21, 2), "") << "rank 0 has to vote again: its duties may be others now";
  wire::Envelope late = from_worker(10);
  late.mutable_vote()->set_generation(2);
  late.mutable_vote()->set_version(2);
  EXPECT_EQ(t.send(late), "");
  EXPECT_NE(t.vote(10, 2).find("committed 2"), std::string::npos);
}

TEST(TrackerRecovery, VotesThatCountDifferentRoundsAreADesync) {
  Logged t;
  (void)t.vote(10, 2, {position(1, 5, true), position(1, 2, true, {}, 77)});
  const std::string got = t.vote(11, 2, {position(1, 4, true)});
  EXPECT_EQ(got.substr(0, got.find('\n')), "persist generation 2 interrupted");
  EXPECT_EQ(
      t.machine().view({}).last_interrupt,
      "rank 0 (worker w0 on host h) has done 5 rounds in version 0, rank 1 (worker w1 on host h) has done 4; make "
      "all ranks call the same things in the same order, then start the job again: it goes on from the beginning");
  EXPECT_EQ(t.machine().view({}).committed, std::nullopt);
}

wire::StateDigest state(std::uint64_t bytes, const std::vector<std::uint64_t>& hashes, bool has_local = false) {
  wire::StateDigest d;
  d.set_global_bytes(bytes);
  d.set_has_local(has_local);
  d.set_piece_bytes(limits::kStatePieceBytes);
  d.mutable_hashes()->Add(hashes.begin(), hashes.end());
  return d;
}

constexpr std::uint64_t kMiB = limits::kStatePieceBytes;

TEST(TrackerRecovery, AVersionOfWhichRanksGaveDifferentStatesIsNotCommitted) {
  struct Case {
    wire::StateDigest of_rank_2;
    std::string says;
  };
  const Case cases[] = {
      {state(3 * kMiB - 1, {1, 9, 3}),
       "global states of 3145727 bytes differ: rank 2 (worker w2 on host h) gave other bytes than rank 0 (worker w0 on "
       "host h), rank 1 (worker w1 on host h); the first difference is in MiB 1 (bytes 1048576 to 2097151)"},
      {state(2 * kMiB + 5, {1, 2, 4}),
       "rank 2 (worker w2 on host h) gave a global state of 2097157 bytes and no local state; rank 0 (worker w0 on "
       "host h), rank 1 (worker w1 on host h) gave a global state of 3145727 bytes and no local state; the first "
       "difference is in MiB 2 (bytes 2097152 to 3145726)"},
      {state(3 * kMiB - 1, {1, 2, 3}, true),
       "rank 2 (worker w2 on host h) gave a global state of 3145727 bytes and a local state; rank 0 (worker w0 on host "
       "h), rank 1 (worker w1 on host h) gave a global state of 3145727 bytes and no local state"},
      {wire::StateDigest(),
       "rank 2 (worker w2 on host h) gave a global state of 0 bytes and no local state; rank 0 (worker w0 on host h), "
       "rank 1 (worker w1 on host h) gave a global state of 3145727 bytes and no local state; the first difference is "
       "in MiB 0 (bytes 0 to 1048575)"}};
  for (const Case& c : cases) {
    Logged t(3);
    (void)t.vote_for(10, 2, state(3 * kMiB - 1, {1, 2, 3}));
    (void)t.vote_for(12, 2, c.of_rank_2);
    const std::string got = t.vote_for(11, 2, state(3 * kMiB - 1, {1, 2, 3}));
    EXPECT_EQ(got.substr(0, got.find('\n')), "persist generation 2 interrupted");
    EXPECT_NE(got.find("11 <- Interrupt generation 2 code 6: "), std::string::npos) << got;
    EXPECT_EQ(t.machine().view({}).last_interrupt,
              "the ranks have given different states for version 1, which is not committed: " + c.says +
                  "; give equal bytes on all ranks, and what differs by rank as local states; make all ranks call the "
                  "same things in the same order, then start the job again: it goes on from the beginning");
    EXPECT_EQ(t.machine().view({}).committed, std::nullopt);
  }
}

TEST(TrackerRecovery, APieceThatWasNotHashedIsNotCompared) {
  Logged t;
  (void)t.vote_for(10, 2, state(3 * kMiB, {1, 0, 3}));
  EXPECT_NE(t.vote_for(11, 2, state(3 * kMiB, {1, 9, 0})).find("committed 2"), std::string::npos);
  (void)t.vote_for(10, 3, state(3 * kMiB, {1, 0, 3}));
  EXPECT_NE(t.vote_for(11, 3, state(3 * kMiB, {1, 9, 4})).find("in MiB 2"), std::string::npos);
}

// Rank 1 waits for what rank 0 does not have, and would never vote.
TEST(TrackerRecovery, StatesAreComparedBeforeAllHaveVoted) {
  Logged t;
  EXPECT_EQ(t.tell_state(11, 2, state(1, {7}, true)), "");
  EXPECT_EQ(t.tell_state(11, 2, state(1, {7}, true)), "");
  EXPECT_EQ(t.machine().view({}).votes, 0U);
  EXPECT_NE(t.vote_for(10, 2, state(1, {7})).find("10 <- Interrupt generation 2 code 6: "), std::string::npos);
}

TEST(TrackerRecovery, ToldStatesAreNoVotes) {
  Logged t;
  EXPECT_EQ(t.tell_state(11, 2, state(1, {7})), "");
  EXPECT_EQ(t.vote_for(10, 2, state(1, {7})), "");
  EXPECT_EQ(t.machine().view({}).votes, 1U);
  EXPECT_NE(t.vote_for(11, 2, state(1, {7})).find("committed 2"), std::string::npos);
}

// A told state does not outlive its vote: a load, a restart of the tracker, the end of the generation.
TEST(TrackerRecovery, StatesAreForgottenWithTheirVotes) {
  Logged loaded;
  (void)loaded.vote_for(11, 2, state(1, {9}));
  (void)loaded.load(11);
  (void)loaded.vote_for(10, 2, state(1, {7}));
  EXPECT_NE(loaded.vote_for(11, 2, state(1, {7})).find("committed 2"), std::string::npos);
  Logged restarted;
  (void)restarted.tell_state(11, 2, state(1, {9}));
  restarted.restart();
  (void)restarted.vote_for(10, 2, state(1, {7}));
  EXPECT_NE(restarted.vote_for(11, 2, state(1, {9})).find("Interrupt generation 2 code 6"), std::string::npos)
      << "it is told again";
  Logged replaced;
  (void)replaced.tell_state(11, 2, state(1, {9}));
  (void)replaced.give_up(11, 1);
  (void)replaced.report(10, 2, 2);
  (void)replaced.join(1, 21);
  (void)replaced.load(21);
  (void)replaced.vote_for(10, 2, state(1, {7}));
  EXPECT_NE(replaced.vote_for(21, 2, state(1, {7})).find("committed 2"), std::string::npos);
}

TEST(TrackerRecovery, AWaitForVotesIsLogged) {
  Logged t(2, true);
  (void)t.vote(10, 2);
  EXPECT_EQ(
      t.pass_alive(11'000, {10, 11}, 1),
      "log commit_waits: 1 of 2 ranks of job j have stored version 1; it waits for rank 1 (worker w1 on host h)\n");
}

// The others would wait for its vote for ever.
TEST(TrackerRecovery, ARankThatFinalizesBeforeACheckpointOfTheOthersIsADesync) {
  const std::string reason =
      "Interrupt generation 2 code 6: rank 1 (worker w1 on host h) has called finalize in version 1, and rank 0 "
      "(worker "
      "w0 on host h) has taken version 2, which can never be committed: all ranks have to take the same checkpoints, "
      "and the "
      "log of the first one says it if one failed there; "
      "make all ranks call the same things in the same order, then start the job again: it goes on from version 1\n";
  const auto committed_two = [](Logged& t) {
    (void)t.vote(10, 2);
    (void)t.vote(11, 2);
  };
  Logged before(2);
  committed_two(before);
  EXPECT_EQ(before.finalize(11, 1, 2), "11 <- HeartbeatReply 0\n");
  EXPECT_NE(before.vote(10, 3).find(reason), std::string::npos);
  Logged after(2);
  committed_two(after);
  (void)after.vote(10, 3);
  EXPECT_NE(after.finalize(11, 1, 2).find(reason), std::string::npos);
  Logged told(2);
  committed_two(told);
  (void)told.finalize(11, 1, 2);
  EXPECT_NE(told.tell_state(10, 3, state(1, {7})).find(reason), std::string::npos)
      << "it has taken a checkpoint, though it may not vote yet";
}

TEST(TrackerRecovery, RanksThatFinalizeInVersionsOfWhichOneIsNotCommittedAreADesync) {
  Logged t(2);
  EXPECT_EQ(t.finalize(11, 1, 2), "11 <- HeartbeatReply 0\n");
  EXPECT_NE(
      t.finalize(10, 1, 1).find("Interrupt generation 2 code 6: rank 0 (worker w0 on host h) has called finalize "
                                "in version 0, and rank 1 (worker w1 on host h) has called finalize in version 1, "
                                "which can never be committed"),
      std::string::npos);
  // Nobody waits for what is committed: a worker that was started again may see by itself that its work is done.
  Logged done(2);
  (void)done.vote(10, 2);
  (void)done.vote(11, 2);
  (void)done.finalize(11, 1, 2);
  EXPECT_NE(done.finalize(10, 1, 0).find("Finished"), std::string::npos);
}

// The beginning needs no commit.
TEST(TrackerRecovery, RanksOfWhichSomeHaveLoadedTheBeginningMayFinalize) {
  Logged t(2);
  (void)t.finalize(11, 1, 1);
  EXPECT_NE(t.finalize(10, 1, 0).find("Finished"), std::string::npos);
}

TEST(TrackerRecovery, AVoteThatWaitsForADiskComesInFinalizeToo) {
  Logged t(2);
  (void)t.vote(10, 2);
  EXPECT_EQ(t.finalize(10, 1, 2), "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.finalize(11, 1, 2).find("Interrupt"), std::string::npos);
  Logged late(2);
  (void)late.vote(10, 2);
  EXPECT_EQ(late.finalize(11, 1, 2), "11 <- HeartbeatReply 0\n");
  EXPECT_NE(late.vote(11, 2).find("committed 2"), std::string::npos);
}

TEST(TrackerRecovery, WhoWaitsInFinalizeIsReplacedLikeAnyOther) {
  Logged t(2);
  (void)t.finalize(11, 1);
  std::string got;
  for (int i = 0; i < 5; ++i) {
    got += t.pass(1000);
    (void)t.beat(10, 1);
  }
  EXPECT_NE(got.find("persist generation 2 paused\n10 <- Pause generation 2 code 5 lost 1"), std::string::npos) << got;
  (void)t.report(10, 2, 1);
  EXPECT_NE(t.join(1, 21).find("w0=10 (as before) w1=21\n"), std::string::npos);
  // Or its process dies, or gives up, or is started again.
  EXPECT_EQ(t.finalize(10, 2), "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.link_broken(21, 2, 0, 10), "");
  (void)t.pass(100);
  EXPECT_EQ(t.machine().state(), State::kInterrupted);
  (void)t.report(21, 3, 1);
  (void)t.report(10, 3, 1);
  EXPECT_EQ(t.machine().state(), State::kRunning);
  EXPECT_EQ(t.finalize(10, 2), "") << "what it said of generation 2 is void";
  EXPECT_EQ(t.finalize(10, 3), "10 <- HeartbeatReply 0\n");
  EXPECT_NE(t.give_up(10, 3), "");
  (void)t.report(21, 4, 1);
  (void)t.join(0, 20);
  (void)t.finalize(20, 4);
  EXPECT_NE(t.join(0, 30).find("Pause generation 5"), std::string::npos);
  (void)t.report(21, 5, 1);
  EXPECT_EQ(t.machine().state(), State::kRunning);
  (void)t.vote(30, 2);
  (void)t.finalize(30, 5, 2);
  EXPECT_NE(t.vote(21, 2).find("Committed 2"), std::string::npos) << "a checkpoint that was pending is committed";
  EXPECT_NE(t.finalize(21, 5, 2).find("persist generation 5 finished\n"), std::string::npos);
  // One has heard of the end and closes its links; the other hears of it too.
  EXPECT_EQ(t.link_broken(30, 5, 1, 21), "30 <- Finished generation 5\ndrop 30\n");
  EXPECT_EQ(t.vote(30, 2), "");
  EXPECT_EQ(t.report(30, 5, 2), "");
}

TEST(TrackerRecovery, RestartedWhilePausedItTakesReports) {
  Logged t;
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1, {position(1, 3)});
  t.restart();
  EXPECT_EQ(t.machine().state(), State::kInterrupted);
  EXPECT_EQ(t.report(10, 2, 1, {position(1, 3)}), "10 <- Welcome 1 of 2 missing w1\n");
  EXPECT_NE(t.join(1, 21).find("w0=10 (as before) w1=21 1.3\n"), std::string::npos);
}

// warren sim --seed=100814
TEST(TrackerRecovery, ALifeThatIsOverDoesNotComeBackAfterARestart) {
  Logged t;
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1);
  (void)t.join(1, 21);
  t.restart();
  EXPECT_EQ(t.machine().state(), State::kRunning);
  EXPECT_EQ(t.join(1, 11).substr(0, 42), "11 <- Refused 7: a newer life of worker w1");
}

TEST(TrackerRecovery, AMemberThatNeverGotItsPlanReportsNothingAndStays) {
  Logged t;
  (void)t.give_up(11, 1);
  EXPECT_EQ(t.join(0, 10), "10 <- Pause" + kLeft1);
  EXPECT_EQ(t.report(10, 2, 0), "10 <- Welcome 1 of 2 missing w1\n");
  EXPECT_EQ(t.join(0, 10), "10 <- Welcome 1 of 2 missing w1\n") << "an echo";
  EXPECT_NE(t.join(1, 21).find("w0=10 (as before) w1=21\n"), std::string::npos);
}

TEST(TrackerRecovery, AnOlderJournalCatchesUpWithItsMembers) {
  Logged t;
  const std::string old = t.disk();
  (void)t.round_failed(10, 1, Code::kCorrupt, "x");
  t.disk() = old;
  t.restart();
  const std::string got = t.report(10, 2, 1);
  EXPECT_EQ(got.substr(0, got.find('\n')), "persist generation 3 paused");
  EXPECT_EQ(t.machine().view({}).last_interrupt,
            "rank 0 (worker w0 on host h) speaks of generation 2, the tracker's journal ends at generation 1: it is an "
            "older copy; "
            "the ranks stop, connect again and go on");
  (void)t.report(10, 3, 1);
  // One that has answered a later interrupt still.
  EXPECT_EQ(t.report(11, 5, 1).substr(0, 27), "persist generation 6 paused");
  EXPECT_EQ(t.report(10, 3, 1).substr(0, 24), "10 <- Pause generation 6");
  (void)t.report(10, 6, 1, {position(1, 1)});
  EXPECT_NE(t.report(11, 6, 1).find("Plan generation 6 w0=10 (as before) w1=11 (as before) 1.1\n"), std::string::npos);
  EXPECT_EQ(t.beat(10, std::uint64_t{1} << 60), "") << "nobody may use the numbers up";
}

// Whoever starts from an older version than what was committed would look for what all have dropped.
TEST(TrackerRecovery, AnOlderJournalLearnsTheCommitsOfItsMembers) {
  const auto load = [](Logged& t) { return t.load(10); };
  {
    Logged t;
    const std::string old = t.disk();
    (void)t.commit(2);
    (void)t.round_failed(10, 1, Code::kCorrupt, "x");
    t.disk() = old;
    t.restart();
    (void)t.report(10, 2, 2);
    (void)t.send(report_of_commit(t, 10, 3, 2));
    EXPECT_NE(t.report(11, 3, 2).find("Plan generation 3"), std::string::npos);
    EXPECT_NE(load(t).find("Loaded 2"), std::string::npos) << load(t);
    (void)t.vote(10, 3);
    EXPECT_NE(t.vote(11, 3).find("Committed 3"), std::string::npos);
  }
  // Without an interrupt: who votes for a version has seen the one before committed.
  Logged t;
  (void)t.commit(2);
  const std::string old = t.disk();
  (void)t.commit(3);
  (void)t.commit(4);
  t.disk() = old;
  t.restart();
  (void)t.vote(10, 5);
  EXPECT_NE(load(t).find("Loaded 4"), std::string::npos) << load(t);
  (void)t.vote(10, 5);
  EXPECT_NE(t.vote(11, 5).find("Committed 5"), std::string::npos);
}

// What was done before a commit that the journal lacks may be part of it: it is not computed again alone.
TEST(TrackerRecovery, SetupRoundsOfALearnedCommitAreNotComputedAgain) {
  Logged t;
  const std::string old = t.disk();
  (void)t.vote(10, 2, {}, 0, {setup(0, 7, true)});
  (void)t.vote(11, 2);
  (void)t.round_failed(10, 1, Code::kCorrupt, "x");
  t.disk() = old;
  t.restart();
  (void)t.report(10, 2, 2);
  wire::Envelope e = report_of_commit(t, 10, 3, 2);
  *e.mutable_report()->add_setups() = setup(0, 7, true);
  (void)t.send(e);
  EXPECT_NE(t.report(11, 3, 2).find(" s7| committed 2"), std::string::npos);
  (void)t.give_up(10, 3);
  (void)t.report(11, 4, 2);
  EXPECT_NE(t.join(0, 30).find(" s7| committed 2"), std::string::npos);
  EXPECT_NE(t.log_gap(30, 4, "nobody has it", setup(0, 7, true)).find("11 <- Interrupt generation 5"),
            std::string::npos);
}

TEST(TrackerRecovery, WhatIsKeptOfReportsIsBounded) {
  if (kAddressSanitized) return;  // 64 MiB of messages take more than a minute
  std::vector<wire::Position> positions;
  for (std::uint64_t g = 0; g < limits::kMaxPositions; ++g) {
    positions.push_back(position(1, std::uint64_t{1} << 61, true, {}, g << 40));
  }
  Logged t(200);
  (void)t.give_up(11, 1);
  std::uint64_t life = 12;
  while (t.machine().state() == State::kInterrupted && t.machine().view({}).generation == Generation(2) && life < 210) {
    (void)t.report(life++, 2, 2, positions);
  }
  EXPECT_EQ(t.machine().view({}).last_interrupt,
            "the reports of where the ranks of job j are take more than 67108864 bytes; all processes start again from "
            "the beginning");
}

TEST(TrackerRecovery, CopiesAreASettingOfTheJob) {
  Logged t;
  wire::Envelope e = from_worker(50);
  *e.mutable_join() = join("w1", "h", 2, 3);
  EXPECT_EQ(t.send(e),
            "50 <- Refused 3: replicas 3 is not the job's 2, which worker w0 on host h set; give all workers of a job "
            "the same settings\ndrop 50\n");
}

TEST(TrackerRecovery, PlansTellWhereLoggedResultsAreServed) {
  TrackerScript t(false, 1);
  wire::Envelope e = from_worker(10);
  *e.mutable_join() = join("w0", "h", 1, 1);
  e.mutable_join()->set_fetch_port(6001);
  e.mutable_join()->set_segment_socket("warren-10");
  e.mutable_join()->mutable_traits()->set_cores(12);
  e.mutable_join()->mutable_traits()->set_first_core(4);
  e.mutable_join()->mutable_traits()->set_maps(true);
  std::vector<TrackerEffect> effects;
  t.machine().on_message(e, TimeMs{}, effects);
  const wire::Member m = envelope_of(std::get<tracker_effect::Send>(effects.back())).plan().members(0);
  EXPECT_EQ(m.fetch_port(), 6001U);
  EXPECT_EQ(m.segment_socket(), "warren-10");
  EXPECT_EQ(m.traits().SerializeAsString(), e.join().traits().SerializeAsString());
  EXPECT_TRUE(m.fresh());
  EXPECT_EQ(m.since(), 1U);
}

// ---- no life survives

// Rounds [0, count) of the version, each held whole.
wire::HeldRounds held_rounds(std::uint64_t version, std::uint64_t count, std::uint32_t timeline = 0,
                             std::uint64_t first = 0) {
  wire::HeldRounds r;
  r.set_timeline(timeline);
  r.set_version(version);
  wire::HeldRun& run = *r.add_runs();
  run.set_first(first);
  run.set_count(count);
  return r;
}

// A job of two workers on hosts a and b, whose new lives say what the disks of these hosts hold.
class OnDisks : public TrackerScript {
 public:
  explicit OnDisks(std::uint32_t replicas = 2) : TrackerScript(false, replicas), replicas_(replicas) {}
  // `plan`: what the disk knows of the job; null: the disk is empty.
  std::string start(std::uint64_t worker, std::uint64_t life, const wire::Plan* plan,
                    const std::vector<wire::HeldRounds>& rounds = {}, std::uint64_t committed = 0,
                    bool mirrored = false) {
    wire::Envelope e = from_worker(life);
    *e.mutable_join() = test::join("w" + std::to_string(worker), worker == 0 ? "a" : "b", 2, replicas_);
    if (plan != nullptr) {
      wire::Held& held = *e.mutable_join()->mutable_held();
      held.set_run(plan->run());
      held.mutable_known()->set_generation(plan->generation());
      held.mutable_known()->set_plan_generation(plan->generation());
      *held.mutable_known()->mutable_plan() = *plan;
      held.mutable_known()->set_committed(committed != 0);
      held.mutable_known()->set_committed_version(committed);
      if (committed != 0) held.mutable_known()->set_committed_timeline(plan->committed_timeline());
      for (const wire::HeldRounds& r : rounds) *held.add_rounds() = r;
      held.set_mirrored(mirrored);
    }
    return send(std::move(e));
  }
  // The newest plan.
  wire::Plan plan() {
    wire::JobRecord record;
    EXPECT_TRUE(record.ParseFromString(disk()));
    return record.plan();
  }
  void lose_everybody() {
    const wire::Plan p = plan();
    for (const wire::Member& m : p.members()) (void)give_up(m.incarnation(), p.generation());
    (void)pass(5000);
    EXPECT_EQ(machine().state(), State::kGathering);
  }

 private:
  std::uint32_t replicas_;
};

// ---- no life survives, and launchers do

// What the launcher of a host has kept of `lives`.
wire::Logged kept(const std::vector<std::uint64_t>& lives, const std::vector<wire::Position>& positions,
                  std::uint32_t timeline = 0) {
  wire::Logged logged;
  logged.set_run(10);  // the first life of the first plan
  logged.set_timeline(timeline);
  for (const wire::Position& p : positions) *logged.add_positions() = p;
  for (const std::uint64_t life : lives) logged.add_lives(life);
  return logged;
}

class Kept : public OnDisks {
 public:
  explicit Kept(std::uint32_t replicas = 2) : OnDisks(replicas), replicas_(replicas) {
    (void)start(0, 10, nullptr);
    (void)start(1, 11, nullptr);
  }
  std::string start_on(const std::string& host, std::uint64_t worker, std::uint64_t life, const wire::Logged& logged) {
    wire::Envelope e = from_worker(life);
    *e.mutable_join() = test::join("w" + std::to_string(worker), host, 2, replicas_);
    *e.mutable_join()->mutable_logged() = logged;
    return send(std::move(e));
  }

 private:
  std::uint32_t replicas_;
};

TEST(TrackerRecovery, WhatLaunchersHaveKeptGoesOnInItsTimeline) {
  Kept t;
  t.lose_everybody();
  wire::Logged a = kept({10}, {position(0, 2), position(1, 4, false, {{0, 8}})}), b = kept({11}, {position(1, 5)});
  *a.add_setups() = setup(0, 7, false, {{0, 4}});
  *b.add_setups() = setup(0, 7, false, {{4, 6}});
  (void)t.start_on("a", 0, 20, a);
  EXPECT_NE(t.start_on("b", 1, 21, b).find("Plan generation 2 w0=20 w1=21 0.2 1.5 s7[0,6)\n"), std::string::npos);
  // Over a restart of the tracker, too: and what the plan said stands, whatever is said now.
  t.restart();
  (void)t.pass(5000);
  (void)t.pass(5000);
  (void)t.start_on("a", 0, 30, kept({10, 20}, {position(1, 4)}));
  EXPECT_NE(t.start_on("b", 1, 31, kept({11, 21}, {})).find("w0=30 w1=31 0.2 1.5\n"), std::string::npos);
}

TEST(TrackerRecovery, OneLauncherOfTwoIsEnoughWithTwoCopies) {
  for (const std::uint32_t replicas : {1u, 2u}) {
    Kept t(replicas);
    t.lose_everybody();
    (void)t.start_on("a", 0, 20, kept({10}, {position(1, 4)}));
    // The launcher of host b was started again: it has an empty log to show, or none.
    const std::string plan = t.start_on("b", 1, 21, {});
    EXPECT_NE(plan.find(replicas == 2 ? "w0=20 w1=21 1.4\n" : "w0=20 w1=21 timeline 1\n"), std::string::npos) << plan;
  }
}

TEST(TrackerRecovery, WhereTooFewLaunchersHaveKeptTheLogTheTimelineRises) {
  Kept t;
  t.lose_everybody();
  // Of lives before the newest plan, and of one that another worker's launcher had.
  (void)t.start_on("a", 0, 20, kept({5, 11}, {position(1, 4)}));
  EXPECT_NE(t.start_on("b", 1, 21, kept({10}, {position(1, 4)})).find("w0=20 w1=21 timeline 1\n"), std::string::npos);
}

TEST(TrackerRecovery, WhatMemoryHoldsOfAnOlderTimelineIsNotUsed) {
  Kept t;
  t.lose_everybody();
  (void)t.start_on("a", 0, 20, {});
  (void)t.start_on("b", 1, 21, {});  // timeline 1
  t.lose_everybody();
  (void)t.start_on("a", 0, 30, kept({20}, {position(1, 4)}));
  EXPECT_NE(t.start_on("b", 1, 31, kept({21}, {position(1, 5)}, 1)).find("w0=30 w1=31 timeline 1 1.5\n"),
            std::string::npos);
}

TEST(TrackerRecovery, WhatMemoryHoldsOfAnotherRunIsNotUsed) {
  Kept t;
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1, {position(1, 3)});
  wire::Logged other = kept({}, {position(1, 9)});
  *other.add_setups() = setup(0, 7, false, {{0, 4}});
  other.set_run(9);
  EXPECT_NE(t.start_on("b", 1, 21, other).find("w0=10 (as before) w1=21 1.3\n"), std::string::npos);
  (void)t.give_up(21, 2);
  (void)t.report(10, 3, 1, {position(1, 3)});
  other.set_run(10);
  EXPECT_NE(t.start_on("b", 1, 31, other).find("w0=10 (as before) w1=31 1.9 s7[0,4)\n"), std::string::npos);
}

// A gap is mended once: what was computed by lives that are gone is computed again. But for all at once it is a
// rollback to the checkpoint, with what disks hold.
TEST(TrackerRecovery, AfterAGapMemoryIsNotBelievedASecondTime) {
  Kept t;
  t.lose_everybody();
  (void)t.start_on("a", 0, 20, kept({10}, {position(1, 4)}));
  (void)t.start_on("b", 1, 21, kept({11}, {position(1, 5)}));
  (void)t.log_gap(20, 2);
  t.lose_everybody();
  (void)t.start_on("a", 0, 30, kept({20}, {position(1, 4)}));
  EXPECT_NE(t.start_on("b", 1, 31, kept({21}, {position(1, 5)})).find("w0=30 w1=31 timeline 1\n"), std::string::npos);
}

TEST(TrackerRecovery, AfterARollbackMemoryIsNotUsed) {
  Kept t;
  (void)t.round_failed(10, 1, Code::kDesync, "calls differ");
  (void)t.stopped(10, 2);
  (void)t.stopped(11, 2);
  (void)t.start_on("a", 0, 20, kept({10}, {position(1, 4)}));
  EXPECT_NE(t.start_on("b", 1, 21, kept({11}, {position(1, 5)})).find("w0=20 w1=21 timeline 1\n"), std::string::npos);
}

// Its journal was lost, and nobody could tell what it had held.
TEST(TrackerRecovery, AJobThatBeginsAnewMeetsNothingOfItsOldSelf) {
  TrackerScript t(false, 2);
  const auto start = [&](const std::string& worker, std::uint64_t life, const wire::Logged& logged) {
    wire::Envelope e = from_worker(life);
    *e.mutable_join() = test::join(worker, "h", 2, 2);
    *e.mutable_join()->mutable_logged() = logged;
    return t.send(e);
  };
  (void)start("w0", 20, kept({10}, {position(1, 4)}, 2));
  EXPECT_NE(start("w1", 21, kept({11}, {})).find("Plan generation 1 w0=20 w1=21 timeline 3\n"), std::string::npos);
}

// ---- and disks hold something

TEST(TrackerRecovery, LoggedRoundsThatDisksHoldGoOnUpToTheFirstGap) {
  OnDisks t;
  (void)t.start(0, 10, nullptr);
  (void)t.start(1, 11, nullptr);
  const wire::Plan first = t.plan();
  EXPECT_EQ(first.run(), 10u) << "the first life's name is the run's";
  t.lose_everybody();
  (void)t.start(0, 20, &first, {held_rounds(0, 3), held_rounds(1, 5)});
  EXPECT_NE(
      t.start(1, 21, &first, {held_rounds(0, 4), held_rounds(1, 4, 0, 7)})
          .find("Plan generation 2 w0=20 w1=21 timeline 1 0.4 1.5 0 below 4 of timeline 0 1 below 5 of timeline 0\n"),
      std::string::npos);
  EXPECT_EQ(t.plan().run(), 10u);
  // A survivor's plan keeps the names.
  (void)t.give_up(21, 2);
  (void)t.report(20, 3, 1, {position(1, 9)});
  const wire::Plan third = t.plan();
  EXPECT_NE(t.start(1, 31, &third).find(" timeline 1 0.4 1.9 0 below 4 of timeline 0 1 below 5 of timeline 0\n"),
            std::string::npos);
  // Once more: what was kept, and what was logged after it.
  t.lose_everybody();
  (void)t.start(0, 40, &third, {held_rounds(1, 6), held_rounds(1, 2, 1, 5)});
  EXPECT_NE(t.start(1, 41, nullptr).find(" timeline 2 1.7 1 below 5 of timeline 0 1 below 7 of timeline 1\n"),
            std::string::npos);
}

TEST(TrackerRecovery, WhatARollbackHasUndoneIsNotTakenFromDisks) {
  OnDisks t;
  (void)t.start(0, 10, nullptr);
  (void)t.start(1, 11, nullptr);
  const wire::Plan first = t.plan();
  (void)t.round_failed(10, 1, Code::kDesync, "calls differ");
  (void)t.stopped(10, 2);
  (void)t.stopped(11, 2);
  (void)t.start(0, 20, &first, {held_rounds(1, 5)});
  EXPECT_NE(t.start(1, 21, &first, {held_rounds(1, 5)}).find("w0=20 w1=21 timeline 1\n"), std::string::npos);
}

TEST(TrackerRecovery, AGapInWhatDisksSaidTheyHoldRollsBack) {
  OnDisks t;
  (void)t.start(0, 10, nullptr);
  (void)t.start(1, 11, nullptr);
  const wire::Plan first = t.plan();
  t.lose_everybody();
  (void)t.start(0, 20, &first, {held_rounds(1, 5)});
  (void)t.start(1, 21, nullptr);
  EXPECT_NE(t.log_gap(20, 2).find("20 <- Interrupt generation 3"), std::string::npos);
  (void)t.stopped(20, 3);
  (void)t.stopped(21, 3);
  (void)t.start(0, 30, &first, {held_rounds(1, 5)});
  EXPECT_NE(t.start(1, 31, nullptr).find("w0=30 w1=31 timeline 2\n"), std::string::npos) << "and not again";
}

TEST(TrackerRecovery, DisksOfAnotherRunSayNothing) {
  OnDisks t;
  (void)t.start(0, 10, nullptr);
  (void)t.start(1, 11, nullptr);
  wire::Plan other = t.plan();
  other.set_run(99);
  t.lose_everybody();
  (void)t.start(0, 20, &other, {held_rounds(1, 5)});
  EXPECT_NE(t.start(1, 21, &other, {held_rounds(1, 5)}).find("w0=20 w1=21 timeline 1\n"), std::string::npos);
}

// The plan that the disks know serves as the journal.
wire::Plan plan_on_disk(std::uint32_t replicas = 2) {
  wire::Plan p = plan_of(7, {{"w1", 10}, {"w0", 11}});
  p.mutable_settings()->set_replicas(replicas);
  for (wire::Member& m : *p.mutable_members()) m.set_fetch_port(6000);
  p.set_timeline(3);
  p.set_committed(true);
  p.set_committed_version(4);
  p.set_committed_timeline(2);
  return p;
}

TEST(TrackerRecovery, WithoutAJournalTheJobGoesOnFromWhatDisksKnow) {
  const wire::Plan known = plan_on_disk();
  const std::string expected =
      "Plan generation 8 w1=21 w0=20 timeline 4 5.6 5 below 6 of timeline 3 committed 5 in 3\n";
  for (const bool one_disk : {false, true}) {
    OnDisks t;
    wire::Plan older = known;
    older.set_generation(6);
    const auto join_both = [&] {
      wire::Plan newest = known;
      newest.set_timeline(3);
      std::string got = t.start(0, 20, one_disk ? nullptr : &older, {});
      wire::Envelope e = from_worker(21);
      *e.mutable_join() = test::join("w1", "b", 2, 2);
      wire::Held& held = *e.mutable_join()->mutable_held();
      held.set_run(known.run());
      held.mutable_known()->set_generation(7);
      held.mutable_known()->set_plan_generation(7);
      *held.mutable_known()->mutable_plan() = known;
      held.mutable_known()->set_committed(true);
      held.mutable_known()->set_committed_version(5);
      held.mutable_known()->set_committed_timeline(3);
      *held.add_rounds() = held_rounds(5, 6, 3);
      return got + t.send(e);
    };
    EXPECT_NE(join_both().find("persist generation 8 paused timeline 3 committed 5\n"), std::string::npos);
    const std::string got = join_both();
    EXPECT_NE(got.find(expected), std::string::npos) << got;
    EXPECT_EQ(t.plan().run(), known.run());
  }
}

// Seed 821019502: it was taken for a survivor, and a check was broken.
TEST(TrackerRecovery, WhoWasRefusedIsNoSurvivorOfTheJobThatDisksKnow) {
  const wire::Plan known = plan_on_disk();
  OnDisks t;
  EXPECT_NE(t.beat(known.members(0).incarnation(), 7).find("Tell 0"), std::string::npos);
  (void)t.start(0, 20, &known, {});
  (void)t.start(1, 21, &known, {});
  EXPECT_NE(t.pass_alive(limits::kDefaultRoundTimeoutMs + 1, {20, 21}, 1).find("persist generation 8 paused"),
            std::string::npos);
  EXPECT_NE(t.report(known.members(0).incarnation(), 8, 5).find("Refused"), std::string::npos);
}

// Rank 0's disk tells what its newest vote said, in the timeline of the newest plan or in one that was undone.
TEST(TrackerRecovery, WithoutAJournalSetUpRoundsThatDisksCallDoneStayDone) {
  for (const bool undone : {false, true}) {
    OnDisks t;
    wire::Plan known = plan_on_disk();
    *known.add_setups() = setup(0, 7, true, {}, 1);
    const auto join_both = [&] {
      (void)t.start(1, 21, &known);
      wire::Envelope e = from_worker(20);
      *e.mutable_join() = test::join("w0", "a", 2, 2);
      wire::Held& held = *e.mutable_join()->mutable_held();
      wire::Plan its = known;
      if (undone) {
        its.set_generation(6);
        its.set_timeline(2);
      }
      held.set_run(its.run());
      held.mutable_known()->set_generation(its.generation());
      held.mutable_known()->set_plan_generation(its.generation());
      *held.mutable_known()->mutable_plan() = its;
      *held.mutable_known()->add_setups() = setup(0, 9, true, {}, 2);
      return t.send(e);
    };
    (void)join_both();
    const std::string got = join_both();
    EXPECT_NE(got.find(undone ? "timeline 4 s7@1| committed" : "timeline 4 s7@1| s9@2| committed"), std::string::npos)
        << got;
  }
}

// A mirror keeps the newest plan without its set-up rounds, and may be heard before a disk (simulated seed 1440702812).
TEST(TrackerRecovery, WithoutAJournalSetUpRoundsThatAMirrorLeavesOutStayDone) {
  for (const std::uint64_t with_disk : {0, 1}) {
    OnDisks t;
    const wire::Plan mirrored = plan_on_disk();
    wire::Plan on_disk = mirrored;
    *on_disk.add_setups() = setup(0, 7, true, {}, 1);
    const auto join_both = [&] {
      std::string got;
      for (const std::uint64_t w : {0, 1}) {
        const bool disk = w == with_disk;
        got = t.start(w, 20 + w, disk ? &on_disk : &mirrored, {}, 4, !disk);
      }
      return got;
    };
    (void)join_both();
    const std::string got = join_both();
    EXPECT_NE(got.find("timeline 4 s7@1| committed"), std::string::npos) << got;
  }
}

// The newest commit may not have come to the mirror yet. There may be fewer failure domains than copies are asked for.
TEST(TrackerRecovery, WhereDisksAreLostTheMirrorSaysWhatIsCommitted) {
  for (const auto& [one_disk, replicas] : {std::pair(false, 2u), std::pair(true, 2u), std::pair(false, 3u)}) {
    OnDisks t(replicas);
    (void)t.start(0, 10, nullptr);
    (void)t.start(1, 11, nullptr);
    const wire::Plan first = t.plan();
    for (const std::uint64_t version : {2, 3}) {
      (void)t.vote(10, version);
      (void)t.vote(11, version, {}, 0, version == 2 ? std::vector{setup(0, 7, true)} : std::vector<wire::Setup>{});
    }
    t.lose_everybody();
    (void)t.start(0, 20, &first, {}, 2, true);
    const std::string got = t.start(1, 21, &first, {}, one_disk ? 3 : 2, !one_disk);
    EXPECT_NE(got.find(one_disk ? "timeline 1 s7| committed 3 in 0\n" : "timeline 1 committed 2 in 0\n"),
              std::string::npos)
        << got;
  }
}

// Of one that has gone wrong: it must not end the tracker, which serves other jobs too.
TEST(TrackerRecovery, ASetUpRoundOfATimelineToComeIsNobodys) {
  OnDisks t;
  (void)t.start(0, 10, nullptr);
  (void)t.start(1, 11, nullptr);
  const wire::Setup never = setup(0, 9, true, {}, UINT32_MAX);
  (void)t.vote(10, 2, {}, 0, {never});
  (void)t.vote(11, 2, {}, 0, {never});
  t.lose_everybody();
  const wire::Plan first = t.plan();
  (void)t.start(0, 20, &first, {}, 2);
  const std::string got = t.start(1, 21, &first, {}, 2);
  EXPECT_NE(got.find("committed 2 in 0\n"), std::string::npos) << got;
  EXPECT_EQ(t.plan().setups_size(), 0);
}

TEST(TrackerRecovery, WithoutAJournalAndDisksTheJobGoesOnFromTheMirror) {
  const wire::Plan known = plan_on_disk();
  OnDisks t;
  const auto join_both = [&] {
    (void)t.start(0, 20, &known, {}, 4, true);
    return t.start(1, 21, &known, {}, 4, true);
  };
  (void)join_both();
  EXPECT_NE(join_both().find("Plan generation 8 w1=21 w0=20 timeline 4 committed 4 in 2\n"), std::string::npos);
}

// A worker that sees a directory late may offer what was undone with an earlier fall back.
TEST(TrackerRecovery, OfWhatMirrorsHoldTheNewestTimelineIsTheNewest) {
  const wire::Plan known = plan_on_disk();
  OnDisks t;
  const auto join_both = [&] {
    wire::Envelope e = from_worker(20);
    *e.mutable_join() = test::join("w0", "a", 2, 2);
    wire::Held& held = *e.mutable_join()->mutable_held();
    held.set_run(known.run());
    held.set_mirrored(true);
    held.mutable_known()->set_generation(known.generation());
    held.mutable_known()->set_plan_generation(known.generation());
    *held.mutable_known()->mutable_plan() = known;
    held.mutable_known()->set_committed(true);
    held.mutable_known()->set_committed_version(5);
    held.mutable_known()->set_committed_timeline(1);
    (void)t.send(std::move(e));
    return t.start(1, 21, &known, {}, 4, true);
  };
  (void)join_both();
  const std::string got = join_both();
  EXPECT_NE(got.find("timeline 4 committed 4 in 2\n"), std::string::npos) << got;
}

TEST(TrackerRecovery, WhatTooFewDisksKnowIsOfAJobThatIsOver) {
  const wire::Plan known = plan_on_disk(1);
  OnDisks t(1);
  (void)t.start(0, 20, nullptr);
  EXPECT_NE(t.start(1, 21, &known, {held_rounds(4, 6, 3)}, 4).find("Plan generation 1 w0=20 w1=21\n"),
            std::string::npos);
  EXPECT_EQ(t.plan().run(), 20u);
}

TEST(TrackerRecovery, WhatDisksSayIsBounded) {
  if (kAddressSanitized) return;  // 64 MiB of messages take more than a minute
  constexpr std::uint32_t kWorkers = 200;
  wire::Held held;
  held.set_run(5);
  held.mutable_known()->set_generation(7);
  held.mutable_known()->set_plan_generation(7);  // of a plan that is too long to be told
  for (std::uint32_t timeline = 0; timeline < limits::kMaxHeldRounds; ++timeline) {
    *held.add_rounds() = held_rounds(std::uint64_t{1} << 60, std::uint64_t{1} << 60, timeline);
    wire::HeldRun& run = *held.mutable_rounds(static_cast<int>(timeline))->add_runs();
    run.set_first(std::uint64_t{1} << 60);
    run.set_count(1);
    run.set_total_bytes(limits::kMaxResultBytes);
    for (std::uint64_t i = 0; i < 2; ++i) {
      run.add_held()->set_begin(limits::kMaxResultBytes - 9 + 4 * i);
      run.mutable_held(static_cast<int>(i))->set_end(limits::kMaxResultBytes - 8 + 4 * i);
    }
  }
  TrackerScript t(true, 2);
  std::string got;
  for (std::uint64_t w = 0; w < kWorkers; ++w) {
    wire::Envelope e = from_worker(100 + w);
    *e.mutable_join() = join("w" + std::to_string(w), "h", kWorkers, 2);
    *e.mutable_join()->mutable_held() = held;
    got = t.send(e);
    if (got.find("disk_report_dropped") != std::string::npos) break;
  }
  EXPECT_NE(got.find("log disk_report_dropped: what the disks of job j hold takes more than 65011712 bytes to say; the "
                     "rounds of worker w"),
            std::string::npos);
}

}  // namespace
}  // namespace warren::test

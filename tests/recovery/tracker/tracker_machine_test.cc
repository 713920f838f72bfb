#include "recovery/tracker/tracker_machine.h"

#include <gtest/gtest.h>

#include "recovery/base/limits.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

constexpr const char* kStale =
    "Refused 7: this life is not a member of job j: its generation was ended, or it was silent for longer than the "
    "round "
    "timeout; join again [fenced]\n";

// A job of two, w0 = life 10 and w1 = life 11, running in generation 1.
void start_two(TrackerScript& t) {
  (void)t.join("w0", 10, 2);
  (void)t.join("w1", 11, 2);
  ASSERT_EQ(t.machine().state(), TrackerMachine::State::kRunning);
}

TEST(Tracker, AJobFromFirstJoinToForgotten) {
  TrackerScript t(true);
  EXPECT_EQ(t.join("w1", 11, 2),
            "log worker_joined: worker w1 on host h joined job j, which has 1 of 2 workers\n"
            "11 <- Welcome 1 of 2\n");
  EXPECT_EQ(t.join("w1", 11, 2), "11 <- Welcome 1 of 2\n");  // it asks again
  EXPECT_EQ(
      t.join("w0", 10, 2),
      "log worker_joined: worker w0 on host h joined job j, which has 2 of 2 workers\n"
      "10 <- Welcome 2 of 2\n"
      "log limits: job j: from the round timeout of 5.0 s follow: heartbeats every 1000 ms; silence is suspect after "
      "3.0 s, or twice the longest gap of a rank's own heartbeats, and ends the generation after 5.0 s; each rank "
      "looks at "
      "what it does every 100 ms, and is judged over 10.0 s; a rank or link is called slow where others wait for it "
      "for 40 % of that, it stands out among them or in its own history, and does so for 3.0 s\n"
      "persist generation 1 running\n"
      "log planned: job j runs with 2 workers in generation 1\n"
      "10 <- Plan generation 1 w0=10 w1=11\n"
      "11 <- Plan generation 1 w0=10 w1=11\n");
  EXPECT_EQ(t.beat(10, 1), "10 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.join("w1", 11, 2), "11 <- Plan generation 1 w0=10 w1=11\n");  // its plan was lost
  EXPECT_EQ(t.finalize(10, 1),
            "log finalizing: rank 0 (worker w0 on host h) has called finalize\n"
            "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.finalize(10, 1), "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.finalize(11, 1),
            "log finalizing: rank 1 (worker w1 on host h) has called finalize\n"
            "persist generation 1 finished\n"
            "log finished: job j is finished: all ranks have called finalize\n"
            "10 <- Finished generation 1\n"
            "drop 10\n"
            "11 <- Finished generation 1\n"
            "drop 11\n");
  EXPECT_EQ(t.finalize(10, 1), "10 <- Finished generation 1\ndrop 10\n");  // its Finished was lost
  EXPECT_EQ(t.join("w0", 20, 2),
            "20 <- Refused 12: job j is finished; if this is a new run, start its workers together, or free the name "
            "first by "
            "`warren forget --job=j`\ndrop 20\n");
  EXPECT_EQ(t.beat(10, 1), "10 <- Refused 7: job j is finished [fenced]\ndrop 10\n");
  EXPECT_EQ(t.pass(5000), "forget\n");
  EXPECT_FALSE(t.machine().next_deadline().has_value());
  EXPECT_EQ(t.finalize(11, 1), "11 <- Finished generation 1\ndrop 11\n");
}

TEST(Tracker, WithoutALogRanksMayFinalizeAfterDifferentCheckpoints) {
  TrackerScript t;
  start_two(t);
  (void)t.finalize(10, 1, 3);
  EXPECT_NE(t.finalize(11, 1, 2).find("Finished generation 1"), std::string::npos);
}

TEST(Tracker, ASingleWorkerIsAJob) {
  TrackerScript t;
  EXPECT_EQ(t.join("solo", 10, 1),
            "10 <- Welcome 1 of 1\npersist generation 1 running\n10 <- Plan generation 1 solo=10\n");
}

TEST(Tracker, RanksFollowNumbersInWorkerIdsWhateverTheOrderOfArrival) {
  TrackerScript t;
  (void)t.join("w10", 5, 3);
  (void)t.join("w9", 6, 3);
  EXPECT_EQ(t.join("w1", 7, 3),
            "7 <- Welcome 3 of 3\npersist generation 1 running\n7 <- Plan generation 1 w1=7 w9=6 w10=5\n"
            "6 <- Plan generation 1 w1=7 w9=6 w10=5\n5 <- Plan generation 1 w1=7 w9=6 w10=5\n");
}

TEST(Tracker, DifferentSettingsAreRefusedByName) {
  const auto refused = [](auto change) {
    TrackerScript t;
    (void)t.join("w0", 10, 2);
    wire::Envelope e = from_worker(11);
    *e.mutable_join() = join("w1", "other", 2);
    change(*e.mutable_join()->mutable_settings());
    return t.send(e);
  };
  const std::string end = ", which worker w0 on host h set; give all workers of a job the same settings\ndrop 11\n";
  EXPECT_EQ(refused([](auto& s) { s.set_world_size(4); }), "11 <- Refused 3: world_size 4 is not the job's 2" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_round_timeout_ms(100); }),
            "11 <- Refused 3: round_timeout_ms 100 is not the job's 5000" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_algorithm("ring"); }),
            "11 <- Refused 3: algorithm ring is not the job's auto" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_costs("5d1f23ab {…}"); }),
            "11 <- Refused 3: costs 5d1f23ab is not the job's none" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_costs(std::string(8192, 'x')); }),
            "11 <- Refused 3: costs xxxxxxxx is not the job's none" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_chunk_bytes(1024); }),
            "11 <- Refused 3: chunk_bytes 1024 is not the job's 262144" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_streams(4); }), "11 <- Refused 3: streams 4 is not the job's 1" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_checksums(false); }),
            "11 <- Refused 3: checksums off is not the job's on" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_check_call_sites(false); }),
            "11 <- Refused 3: check_call_sites off is not the job's on" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_nccl(22809); }), "11 <- Refused 3: nccl 2.28.9 is not the job's off" + end);
  EXPECT_EQ(refused([](auto& s) { s.set_rewire(true); }), "11 <- Refused 3: rewire on is not the job's off" + end);
  TrackerScript reorders;
  wire::Envelope first = from_worker(10);
  *first.mutable_join() = join("w0", "h", 2);
  first.mutable_join()->mutable_settings()->set_rewire(true);
  (void)reorders.send(first);
  wire::Envelope second = from_worker(11);
  *second.mutable_join() = join("w1", "other", 2);
  second.mutable_join()->mutable_settings()->set_rewire(true);
  second.mutable_join()->mutable_settings()->set_reorders(true);
  EXPECT_EQ(reorders.send(second), "11 <- Refused 3: deterministic off is not the job's on" + end);
  TrackerScript logging(false, 2);
  (void)logging.join("w0", 10, 2);
  wire::Envelope e = from_worker(11);
  *e.mutable_join() = join("w1", "other", 2, 2);
  e.mutable_join()->mutable_settings()->set_replace_after_ms(3000);
  EXPECT_EQ(logging.send(e), "11 <- Refused 3: replace_after_ms 3000 is not the job's 0" + end);
}

TEST(Tracker, SettingsAreForgottenWhenAllWhoWantedThemAreGone) {
  TrackerScript t;
  (void)t.join("w0", 10, 3);
  EXPECT_EQ(t.give_up(10, 0, "wrong size"), "drop 10\n");
  EXPECT_EQ(t.join("w0", 12, 2), "12 <- Welcome 1 of 2\n");
  EXPECT_EQ(t.pass(5000), "drop 12\n");  // silent
  EXPECT_EQ(t.join("w0", 13, 1).substr(0, 20), "13 <- Welcome 1 of 1");
}

TEST(Tracker, OneWhoIsRefusedOrGoneDoesNotComeBackInTheSameLife) {
  TrackerScript t;
  (void)t.join("w0", 10, 3);
  (void)t.join("w1", 11, 3);
  EXPECT_EQ(t.give_up(11, 0), "drop 11\n");
  EXPECT_EQ(t.join("w1", 11, 3), "11 <- " + std::string(kStale) + "drop 11\n");
}

TEST(Tracker, ANewerLifeReplacesOneThatWaits) {
  TrackerScript t;
  (void)t.join("w0", 10, 2);
  EXPECT_EQ(
      t.join("w0", 20, 2),
      "10 <- Refused 7: a newer life of worker w0 has joined; if that is not meant, give each process a worker id "
      "of its own\ndrop 10\n"
      "20 <- Welcome 1 of 2\n");
  EXPECT_EQ(t.join("w0", 10, 2).substr(0, 42), "10 <- Refused 7: a newer life of worker w0");
  EXPECT_EQ(t.machine().view(TimeMs{0}).members.size(), 1U);
}

// Another life of its process goes on; unless another process has come meanwhile, which that life would throw out.
TEST(Tracker, OneThatWasSilentWhileItWaitedHearsWhetherAnotherHasItsId) {
  TrackerScript t;
  (void)t.join("w0", 10, 2);
  (void)t.pass(5000);
  EXPECT_EQ(t.join("w0", 10, 2), "10 <- " + std::string(kStale) + "drop 10\n");
  EXPECT_EQ(t.join("w0", 20, 2), "20 <- Welcome 1 of 2\n");
  EXPECT_EQ(t.join("w0", 10, 2).substr(0, 42), "10 <- Refused 7: a newer life of worker w0");
  (void)t.join("w1", 11, 2);
  const std::string refused = t.join("w0", 10, 2);
  EXPECT_EQ(refused.substr(0, 42), "10 <- Refused 7: a newer life of worker w0") << "it is a member now";
  EXPECT_EQ(refused.find("[fenced]"), std::string::npos) << refused;
}

TEST(Tracker, SaysHowManyAreMissingBeforeTheFirstPlan) {
  TrackerScript t;
  (void)t.join("w0", 10, 3);
  EXPECT_EQ(
      t.machine().view(TimeMs{0}).waits,
      std::vector<std::string>{"the job waits for 2 more of its 3 workers to be started; those that are there give "
                               "up after their join timeouts"});
}

wire::Envelope beat_with_trouble(TrackerScript& t, std::uint64_t life, std::uint64_t beat, std::uint64_t rounds,
                                 const std::string& trouble) {
  wire::Envelope e = t.promised(life);
  e.mutable_heartbeat()->set_generation(1);
  e.mutable_heartbeat()->set_beat(beat);
  e.mutable_heartbeat()->set_rounds_finished(rounds);
  e.mutable_heartbeat()->set_disk_trouble(trouble);
  return e;
}

TEST(Tracker, SaysHowLongAgoTheNewestRoundWas) {
  TrackerScript t;
  start_two(t);
  (void)t.pass_alive(2000, {10, 11}, 1);
  const auto age_ms = [&] { return t.machine().view(TimeMs{t.now()}).last_round_ms_ago; };
  EXPECT_EQ(age_ms(), 1000) << "both have told of 12 rounds, and then again";
  (void)t.send(beat_with_trouble(t, 10, 100, 13, ""));
  EXPECT_EQ(age_ms(), 0);
  (void)t.pass(1000);
  (void)t.send(beat_with_trouble(t, 11, 100, 12, ""));
  EXPECT_EQ(age_ms(), 1000);
}

TEST(Tracker, NamesTheDiskThatTakesNothingToWhoAsksWhoWaits) {
  TrackerScript t(true);
  start_two(t);
  const std::string full = "the disk mounted at /data is full: remove files there";
  const std::string line = "the disk of rank 1 on host h takes no results: " + full;
  EXPECT_NE(t.send(beat_with_trouble(t, 11, 1, 0, full))
                .find("log disk_trouble: the disk of rank 1 (worker w1 on host "
                      "h) takes no results: " +
                      full),
            std::string::npos);
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).waits, std::vector{line});
  EXPECT_EQ(t.send(beat_with_trouble(t, 11, 2, 0, full)).find("log disk_trouble"), std::string::npos) << "once";
  EXPECT_NE(t.send(beat_with_trouble(t, 11, 3, 0, "")).find("log disk_recovered: "), std::string::npos);
  EXPECT_TRUE(t.machine().view(TimeMs{t.now()}).waits.empty());
}

TEST(Tracker, ANewerLifeThatALauncherHasCountedIsNotTakenForATwin) {
  TrackerScript t;
  start_two(t);
  wire::Envelope e = t.promised(21);
  *e.mutable_join() = test::join("w1", "h", 2, 0);
  e.mutable_join()->set_attempt(1);
  const std::string text = t.send(std::move(e));
  EXPECT_TRUE(text.find("was started again while its previous life was a member; all ranks") != std::string::npos)
      << text;
}

TEST(Tracker, ANewerLifeOfAMemberInterrupts) {
  TrackerScript t;
  start_two(t);
  const std::string reason =
      "Interrupt generation 2 code 5: rank 1 (worker w1 on host h) was started again while its previous life was a "
      "member "
      "(if "
      "it was not, two processes use this worker id); all ranks have to join again\n";
  EXPECT_EQ(t.join("w1", 21, 2),
            "persist generation 2 interrupted\n"
            "10 <- " +
                reason +
                "11 <- Refused 7: a newer life of rank 1 (worker w1 on host h) has joined; if that is not meant, give "
                "each process a worker id of its own\ndrop 11\n"
                "21 <- Welcome 1 of 2 missing w0\n");
  EXPECT_EQ(t.stopped(10, 2), "drop 10\n");
  EXPECT_EQ(t.join("w0", 20, 2),
            "20 <- Welcome 2 of 2\n"
            "persist generation 2 running\n"
            "20 <- Plan generation 2 w0=20 w1=21\n"
            "21 <- Plan generation 2 w0=20 w1=21\n");
  // The zombie hears that it is one.
  EXPECT_EQ(t.beat(11, 1), "11 <- " + std::string(kStale) + "drop 11\n");
  EXPECT_EQ(t.join("w1", 11, 2).substr(0, 42), "11 <- Refused 7: a newer life of worker w1");
}

TEST(Tracker, AMemberThatLeavesInterruptsAndItsPlaceIsKept) {
  TrackerScript t(true);
  start_two(t);
  EXPECT_EQ(
      t.give_up(11, 1, "out of memory"),
      "persist generation 2 interrupted\n"
      "log interrupted: generation 1 of job j is over: rank 1 (worker w1 on host h) left without finalizing (out of "
      "memory); restart it and all ranks join again, or start the job again\n"
      "10 <- Interrupt generation 2 code 5 lost 1: rank 1 (worker w1 on host h) left without finalizing (out of "
      "memory); restart it and all ranks join again, or start the job again\n"
      "drop 11\n");
  // Nobody answers: it is said again, every heartbeat interval, to whoever has not stopped.
  EXPECT_EQ(t.pass(1000),
            "10 <- Interrupt generation 2 code 5 lost 1: rank 1 (worker w1 on host h) left without finalizing (out of "
            "memory); restart it and all ranks join again, or start the job again\n");
  EXPECT_EQ(t.stopped(10, 2),
            "log worker_stopped: rank 0 (worker w0 on host h) has stopped\n"
            "drop 10\n"
            "log gathering: no member of generation 1 of job j runs any more; waiting for all workers to join again\n");
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kGathering);
  EXPECT_EQ(t.join("w1", 21, 2),
            "log worker_joined: worker w1 on host h joined job j, which has 1 of 2 workers\n"
            "21 <- Welcome 1 of 2 missing w0\n");
  // Arriving first does not make it rank 0.
  const std::string planned = t.join("w0", 20, 2);
  EXPECT_NE(planned.find("21 <- Plan generation 2 w0=20 w1=21\n"), std::string::npos) << planned;
  EXPECT_EQ(
      t.machine().view(TimeMs{t.now()}).last_interrupt,
      "rank 1 (worker w1 on host h) left without finalizing (out of memory); restart it and all ranks join again, or "
      "start the job again");
}

TEST(Tracker, ASilentMemberIsLostAfterARoundTimeoutAndNotWaitedForAgain) {
  TrackerScript t;
  start_two(t);
  EXPECT_EQ(t.pass_alive(4000, {10}, 1), "");
  const std::string text =
      "Interrupt generation 2 code 5 lost 1: rank 1 (worker w1 on host h) has not been heard for 5 s: dead, hung or "
      "cut "
      "off; "
      "restart it and all ranks join again, or start the job again\n";
  EXPECT_EQ(t.pass_alive(1000, {10}, 1),
            "persist generation 2 interrupted\n10 <- " + text + "11 <- " + text + "drop 11\n");
  EXPECT_EQ(t.stopped(10, 2), "drop 10\n");
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kGathering);
  EXPECT_EQ(t.stopped(11, 2), "11 <- " + std::string(kStale) + "drop 11\n");
}

TEST(Tracker, WhoDoesNotAnswerAnInterruptIsFenced) {
  TrackerScript t(true);
  start_two(t);
  wire::Envelope failed = from_worker(10);
  failed.mutable_round_failed()->set_generation(1);
  failed.mutable_round_failed()->set_code(static_cast<std::uint32_t>(Code::kCorrupt));
  failed.mutable_round_failed()->set_reason("checksum of round 0.3 from rank 1 is wrong");
  EXPECT_EQ(t.send(failed).substr(0, 33), "persist generation 2 interrupted\n");
  EXPECT_EQ(t.machine().view(TimeMs{0}).last_interrupt,
            "rank 0 (worker w0 on host h) reports: checksum of round 0.3 from rank 1 is wrong; all ranks have to join "
            "again");
  (void)t.stopped(10, 2);
  (void)t.pass(4000);
  EXPECT_EQ(t.pass(1000),
            "log fenced: rank 1 (worker w1 on host h) did not answer the interrupt within 5 s: this life is "
            "fenced; its process has ended, hangs or is cut off\n"
            "drop 11\n"
            "log gathering: no member of generation 1 of job j runs any more; waiting for all workers to join again\n");
  EXPECT_EQ(t.beat(11, 1), "11 <- " + std::string(kStale) + "drop 11\n");
}

TEST(Tracker, OneBrokenLinkNamesBothEnds) {
  TrackerScript t;
  start_two(t);
  EXPECT_EQ(t.link_broken(10, 1, 1, 11), "");
  EXPECT_EQ(t.link_broken(10, 1, 1, 11), "");  // repeated
  EXPECT_EQ(t.link_broken(11, 1, 0, 10, "end of file"), "");
  EXPECT_EQ(t.pass(49), "");
  const std::string text =
      "Interrupt generation 2 code 5: rank 0 (worker w0 on host h) lost its link to rank 1 (worker w1 on host h): "
      "connection "
      "reset (and 1 more links broke); all ranks have to join again\n";
  EXPECT_EQ(t.pass(1), "persist generation 2 interrupted\n10 <- " + text + "11 <- " + text);
}

TEST(Tracker, ABrokenLinkIsBlamedOnThePeerWhoseLeaveArrives) {
  TrackerScript t;
  start_two(t);
  (void)t.link_broken(10, 1, 1, 11);
  (void)t.pass(25);
  EXPECT_EQ(t.give_up(11, 1),
            "persist generation 2 interrupted\n"
            "10 <- Interrupt generation 2 code 5 lost 1: rank 1 (worker w1 on host h) left without finalizing; restart "
            "it and "
            "all ranks join again, or start the job again\n"
            "drop 11\n");
  EXPECT_EQ(t.pass(100), "");
}

TEST(Tracker, ManyBrokenLinksNameTheRankThatTheyShare) {
  TrackerScript t;
  for (std::uint64_t i = 0; i < 4; ++i) (void)t.join("w" + std::to_string(i), 10 + i, 4);
  (void)t.link_broken(10, 1, 2, 12);
  (void)t.link_broken(11, 1, 2, 12, "end of file");
  (void)t.link_broken(13, 1, 0, 10);
  const std::string got = t.pass(100);
  EXPECT_NE(
      got.find(
          "13 <- Interrupt generation 2 code 5 lost 2: rank 2 (worker w2 on host h) is probably gone: 2 ranks lost "
          "their links to it (ranks 0, 1; rank 0 reports: connection reset); restart it"),
      std::string::npos)
      << got;
}

TEST(Tracker, ReportsOfOtherGenerationsAndLivesChangeNothing) {
  TrackerScript t;
  start_two(t);
  EXPECT_EQ(t.link_broken(10, 2, 1, 11), "");
  EXPECT_EQ(t.link_broken(10, 1, 1, 99), "");
  EXPECT_EQ(t.link_broken(10, 1, 0, 10), "");
  EXPECT_EQ(t.link_broken(10, 1, 7, 11), "");
  EXPECT_EQ(t.link_broken(99, 1, 1, 11), "99 <- " + std::string(kStale) + "drop 99\n");
  EXPECT_EQ(t.stopped(10, 2), "");
  EXPECT_EQ(t.finalize(10, 7), "");
  EXPECT_EQ(t.beat(10, 9), "");
  EXPECT_EQ(t.pass(200), "");
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kRunning);
  (void)t.give_up(11, 1);
  EXPECT_EQ(t.stopped(10, 1), "");   // an answer to something older
  EXPECT_EQ(t.beat(10, 1), "");      // on its way when the interrupt was sent
  EXPECT_EQ(t.finalize(10, 1), "");  // likewise
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kInterrupted);
}

TEST(Tracker, AMemberThatNeverGotItsPlanIsInterruptedWhenItAsks) {
  TrackerScript t;
  start_two(t);
  (void)t.give_up(11, 1);
  EXPECT_EQ(t.join("w0", 10, 2).substr(0, 30), "10 <- Interrupt generation 2 c");
  EXPECT_EQ(t.give_up(10, 1), "drop 10\n");  // gives up instead of stopping: as good
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kGathering);
}

TEST(Tracker, ANewLifeSaysThatTheOldOneHasStopped) {
  TrackerScript t;
  start_two(t);
  (void)t.give_up(11, 1);
  EXPECT_EQ(t.join("w0", 20, 2), "20 <- Welcome 1 of 2 missing w1\n");
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kGathering);
}

TEST(Tracker, AnotherWorkerTakesALostPlaceAfterAGraceTime) {
  TrackerScript t(true);
  for (std::uint64_t i = 0; i < 3; ++i) (void)t.join("w" + std::to_string(i), 10 + i, 3);
  EXPECT_EQ(
      t.join("x", 50, 3),
      "50 <- Refused 3: job j has all its 3 workers and x is none of them; start fewer workers, or use another job "
      "name\ndrop 50\n");
  (void)t.give_up(11, 1);
  (void)t.stopped(10, 2);
  (void)t.stopped(12, 2);
  (void)t.join("w0", 20, 3);
  (void)t.join("w2", 22, 3);
  EXPECT_EQ(t.join("x", 51, 3),
            "log worker_joined: worker x on host h joined job j, which has 3 of 3 workers; it waits for the place of a "
            "worker that does not come back\n"
            "51 <- Welcome 3 of 3 missing w1\n");
  EXPECT_EQ(
      t.join("y", 52, 3),
      "52 <- Refused 3: no place in job j for worker y: others wait for the places of w1; start fewer workers, or "
      "use another job name\ndrop 52\n");
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(t.pass(1000), "");
    (void)t.join("w0", 20, 3);
    (void)t.join("w2", 22, 3);
    (void)t.join("x", 51, 3);
  }
  EXPECT_EQ(
      t.pass(1000),
      "log place_taken: worker x takes the place of rank 1 (worker w1 on host h)\n"
      "persist generation 2 running\n"
      "log planned: job j runs with 3 workers in generation 2\n"
      "log recovered: job j is whole again in generation 2, 5000 ms after the tracker noticed the end of generation 1; "
      "with new "
      "processes: rank 0 (worker w0 on host h), rank 1 (worker x on host h), rank 2 (worker w2 on host h)\n"
      "20 <- Plan generation 2 w0=20 x=51 w2=22\n"
      "51 <- Plan generation 2 w0=20 x=51 w2=22\n"
      "22 <- Plan generation 2 w0=20 x=51 w2=22\n");
}

TEST(Tracker, AWorkerThatComesBackInTimeGetsItsPlace) {
  TrackerScript t;
  start_two(t);
  (void)t.give_up(11, 1);
  (void)t.stopped(10, 2);
  (void)t.join("x", 50, 2);
  EXPECT_EQ(t.join("y", 51, 2), "51 <- Welcome 2 of 2 missing w0,w1\n");
  EXPECT_EQ(t.join("w1", 21, 2),
            "51 <- Refused 3: no place in job j for worker y: the workers it waited to replace are back\n"
            "drop 51\n"
            "21 <- Welcome 2 of 2 missing w0\n");
  EXPECT_EQ(t.join("w0", 20, 2),
            "50 <- Refused 3: no place in job j for worker x: the workers it waited to replace are back\n"
            "drop 50\n"
            "20 <- Welcome 2 of 2\n"
            "persist generation 2 running\n"
            "20 <- Plan generation 2 w0=20 w1=21\n"
            "21 <- Plan generation 2 w0=20 w1=21\n");
}

TEST(Tracker, ALeaveWithFinalizeStandsWhenItsWorkerDies) {
  TrackerScript t(true);
  start_two(t);
  (void)t.finalize(11, 1);
  EXPECT_EQ(t.link_broken(10, 1, 1, 11), "");
  EXPECT_EQ(t.give_up(11, 1), "");
  EXPECT_EQ(
      t.pass_alive(5000, {10}, 1),
      "log finalized_silent: rank 1 (worker w1 on host h) has not been heard for 5 s; it has called finalize, which "
      "stands\n"
      "persist generation 1 running finalized 1\n");
  EXPECT_EQ(t.pass_alive(5000, {10}, 1),
            "log finalize_waits: 1 of 2 ranks of job j wait in finalize for rank 0 (worker w0 on host h), which has "
            "finished 12 rounds\n");
  EXPECT_EQ(
      t.join("w1", 21, 2),
      "21 <- Refused 7: rank 1 (worker w1 on host h) has finalized in an earlier life and job j ends when the other "
      "ranks have; do not start it again\ndrop 21\n");
  t.restart();  // the dead cannot say it again
  EXPECT_EQ(t.pass_alive(7000, {10}, 1), "");
  EXPECT_EQ(t.finalize(10, 1).substr(0, 60), "log finalizing: rank 0 (worker w0 on host h) has called fina");
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kFinished);
}

TEST(Tracker, ARankThatIsLateForItsLastRoundAndThenFinalizesIsNoDesync) {
  TrackerScript t;
  start_two(t);
  // Rank 0 has waited long for rank 1, which computes; then the round ends for both, and rank 1 is the first to say so.
  for (std::uint64_t s = 1; s <= 6; ++s) {
    (void)t.beat(10, 1, {round(17, 1024, {1}, s * 1000)});
    (void)t.beat(11, 1);
    (void)t.pass(1000);
  }
  EXPECT_EQ(t.finalize(11, 1), "11 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.pass(1100), "") << "the newest word of rank 0 is older than rank 1's finalize";
  (void)t.beat(10, 1);  // it is past the round, and does something else
  for (int s = 0; s < 8; ++s) {
    (void)t.beat(10, 1);
    (void)t.finalize(11, 1);
    EXPECT_EQ(t.pass(1000), "");
  }
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kRunning);
}

TEST(Tracker, ARoundThatARankHasLeftOutForGoodIsADesync) {
  TrackerScript t;
  start_two(t);
  (void)t.finalize(11, 1);
  std::uint64_t s = 1;
  for (; s <= 10 && t.machine().state() == TrackerMachine::State::kRunning; ++s) {
    (void)t.beat(10, 1, {round(17, 1024, {1}, s * 1000)});
    (void)t.finalize(11, 1);
    (void)t.pass(1000);
  }
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kInterrupted);
  EXPECT_NE(t.machine().view({t.now()}).last_interrupt.find("has called finalize after"), std::string::npos);
  EXPECT_LE(s, 8u) << "soon after the round timeout of 5 s";
}

TEST(Tracker, CallsThatDisagreeAreADesync) {
  TrackerScript t;
  start_two(t);
  (void)t.beat(10, 1, {round(17, 1024, {1}, 0)});
  (void)t.beat(11, 1, {round(17, 1000, {0}, 0)});
  const std::string text =
      "Interrupt generation 2 code 6: rank 0 (worker w0 on host h) called allreduce(f32, sum, count 1024), rank 1 "
      "(worker "
      "w1 "
      "on host h) called allreduce(f32, sum, count 1000), both as round p.17; make all ranks call the same things in "
      "the "
      "same order, then start the job again\n";
  EXPECT_EQ(t.pass(1000), "persist generation 2 interrupted\n10 <- " + text + "11 <- " + text);
}

TEST(Tracker, KeepsLittleOfALongHeartbeat) {
  TrackerScript t;
  start_two(t);
  std::vector<std::uint32_t> everybody(limits::kMaxWorldSize - 1);
  for (std::uint32_t r = 0; r < everybody.size(); ++r) everybody[r] = r;
  std::vector<wire::CurrentRound> rounds;
  for (std::uint64_t n = 1; n <= limits::kMaxRoundsPerHeartbeat; ++n) rounds.push_back(round(n, 8, everybody, 77));
  EXPECT_EQ(t.beat(10, 1, rounds), "10 <- HeartbeatReply 1\n");
  const auto kept = t.machine().view({t.now()}).members[0].rounds;
  ASSERT_EQ(kept.size(), rounds.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    EXPECT_LE(kept[i].ByteSizeLong(), 1024u);
    EXPECT_GE(kept[i].waiting_for_size(), 8);
    rounds[i].clear_waiting_for();
    wire::CurrentRound rest = kept[i];
    rest.clear_waiting_for();
    EXPECT_EQ(rest.SerializeAsString(), rounds[i].SerializeAsString());
  }
}

TEST(Tracker, ALongWaitIsLoggedAndNoError) {
  TrackerScript t(true);
  start_two(t);
  std::string text;
  for (std::uint64_t s = 0; s < 30; ++s) {
    text += t.pass(1000);
    (void)t.beat(10, 1, {round(17, 1024, {1}, s * 1000)});
    (void)t.beat(11, 1);
  }
  EXPECT_EQ(text,
            "log round_waits: rank 0 waits for rank 1 in round p.17 since 18 s; rank 1 is alive and has finished 12 "
            "rounds\n"
            "log round_waits: rank 0 waits for rank 1 in round p.17 since 28 s; rank 1 is alive and has finished 12 "
            "rounds\n");
}

TEST(Tracker, AWorldThatDoesNotFillIsLoggedEveryTenSeconds) {
  TrackerScript t(true);
  (void)t.join("w0", 10, 3);
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += t.pass(1000);
    (void)t.join("w0", 10, 3);
  }
  EXPECT_EQ(text,
            "log waiting_for_workers: job j waits for 2 of its 3 workers\n"
            "log waiting_for_workers: job j waits for 2 of its 3 workers\n");
}

TEST(Tracker, ATrackerThatSleptBlamesNobody) {
  TrackerScript t(true);
  start_two(t);
  EXPECT_EQ(t.sleep(60'000),
            "log tracker_slept: the tracker was held up for 59 s; its workers are given time to be heard\n");
  (void)t.beat(10, 1);
  (void)t.beat(11, 1);
  EXPECT_EQ(t.pass(2000), "");
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kRunning);
}

TEST(Tracker, RestartedWhileRunningItRepeatsThePlanVerbatim) {
  TrackerScript t;
  start_two(t);
  const std::string planned = t.join("w1", 11, 2);
  t.restart();
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kRunning);
  EXPECT_EQ(t.join("w1", 11, 2), planned);
  EXPECT_EQ(t.beat(10, 1), "10 <- HeartbeatReply 1\n");
  // Who does not come back within the timeout is lost.
  EXPECT_EQ(t.pass_alive(4000, {10}, 1), "");
  EXPECT_NE(t.pass_alive(1000, {10}, 1).find("lost 1"), std::string::npos);
}

TEST(Tracker, RestartedWhileInterruptedItRepeatsTheInterrupt) {
  TrackerScript t;
  start_two(t);
  (void)t.give_up(11, 1);
  const std::string disk = t.disk();
  t.restart();
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kInterrupted);
  EXPECT_EQ(t.stopped(10, 2), "drop 10\n");
  (void)t.pass(5000);
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kGathering);
  t.restart();  // gathering is rebuilt from those who ask again
  (void)t.join("w0", 20, 2);
  EXPECT_EQ(t.join("w1", 21, 2).substr(0, 50), "21 <- Welcome 2 of 2\npersist generation 2 running\n");
}

TEST(Tracker, RestartedAfterTheEndItStillAnswersFinished) {
  TrackerScript t;
  start_two(t);
  (void)t.finalize(10, 1);
  (void)t.finalize(11, 1);
  t.restart();
  EXPECT_EQ(t.finalize(11, 1), "11 <- Finished generation 1\ndrop 11\n");
  EXPECT_EQ(t.finalize(11, 2), "11 <- Refused 7: job j is finished [fenced]\ndrop 11\n");
  EXPECT_EQ(t.pass(5000), "forget\n");
}

TEST(Tracker, ARecordThatIsNotOursIsRefused) {
  TrackerScript t;
  start_two(t);
  const auto made = [](std::string job, std::string_view bytes) {
    return TrackerMachine::make({std::move(job), Incarnation(1), plan_simply}, bytes, TimeMs{}).status();
  };
  EXPECT_TRUE(made("j", t.disk()).ok());
  EXPECT_EQ(
      made("k", t.disk()).describe(),
      "the journal's record of job k is that of job j; use the journal that belongs to it, or remove the record: the "
      "job then goes on from what its workers' disks know, or begins anew where they know nothing");
  EXPECT_EQ(made("j", "rubbish").code(), Code::kCorrupt);
  wire::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(t.disk()));
  record.clear_plan();
  EXPECT_EQ(
      made("j", record.SerializeAsString()).describe(),
      "the journal's record of job j is damaged; use the journal that belongs to it, or remove the record: the job "
      "then goes on from what its workers' disks know, or begins anew where they know nothing: no plan");
  // Of the time before runs had names.
  record.set_format(1);
  EXPECT_EQ(made("j", record.SerializeAsString()).code(), Code::kRefused);
  EXPECT_EQ(made("j", record.SerializeAsString()).describe(),
            "the journal's record of job j was written by another version of Warren; finish the job with that version, "
            "or remove the tracker's data directory: format 1, this build reads format 4");
}

std::uint64_t plans_in(const std::string& text) {
  std::uint64_t n = 0;
  for (std::size_t at = text.find(" <- Plan"); at != std::string::npos; at = text.find(" <- Plan", at + 1)) ++n;
  return n;
}

// Here 40 KiB are on their way at most. A rank that is heard to have its plan makes room, and so does an interval that
// is over.
TEST(Tracker, TheLargestPlansGoOutAsTheyArrive) {
  constexpr std::uint64_t kRanks = 400;
  TrackerScript t(std::size_t{40} << 10);
  std::string last;
  for (std::uint64_t i = 0; i < kRanks; ++i) last = t.join("w" + std::to_string(i), 1000 + i, kRanks);
  std::uint64_t sent = plans_in(last);
  ASSERT_GT(sent, 10u);
  ASSERT_LT(sent, kRanks / 2 + 10);
  EXPECT_EQ(t.join("w399", 1399, kRanks), "1399 <- HeartbeatReply 1\n") << "its turn comes, and somebody listens";
  EXPECT_EQ(t.join("w0", 1000, kRanks), "1000 <- HeartbeatReply 1\n") << "it may be on its way";
  EXPECT_EQ(plans_in(t.beat(1000, 1)), 1u) << "rank 0 has it";
  EXPECT_EQ(plans_in(t.beat(1000, 1)), 0u);
  EXPECT_EQ(plans_in(t.finalize(1001, 1)), 1u) << "so has rank 1, which is in finalize";
  sent += 2;
  std::uint64_t intervals = 0;
  for (; sent < kRanks && intervals < 10; ++intervals) sent += plans_in(t.pass(1000));
  EXPECT_EQ(sent, kRanks);
  EXPECT_GT(intervals, 0u);
}

// Rank 1's program computes, and rank 0 waits for it. Round timeout 5 s: a look a second.
std::string beat_of_straggler(TrackerScript& t, std::uint64_t life, std::uint64_t beat, bool slow, bool waits) {
  wire::Envelope e = from_worker(life);
  wire::Heartbeat& h = *e.mutable_heartbeat();
  h.set_generation(1);
  h.set_beat(beat);
  if (waits) *h.add_rounds() = round(3, 8, {1}, 900);
  wire::Activity& a = *h.mutable_activity();
  a.set_window_ms(10'000);
  a.set_outside_ms(slow ? 9800 : 1000);
  a.set_idle_ms(slow ? 100 : 8900);
  wire::LinkActivity& l = *a.add_links();
  l.set_peer(life == 10 ? 1 : 0);
  l.set_awaited_ms(waits ? 8800 : 0);
  return t.send(std::move(e));
}

TEST(Tracker, AStragglerIsNamedOnceAndClearedOnce) {
  TrackerScript t(true);
  (void)t.join("w0", 10, 2);
  EXPECT_NE(
      t.join("w1", 11, 2).find("log limits: job j: from the round timeout of 5.0 s follow: heartbeats every 1000 ms"),
      std::string::npos);
  std::uint64_t beat = 0;
  const auto second = [&](bool slow) {
    ++beat;
    (void)beat_of_straggler(t, 10, beat, false, slow);
    (void)beat_of_straggler(t, 11, beat, slow, false);
    return t.pass(1000);
  };
  EXPECT_EQ(second(true) + second(true), "") << "it may be chance";
  const std::string named = second(true);
  EXPECT_EQ(
      named,
      "log straggler: slow_rank: rank 1 (worker w1 on host h) holds up rank 0, which has waited for it for 8.8 s of "
      "the last 10.0 s, and waits itself for 1 % of its time: its program was outside of calls for 98 %, those of the "
      "others for 10 % (median); it has not entered round p.3. Next: nothing but this report: all wait for it\n");
  EXPECT_EQ(second(true), "") << "once";
  auto v = t.machine().view(TimeMs{t.now()});
  ASSERT_EQ(v.verdicts.size(), 1u);
  EXPECT_EQ(v.verdicts[0].verdict.rank, Rank(1));
  EXPECT_EQ(v.verdicts_ever[static_cast<std::size_t>(Blame::kSlowRank)], 1u);
  EXPECT_EQ(v.waits,
            std::vector<std::string>({"round p.3: rank 0 has waited 0.9 s for rank 1, which has not entered it (its "
                                      "program computes; 0 rounds finished)"}));
  std::string cleared;
  for (int i = 0; i < 6; ++i) cleared += second(false);
  EXPECT_EQ(
      cleared,
      "log straggler_cleared: slow_rank: what was said of rank 1 (worker w1 on host h) holds no longer, after 8 s\n");
  EXPECT_TRUE(t.machine().view(TimeMs{t.now()}).verdicts.empty());
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).interrupts, 0u) << "it is said, and no more";
}

TEST(Tracker, ASilentRankIsSuspectedBeforeItIsLostAndNamesGoWithTheGeneration) {
  TrackerScript t(true);
  start_two(t);
  const auto second = [&] {
    (void)t.beat(10, 1);
    return t.pass(1000);
  };
  (void)t.beat(11, 1);
  EXPECT_EQ(second() + second(), "");
  EXPECT_EQ(second().substr(0, 75), "log straggler: hung: rank 1 (worker w1 on host h) has not been heard for 3.");
  EXPECT_EQ(second(), "");
  (void)second();
  const auto v = t.machine().view(TimeMs{t.now()});
  EXPECT_EQ(v.interrupts, 1u);
  EXPECT_TRUE(v.verdicts.empty());
}

TEST(Tracker, AfterItsOwnSleepNobodyIsSuspectedBeforeHeCouldBeHeard) {
  TrackerScript t(true);
  start_two(t);
  (void)t.beat(10, 1);
  (void)t.beat(11, 1);
  (void)t.pass(1000);
  EXPECT_EQ(t.sleep(20'000).find("straggler"), std::string::npos);
  EXPECT_EQ(t.pass(1500).find("straggler"), std::string::npos);
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).interrupts, 0u);
}

TEST(Tracker, WhoDrainsSaysSoAndLeavesWithoutBlame) {
  TrackerScript t(true, 1);
  (void)t.join("w0", 10, 2);
  (void)t.join("w1", 11, 2);
  wire::Envelope e = from_worker(11);
  wire::Heartbeat& h = *e.mutable_heartbeat();
  h.set_generation(1);
  h.set_beat(1);
  h.mutable_draining()->set_left_ms(9000);
  h.mutable_draining()->set_reason("SIGTERM");
  EXPECT_EQ(
      t.send(e),
      "log rank_drains: rank 1 (worker w1 on host h) has been told to leave (SIGTERM) and does so within 9000 ms; its "
      "place is kept\n11 <- HeartbeatReply 1\n");
  h.set_beat(2);
  EXPECT_EQ(t.send(e), "11 <- HeartbeatReply 2\n") << "once";
  (void)t.pass(500);
  auto v = t.machine().view(TimeMs{t.now()});
  ASSERT_TRUE(v.members[1].draining.has_value());
  EXPECT_EQ(v.members[1].draining->left_ms(), 8500u);
  EXPECT_FALSE(v.members[0].draining.has_value());
  EXPECT_EQ(v.interrupts, 0u) << "a drain alone changes nothing";
  wire::Envelope leave = from_worker(11);
  leave.mutable_leave()->set_generation(1);
  leave.mutable_leave()->set_reason("SIGTERM");
  leave.mutable_leave()->set_preempted(true);
  EXPECT_NE(t.send(leave).find("rank 1 (worker w1 on host h) was preempted (SIGTERM); the other ranks wait until it is "
                               "started again, and go on"),
            std::string::npos);
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).preemptions, 1u);
}

TEST(Tracker, TheViewTellsWhoIsThere) {
  TrackerScript t;
  start_two(t);
  (void)t.beat(10, 1, {round(3, 8, {1}, 5)});
  (void)t.pass(300);
  auto v = t.machine().view(TimeMs{t.now()});
  ASSERT_EQ(v.members.size(), 2U);
  EXPECT_EQ(v.generation, Generation(1));
  EXPECT_EQ(v.members[0].rounds_finished, 12U);
  EXPECT_EQ(v.members[0].last_heard_ms_ago, 300);
  ASSERT_EQ(v.members[0].rounds.size(), 1U);
  EXPECT_EQ(v.members[0].rounds[0].sequence(), 3U);
  (void)t.give_up(11, 1);
  v = t.machine().view(TimeMs{t.now()});
  EXPECT_EQ(v.members[1].worker_id, "w1");
  EXPECT_FALSE(v.members[1].alive);
  EXPECT_EQ(v.members[1].incarnation, Incarnation(0));
  EXPECT_EQ(v.interrupts, 1U);
  EXPECT_EQ(v.joins, 2U);
}

}  // namespace
}  // namespace warren::test

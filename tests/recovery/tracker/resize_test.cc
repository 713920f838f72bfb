// A job that is started again with another world size.
#include <gtest/gtest.h>

#include "recovery/tracker/tracker_machine.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

using State = TrackerMachine::State;

// A job of three, w0 = life 10 to w2 = life 12, running in generation 1, with version 1 committed.
class TrackerResize : public ::testing::Test {
 protected:
  TrackerResize() {
    for (std::uint64_t w = 0; w < 3; ++w) (void)t.join("w" + std::to_string(w), 10 + w, 3);
    for (std::uint64_t w = 0; w < 3; ++w) (void)t.vote(10 + w, 2, {}, 0, {setup(0, 7, true)});
  }
  wire::Envelope joining(wire::Envelope e, std::uint64_t worker, std::uint32_t world_size) const {
    *e.mutable_join() = join("w" + std::to_string(worker), "h", world_size, 2);
    e.mutable_join()->set_resize(true);
    return e;
  }
  std::string resizing(std::uint64_t worker, std::uint64_t life, std::uint32_t world_size) {
    return t.send(joining(from_worker(life), worker, world_size));
  }

  TrackerScript t{false, 2};
};

TEST_F(TrackerResize, GoesOnFromTheCheckpointAloneOnceNobodyLives) {
  EXPECT_EQ(resizing(0, 20, 2), "20 <- HeartbeatReply 1\n") << "all three live: nothing happens to them";
  EXPECT_EQ(t.machine().state(), State::kRunning);
  (void)t.pass(5000);
  ASSERT_EQ(t.machine().state(), State::kGathering);
  EXPECT_EQ(resizing(0, 20, 2), "20 <- Welcome 1 of 2\n") << "nobody has been heard for a round timeout";
  EXPECT_EQ(t.beat(10, 1).substr(0, 12), "10 <- Refuse") << "who has slept is fenced";
  const std::string planned = resizing(1, 21, 2);
  EXPECT_NE(planned.find("20 <- Plan generation 2"), std::string::npos) << planned;
  EXPECT_NE(planned.find("timeline 1"), std::string::npos) << planned;
  EXPECT_NE(planned.find("committed 2"), std::string::npos) << planned;
  EXPECT_EQ(planned.find("s7"), std::string::npos) << "set-up rounds are of the old world: " << planned;
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).world_size, 2u);
  EXPECT_NE(t.load(20).find("Loaded 2"), std::string::npos);
  (void)t.vote(20, 3, {}, 1);
  EXPECT_NE(t.vote(21, 3, {}, 1).find("Committed 3"), std::string::npos);
}

TEST_F(TrackerResize, WhoWaitsIsLogged) {
  TrackerScript logged(true, 2);
  (void)logged.join("w0", 10, 1);
  const wire::Envelope e = joining(from_worker(20), 1, 2);
  EXPECT_NE(logged.send(e).find(
                "log resize_waits: worker w1 on host h asks for 2 workers: job j goes on with so many once it "
                "is sure that none of the 1 of its last run lives, which is when none has been heard for 5.0 "
                "s; the last was rank 0 (worker w0 on host h), 0.0 s ago\n"),
            std::string::npos);
  EXPECT_EQ(logged.send(e), "20 <- HeartbeatReply 1\n") << "not each time";
}

TEST_F(TrackerResize, MayGrow) {
  (void)t.pass(10'000);
  for (std::uint64_t w = 0; w < 4; ++w) (void)resizing(w, 20 + w, 5);
  EXPECT_NE(resizing(4, 24, 5).find("24 <- Plan generation 2"), std::string::npos);
  // Those of the old size are strangers now.
  EXPECT_NE(t.join("w2", 30, 3).find("world_size 3 is not the job's 5"), std::string::npos);
}

TEST_F(TrackerResize, IsNotForWhoDoesNotAskForItOrWantsMoreThanThat) {
  (void)t.pass(10'000);
  EXPECT_NE(t.join("w0", 20, 2).find("start them all with --resize"), std::string::npos);
  wire::Envelope e = joining(from_worker(21), 0, 2);
  e.mutable_join()->mutable_settings()->set_streams(2);
  EXPECT_NE(t.send(e).find("world_size 2 is not the job's 3"), std::string::npos);
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).world_size, 3u);
}

TEST_F(TrackerResize, WaitsForWhoHasComeBackToTheOldWorld) {
  (void)t.pass(10'000);
  (void)t.join("w1", 31, 3);
  EXPECT_EQ(resizing(0, 20, 2), "20 <- HeartbeatReply 1\n");
  (void)t.join("w0", 30, 3);
  EXPECT_NE(t.join("w2", 32, 3).find("32 <- Plan generation 2"), std::string::npos);
}

TEST_F(TrackerResize, IsUndoneWhereWhoWantedItIsGone) {
  (void)t.pass(10'000);
  (void)resizing(0, 20, 2);
  (void)t.pass(5000);
  for (std::uint64_t w = 0; w < 2; ++w) (void)t.join("w" + std::to_string(w), 30 + w, 3);
  const std::string planned = t.join("w2", 32, 3);
  EXPECT_NE(planned.find("32 <- Plan generation 2"), std::string::npos) << planned;
  EXPECT_NE(planned.find("s7"), std::string::npos) << "nothing of it was lost: " << planned;
  EXPECT_NE(t.beat(20, 3).find("Refused"), std::string::npos);
}

// They have stopped, as they were told, and their launchers start them again.
TEST_F(TrackerResize, TakesNoJobThatRollsBack) {
  (void)t.round_failed(10, 1, Code::kDesync, "ranks disagree");
  for (std::uint64_t life = 10; life < 13; ++life) (void)t.stopped(life, 2);
  ASSERT_EQ(t.machine().state(), State::kGathering);
  (void)t.pass(4900);
  EXPECT_EQ(resizing(0, 20, 2), "20 <- HeartbeatReply 1\n") << "they may be on their way";
  for (std::uint64_t w = 0; w < 2; ++w) (void)t.join("w" + std::to_string(w), 30 + w, 3);
  EXPECT_NE(t.join("w2", 32, 3).find("32 <- Plan generation 2"), std::string::npos);
}

// More lives have ended than a small world's journal may hold.
TEST_F(TrackerResize, OfALargeWorldToASmallOne) {
  TrackerScript large(false, 2);
  for (std::uint64_t w = 0; w < 300; ++w) (void)large.join("w" + std::to_string(w), 1000 + w, 300);
  (void)large.pass(20'000);
  std::string last;
  for (std::uint64_t w = 0; w < 4; ++w) last = large.send(joining(from_worker(5000 + w), w, 4));
  EXPECT_NE(last.find("5003 <- Plan generation 2"), std::string::npos) << last;
  large.restart();
  EXPECT_EQ(large.machine().view(TimeMs{large.now()}).world_size, 4u);
}

// Another tracker may serve the old world: this one has to be promised anew.
TEST_F(TrackerResize, IsUndoneWhereAHigherTermIsHeard) {
  (void)t.pass(10'000);
  EXPECT_EQ(resizing(0, 20, 2), "20 <- Welcome 1 of 2\n");
  wire::Envelope e = joining(from_worker(21), 1, 2);
  e.set_receiver(kTracker + 1);
  e.set_term(7);
  EXPECT_EQ(t.send(e), "21 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.send(joining(t.promised(21), 1, 2)), "21 <- HeartbeatReply 1\n") << "one of two";
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).world_size, 3u);
}

// Seed 951206349: a life that is over has promised to obey another tracker since, and heeds no refusal of a lower term.
TEST_F(TrackerResize, ALifeThatIsOverIsHeardOfHigherTerms) {
  (void)t.pass(10'000);
  (void)resizing(0, 20, 2);
  (void)t.pass(5000);
  wire::Envelope e = from_worker(10);
  e.mutable_heartbeat()->set_generation(1);
  e.mutable_heartbeat()->set_beat(9);
  e.set_receiver(kTracker + 1);
  e.set_term(7);
  EXPECT_EQ(t.send(e), "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.promised(10).term(), 8u);
}

// A tracker that was started again: fewer than half of the old world can come.
TEST_F(TrackerResize, WhoAreAllThereActWithoutTheOldOnesPromises) {
  t.restart(false);
  EXPECT_EQ(resizing(0, 20, 1), "20 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.send(joining(t.promised(20), 0, 1)), "20 <- HeartbeatReply 1\n") << "the others may still come";
  (void)t.pass(5000);
  std::string last = t.send(joining(t.promised(20), 0, 1));
  EXPECT_EQ(last, "20 <- HeartbeatReply 1\n") << "it acts, and the others are not given up yet";
  (void)t.pass(1000);
  last = t.send(joining(t.promised(20), 0, 1));
  EXPECT_NE(last.find("20 <- Plan generation 2"), std::string::npos) << last;
}

TEST_F(TrackerResize, AMemberThatPromisesKeepsThemFromActing) {
  t.restart(false);
  wire::Envelope alive = t.promised(11);
  alive.mutable_heartbeat()->set_generation(1);
  alive.mutable_heartbeat()->set_beat(1);
  (void)t.send(joining(t.promised(20), 0, 1));
  for (int i = 0; i < 3; ++i) {
    (void)t.send(alive);
    (void)t.pass(4000);
    EXPECT_EQ(t.send(joining(t.promised(20), 0, 1)), "20 <- HeartbeatReply 1\n");
  }
  (void)t.pass(1000);
  (void)t.send(joining(t.promised(20), 0, 1));
  (void)t.pass(6000);
  EXPECT_NE(t.send(joining(t.promised(20), 0, 1)), "20 <- HeartbeatReply 1\n") << "it has not been heard since";
}

// Its plan is made up from disks, and then there is one to be resized.
TEST_F(TrackerResize, AlsoWhereTheJournalIsLost) {
  const std::string record = t.disk();
  wire::JobRecord before;
  ASSERT_TRUE(before.ParseFromString(record));
  t.disk().clear();
  t.restart();
  const auto with_disk = [&](std::uint64_t worker, std::uint64_t life) {
    wire::Envelope e = joining(from_worker(life), worker, 2);
    wire::Held& held = *e.mutable_join()->mutable_held();
    held.set_run(before.plan().run());
    held.mutable_known()->set_generation(1);
    held.mutable_known()->set_plan_generation(1);
    *held.mutable_known()->mutable_plan() = before.plan();
    held.mutable_known()->set_committed(true);
    held.mutable_known()->set_committed_version(2);
    return e;
  };
  (void)t.send(with_disk(0, 20));
  (void)t.send(with_disk(1, 21));
  std::string last;
  for (int i = 0; i < 30 && last.find("Plan") == std::string::npos; ++i) {
    (void)t.pass(1000);
    (void)t.send(with_disk(0, 20));
    last = t.send(with_disk(1, 21));
  }
  EXPECT_NE(last.find("21 <- Plan generation 2"), std::string::npos) << last;
  EXPECT_NE(last.find("committed 2"), std::string::npos) << last;
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).world_size, 2u);
}

}  // namespace
}  // namespace warren::test

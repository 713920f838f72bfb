// Who may decide: a tracker that more than half of a job's places have promised to obey.
#include <gtest/gtest.h>

#include "recovery/tracker/tracker_machine.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

// A job of three, w0 = life 10 to w2 = life 12, running in generation 1 of a tracker that is started again.
class TrackerTerms : public ::testing::Test {
 protected:
  TrackerTerms() {
    for (int w = 0; w < 3; ++w) (void)t.join("w" + std::to_string(w), 10 + static_cast<std::uint64_t>(w), 3);
    t.restart(false);
  }
  wire::Envelope beat(wire::Envelope e) {
    e.mutable_heartbeat()->set_generation(1);
    e.mutable_heartbeat()->set_beat(++beats_);
    return e;
  }
  wire::Envelope joining(wire::Envelope e, const std::string& worker) {
    *e.mutable_join() = join(worker, "h", 3, 2);
    return e;
  }

  TrackerScript t{false, 2};
  std::uint64_t beats_ = 0;
};

TEST_F(TrackerTerms, NothingIsDecidedBeforeMoreThanHalfHavePromised) {
  EXPECT_EQ(t.beat(10, 1), "10 <- HeartbeatReply 0\n") << "asks for its promise";
  EXPECT_EQ(t.pass(60'000), "") << "nobody else is heard, and nobody is taken for lost";
  EXPECT_EQ(t.send(beat(t.promised(10))), "10 <- HeartbeatReply 1\n") << "one of three: it is heard";
  EXPECT_EQ(t.send(beat(t.promised(10))), "10 <- HeartbeatReply 1\n") << "is one";
  EXPECT_EQ(t.give_up(12, 1), "12 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.send(beat(t.promised(11))), "10 <- HeartbeatReply 0\n11 <- HeartbeatReply 3\n")
      << "what 10 has said went by";
  // From here on as ever; all are given time to be heard.
  EXPECT_EQ(t.pass_alive(4000, {10, 11}, 1), "");
  EXPECT_NE(t.pass_alive(1000, {10, 11}, 1).find("Pause generation 2"), std::string::npos);
}

TEST_F(TrackerTerms, WhoIsWaitedForIsLogged) {
  TrackerScript logged(true, 2);
  (void)logged.join("w0", 10, 2);
  (void)logged.join("w1", 11, 2);
  logged.restart(false);
  (void)logged.beat(10, 1);
  (void)logged.send(beat(logged.promised(10)));
  EXPECT_NE(logged.pass(10'000).find("before more than half of its 2 workers have come to it, and 1 have"),
            std::string::npos);
}

TEST_F(TrackerTerms, NewLivesPromiseForTheirPlacesAndForFreeOnes) {
  EXPECT_EQ(t.send(joining(from_worker(21), "w1")), "21 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.send(joining(t.promised(21), "w1")), "21 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.send(joining(t.promised(22), "w1")), "22 <- HeartbeatReply 1\n") << "a second life of one worker";
  wire::Envelope other = joining(t.promised(23), "x9");
  other.mutable_join()->mutable_settings()->set_streams(2);
  EXPECT_EQ(t.send(other), "23 <- HeartbeatReply 1\n") << "of another job";
  EXPECT_EQ(t.send(joining(t.promised(24), "x9")), "24 <- HeartbeatReply 1\n") << "the place's own may still come";
  EXPECT_EQ(t.pass(5000), "");
  const std::string acts = t.send(joining(t.promised(24), "x9"));
  EXPECT_NE(acts.find("24 <- Refused"), std::string::npos) << acts;
}

// Or it would wait until its join times out. Not at once: the promises may be on their way.
TEST_F(TrackerTerms, WhoHasOtherSettingsIsRefusedByATrackerThatMayNotDecide) {
  wire::Envelope e = joining(from_worker(23), "w1");
  e.mutable_join()->mutable_settings()->set_world_size(2);
  EXPECT_EQ(t.send(e), "23 <- HeartbeatReply 0\n");
  (void)t.pass(5000);
  const std::string refused = t.send(e);
  EXPECT_NE(refused.find("23 <- Refused"), std::string::npos) << refused;
  EXPECT_NE(refused.find("world_size 2 is not the job's 3"), std::string::npos) << refused;
}

TEST_F(TrackerTerms, AHigherTermOfAnotherTrackerIsOutbid) {
  (void)t.beat(10, 1);
  wire::Envelope e = beat(from_worker(10));
  e.set_receiver(kTracker + 1);
  e.set_term(7);
  EXPECT_EQ(t.send(e), "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.promised(10).term(), 8u);
  EXPECT_EQ(t.send(beat(t.promised(10))), "10 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.send(beat(t.promised(11))), "10 <- HeartbeatReply 0\n11 <- HeartbeatReply 3\n");
  // Also while it acts: it has to be promised anew.
  e.set_sender(12);
  e.set_term(8);
  EXPECT_EQ(t.send(e), "12 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.promised(12).term(), 9u);
  EXPECT_EQ(t.beat(10, 1), "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.send(beat(t.promised(10))), "10 <- HeartbeatReply 1\n");
  EXPECT_EQ(t.send(beat(t.promised(12))), "10 <- HeartbeatReply 0\n12 <- HeartbeatReply 5\n");
}

TEST_F(TrackerTerms, TheLastTermIsNotOutbid) {
  wire::Envelope e = beat(from_worker(10));
  e.set_receiver(kTracker + 1);
  e.set_term(kMaxGeneration / 2);
  EXPECT_EQ(t.send(e), "");
  EXPECT_EQ(t.beat(10, 1), "10 <- HeartbeatReply 0\n");
  EXPECT_EQ(t.promised(10).term(), 2u);
}

}  // namespace
}  // namespace warren::test

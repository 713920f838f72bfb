// Full logs have given up results that a new life would need (docs/decisions/0028-a-full-log.md).
#include <gtest/gtest.h>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

using State = TrackerMachine::State;

bool tells(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Two workers on hosts a and b, with two copies of everything: w0 = life 10, w1 = life 11, running in generation 1.
class FullLogs : public TrackerScript {
 public:
  explicit FullLogs(bool logs = false) : TrackerScript(logs, 2) {
    (void)joins(0, 10);
    (void)joins(1, 11);
    EXPECT_EQ(machine().state(), State::kRunning);
  }
  // `given_up`: of the memory of its host, which its launcher has kept.
  std::string joins(std::uint64_t worker, std::uint64_t life, std::optional<std::uint64_t> given_up = {}) {
    wire::Envelope e = promised(life);
    *e.mutable_join() = test::join("w" + std::to_string(worker), worker == 0 ? "a" : "b", 2, 2);
    if (given_up) {
      e.mutable_join()->mutable_logged()->set_run(10);
      e.mutable_join()->mutable_logged()->add_lives(10 + worker);
      e.mutable_join()->mutable_logged()->mutable_given_up()->set_version(*given_up);
    }
    return send(std::move(e));
  }
  std::string commit(std::uint64_t version) {
    (void)vote(10, version);
    return vote(11, version);
  }
  // Its log is full, and has given up results of `version`.
  std::string beats(std::uint64_t life, std::uint64_t generation, std::uint64_t version, std::uint32_t timeline = 0) {
    wire::Envelope e = from_worker(life);
    wire::Heartbeat& h = *e.mutable_heartbeat();
    h.set_generation(generation);
    h.set_beat(++beat_);
    h.mutable_log()->set_held_bytes(60);
    h.mutable_log()->set_budget_bytes(64);
    h.mutable_log()->mutable_given_up()->set_version(version);
    h.mutable_log()->mutable_given_up()->set_timeline(timeline);
    return send(std::move(e));
  }
  std::string reports(std::uint64_t life, std::uint64_t generation, std::uint64_t version) {
    wire::Envelope e = promised(life);
    e.mutable_report()->set_generation(generation);
    e.mutable_report()->set_version(version);
    *e.mutable_report()->add_positions() = position(version, 5);
    e.mutable_report()->mutable_given_up()->set_version(version);
    return send(std::move(e));
  }
  [[nodiscard]] TrackerMachine::View view() { return machine().view(TimeMs{now()}); }

 private:
  std::uint64_t beat_ = 0;
};

const std::string kNewLife =
    "worker w1 on host b has to take up a rank's rounds, and the full log of rank 0 (worker w0 on host a) has given up "
    "results of version ";

TEST(TrackerGivenUp, ALossTakesAllBackToWhatIsCommitted) {
  FullLogs t;
  EXPECT_TRUE(tells(t.commit(2), "Committed 2"));
  (void)t.beats(10, 1, 2);
  (void)t.give_up(11, 1);
  (void)t.reports(10, 2, 2);
  EXPECT_TRUE(tells(t.joins(1, 21), "10 <- Interrupt generation 3 code 2: " + kNewLife +
                                        "1, which a new life needs; all processes start again from version 1\n"));
  (void)t.stopped(10, 3);
  EXPECT_TRUE(tells(t.joins(0, 20), "Plan generation 3 w0=20 w1=21 timeline 1 committed 2 in 0"));
  // What the older timeline has given up is of no account any more.
  EXPECT_EQ(t.view().unprotected, "");
}

TEST(TrackerGivenUp, ALossEndsTheJobWhereNothingIsCommitted) {
  FullLogs t(true);
  (void)t.beats(10, 1, 1);
  (void)t.give_up(11, 1);
  (void)t.reports(10, 2, 1);
  const std::string said = t.joins(1, 21);
  const std::string why =
      kNewLife + "0, which a new life needs; no version is committed to which the job could go back";
  EXPECT_TRUE(tells(said, "10 <- End generation 3 code 8: " + why)) << said;
  EXPECT_TRUE(tells(said, "21 <- Refused 8: " + why)) << said;
  EXPECT_TRUE(t.view().lost);
  // Nor does anything that a host has kept help, and nobody waits for it.
  (void)t.stopped(10, 3);
  EXPECT_TRUE(tells(t.joins(0, 20), "20 <- Refused 8: " + why));
  EXPECT_TRUE(tells(t.joins(1, 22, 1), "22 <- Refused 8: " + why));
  t.restart();
  EXPECT_TRUE(tells(t.joins(1, 23, 1), "23 <- Refused 8: " + why));
}

TEST(TrackerGivenUp, WithoutALossTheJobGoesOn) {
  FullLogs t;
  (void)t.beats(10, 1, 1);
  (void)t.link_broken(10, 1, 1, 11);
  (void)t.pass(1000);
  (void)t.reports(10, 2, 1);
  const std::string said = t.reports(11, 2, 1);
  EXPECT_TRUE(tells(said, "Plan generation 2 w0=10 (as before) w1=11 (as before)")) << said;
  EXPECT_FALSE(tells(said, "Interrupt")) << said;
}

TEST(TrackerGivenUp, ACommitProtectsAgainAndBothAreTold) {
  FullLogs t(true);
  EXPECT_TRUE(
      tells(t.beats(10, 1, 1),
            "log protection_suspended: job j is not protected: the full log of rank 0 (worker w0 on host a) has "
            "given up results of version 0, which a new life needs; a loss ends the job, as no version is "
            "committed, until the next version is committed; take checkpoints more often\n"));
  EXPECT_FALSE(tells(t.beats(11, 1, 1), "protection_suspended")) << "once for all";
  EXPECT_TRUE(tells(t.view().unprotected, "results of version 0"));
  EXPECT_EQ(t.view().members[0].log->held_bytes(), 60u);
  EXPECT_TRUE(tells(t.commit(2), "log protection_resumed: job j is protected again: version 1 is committed"));
  EXPECT_EQ(t.view().unprotected, "");
  // What a heartbeat says that was sent before changes nothing.
  EXPECT_FALSE(tells(t.beats(10, 1, 1), "protection_suspended"));
  (void)t.give_up(11, 1);
  (void)t.reports(10, 2, 2);
  EXPECT_FALSE(tells(t.joins(1, 21), "End generation"));
}

// Every new life needs it, whatever is committed.
TEST(TrackerGivenUp, ThePreambleIsMissedForGood) {
  FullLogs t;
  (void)t.beats(10, 1, kPreamble.value);
  EXPECT_TRUE(tells(t.commit(2), "Committed 2"));
  EXPECT_TRUE(tells(t.view().unprotected, "results of the preamble"));
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 2, {position(2, 0)});
  EXPECT_TRUE(tells(t.joins(1, 21), "all processes start again from version 1\n"));
}

// Nobody is left who could report it.
TEST(TrackerGivenUp, WhatTheMemoryOfTheDeadLacksTheirLaunchersTell) {
  FullLogs t;
  EXPECT_TRUE(tells(t.commit(2), "Committed 2"));
  (void)t.give_up(10, 1);
  (void)t.give_up(11, 1);
  (void)t.joins(0, 20, 2);
  const std::string said = t.joins(1, 21, 2);
  EXPECT_TRUE(tells(said, "Plan generation 3 w0=20 w1=21 timeline 1 committed 2 in 0")) << said;
}

// A rank was behind, and its link has broken: it needs what is gone.
TEST(TrackerGivenUp, AGapTakesAllBackAtOnce) {
  FullLogs t;
  EXPECT_TRUE(tells(t.commit(2), "Committed 2"));
  (void)t.beats(10, 1, 2);
  EXPECT_TRUE(
      tells(t.log_gap(11, 1),
            "10 <- Interrupt generation 2 code 2: rank 1 (worker w1 on host b) misses results (round 0.3 is held by "
            "nobody), and the full log of rank 0"));
}

TEST(TrackerGivenUp, NorDoesTheJobGoOnFromAGapWhereNothingIsCommitted) {
  FullLogs t;
  (void)t.beats(10, 1, 1);
  EXPECT_TRUE(tells(t.log_gap(11, 1), "10 <- End generation 2 code 8: rank 1 (worker w1 on host b) misses results"));
}

}  // namespace
}  // namespace warren::test

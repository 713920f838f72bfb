// A machine that is shown after another one stands for one that has changed in a way in which it must not.
#include "recovery/tracker/invariants.h"

#include <gtest/gtest.h>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

// Two workers with two copies of everything: w0 = life 10, w1 = life 11, running in generation 1.
class Pair : public TrackerScript {
 public:
  Pair() : TrackerScript(false, 2) {
    (void)join("w0", 10, 2);
    (void)join("w1", 11, 2);
    EXPECT_EQ(machine().state(), TrackerMachine::State::kRunning);
  }
  void commit(std::uint64_t version, std::uint32_t timeline = 0) {
    (void)vote(10, version, {}, timeline);
    (void)vote(11, version, {}, timeline);
  }
  // Rank 1 is lost and replaced by `life`. Rank 0 has done so many rounds of version 1.
  void replaces(std::uint64_t life, std::uint64_t generation, std::uint64_t rounds) {
    (void)give_up(life - 10, generation);
    (void)report(10, generation + 1, 1, {position(1, rounds)});
    (void)join("w1", life, 2);
    EXPECT_EQ(machine().state(), TrackerMachine::State::kRunning);
  }
};

// Looks at the one, and then at the other.
void look(const TrackerMachine& first, const TrackerMachine& second) {
  TrackerInvariants invariants;
  invariants.look(first);
  invariants.look(second);
}

TEST(TrackerInvariants, AJobFromItsBeginningToItsEndHoldsThem) {
  Pair t;
  const TrackerMachine running = t.machine();
  t.commit(2);
  t.replaces(21, 1, 3);
  (void)t.finalize(10, 2);
  (void)t.finalize(21, 2);
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kFinished);
  look(running, t.machine());
}

TEST(TrackerInvariants, GenerationsNeverGoBack) {
  Pair t;
  const TrackerMachine before = t.machine();
  (void)t.give_up(11, 1);
  EXPECT_DEATH(look(t.machine(), before), "a generation never goes back");
}

TEST(TrackerInvariants, TermsNeverGoBack) {
  Pair t;
  const TrackerMachine before = t.machine();
  wire::Envelope e = t.promised(10);
  e.set_term(7);
  e.set_receiver(kTracker + 1);
  e.mutable_heartbeat()->set_generation(1);
  (void)t.send(e);
  EXPECT_DEATH(look(t.machine(), before), "a term never goes back");
}

TEST(TrackerInvariants, TheCommittedVersionFallsOnlyWithATimeline) {
  Pair t;
  const TrackerMachine before = t.machine();
  t.commit(2);
  EXPECT_DEATH(look(t.machine(), before), "the committed version falls only where a new timeline begins");
}

TEST(TrackerInvariants, AFinishedJobStaysFinished) {
  Pair t;
  const TrackerMachine before = t.machine();
  (void)t.finalize(10, 1);
  (void)t.finalize(11, 1);
  EXPECT_DEATH(look(t.machine(), before), "a finished job stays finished");
}

TEST(TrackerInvariants, ALifeThatHasGoneDoesNotComeBackInItsPlan) {
  Pair t;
  Pair other;
  (void)t.give_up(11, 1);
  // The same generation, in which another rank is gone.
  (void)other.give_up(10, 1);
  EXPECT_DEATH(look(t.machine(), other.machine()), "a life that has gone does not come back in its plan");
}

TEST(TrackerInvariants, ANumberNamesOnePlan) {
  Pair t;
  TrackerScript other(false, 2);
  (void)other.join("w0", 10, 2);
  (void)other.join("w1", 12, 2);
  EXPECT_DEATH(look(t.machine(), other.machine()), "a generation's number names one plan");
}

TEST(TrackerInvariants, AllPlansNameTheRunOfTheJob) {
  Pair t;
  TrackerScript other(false, 2);
  (void)other.join("w0", 30, 2);
  (void)other.join("w1", 31, 2);
  (void)other.give_up(31, 1);
  (void)other.report(30, 2, 0);
  (void)other.join("w1", 32, 2);
  EXPECT_DEATH(look(t.machine(), other.machine()), "all plans of a job name its run");
}

TEST(TrackerInvariants, CompletedRoundsStaySoInTheirTimeline) {
  Pair t;
  t.replaces(21, 1, 3);
  Pair other;
  other.replaces(21, 1, 2);
  other.replaces(31, 2, 2);
  EXPECT_DEATH(look(t.machine(), other.machine()), "what a plan calls completed stays so in its timeline");
}

TEST(TrackerInvariants, ALogGapUndoesCompletedRounds) {
  Pair t;
  t.replaces(21, 1, 3);
  // Both have lost what the dead life alone had seen: rank 0 reports less than the frontier.
  (void)t.give_up(21, 2);
  (void)t.report(10, 3, 1, {position(1, 2)});
  (void)t.join("w1", 31, 2);
  EXPECT_NE(t.log_gap(10, 3).find("computed again"), std::string::npos);
  (void)t.report(10, 4, 1, {position(1, 2)});
  (void)t.report(31, 4, 1, {position(1, 2)});
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kRunning);
}

}  // namespace
}  // namespace warren::test

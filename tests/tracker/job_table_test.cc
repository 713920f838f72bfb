// The table of jobs in virtual time, on a disk that fails when told to.
#include "tracker/job_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "recovery/base/limits.h"
#include "storage/fake_journal.h"
#include "tests/tracker/client.h"

namespace warren::tracker {
namespace {

using testing::HasSubstr;
using wire::Envelope;

class JobTableTest : public testing::Test {
 protected:
  struct Sent {
    std::string connection;
    Envelope envelope;
  };

  JobTableTest() { EXPECT_TRUE(restart().ok()); }

  // A tracker's new life on the same disk.
  Status restart() {
    table_.reset();
    journal_ = std::make_unique<storage::FakeJournal>(disk_);
    JobTable::Options options;
    options.self = Incarnation(++life_);
    options.journal = journal_.get();
    options.sink = [this](std::string_view job, const LogEvent& event) {
      events_.push_back(std::string(job) + " " + event.name);
      texts_.push_back(event.text);
    };
    options.send = [this](std::string_view connection, const std::string& bytes) {
      if (gone_.contains(std::string(connection))) return SendOutcome::kGone;
      if (full_.contains(std::string(connection))) return SendOutcome::kFull;
      auto decoded = decode_envelope(std::as_bytes(std::span(bytes)), Side::kTracker);
      EXPECT_TRUE(decoded.ok()) << decoded.status().describe();
      sent_.push_back({std::string(connection), decoded.value()});
      return SendOutcome::kSent;
    };
    table_ = std::make_unique<JobTable>(std::move(options));
    return table_->restore(now_);
  }

  // From a worker that obeys the newest tracker, and says it again where that one asks for its promise.
  void say(const std::string& connection, Envelope envelope) {
    for (int times = 0; times < 2; ++times) {
      const std::size_t sent = sent_.size();
      const std::string bytes = encode(envelope, Side::kWorker);
      table_->on_message({connection, "", "here"}, std::as_bytes(std::span(bytes)), now_);
      if (sent_.size() != sent + 1) return;
      const Envelope& reply = sent_.back().envelope;
      const bool asks = reply.has_heartbeat_reply() && reply.heartbeat_reply().beat() == 0;
      if (reply.has_tell()) term_ = reply.term();
      if (!asks || reply.term() == envelope.term()) return;
      envelope.set_term(reply.term());
      envelope.set_receiver(reply.sender());
      sent_.pop_back();
    }
  }
  // Lets time pass, deadline by deadline.
  void pass(std::int64_t ms) {
    const TimeMs end = now_ + ms;
    while (true) {
      const auto next = table_->next_deadline();
      if (!next || *next > end) break;
      now_ = std::max(now_, *next);
      table_->on_tick(now_);
    }
    now_ = end;
  }
  std::size_t count(Envelope::BodyCase kind) const {
    return static_cast<std::size_t>(
        std::count_if(sent_.begin(), sent_.end(), [&](const Sent& s) { return s.envelope.body_case() == kind; }));
  }
  std::size_t logged(const std::string& what) const {
    return static_cast<std::size_t>(std::count(events_.begin(), events_.end(), what));
  }
  const JobStatus* job(const std::string& name) {
    status_ = table_->status(now_);
    for (const JobStatus& j : status_) {
      if (j.name == name) return &j;
    }
    return nullptr;
  }
  void join_two(const std::string& name) {
    say("a-" + name, join_envelope(name, 1, "0", 2));
    say("b-" + name, join_envelope(name, 2, "1", 2));
  }
  void finalize_two(const std::string& name) {
    for (std::uint64_t life : {1, 2}) {
      Envelope leave = envelope_of(name, life);
      leave.mutable_leave()->set_generation(job(name)->view.generation.value);
      leave.mutable_leave()->set_finalize(true);
      say(life == 1 ? "a-" + name : "b-" + name, leave);
    }
  }

  TimeMs now_{1'000'000};
  std::vector<std::string> texts_;      // of events
  std::uint64_t life_ = 70, term_ = 0;  // of the newest tracker
  std::shared_ptr<storage::FakeDisk> disk_ = std::make_shared<storage::FakeDisk>();
  std::unique_ptr<storage::FakeJournal> journal_;
  std::unique_ptr<JobTable> table_;
  std::vector<Sent> sent_;
  std::vector<std::string> events_;
  std::set<std::string> gone_, full_;
  std::vector<JobStatus> status_;
};

TEST_F(JobTableTest, NothingIsAnnouncedThatIsNotStored) {
  disk_->fail_writes = 3;
  join_two("train");
  EXPECT_EQ(count(Envelope::kPlan), 0u);
  EXPECT_FALSE(disk_->durable.contains("train"));
  EXPECT_THAT(job("train")->trouble, HasSubstr("no space left"));
  EXPECT_EQ(table_->counts().persist_failures, 1u);
  // 250 ms, 500 ms, 1 s.
  pass(249);
  EXPECT_EQ(table_->counts().persist_failures, 1u);
  pass(1);
  EXPECT_EQ(table_->counts().persist_failures, 2u);
  pass(500);
  EXPECT_EQ(count(Envelope::kPlan), 0u);
  pass(1000);
  EXPECT_EQ(count(Envelope::kPlan), 2u);
  EXPECT_TRUE(disk_->durable.contains("train"));
  EXPECT_EQ(job("train")->trouble, "");
  EXPECT_EQ(logged("train persist_failed"), 3u);
  EXPECT_EQ(logged("train persist_recovered"), 1u);
}

TEST_F(JobTableTest, WhatFollowsAFailedWriteKeepsItsOrder) {
  disk_->fail_writes = 1;
  join_two("train");
  const std::uint64_t generation = job("train")->view.generation.value;
  say("a-train", heartbeat_envelope("train", 1, generation, 1));
  Envelope leave = envelope_of("train", 1);
  leave.mutable_leave()->set_generation(generation);
  leave.mutable_leave()->set_reason("gives up");
  say("a-train", leave);
  EXPECT_EQ(count(Envelope::kInterrupt), 0u) << "an interrupt overtakes no plan";
  sent_.clear();
  pass(250);
  std::vector<Envelope::BodyCase> to_b;
  for (const Sent& s : sent_) {
    if (s.connection == "b-train") to_b.push_back(s.envelope.body_case());
  }
  ASSERT_GE(to_b.size(), 2u);
  EXPECT_EQ(to_b[0], Envelope::kPlan);
  EXPECT_EQ(to_b[1], Envelope::kInterrupt);
  EXPECT_EQ(disk_->writes, 2u);
}

TEST_F(JobTableTest, AJournalThatStaysFullCostsTheJobItsWorkersAndNobodyElse) {
  join_two("other");
  sent_.clear();
  disk_->fail_writes = 1'000'000;
  join_two("train");
  pass(60'000);
  EXPECT_EQ(job("train"), nullptr);
  EXPECT_EQ(logged("train persist_failed"), static_cast<std::size_t>(JobTable::kPersistTries));
  EXPECT_EQ(logged("train persist_given_up"), 1u);
  std::size_t refused = 0;
  for (const Sent& s : sent_) {
    if (!s.envelope.has_refused() || s.envelope.job() != "train") continue;
    ++refused;
    EXPECT_EQ(s.envelope.refused().code(), static_cast<std::uint32_t>(Code::kUnavailable));
    EXPECT_THAT(s.envelope.refused().reason(), HasSubstr("no space left"));
    EXPECT_TRUE(s.envelope.refused().fenced()) << "no fault of its program's: its launcher starts it again";
  }
  EXPECT_EQ(refused, 2u);
  EXPECT_EQ(count(Envelope::kPlan), 0u);
  ASSERT_NE(job("other"), nullptr);

  disk_->fail_writes = 0;
  join_two("train");
  EXPECT_EQ(count(Envelope::kPlan), 2u) << "once there is room, the next join begins anew";
}

TEST_F(JobTableTest, AnUnconfirmedWriteMaySurviveAndGenerationsStillRise) {
  for (const auto crash : {storage::FakeDisk::Crash::kKeepsUnconfirmed, storage::FakeDisk::Crash::kLosesUnconfirmed}) {
    const std::string name = crash == storage::FakeDisk::Crash::kKeepsUnconfirmed ? "keeps" : "loses";
    join_two(name);
    const std::uint64_t announced = job(name)->view.generation.value;
    disk_->fail_writes = 1;
    Envelope leave = envelope_of(name, 1);
    leave.mutable_leave()->set_generation(announced);
    leave.mutable_leave()->set_reason("gives up");
    say("a-" + name, leave);
    disk_->crash(crash);
    disk_->fail_writes = 0;
    sent_.clear();
    ASSERT_TRUE(restart().ok());
    ASSERT_NE(job(name), nullptr);
    EXPECT_GE(job(name)->view.generation.value, announced);
    // Both come back in new lives: the next plan's generation is newer than any that was announced.
    say("x", join_envelope(name, 11, "0", 2));
    say("y", join_envelope(name, 12, "1", 2));
    pass(200'000);
    say("x", join_envelope(name, 11, "0", 2));
    say("y", join_envelope(name, 12, "1", 2));
    ASSERT_NE(job(name), nullptr);
    EXPECT_GT(job(name)->view.generation.value, announced);
  }
}

// Those were never started before: no launcher has them back.
TEST_F(JobTableTest, AFinishedNameIsFreeForANewRun) {
  join_two("train");
  finalize_two("train");
  sent_.clear();
  say("c", join_envelope("train", 11, "0", 2));
  ASSERT_EQ(sent_.size(), 1u) << "one alone may have come late, and hears that it is waited for others";
  EXPECT_EQ(sent_[0].envelope.welcome().joined(), 1u);
  EXPECT_EQ(sent_[0].envelope.welcome().world_size(), 2u);
  pass(1000);
  say("d", join_envelope("train", 12, "1", 2));
  say("c", join_envelope("train", 11, "0", 2));
  EXPECT_EQ(count(Envelope::kRefused), 0u);
  EXPECT_EQ(count(Envelope::kPlan), 2u);
  EXPECT_EQ(job("train")->view.state, TrackerMachine::State::kRunning);
  // One of the run before that has not heard of its end yet hears it, and the new run goes on.
  sent_.clear();
  Envelope late = envelope_of("train", 2);
  late.mutable_leave()->set_generation(1);
  late.mutable_leave()->set_finalize(true);
  say("b-train", late);
  ASSERT_EQ(count(Envelope::kFinished), 1u);
  EXPECT_EQ(sent_[0].envelope.finished().generation(), 1u);
  EXPECT_EQ(job("train")->view.state, TrackerMachine::State::kRunning);
}

// A job that may go on with one worker is not begun anew by one that was lost in finalize.
TEST_F(JobTableTest, OneThatComesLateBeginsNoNewRunWhereOneWouldSuffice) {
  join_two("train");
  finalize_two("train");
  sent_.clear();
  Envelope late = join_envelope("train", 11, "0", 2);
  late.mutable_join()->mutable_settings()->set_min_workers(1);
  late.mutable_join()->mutable_settings()->set_replicas(1);
  late.mutable_join()->set_fetch_port(1);
  late.mutable_join()->set_waits(true);
  for (int i = 0; i < 4; ++i) {
    say("c", late);
    pass(static_cast<std::int64_t>(late.join().settings().round_timeout_ms()));
  }
  EXPECT_EQ(count(Envelope::kPlan), 0u);
  EXPECT_EQ(job("train")->view.state, TrackerMachine::State::kFinished);
}

TEST_F(JobTableTest, WhoIsStartedAgainAfterItsJobHasFinishedHearsThat) {
  join_two("train");
  finalize_two("train");
  for (const std::uint64_t life : {11, 12}) {
    sent_.clear();
    Envelope again = join_envelope("train", life, std::to_string(life - 11), 2);
    again.mutable_join()->set_attempt(1);
    say("again", again);
    EXPECT_EQ(count(Envelope::kRefused), 1u);
  }
}

TEST_F(JobTableTest, AFinishedJobMayBeForgottenAtOnce) {
  join_two("train");
  finalize_two("train");
  sent_.clear();
  Envelope forget = envelope_of("train", 99);
  forget.mutable_forget();
  say("person", forget);
  EXPECT_EQ(count(Envelope::kForgotten), 1u);
  EXPECT_EQ(job("train"), nullptr);
  // A worker that has not heard that it has finished hears that, and not that somebody has ended its job.
  sent_.clear();
  Envelope late = envelope_of("train", 2);
  late.mutable_leave()->set_generation(1);
  late.mutable_leave()->set_finalize(true);
  say("b-train", late);
  EXPECT_EQ(count(Envelope::kFinished), 1u);
  EXPECT_EQ(job("train"), nullptr);
}

TEST_F(JobTableTest, AFinishedJobLingersForLatecomersAndIsForgotten) {
  join_two("train");
  finalize_two("train");
  EXPECT_EQ(count(Envelope::kFinished), 2u);
  ASSERT_NE(job("train"), nullptr);
  EXPECT_EQ(job("train")->view.state, TrackerMachine::State::kFinished);
  pass(JobTable::kFinishedLingerMs - 1);
  sent_.clear();
  Envelope late = join_envelope("train", 9, "0", 2);
  late.mutable_join()->set_attempt(1);
  say("late", late);
  ASSERT_EQ(count(Envelope::kRefused), 1u);
  EXPECT_THAT(sent_[0].envelope.refused().reason(), HasSubstr("finished"));
  pass(2 * JobTable::kSweepIntervalMs);
  EXPECT_EQ(job("train"), nullptr);
  EXPECT_FALSE(disk_->durable.contains("train"));
  EXPECT_EQ(logged("train job_evicted"), 1u);
  EXPECT_FALSE(table_->next_deadline().has_value()) << "nothing is left to wait for";
  sent_.clear();
  say("new", join_envelope("train", 10, "0", 2));
  EXPECT_EQ(count(Envelope::kWelcome), 1u) << "the name is free again";
}

TEST_F(JobTableTest, AJobThatNobodyComesBackToIsForgottenAfterAnHour) {
  join_two("train");
  pass(JobTable::kLonelyMs - 1);
  EXPECT_NE(job("train"), nullptr);
  pass(2 * JobTable::kSweepIntervalMs);
  EXPECT_EQ(job("train"), nullptr);
  EXPECT_TRUE(disk_->durable.empty());
}

TEST_F(JobTableTest, AJobThatLogsIsSetAsideAndFoundAgain) {
  for (std::uint64_t i = 0; i < 2; ++i) {
    wire::Envelope e = join_envelope("train", 1 + i, std::to_string(i), 2);
    e.mutable_join()->mutable_settings()->set_replicas(2);
    e.mutable_join()->set_fetch_port(6000);
    say("c" + std::to_string(i), e);
  }
  pass(JobTable::kLonelyMs + 2 * JobTable::kSweepIntervalMs);
  EXPECT_EQ(job("train"), nullptr);
  EXPECT_EQ(logged("train job_set_aside"), 1u);
  EXPECT_TRUE(disk_->durable.contains("train"));
  wire::Envelope back = join_envelope("train", 11, "0", 2);
  back.mutable_join()->mutable_settings()->set_replicas(2);
  back.mutable_join()->set_fetch_port(6000);
  say("c9", back);
  EXPECT_EQ(logged("train job_restored"), 1u);
  back.set_sender(12);
  back.mutable_join()->set_worker_id("1");
  say("c10", back);
  // One alone could not be planned for, nor promise for both.
  back.set_sender(11);
  back.mutable_join()->set_worker_id("0");
  say("c9", back);
  pass(3000);  // in which a life with a newer plan than the journal's would have been heard
  ASSERT_NE(job("train"), nullptr);
  EXPECT_EQ(job("train")->view.timeline, Timeline(1)) << "what was done before is not named again";
}

TEST_F(JobTableTest, AJobThatTheJournalHasLostGoesOnFromWhatItsMembersTell) {
  join_two("train");
  const wire::Plan plan = sent_.back().envelope.plan();
  ASSERT_EQ(plan.members_size(), 2);
  disk_->durable.clear();
  ASSERT_TRUE(restart().ok());
  sent_.clear();
  for (const wire::Member& m : plan.members()) {
    const std::string connection = "back" + std::to_string(m.rank());
    say(connection, heartbeat_envelope("train", m.incarnation(), plan.generation(), 1));
    ASSERT_EQ(count(Envelope::kTell), m.rank() + 1u);
    wire::Envelope known = heartbeat_envelope("train", m.incarnation(), plan.generation(), 1);
    known.mutable_known()->set_generation(plan.generation());
    known.mutable_known()->set_plan_generation(plan.generation());
    if (m.rank() == 0) *known.mutable_known()->mutable_plan() = plan;
    known.set_term(term_);
    known.set_receiver(life_);
    say(connection, known);
  }
  EXPECT_EQ(logged("train rebuilt"), 1u);
  EXPECT_TRUE(disk_->durable.contains("train"));
  sent_.clear();
  say("back0", heartbeat_envelope("train", plan.members(0).incarnation(), plan.generation(), 2));
  EXPECT_EQ(count(Envelope::kHeartbeatReply), 1u);
}

TEST_F(JobTableTest, AZombieOfALongForgottenJobIsTurnedAwayAndLeavesNothing) {
  say("z", heartbeat_envelope("train", 9, 3, 1));
  pass(limits::kDefaultRoundTimeoutMs);
  ASSERT_EQ(count(Envelope::kRefused), 1u);
  EXPECT_EQ(logged("train rebuild_failed"), 1u);
  pass(JobTable::kFinishedLingerMs + 2 * JobTable::kSweepIntervalMs);
  EXPECT_EQ(job("train"), nullptr);
  EXPECT_TRUE(disk_->durable.empty());
}

TEST_F(JobTableTest, AnEvictionThatCannotBeStoredIsTriedAgain) {
  join_two("train");
  finalize_two("train");
  pass(JobTable::kFinishedLingerMs - 1);
  disk_->fail_writes = 1;
  disk_->durable["train"] = "left over";
  for (int minutes = 0; minutes < 5 && logged("train forget_failed") == 0; ++minutes) pass(JobTable::kSweepIntervalMs);
  EXPECT_NE(job("train"), nullptr);
  EXPECT_EQ(logged("train forget_failed"), 1u);
  pass(JobTable::kSweepIntervalMs);
  EXPECT_EQ(job("train"), nullptr);
  EXPECT_TRUE(disk_->durable.empty());
}

TEST_F(JobTableTest, AJobThatLivesIsForgottenByForceAlone) {
  join_two("train");
  Envelope forget = envelope_of("train", 50);
  forget.mutable_forget();
  sent_.clear();
  say("person", forget);
  ASSERT_EQ(count(Envelope::kRefused), 1u);
  EXPECT_EQ(sent_[0].envelope.refused().code(), static_cast<std::uint32_t>(Code::kRefused));
  EXPECT_THAT(sent_[0].envelope.refused().reason(), HasSubstr("job train lives: rank 0 (worker 0 on host host)"));
  EXPECT_NE(job("train"), nullptr);
  EXPECT_TRUE(disk_->durable.contains("train"));
  sent_.clear();
  forget.mutable_forget()->set_force(true);
  say("person", forget);
  EXPECT_EQ(count(Envelope::kRefused), 2u) << "its workers hear it";
  EXPECT_EQ(count(Envelope::kForgotten), 1u);
  EXPECT_EQ(sent_.back().connection, "person");
  EXPECT_EQ(job("train"), nullptr);
  EXPECT_FALSE(disk_->durable.contains("train"));
  EXPECT_EQ(logged("train job_forgotten"), 1u);
  // Who has missed it does not bring the job back, and the name is free.
  sent_.clear();
  say("a-train", heartbeat_envelope("train", 1, 1, 5));
  ASSERT_EQ(count(Envelope::kRefused), 1u);
  EXPECT_THAT(sent_[0].envelope.refused().reason(), HasSubstr("was ended by `warren forget`"));
  EXPECT_EQ(job("train"), nullptr);
  say("new", join_envelope("train", 11, "0", 1));
  EXPECT_EQ(count(Envelope::kPlan), 1u);
}

// Who has the secret of one job may speak in the name of any life, and have that job forgotten.
TEST_F(JobTableTest, AForgottenJobTurnsAwayNobodyOfAnother) {
  join_two("train");
  say("thief", join_envelope("other", 1, "0", 2));  // train's life 1
  Envelope forget = envelope_of("other", 50);
  forget.mutable_forget()->set_force(true);
  say("thief", forget);
  ASSERT_EQ(count(Envelope::kForgotten), 1u);
  sent_.clear();
  say("a-train", heartbeat_envelope("train", 1, 1, 5));
  EXPECT_EQ(count(Envelope::kRefused), 0u);
  say("thief", heartbeat_envelope("other", 1, 1, 5));
  EXPECT_EQ(count(Envelope::kRefused), 1u);
}

TEST_F(JobTableTest, NothingIsForgottenThatTheJournalStillHolds) {
  join_two("train");
  pass(limits::kDefaultRoundTimeoutMs * 100);  // nobody is heard any more
  Envelope forget = envelope_of("train", 50);
  forget.mutable_forget();
  disk_->fail_writes = 1;
  sent_.clear();
  say("person", forget);
  ASSERT_EQ(count(Envelope::kRefused), 1u);
  EXPECT_THAT(sent_[0].envelope.refused().reason(), HasSubstr("cannot be removed: no space left"));
  EXPECT_NE(job("train"), nullptr);
  EXPECT_TRUE(disk_->durable.contains("train"));
  say("person", forget);
  EXPECT_EQ(count(Envelope::kForgotten), 1u);
  EXPECT_EQ(job("train"), nullptr);
  EXPECT_FALSE(disk_->durable.contains("train"));
}

// It would go on from the old weights, and say that it has finished.
TEST_F(JobTableTest, WhatAForgottenRunHasLeftOnDisksIsNotUsedByANewJob) {
  wire::Plan forgotten;
  bool mirrored = false;
  // The run of the plan that comes; 0: none does.
  const auto joins = [&](std::uint64_t life) {
    Envelope join = join_envelope("train", life, "0", 1);
    join.mutable_join()->mutable_settings()->set_replicas(2);
    join.mutable_join()->mutable_settings()->set_round_timeout_ms(1000);
    join.mutable_join()->set_fetch_port(1);
    if (forgotten.run() != 0) {
      wire::Held& held = *join.mutable_join()->mutable_held();
      held.set_run(forgotten.run());
      held.set_mirrored(mirrored);
      wire::Known& known = *held.mutable_known();
      known.set_generation(forgotten.generation());
      known.set_plan_generation(forgotten.generation());
      *known.mutable_plan() = forgotten;
      known.set_committed(true);
      known.set_committed_version(2);
      known.set_committed_timeline(1);
    }
    say("a" + std::to_string(life), join);
    for (const Sent& sent : sent_) {
      if (sent.envelope.has_plan()) return sent.envelope.plan().run();
    }
    return std::uint64_t{0};
  };
  ASSERT_NE(joins(1), 0u);
  for (const Sent& sent : sent_) {
    if (sent.envelope.has_plan()) forgotten = sent.envelope.plan();
  }
  Envelope forget = envelope_of("train", 50);
  forget.mutable_forget()->set_force(true);
  say("person", forget);
  ASSERT_EQ(count(Envelope::kForgotten), 1u);
  for (const bool restarted : {false, true}) {
    if (restarted) {
      ASSERT_TRUE(restart().ok());
    }
    sent_.clear();
    const std::uint64_t life = restarted ? 12 : 11;
    // The worker repeats its join: a new tracker asks for its promise first.
    std::uint64_t run = joins(life);
    for (int again = 0; again < 2; ++again) {
      pass(1000);
      run = std::max(run, joins(life));
    }

    EXPECT_NE(run, 0u);
    EXPECT_NE(run, forgotten.run());
    EXPECT_EQ(logged("train adopted_from_disks"), 0u);
    EXPECT_EQ(logged("train forgotten_run_left_out"), restarted ? 2u : 1u) << "once a life";
  }
  mirrored = true;
  (void)joins(13);
  EXPECT_THAT(texts_, testing::Contains(HasSubstr("the mirror of checkpoints that worker 0 on host")));
}

TEST_F(JobTableTest, WhatIsNotInMemoryIsForgottenTooAndWhatIsUnknownIsSaid) {
  disk_->durable["bad"] = "\xff\xff rubbish";
  ASSERT_TRUE(restart().ok());
  disk_->durable["aside"] = "a record that nobody has asked for";
  for (const char* name : {"bad", "aside"}) {
    Envelope forget = envelope_of(name, 50);
    forget.mutable_forget();
    sent_.clear();
    say("person", forget);
    EXPECT_EQ(count(Envelope::kForgotten), 1u) << name;
    EXPECT_FALSE(disk_->durable.contains(name));
    sent_.clear();
    say("person", forget);
    ASSERT_EQ(count(Envelope::kRefused), 1u);
    EXPECT_THAT(sent_[0].envelope.refused().reason(), HasSubstr("knows no job"));
    say("new", join_envelope(name, 11, "0", 1));
    EXPECT_EQ(count(Envelope::kPlan), 1u) << name;
  }
}

TEST_F(JobTableTest, ARecordThatCannotBeReadCostsItsJobAlone) {
  join_two("good");
  disk_->durable["bad"] = "\xff\xff rubbish";
  ASSERT_TRUE(restart().ok());
  EXPECT_EQ(logged("bad job_unreadable"), 1u);
  EXPECT_EQ(logged("good job_restored"), 1u);
  sent_.clear();
  say("c", join_envelope("bad", 1, "0", 2));
  ASSERT_EQ(count(Envelope::kRefused), 1u);
  EXPECT_EQ(sent_[0].envelope.refused().code(), static_cast<std::uint32_t>(Code::kCorrupt));
  EXPECT_EQ(disk_->durable["bad"], "\xff\xff rubbish") << "left for people to look at";
}

TEST_F(JobTableTest, TheNumberOfJobsIsLimited) {
  for (std::size_t i = 0; i < limits::kMaxJobsPerTracker; ++i) {
    say("c" + std::to_string(i), join_envelope("job" + std::to_string(i), 1, "0", 2));
  }
  sent_.clear();
  say("one-more", join_envelope("one-more", 1, "0", 2));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].envelope.refused().code(), static_cast<std::uint32_t>(Code::kExhausted));
  sent_.clear();
  say("c0b", join_envelope("job0", 2, "1", 2));
  EXPECT_EQ(count(Envelope::kPlan), 2u) << "the others go on";
}

TEST_F(JobTableTest, TheOldestFinishedJobMakesRoom) {
  const auto finish = [&](const std::string& name) {
    say("c-" + name, join_envelope(name, 1, "0", 1));
    Envelope leave = envelope_of(name, 1);
    leave.mutable_leave()->set_generation(job(name)->view.generation.value);
    leave.mutable_leave()->set_finalize(true);
    say("c-" + name, leave);
    EXPECT_EQ(job(name)->view.state, TrackerMachine::State::kFinished);
  };
  finish("older");
  now_ = now_ + 1;
  finish("newer");
  for (std::size_t i = 2; i < limits::kMaxJobsPerTracker; ++i) {
    say("c" + std::to_string(i), join_envelope("job" + std::to_string(i), 1, "0", 2));
  }
  sent_.clear();
  say("one-more", join_envelope("one-more", 1, "0", 2));
  EXPECT_EQ(count(Envelope::kWelcome), 1u);
  EXPECT_FALSE(disk_->durable.contains("older"));
  EXPECT_TRUE(disk_->durable.contains("newer"));
  // A worker of a job that finished a moment ago may not have heard of that yet.
  sent_.clear();
  Envelope again = envelope_of("older", 1);
  again.mutable_leave()->set_generation(1);
  again.mutable_leave()->set_finalize(true);
  say("c-older", again);
  EXPECT_EQ(count(Envelope::kFinished), 1u);
}

TEST_F(JobTableTest, RoutesAreBoundedWhoeverKnocks) {
  join_two("train");
  for (std::uint64_t i = 0; i < 5000; ++i) say("c" + std::to_string(i), heartbeat_envelope("train", 100 + i, 1, 1));
  EXPECT_LE(table_->routes(), 4u * 2 + 64);
  // The members were forgotten as the longest silent; a word from them and they are known again.
  const std::uint64_t generation = job("train")->view.generation.value;
  sent_.clear();
  say("a-train", heartbeat_envelope("train", 1, generation, 8));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].connection, "a-train");
  EXPECT_TRUE(sent_[0].envelope.has_heartbeat_reply());
}

TEST_F(JobTableTest, AnswersFollowAWorkerToItsNewConnection) {
  join_two("train");
  const std::uint64_t generation = job("train")->view.generation.value;
  sent_.clear();
  say("a-reconnected", heartbeat_envelope("train", 1, generation, 8));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].connection, "a-reconnected");
}

TEST_F(JobTableTest, ConnectionsThatAreGoneOrFullAreCountedAndHarmless) {
  gone_.insert("a-train");
  full_.insert("b-train");
  join_two("train");
  EXPECT_EQ(job("train")->view.state, TrackerMachine::State::kRunning);
  EXPECT_GE(table_->counts().unsent, 4u);
  EXPECT_EQ(table_->routes(), 1u) << "who is gone is forgotten, who is full is not";
}

TEST_F(JobTableTest, StrangersAreCountedAndFillNoLog) {
  for (int i = 0; i < 1000; ++i) table_->on_failed_handshake("192.0.2.7", now_);
  EXPECT_EQ(logged(" stranger_refused"), 3u);
  EXPECT_EQ(table_->counts().failed_handshakes, 1000u);
  now_ = now_ + 60'000;
  table_->on_failed_handshake("", now_);
  EXPECT_EQ(logged(" stranger_refused"), 4u);
}

TEST_F(JobTableTest, EveryMemberOfALargeJobGetsThePlan) {
  constexpr std::uint32_t kWorld = 300;
  for (std::uint32_t i = 0; i < kWorld; ++i) {
    say("c" + std::to_string(i), join_envelope("train", 1 + i, std::to_string(i), kWorld, "h" + std::to_string(i / 8)));
  }
  pass(10'000);
  std::set<std::string> told;
  for (const Sent& s : sent_) {
    if (!s.envelope.has_plan()) continue;
    told.insert(s.connection);
    EXPECT_EQ("c" + std::to_string(s.envelope.receiver() - 1), s.connection) << "each is addressed by its incarnation";
  }
  EXPECT_EQ(told.size(), kWorld);
}

TEST_F(JobTableTest, AJobThatFirstAskedForASmallWorldHasRoomForALargeOne) {
  say("early", join_envelope("train", 9999, "0", 2));
  Envelope leave = envelope_of("train", 9999);
  leave.mutable_leave()->set_reason("the world size was a slip");
  say("early", leave);
  constexpr std::uint32_t kWorld = 300;
  for (std::uint32_t i = 0; i < kWorld; ++i) {
    say("c" + std::to_string(i), join_envelope("train", 1 + i, std::to_string(i), kWorld));
  }
  EXPECT_GE(table_->routes(), kWorld);
  pass(5000);  // a plan for many goes out in several steps
  EXPECT_EQ(count(Envelope::kPlan), kWorld) << "all are told";
}

TEST(RoutesTest, TheLongestSilentIsForgottenFirst) {
  Routes routes;
  routes.set_limit(3);
  for (std::uint64_t i = 1; i <= 3; ++i) routes.learn(Incarnation(i), "c" + std::to_string(i));
  routes.learn(Incarnation(1), "c1");
  routes.learn(Incarnation(4), "c4");
  EXPECT_EQ(routes.size(), 3u);
  EXPECT_EQ(routes.find(Incarnation(2)), nullptr);
  ASSERT_NE(routes.find(Incarnation(1)), nullptr);
  EXPECT_EQ(*routes.find(Incarnation(1)), "c1");
  EXPECT_EQ(routes.all().size(), 3u);
}

TEST(RoutesTest, AConnectionServesOneLifeAtATime) {
  Routes routes;
  routes.learn(Incarnation(1), "c");
  routes.learn(Incarnation(2), "c");
  EXPECT_EQ(routes.find(Incarnation(1)), nullptr);
  EXPECT_EQ(*routes.find(Incarnation(2)), "c");
  routes.learn(Incarnation(2), "d");
  routes.learn(Incarnation(3), "c");
  EXPECT_EQ(*routes.find(Incarnation(2)), "d");
  EXPECT_EQ(*routes.find(Incarnation(3)), "c");
  routes.forget(Incarnation(2));
  routes.forget(Incarnation(2));
  EXPECT_EQ(routes.size(), 1u);
}

TEST(LogLimitTest, SwallowsAndCounts) {
  LogLimit limit(2, 100);
  EXPECT_EQ(limit.take({0}), 0u);
  EXPECT_EQ(limit.take({1}), 0u);
  EXPECT_EQ(limit.take({2}), std::nullopt);
  EXPECT_EQ(limit.take({99}), std::nullopt);
  EXPECT_EQ(limit.take({100}), 2u);
  EXPECT_EQ(limit.take({101}), 0u);
}

}  // namespace
}  // namespace warren::tracker

#include "cli/status_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tracker/status.h"

namespace warren::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

// What the tracker itself would say: if it says something else one day, this breaks.
tracker::Snapshot snapshot() {
  tracker::Snapshot s;
  s.uptime_ms = 65'400;
  s.version = "0.1.0";
  s.port = 9370;
  tracker::JobStatus job;
  job.name = "digits";
  job.view.state = TrackerMachine::State::kRunning;
  job.view.generation = Generation(7);
  job.view.world_size = 2;
  job.view.interrupts = 1;
  job.view.last_interrupt = "rank 1 \x1b[31mwas lost";
  TrackerMachine::MemberView m;
  m.rank = Rank(0);
  m.worker_id = "w0";
  m.host_id = "h";
  m.alive = true;
  m.rounds_finished = 41;
  m.bytes_moved = 20'480;
  m.attempt = 7;
  m.lives = 3;
  wire::CurrentRound round;
  round.set_version(4);
  round.set_sequence(17);
  for (const std::uint32_t r : {1, 4, 5, 6}) round.add_waiting_for(r);
  round.set_waited_ms(2'300);
  m.rounds.push_back(round);
  job.view.members.push_back(m);
  TrackerMachine::MemberView lost;
  lost.rank = Rank(1);
  lost.worker_id = "w1";
  job.view.members.push_back(lost);
  job.view.now = TimeMs{20'000};
  job.view.limits = straggler_limits(10'000);
  job.view.waits = {"round 3.17: rank 0 has waited 2.3 s for rank 1, which has not entered it"};
  Verdict v;
  v.blame = Blame::kSlowRank;
  v.rank = Rank(1);
  v.reason = "rank 1 holds up\x1b rank 0";
  v.next = "nothing but this report";
  job.view.verdicts = {{v, TimeMs{8000}}};
  s.jobs.push_back(job);
  return s;
}

TEST(StatusView, WhoIsSilentIsNotShownAsAlive) {
  tracker::Snapshot s = snapshot();
  s.jobs[0].view.members[0].suspect = true;
  s.jobs[0].view.members[0].last_heard_ms_ago = 4200;
  const std::string table = status_table(tracker::to_json(s), "").value();
  EXPECT_THAT(table, HasSubstr("0 of 2 workers alive (1 silent, 1 lost), "));
  EXPECT_THAT(table, HasSubstr("  0     w0      silent for 4.2 s  4.2 s ago  41 "));
}

TEST(StatusView, WhoWaitsForAPlaceIsNoneOfTheWorldsWorkers) {
  tracker::Snapshot s = snapshot();
  TrackerMachine::MemberView other;
  other.rank = kNoRank;
  other.worker_id = "other";
  other.alive = other.waits = other.candidate = true;
  s.jobs[0].view.members[1].alive = true;
  s.jobs[0].view.members.push_back(other);
  const std::string table = status_table(tracker::to_json(s), "").value();
  EXPECT_THAT(table, HasSubstr("2 of 2 workers alive (1 waiting), "));
  EXPECT_THAT(table, HasSubstr("  -     other   waiting"));
}

TEST(StatusView, SaysWhenAJobLastGotFurtherAndHowFullItsLogsAre) {
  tracker::Snapshot s = snapshot();
  TrackerMachine::View& v = s.jobs[0].view;
  v.last_round_ms_ago = 2300;
  v.last_commit_ms_ago = 65'000;
  EXPECT_THAT(status_table(tracker::to_json(s), "").value(), HasSubstr("  newest round 2.3 s ago, 2 restarts\n"));
  v.committed = version_of_program(20);
  v.members[0].log.emplace().set_budget_bytes(1000);
  v.members[0].log->set_held_bytes(870);
  EXPECT_THAT(status_table(tracker::to_json(s), "").value(),
              HasSubstr("  newest round 2.3 s ago, newest commit 65.0 s ago, 2 restarts, the fullest log at 87 %\n"));
}

TEST(StatusView, AJobThatCannotGoOnIsLost) {
  tracker::Snapshot s = snapshot();
  s.jobs[0].view.state = TrackerMachine::State::kGathering;
  s.jobs[0].view.lost = true;
  EXPECT_THAT(status_table(tracker::to_json(s), "").value(), HasSubstr("job digits: lost, generation 7, "));
}

TEST(StatusView, SaysWhy) {
  const auto r = status_table(tracker::to_json(snapshot()), "", true);
  ASSERT_TRUE(r.ok()) << r.status().describe();
  EXPECT_THAT(r.value(), HasSubstr("  round 3.17: rank 0 has waited 2.3 s for rank 1, which has not entered it\n"
                                   "  slow_rank for 12.0 s: rank 1 holds up? rank 0\n"
                                   "    next: nothing but this report\n"
                                   "  who is silent is suspect after 3.0 s or more, and lost after 10.0 s\n"));
  EXPECT_THAT(r.value(), Not(HasSubstr("at work on")));
  tracker::Snapshot calm = snapshot();
  calm.jobs[0].view.waits.clear();
  calm.jobs[0].view.verdicts.clear();
  EXPECT_THAT(status_table(tracker::to_json(calm), "", true).value(),
              HasSubstr("  nobody waits for anybody\n  nobody is to blame by what was told of the last 10.0 s\n"));
}

TEST(StatusView, WhereNoRoundIsUnderWayNobodyIsSaidNotToWait) {
  tracker::Snapshot s = snapshot();
  s.jobs[0].view.state = TrackerMachine::State::kGathering;
  s.jobs[0].view.waits = {"the job waits for worker w1 to be started again"};
  s.jobs[0].view.verdicts.clear();
  const std::string why = status_table(tracker::to_json(s), "", true).value();
  EXPECT_THAT(why, HasSubstr("  the job waits for worker w1 to be started again\n  who is silent is suspect"));
}

TEST(StatusView, WhoHasLeftDrainsNoMore) {
  tracker::Snapshot s = snapshot();
  s.jobs[0].view.members[1].rank = Rank(1);
  s.jobs[0].view.members[1].draining.emplace().set_reason("SIGTERM");
  EXPECT_THAT(status_table(tracker::to_json(s), "").value(), HasSubstr("w1      left "));
  EXPECT_THAT(status_table(tracker::to_json(s), "", true).value(),
              HasSubstr("  rank 1 has left, or is lost, after it was told to leave (SIGTERM); its place is kept\n"));
}

TEST(StatusView, ShowsWhatIsCommitted) {
  tracker::Snapshot s = snapshot();
  s.jobs[0].view.committed = std::nullopt;
  EXPECT_THAT(status_table(tracker::to_json(s), "").value(), Not(HasSubstr("committed")));
  s.jobs[0].view.committed = version_of_program(20);
  EXPECT_THAT(status_table(tracker::to_json(s), "").value(), HasSubstr(", version 20 committed\n"));
}

TEST(StatusView, ShowsWhatIsDoneOnGpusWhereAnythingIs) {
  tracker::Snapshot s = snapshot();
  EXPECT_THAT(status_table(tracker::to_json(s), "").value(), Not(HasSubstr("GPU")));
  EXPECT_THAT(tracker::to_html(s), Not(HasSubstr("GPU")));
  s.jobs[0].view.gpu.readers = 2;
  s.jobs[0].view.gpu.inputs_lent = 56;
  s.jobs[0].view.gpu.finals_from_gpus = 1;
  EXPECT_THAT(
      status_table(tracker::to_json(s), "").value(),
      HasSubstr("  on GPUs, over all ranks: 56 inputs lent, 1 piece of results from other ranks' GPUs, 0 rounds "
                "moved by NCCL\n"));
}

TEST(StatusView, OfOneJobAlsoAsJson) {
  tracker::Snapshot s = snapshot();
  s.jobs.push_back(s.jobs[0]);
  s.jobs[1].name = "other";
  const auto one = status_of_job(tracker::to_json(s), "other");
  ASSERT_TRUE(one.ok()) << one.status().describe();
  EXPECT_THAT(one.value(), HasSubstr("\"job\":\"other\""));
  EXPECT_THAT(one.value(), Not(HasSubstr("\"job\":\"digits\"")));
  EXPECT_EQ(status_of_job(tracker::to_json(s), "third").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(status_of_job("no page", "other").status().code(), Code::kCorrupt);
}

TEST(StatusView, ShowsWhatSparesHold) {
  tracker::Snapshot s = snapshot();
  TrackerMachine::SpareView idle{"w2", "h", Incarnation(5), 10, kNoRank, {}};
  TrackerMachine::SpareView ready{"w3", "g", Incarnation(6), 10, Rank(1), version_of_program(12)};
  s.jobs[0].view.spares = {idle, ready};
  EXPECT_THAT(status_table(tracker::to_json(s), "").value(),
              HasSubstr("  2 spares: w2 on host h, w3 on host g with checkpoint 12 (called for rank 1)\n"));
}

TEST(StatusView, JsonSaysWhereBytesGoAndInWhichOrder) {
  tracker::Snapshot s = snapshot();
  wire::Detour detour;
  detour.set_b(2);
  detour.add_relays(1);
  s.jobs[0].view.detours = {detour};
  wire::RingOrder order;
  order.set_from_version(version_of_program(4).value);
  for (const std::uint32_t rank : {0u, 2u, 1u}) order.add_ranks(rank);
  s.jobs[0].view.orders = {order};
  const auto job = nlohmann::json::parse(tracker::to_json(s)).at("jobs").at(0);
  EXPECT_EQ(job.at("detours").dump(), R"([{"a":0,"b":2,"relays":[1]}])");
  EXPECT_EQ(job.at("ring_orders").dump(), R"([{"from_version":4,"ranks":[0,2,1]}])");
}

TEST(StatusView, ShowsWhoWaitsForWhom) {
  const auto r = status_table(tracker::to_json(snapshot()), "");
  ASSERT_TRUE(r.ok()) << r.status().describe();
  EXPECT_THAT(r.value(), HasSubstr("tracker 0.1.0, up 65.4 s, port 9370\n"));
  EXPECT_THAT(r.value(), HasSubstr("job digits: running, generation 7, 1 of 2 workers alive (1 lost), 1 interrupt\n"));
  EXPECT_THAT(r.value(), HasSubstr("waits 2.3 s for ranks 1, 4 to 6"));
  EXPECT_THAT(r.value(), HasSubstr("round 3.17"));
  EXPECT_THAT(r.value(), HasSubstr("20 KiB"));
  EXPECT_THAT(r.value(), HasSubstr("  1     w1      lost"));
}

TEST(StatusView, APlaceThatNobodyHasHadIsVacant) {
  tracker::Snapshot s = snapshot();
  TrackerMachine::MemberView nobody;
  nobody.rank = Rank(1);
  nobody.absent = true;
  s.jobs[0].view.members[1] = nobody;
  const auto r = status_table(tracker::to_json(s), "");
  ASSERT_TRUE(r.ok()) << r.status().describe();
  EXPECT_THAT(r.value(), HasSubstr("  1     -       vacant\n"));
}

TEST(StatusView, ATerminalGetsNoControlCharacters) {
  const auto r = status_table(tracker::to_json(snapshot()), "");
  ASSERT_TRUE(r.ok());
  EXPECT_THAT(r.value(), HasSubstr("last interrupt: rank 1 ?[31mwas lost"));
  EXPECT_THAT(r.value(), Not(HasSubstr("\x1b")));
}

TEST(StatusView, ChoosesAJob) {
  const std::string json = tracker::to_json(snapshot());
  EXPECT_TRUE(status_table(json, "digits").ok());
  const auto r = status_table(json, "digit");
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().describe(), HasSubstr("no job 'digit'; it has digits"));
}

TEST(StatusView, NoJobsAreSaid) {
  auto s = snapshot();
  s.jobs.clear();
  s.insecure = true;
  const auto r = status_table(tracker::to_json(s), "");
  ASSERT_TRUE(r.ok());
  EXPECT_THAT(r.value(), HasSubstr("without authentication\nno jobs\n"));
}

TEST(StatusView, WhatIsNoStatusIsRefused) {
  for (const char* text : {"", "{}", "[]", "<html>", R"({"version":1})", R"({"version":"x","uptime_ms":"y"})"}) {
    const auto r = status_table(text, "");
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_EQ(r.status().code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace warren::cli

#include "tracker/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace warren::tracker {
namespace {

using testing::HasSubstr;
using testing::Not;

Snapshot with_job(std::uint64_t serial, std::uint64_t joins) {
  JobStatus job;
  job.name = "a";
  job.serial = serial;
  job.view.state = TrackerMachine::State::kRunning;
  job.view.joins = joins;
  Snapshot s;
  s.jobs.push_back(job);
  return s;
}

// It was forgotten and made anew between two looks.
TEST(Metrics, AJobOfTheSameNameBeginsAtNought) {
  Metrics metrics("1");
  metrics.update({}, with_job(1, 7));
  EXPECT_THAT(metrics.text(), HasSubstr("warren_job_joins_total{warren_job=\"a\"} 7\n"));
  metrics.update({}, with_job(1, 9));
  EXPECT_THAT(metrics.text(), HasSubstr("warren_job_joins_total{warren_job=\"a\"} 9\n"));
  metrics.update({}, with_job(2, 3));
  EXPECT_THAT(metrics.text(), HasSubstr("warren_job_joins_total{warren_job=\"a\"} 3\n"));
}

TrackerMachine::MemberView member(Rank rank, const std::string& worker, bool alive = true) {
  TrackerMachine::MemberView m;
  m.rank = rank;
  m.worker_id = worker;
  m.alive = alive;
  m.lives = 1;
  return m;
}

// Six ranks: one has been lost three times and another worker waits for its place, one is silent.
Snapshot with_members() {
  Snapshot s = with_job(1, 7);
  TrackerMachine::View& v = s.jobs[0].view;
  v.world_size = 6;
  for (int rank = 0; rank < 6; ++rank) v.members.push_back(member(Rank(rank), "w" + std::to_string(rank), rank != 5));
  v.members[4].suspect = true;
  v.members[5].lives = 4;
  v.members.push_back(member(kNoRank, "other"));
  v.members.back().waits = v.members.back().candidate = true;
  v.spares.emplace_back().worker_id = "6";
  return s;
}

std::string text_of(const Snapshot& s) {
  Metrics metrics("1");
  metrics.update({}, s);
  return metrics.text();
}

TEST(Metrics, CountWorkersOnceAndOnlyThoseAliveThatAreHeard) {
  const std::string text = text_of(with_members());
  EXPECT_THAT(text, HasSubstr("warren_job_members_alive{warren_job=\"a\"} 4\n"));
  for (const char* state :
       {"running\",warren_job=\"a\"} 4", "silent\",warren_job=\"a\"} 1", "lost\",warren_job=\"a\"} 1",
        "waiting\",warren_job=\"a\"} 1", "spare\",warren_job=\"a\"} 1", "gathering\",warren_job=\"a\"} 0",
        "absent\",warren_job=\"a\"} 0", "vacant\",warren_job=\"a\"} 0"}) {
    EXPECT_THAT(text, HasSubstr("warren_job_members{state=\"" + std::string(state) + "\n"));
  }
  EXPECT_THAT(text, HasSubstr("warren_job_restarts_total{warren_job=\"a\"} 3\n"));
}

TEST(Metrics, SayInWhichStateEachJobIs) {
  Snapshot s = with_members();
  EXPECT_THAT(text_of(s), HasSubstr("warren_job_state{state=\"running\",warren_job=\"a\"} 1\n"));
  s.jobs[0].view.state = TrackerMachine::State::kGathering;
  s.jobs[0].view.lost = true;
  const std::string text = text_of(s);
  EXPECT_THAT(text, HasSubstr("warren_job_state{state=\"lost\",warren_job=\"a\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("warren_job_state{state=\"gathering\",warren_job=\"a\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("warren_job_state{state=\"running\",warren_job=\"a\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("warren_jobs{state=\"lost\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("warren_jobs{state=\"gathering\"} 0\n"));
}

TEST(Metrics, SayWhatHoldsAJobUp) {
  Snapshot s = with_members();
  TrackerMachine::View& v = s.jobs[0].view;
  v.last_round_ms_ago = 1500;
  v.last_commit_ms_ago = 60'000;
  for (const int rank : {0, 1}) {
    v.members[static_cast<std::size_t>(rank)].log.emplace().set_budget_bytes(100);
    v.members[static_cast<std::size_t>(rank)].log->set_held_bytes(rank == 0 ? 10 : 75);
  }
  v.members[1].disk_trouble = "the disk is full";
  s.jobs[0].trouble = "the journal cannot be written";
  const std::string text = text_of(s);
  for (const char* line : {"last_round_age_seconds{warren_job=\"a\"} 1.5",
                           "last_commit_age_seconds{warren_job=\"a\"} 60", "log_held_bytes{warren_job=\"a\"} 85",
                           "log_budget_bytes{warren_job=\"a\"} 200", "log_fill_ratio{warren_job=\"a\"} 0.75",
                           "disk_troubles{warren_job=\"a\"} 1", "journal_trouble{warren_job=\"a\"} 1"}) {
    EXPECT_THAT(text, HasSubstr("warren_job_" + std::string(line) + "\n"));
  }
}

// Prometheus names what it scrapes by these, and renames ours.
TEST(Metrics, LabelsAreNotThoseThatPrometheusAdds) {
  const std::string text = text_of(with_members());
  for (const char* label : {"{job=", ",job=", "{instance=", ",instance="}) EXPECT_THAT(text, Not(HasSubstr(label)));
}

std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) found.insert(at->str(0));
  return found;
}

TEST(Metrics, AlertRulesAndDocumentationNameSeriesThatExist) {
  const std::string text = text_of(with_members());
  for (const char* page : {"/docs/alerts.yml", "/docs/metrics.md"}) {
    std::ifstream file(std::string(WARREN_SOURCE_DIR) + page);
    const std::string written{std::istreambuf_iterator<char>(file), {}};
    const std::set<std::string> names = matches(written, "warren_(job_?|jobs|messages_|persist_)[a-z_]*[a-z]");
    EXPECT_GE(names.size(), 10U) << page;
    for (const std::string& name : names) {
      if (name == "warren_job") continue;  // the label
      EXPECT_TRUE(text.find("\n" + name) != std::string::npos) << page << " names " << name;
    }
    for (const std::string& state : matches(written, "state=\"[a-z]+\"")) EXPECT_THAT(text, HasSubstr(state)) << page;
  }
}

}  // namespace
}  // namespace warren::tracker

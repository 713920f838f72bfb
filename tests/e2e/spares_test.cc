// Spares, as real processes: one takes the place of a rank that was killed, and every result of every rank is right.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/e2e/cluster.h"
#include "tests/e2e/events.h"
#include "tests/e2e/process.h"
#include "tests/e2e/starved.h"

namespace warren {
namespace {

using testing::Process;
using ::testing::StartsWith;

constexpr int kExitFenced = 76, kExitFinished = 78;

// Ranks and spares of one job, each a process that compares every sum that it gets.
class Job {
 public:
  // `on_disk`: each host has a folder for its log.
  explicit Job(int size, bool on_disk = false, int replace_after_ms = 0)
      : size_(size), on_disk_(on_disk), replace_after_ms_(replace_after_ms) {}

  void start(int worker, int attempt = 0, const std::string& host = {}) {
    std::vector<std::string> variables = {"WARREN_SPARES=1", "WARREN_ON_SIGTERM=drain",
                                          "WARREN_ATTEMPT=" + std::to_string(attempt),
                                          "WARREN_REPLACE_AFTER_MS=" + std::to_string(replace_after_ms_)};
    variables.insert(variables.end(), more_.begin(), more_.end());
    if (!host.empty()) {
      variables.push_back("WARREN_HOST_ID=" + host);
      variables.push_back("WARREN_DOMAIN_ID=" + host);
    }
    if (on_disk_) {
      variables.push_back("WARREN_DATA_DIR=" + disk(host).string());
      variables.push_back("WARREN_LOG=sync");
    }
    workers_[worker] = std::make_unique<Process>(
        std::vector<std::string>{WARREN_DRAINER, cluster_.address(), cluster_.root_file(), std::to_string(worker),
                                 std::to_string(size_), folder_ / "stop"},
        std::move(variables));
  }
  // A variable of processes that are started from here on.
  void set(const std::string& variable) { more_.push_back(variable); }
  // Ranks have the ids 0 and up.
  void begin(const std::vector<std::string>& hosts = {}) {
    for (int w = 0; w < size_; w++) start(w, 0, hosts.empty() ? "" : hosts[static_cast<std::size_t>(w)]);
    for (int w = 0; w < size_; w++) EXPECT_THAT(at(w).line(), StartsWith("joined " + std::to_string(w)));
  }
  void wait_as_spare(int worker, const std::string& host = {}) {
    start(worker, 0, host);
    EXPECT_EQ(events.wait_for("spare_waits", ++spares_), std::to_string(worker));
  }
  void kill(int worker) {
    at(worker).kill(SIGKILL);
    EXPECT_EQ(at(worker).wait(), 128 + SIGKILL);
    workers_.erase(worker);
  }
  // It has ended, and its end was looked at.
  void gone(int worker) { workers_.erase(worker); }
  Process& at(int worker) { return *workers_.at(worker); }
  [[nodiscard]] std::filesystem::path disk(const std::string& host) const { return folder_ / ("disk-" + host); }
  // Ends the job: the ranks, which these workers are, have all seen the same; spares were not needed.
  void finish(const std::set<int>& ranks) {
    std::ofstream(folder_ / "stop").put('!');
    std::set<std::string> ends;
    for (auto& [worker, process] : workers_) {
      const std::string last = process->line();
      if (ranks.contains(worker))
        ends.insert(last);
      else
        EXPECT_EQ(last, "") << "its init has not returned";
      EXPECT_EQ(process->wait(), ranks.contains(worker) ? 0 : kExitFinished) << worker << ": " << last;
    }
    EXPECT_EQ(ends.size(), 1U);
    EXPECT_THAT(*ends.begin(), StartsWith("done "));
  }

  testing::Events events;

 private:
  const int size_;
  const bool on_disk_;
  const int replace_after_ms_;
  int spares_ = 0;
  std::vector<std::string> more_;
  testing::Cluster cluster_{"127.0.0.1", false, events.sink()};
  const testing::TempDir folder_;
  std::map<int, std::unique_ptr<Process>> workers_;
};

TEST(Spares, ASpareTakesTheRankOfAKilledProcess) {
  Job job(3);
  job.wait_as_spare(3);
  job.wait_as_spare(4);
  job.begin();
  job.kill(1);
  EXPECT_EQ(job.events.wait_for("place_taken"), "3");
  EXPECT_THAT(job.at(3).line(), StartsWith("joined 1 "));
  job.finish({0, 2, 3});
}

TEST(Spares, ASpareOfAnotherHostGetsWhatItMissesFromTheOthers) {
  Job job(3);
  job.wait_as_spare(3, "d");
  job.begin({"a", "b", "c"});
  job.kill(2);
  EXPECT_THAT(job.at(3).line(), StartsWith("joined 2 "));
  // And the host that was left takes a rank again.
  job.start(2, 1, "c");
  EXPECT_EQ(job.events.wait_for("spare_waits", 2), "2");
  // Until a commit without it, that host counts as lost, and no other may be left.
  job.events.wait_for_next("committed");
  job.kill(0);
  EXPECT_THAT(job.at(2).line(), StartsWith("joined 0 "));
  job.finish({1, 2, 3});
}

TEST(Spares, ASpareLoadsTheCheckpointThatItHasFetchedWhileItWaited) {
  Job job(3);
  job.set("DRAINER_VERSIONS=2");
  job.begin({"a", "b", "c"});
  job.events.wait_for("committed", 2);
  job.wait_as_spare(3, "d");
  EXPECT_EQ(job.events.wait_for("spare_follows"), "3");
  job.set("WARREN_SPARE_FOLLOWS=0");
  job.wait_as_spare(4, "e");
  job.kill(1);
  EXPECT_EQ(job.at(3).line(), "followed");
  EXPECT_EQ(job.at(3).line(), "joined 1 2");
  EXPECT_EQ(job.events.count("spare_follows"), 1) << "and not the one that is set not to";
  job.finish({0, 2, 3});
}

TEST(Spares, WithoutASpareLeftARestartTakesThePlace) {
  Job job(3);
  job.wait_as_spare(3);
  job.begin();
  job.kill(1);
  EXPECT_THAT(job.at(3).line(), StartsWith("joined 1 "));
  job.kill(3);
  job.start(3, 1);
  EXPECT_THAT(job.at(3).line(), StartsWith("joined 1 "));
  // Who has lost its place waits in turn.
  job.start(1, 1);
  EXPECT_EQ(job.events.wait_for("spare_waits", 3), "1") << "after 3, which was called for its own place";
  job.kill(0);
  EXPECT_THAT(job.at(1).line(), StartsWith("joined 0 "));
  job.finish({1, 2, 3});
}

TEST(Spares, ASpareThatIsKilledWhileItTakesOverIsReplaced) {
  Job job(3);
  job.wait_as_spare(3);
  job.wait_as_spare(4);
  job.begin();
  job.kill(1);
  const int called = std::stoi(job.events.wait_for("spare_called"));
  job.kill(called);
  const int other = called == 3 ? 4 : 3;
  EXPECT_THAT(job.at(other).line(), StartsWith("joined 1 "));
  job.finish({0, 2, other});
}

TEST(Spares, ARankThatHoldsUpTheOthersLeavesItsPlaceAndWaitsInTurn) {
  Job job(3, false, 500);
  job.wait_as_spare(3);
  job.begin();
  const auto seconds_since = [](std::chrono::steady_clock::time_point then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
  };
  const auto starving = std::chrono::steady_clock::now();
  {
    const testing::Starved starved([&](int signal) { job.at(1).kill(signal); }, std::chrono::milliseconds(10),
                                   std::chrono::milliseconds(90));
    EXPECT_EQ(job.events.wait_for("replace_asked"), "3");
    EXPECT_EQ(job.events.wait_for("place_taken"), "3");
  }
  EXPECT_EQ(job.at(1).wait(), kExitFenced);
  job.gone(1);
  const std::string joined = job.at(3).line();
  EXPECT_THAT(joined, StartsWith("joined 1 "));
  const int version = std::stoi(joined.substr(9));
  std::printf("%.1f versions a second until a spare had its place\n", version / seconds_since(starving));
  job.start(1, 1);
  EXPECT_EQ(job.events.wait_for("spare_waits", 2), "1");
  const auto replaced = std::chrono::steady_clock::now();
  for (int i = 0; i < 30; i++) job.events.wait_for_next("committed");
  std::printf("%.1f versions a second since then\n", 30 / seconds_since(replaced));
  EXPECT_EQ(job.events.count("straggler"), 1);
  job.finish({0, 2, 3});
}

TEST(Spares, AWaitingSpareLeavesAtSigterm) {
  Job job(2);
  job.wait_as_spare(2);
  job.begin();
  job.at(2).kill(SIGTERM);
  EXPECT_EQ(job.at(2).wait(), 75);
  job.events.wait_for("spare_left");
}

// Its rank has gone elsewhere, and nobody but the spare that waits there hears that the job has finished.
TEST(Spares, NothingOfAFinishedJobStaysOnAHostThatWasLeft) {
  Job job(2, true);
  job.wait_as_spare(2, "c");
  job.begin({"a", "b"});
  job.events.wait_for("committed");  // all of them have made their places
  job.kill(1);
  EXPECT_THAT(job.at(2).line(), StartsWith("joined 1 "));
  job.start(1, 1, "b");
  EXPECT_EQ(job.events.wait_for("spare_waits", 2), "1");
  EXPECT_FALSE(std::filesystem::is_empty(job.disk("b")));
  job.finish({0, 2});
  for (const char* host : {"a", "b", "c"}) EXPECT_TRUE(std::filesystem::is_empty(job.disk(host))) << host;
}

// What it holds may differ from what the others have computed since.
TEST(Spares, WhatAHostHadOnDiskWhenItWasLeftIsNotRead) {
  Job job(3, true);
  job.wait_as_spare(3, "d");
  job.begin({"a", "b", "c"});
  job.events.wait_for("committed");  // all of them have made their places
  job.kill(2);
  EXPECT_THAT(job.at(3).line(), StartsWith("joined 2 "));
  std::vector<std::filesystem::path> left;
  for (const auto& place : std::filesystem::directory_iterator(job.disk("c") / "drain" / "2")) left.push_back(place);
  ASSERT_EQ(left.size(), 1U);
  job.start(2, 1, "c");
  EXPECT_EQ(job.events.wait_for("spare_waits", 2), "2");
  EXPECT_TRUE(std::filesystem::exists(left[0] / "LIFE"));
  EXPECT_FALSE(std::filesystem::exists(left[0] / "LIFE-stale")) << "it may be called while the host has a rank";
  job.events.wait_for_next("committed");
  job.kill(0);
  EXPECT_THAT(job.at(2).line(), StartsWith("joined 0 "));
  // Marked, or gone.
  EXPECT_TRUE(std::filesystem::exists(left[0] / "LIFE-stale") || !std::filesystem::exists(left[0] / "LIFE"));
  job.finish({1, 2, 3});
}

}  // namespace
}  // namespace warren

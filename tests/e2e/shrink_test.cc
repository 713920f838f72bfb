// Mode shrink, as real processes: the job goes on without those that are killed and takes them in again, and every
// result of every rank is that of its contributors.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/e2e/cluster.h"
#include "tests/e2e/events.h"
#include "tests/e2e/process.h"

namespace warren {
namespace {

using testing::Cluster;
using ::testing::HasSubstr;
using testing::Process;
using ::testing::StartsWith;

constexpr const char* kAtOnce = "0";
constexpr const char* kNever = "3600000";

// Ranks of one job, each a process that compares every sum that it gets with its contributors.
class Job {
 public:
  Job(int size, const std::string& grace_ms, int min_workers = 1) : size_(size) {
    common_ = {"WARREN_GRACE_MS=" + grace_ms, "WARREN_MIN_WORKERS=" + std::to_string(min_workers)};
  }
  // Before anybody is started.
  void has_spares() { common_.emplace_back("WARREN_SPARES=1"); }
  void may_begin_short() { common_.push_back("WARREN_MAX_WORKERS=" + std::to_string(size_)); }

  void start(int worker, int attempt = 0, const std::string& host = {}) {
    std::vector<std::string> variables = common_;
    variables.push_back("WARREN_ATTEMPT=" + std::to_string(attempt));
    if (!host.empty()) {
      variables.push_back("WARREN_HOST_ID=" + host);
      variables.push_back("WARREN_DOMAIN_ID=" + host);
    }
    workers_[worker] = std::make_unique<Process>(
        std::vector<std::string>{WARREN_SHRINKER, cluster_.address(), cluster_.root_file(), std::to_string(worker),
                                 std::to_string(size_), folder_ / "stop"},
        std::move(variables));
  }
  void begin(const std::vector<std::string>& hosts = {}) {
    std::string all = "with";
    for (int w = 0; w < size_; w++) {
      start(w, 0, hosts.empty() ? "" : hosts[static_cast<std::size_t>(w)]);
      all += " " + std::to_string(w);
    }
    for (int w = 0; w < size_; w++) EXPECT_THAT(at(w).line(), StartsWith("joined " + std::to_string(w)));
    for (int w = 0; w < size_; w++) EXPECT_EQ(at(w).line(), all);
  }
  void kill(int worker) {
    at(worker).kill(SIGKILL);
    EXPECT_EQ(at(worker).wait(), 128 + SIGKILL);
    workers_.erase(worker);
  }
  // Until this worker sees these contributors; on the way it may see others.
  void await(int worker, const std::string& contributors) {
    std::string line;
    do {
      line = at(worker).line();
      ASSERT_THAT(line, StartsWith("with ")) << "worker " << worker << " waits for: " << contributors;
    } while (line != contributors);
  }
  Process& at(int worker) { return *workers_.at(worker); }
  // Ends the job, whose ranks these workers are. They have all seen the same; each has said all else before.
  void finish() {
    std::ofstream(folder_ / "stop").put('!');
    std::set<std::string> ends;
    for (auto& [worker, process] : workers_) {
      ends.insert(process->line());
      EXPECT_EQ(process->wait(), 0) << worker << ": " << *ends.rbegin();
    }
    EXPECT_EQ(ends.size(), 1U);
    EXPECT_THAT(*ends.begin(), StartsWith("done "));
  }

  testing::Events events;

 private:
  const int size_;
  std::vector<std::string> common_;
  Cluster cluster_{"127.0.0.1", false, events.sink()};
  const testing::TempDir folder_;
  std::map<int, std::unique_ptr<Process>> workers_;
};

TEST(Shrink, TheOthersGoOnWithoutAKilledRankAndTakeItInAgain) {
  Job job(4, kAtOnce);
  job.begin();
  job.kill(1);
  for (const int w : {0, 2, 3}) EXPECT_EQ(job.at(w).line(), "with 0 2 3");
  job.start(1, 1);
  EXPECT_THAT(job.at(1).line(), StartsWith("joined 1 "));
  for (const int w : {0, 2, 3}) EXPECT_EQ(job.at(w).line(), "with 0 1 2 3");
  job.await(1, "with 0 1 2 3");  // after what it replays
  job.finish();
}

TEST(Shrink, OneAfterTheOtherDownToOneAndUpAgain) {
  Job job(3, kAtOnce);
  job.begin();
  job.kill(0);
  for (const int w : {1, 2}) EXPECT_EQ(job.at(w).line(), "with 1 2");
  // Until a commit without it, what only the lost one and this one held would be lost.
  job.events.wait_for_next("committed");
  job.kill(2);
  EXPECT_EQ(job.at(1).line(), "with 1");
  job.events.wait_for_next("committed");
  job.start(2, 1);
  EXPECT_EQ(job.at(1).line(), "with 1 2");
  EXPECT_THAT(job.at(2).line(), StartsWith("joined 2 "));
  job.await(2, "with 1 2");
  job.start(0, 1);
  for (const int w : {1, 2}) EXPECT_EQ(job.at(w).line(), "with 0 1 2");
  EXPECT_THAT(job.at(0).line(), StartsWith("joined 0 "));
  job.await(0, "with 0 1 2");
  job.finish();
}

TEST(Shrink, AHostIsLostAndComesBackAndThenTheOtherOne) {
  Job job(4, kAtOnce);
  job.begin({"a", "a", "b", "b"});
  job.kill(2);
  job.kill(3);
  for (const int w : {0, 1}) job.await(w, "with 0 1");
  job.start(2, 1, "b");
  job.start(3, 1, "b");
  for (const int w : {2, 3}) EXPECT_THAT(job.at(w).line(), StartsWith("joined " + std::to_string(w)));
  for (const int w : {0, 1, 2, 3}) job.await(w, "with 0 1 2 3");
  for (int i = 0; i < 2; i++) job.events.wait_for_next("committed");
  job.kill(0);
  job.kill(1);
  for (const int w : {2, 3}) job.await(w, "with 2 3");
  job.finish();
}

TEST(Shrink, WithFewerThanTheLeastNumberTheJobWaits) {
  Job job(3, kAtOnce, 2);
  job.begin();
  job.kill(1);
  for (const int w : {0, 2}) EXPECT_EQ(job.at(w).line(), "with 0 2");
  job.events.wait_for_next("committed");
  const int before = job.events.count("gathering");
  job.kill(2);
  job.events.wait_for("gathering", before + 1);
  job.start(2, 1);
  EXPECT_THAT(job.at(2).line(), StartsWith("joined 2 "));
  EXPECT_EQ(job.at(2).line(), "with 0 2");
  job.finish();  // rank 0 has seen no other contributors than these
}

TEST(Shrink, WhoIsBackBeforeTheGraceIsOverIsInItsPlace) {
  Job job(3, kNever);
  job.begin();
  job.kill(1);
  job.start(1, 1);
  EXPECT_THAT(job.at(1).line(), StartsWith("joined 1 "));
  EXPECT_EQ(job.at(1).line(), "with 0 1 2");
  job.finish();
}

TEST(Shrink, ASpareTakesThePlaceBeforeTheGraceIsOver) {
  Job job(3, kNever);
  job.has_spares();
  job.start(3);
  EXPECT_EQ(job.events.wait_for("spare_waits"), "3");
  job.begin();
  job.kill(1);
  EXPECT_THAT(job.at(3).line(), StartsWith("joined 1 "));
  EXPECT_EQ(job.at(3).line(), "with 0 1 2");
  job.finish();
}

TEST(Shrink, AJobBeginsWithThoseThatAreThereAndTakesInWhoComesLater) {
  Job job(4, kAtOnce, 2);
  job.may_begin_short();
  for (const int w : {0, 1}) job.start(w);
  for (const int w : {0, 1}) EXPECT_THAT(job.at(w).line(), StartsWith("joined " + std::to_string(w)));
  for (const int w : {0, 1}) EXPECT_EQ(job.at(w).line(), "with 0 1");
  job.start(2);
  EXPECT_THAT(job.at(2).line(), StartsWith("joined 2 "));
  for (const int w : {0, 1}) EXPECT_EQ(job.at(w).line(), "with 0 1 2");
  job.await(2, "with 0 1 2");
  // The place of one that may return is not the one that somebody new gets.
  job.kill(0);
  for (const int w : {1, 2}) EXPECT_EQ(job.at(w).line(), "with 1 2");
  job.start(3);
  EXPECT_THAT(job.at(3).line(), StartsWith("joined 3 "));
  for (const int w : {1, 2, 3}) job.await(w, "with 1 2 3");
  job.start(0, 1);
  EXPECT_THAT(job.at(0).line(), StartsWith("joined 0 "));
  for (const int w : {0, 1, 2, 3}) job.await(w, "with 0 1 2 3");
  job.finish();
}

TEST(Shrink, WhatNeedsAllRanksIsRefusedAndTheOthersAreNotDisturbed) {
  Cluster cluster;
  const auto shrinks = [](int, Options& o) { o.mode = "shrink"; };
  cluster.run_well(
      3,
      [](Communicator& comm) {
        const auto expect_refused = [](const auto& call, const char* what) {
          try {
            call();
            ADD_FAILURE() << what << " was not refused";
          } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << what;
            EXPECT_THAT(e.what(), HasSubstr(std::string(what) + ": mode shrink"));
          }
        };
        (void)comm.load_checkpoint();
        std::vector<int> one(1), three(3);
        expect_refused([&] { comm.broadcast(one, 0); }, "broadcast");
        expect_refused([&] { comm.reduce(std::span(one), 0); }, "reduce");
        expect_refused([&] { (void)comm.allgather(1); }, "allgather");
        expect_refused([&] { (void)comm.reduce_scatter(three); }, "reduce_scatter");
        expect_refused([&] { comm.send(one, (comm.rank() + 1) % 3); }, "send/recv");
        expect_refused([&] { comm.allreduce(std::span(one), Op::sum, [] {}); }, "a prepare function");
        expect_refused([&] { (void)comm.wire(Wire::f16).allreduce(1.0f); }, "a wire type, or a buffer on a GPU");
        expect_refused([&] { (void)comm.split(0); }, "split");
        expect_refused([&] { (void)comm.once("sketch").allreduce(1); }, "a set-up round");
        expect_refused([&] { (void)comm.fuse(); }, "fusion_begin");
        const auto bytes = std::as_bytes(std::span(one));
        expect_refused([&] { comm.checkpoint(bytes, bytes); }, "a checkpoint with local states");
        expect_refused([&] { comm.lazy_checkpoint([] { return std::vector<int>(1); }); }, "lazy_checkpoint");
        EXPECT_EQ(comm.allreduce(comm.rank() + 1), 6);
        EXPECT_EQ(comm.contributors(), (std::vector{0, 1, 2}));
        comm.checkpoint(one);
        EXPECT_EQ(comm.min_workers(), 1);
      },
      shrinks);
}

// The program that users read: each sample is used once an epoch, or it ends with an error.
TEST(Shrink, TheExampleLosesAndDoublesNoSample) {
  Cluster cluster;
  std::map<int, std::unique_ptr<Process>> workers;
  const auto start = [&](int worker, int attempt) {
    workers[worker] = std::make_unique<Process>(
        std::vector<std::string>{WARREN_ELASTIC_SGD, std::string("--data=") + WARREN_EXAMPLE_DATA, "--epochs=100000"},
        std::vector<std::string>{"WARREN_TRACKER=" + cluster.address(), "WARREN_SECRET_FILE=" + cluster.root_file(),
                                 "WARREN_WORKER_ID=" + std::to_string(worker), "WARREN_WORLD_SIZE=4",
                                 "WARREN_MODE=shrink", "WARREN_GRACE_MS=0", "WARREN_LOG_LEVEL=error",
                                 "WARREN_ATTEMPT=" + std::to_string(attempt)});
  };
  const auto await = [&](const std::string& ranks) {
    std::string line;
    do {
      line = workers.at(0)->line();
      ASSERT_THAT(line, HasSubstr("1437 samples once each")) << "rank 0 waits for: " << ranks;
    } while (!line.ends_with(ranks));
  };
  for (int w = 0; w < 4; w++) start(w, 0);
  EXPECT_THAT(workers.at(0)->line(), StartsWith("rank 0 is process"));
  await(", ranks 0 1 2 3");
  workers.at(2)->kill(SIGKILL);
  await(", ranks 0 1 3");
  start(2, 1);
  await(", ranks 0 1 2 3");
  workers.at(1)->kill(SIGKILL);
  await(", ranks 0 2 3");
}

}  // namespace
}  // namespace warren

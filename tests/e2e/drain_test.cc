// Preemption of real processes: SIGTERM drains a worker, whose next life takes its place; no call fails, anywhere.
#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "tests/e2e/cluster.h"
#include "tests/e2e/events.h"
#include "tests/e2e/process.h"

namespace warren {
namespace {

using testing::Cluster;
using testing::Process;
using ::testing::StartsWith;

std::unique_ptr<Process> drainer(Cluster& cluster, int worker, int size, const std::string& stop_file, int attempt,
                                 const std::string& host = {}) {
  std::vector<std::string> variables = {"WARREN_ON_SIGTERM=drain", "WARREN_DRAIN_MS=20000",
                                        "WARREN_ATTEMPT=" + std::to_string(attempt)};
  if (!host.empty()) {
    variables.push_back("WARREN_HOST_ID=" + host);
    variables.push_back("WARREN_DOMAIN_ID=" + host);
  }
  return std::make_unique<Process>(std::vector<std::string>{WARREN_DRAINER, cluster.address(), cluster.root_file(),
                                                            std::to_string(worker), std::to_string(size), stop_file},
                                   variables);
}

int preemptions() {
  const char* many = std::getenv("WARREN_TEST_PREEMPTIONS");  // NOLINT(concurrency-mt-unsafe): before any thread
  return many == nullptr ? 12 : std::atoi(many);
}

TEST(Drain, NoCallFailsWhileRanksArePreempted) {
  constexpr int kSize = 3;
  const int many = preemptions();
  Cluster cluster;
  const testing::TempDir folder;
  const std::string stop = folder / "stop";
  std::vector<std::unique_ptr<Process>> workers;
  for (int w = 0; w < kSize; w++) workers.push_back(drainer(cluster, w, kSize, stop, 0));
  for (int w = 0; w < kSize; w++) {
    EXPECT_THAT(workers[static_cast<std::size_t>(w)]->line(), StartsWith("joined " + std::to_string(w)));
  }
  std::int64_t longest_ms = 0;
  for (int n = 0; n < many; n++) {
    const int w = n % kSize;
    auto& worker = workers[static_cast<std::size_t>(w)];
    const auto begin = std::chrono::steady_clock::now();
    worker->kill(SIGTERM);
    ASSERT_EQ(worker->wait(), 75) << "preemption " << n << ": " << worker->line();
    const auto took = std::chrono::steady_clock::now() - begin;
    longest_ms =
        std::max<std::int64_t>(longest_ms, std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
    EXPECT_EQ(worker->line(), "") << "no call of it fails either";
    worker = drainer(cluster, w, kSize, stop, 1 + n / kSize);
    ASSERT_THAT(worker->line(), StartsWith("joined " + std::to_string(w)));
  }
  std::ofstream(stop).put('!');
  std::set<std::string> ends;
  for (auto& worker : workers) {
    ends.insert(worker->line());
    EXPECT_EQ(worker->wait(), 0);
  }
  EXPECT_EQ(ends.size(), 1u) << "all have seen the same";
  EXPECT_THAT(*ends.begin(), StartsWith("done "));
  std::printf("%d preemptions; the longest took %lld ms from SIGTERM to the end of the process\n", many,
              static_cast<long long>(longest_ms));
}

// Two machines of three go, one of them with notice, before anybody else has what both alone held: nothing is undone,
// for whoever had notice serves it. With two copies that would be a rollback otherwise, or the end of the checkpoint.
TEST(Drain, WhoLeavesServesWhatItsHostHasLogged) {
  constexpr int kSize = 3;
  testing::Events events;
  Cluster cluster("127.0.0.1", false, events.sink());
  const testing::TempDir folder;
  const std::string stop = folder / "stop";
  std::vector<std::unique_ptr<Process>> workers;
  for (int w = 0; w < kSize; w++) {
    workers.push_back(drainer(cluster, w, kSize, stop, 0, std::string(1, static_cast<char>('a' + w))));
  }
  for (int w = 0; w < kSize; w++) {
    ASSERT_THAT(workers[static_cast<std::size_t>(w)]->line(), StartsWith("joined " + std::to_string(w)));
  }
  events.wait_for("committed");
  workers[0]->kill(SIGTERM);
  events.wait_for("rank_serves");
  workers[1]->kill(SIGKILL);
  EXPECT_EQ(workers[1]->wait(), 128 + SIGKILL);
  std::unique_ptr<Process> left = std::move(workers[0]);
  workers[0] = drainer(cluster, 0, kSize, stop, 1, "d");
  workers[1] = drainer(cluster, 1, kSize, stop, 1, "e");
  for (int w = 0; w < 2; w++) {
    EXPECT_THAT(workers[static_cast<std::size_t>(w)]->line(), StartsWith("joined " + std::to_string(w)));
  }
  EXPECT_EQ(left->wait(), 75) << "a version is committed";
  EXPECT_EQ(left->line(), "");
  std::ofstream(stop).put('!');
  std::set<std::string> ends;
  for (auto& worker : workers) {
    ends.insert(worker->line());
    EXPECT_EQ(worker->wait(), 0);
  }
  EXPECT_EQ(ends.size(), 1u) << "all have seen the same";
  EXPECT_THAT(*ends.begin(), StartsWith("done "));
  EXPECT_EQ(events.count("server_gone"), 1);
}

// A rank that waits for one that stands still leaves all the same: at the latest when the generation ends.
TEST(Drain, IsNotHeldUpByOthers) {
  Cluster cluster;
  const testing::TempDir folder;
  const auto a = drainer(cluster, 0, 2, folder / "stop", 0), b = drainer(cluster, 1, 2, folder / "stop", 0);
  ASSERT_THAT(a->line(), StartsWith("joined 0"));
  ASSERT_THAT(b->line(), StartsWith("joined 1"));
  b->kill(SIGSTOP);
  a->kill(SIGTERM);
  EXPECT_EQ(a->wait(), 75);
  b->kill(SIGCONT);
}

}  // namespace
}  // namespace warren

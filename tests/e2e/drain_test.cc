// Preemption of real processes: SIGTERM drains a worker, whose next life takes its place; no call fails, anywhere.
#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "tests/e2e/cluster.h"
#include "tests/e2e/process.h"

namespace warren {
namespace {

using testing::Cluster;
using testing::Process;
using ::testing::StartsWith;

std::unique_ptr<Process> drainer(Cluster& cluster, int worker, int size, const std::string& stop_file, int attempt) {
  return std::make_unique<Process>(std::vector<std::string>{WARREN_DRAINER, cluster.address(), cluster.root_file(),
                                                            std::to_string(worker), std::to_string(size), stop_file},
                                   std::vector<std::string>{"WARREN_ON_SIGTERM=drain", "WARREN_DRAIN_MS=20000",
                                                            "WARREN_ATTEMPT=" + std::to_string(attempt)});
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

// A rank that waits for one that stands still leaves all the same: at the latest when the epoch ends.
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

// Workers as processes that are killed and stopped.
#include <gmock/gmock.h>

#include <chrono>

#include "tests/e2e/cluster.h"
#include "tests/e2e/process.h"

namespace warren {
namespace {

using testing::Cluster;
using ::testing::HasSubstr;
using testing::Process;
using ::testing::StartsWith;

std::vector<std::unique_ptr<Process>> start(Cluster& cluster, int size, int elements) {
  std::vector<std::unique_ptr<Process>> workers;
  for (int r = 0; r < size; r++) {
    workers.push_back(std::make_unique<Process>(
        std::vector<std::string>{WARREN_LOOPER, cluster.address(), cluster.root_file(), std::to_string(r),
                                 std::to_string(size), std::to_string(elements)}));
  }
  for (int r = 0; r < size; r++) {
    EXPECT_EQ(workers[static_cast<std::size_t>(r)]->line(), "joined " + std::to_string(r));
  }
  return workers;
}

TEST(Processes, AKilledRankIsNamedByAllOthersAndTheJobGoesOnInNewLives) {
  for (const int elements : {1, 3000000}) {
    Cluster cluster;
    for (int life = 0; life < 2; life++) {
      auto workers = start(cluster, 4, elements);
      workers[2]->kill(SIGKILL);
      for (const std::size_t r : {0u, 1u, 3u}) {
        const std::string said = workers[r]->line();
        EXPECT_THAT(said, StartsWith("failed 5 "));
        EXPECT_THAT(said, HasSubstr("rank 2"));
      }
    }
  }
}

TEST(Processes, AStoppedRankIsNoticedFencedAndFindsOut) {
  Cluster cluster;
  auto workers = start(cluster, 3, 100000);
  workers[1]->kill(SIGSTOP);
  for (const std::size_t r : {0u, 2u}) {
    const std::string said = workers[r]->line();
    EXPECT_THAT(said, StartsWith("failed 5 "));
    EXPECT_THAT(said, HasSubstr("rank 1"));
  }
  // The others form the next epoch while it sleeps; awake again it harms nobody.
  workers[0].reset();
  workers[2].reset();
  std::vector<std::unique_ptr<Process>> next = start(cluster, 3, 100000);
  workers[1]->kill(SIGCONT);
  EXPECT_THAT(workers[1]->line(), StartsWith("failed "));
  next[0]->kill(SIGKILL);
  EXPECT_THAT(next[1]->line(), HasSubstr("rank 0"));
}

}  // namespace
}  // namespace warren

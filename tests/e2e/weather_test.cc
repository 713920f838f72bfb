// Bad paths between hosts: what they do to a job of real processes, by a relay of frames in user space.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "chaos/process/child.h"
#include "chaos/process/network.h"
#include "tests/e2e/cluster.h"

namespace warren {
namespace {

using chaos::process::Child;
using chaos::process::Network;
using testing::Cluster;

// Nobody is to blame for weather that all have alike, and nobody is given up: the round timeout is 4 s.
TEST(Weather, AJitterOf200MsAndLostFramesEndNoGeneration) {
  constexpr int kRanks = 4;
  const auto network = Network::create(kRanks, {.delay_ms = 1, .jitter_ms = 200, .loss_permille = 2, .seed = 7});
  if (!network.ok()) GTEST_SKIP() << network.status().describe();
  Network cables = network.value();
  std::mutex mutex;
  std::vector<std::string> said;
  Cluster cluster(Network::tracker_address(), false, [&](std::string_view, const LogEvent& event) {
    const std::lock_guard lock(mutex);
    if (event.name == "interrupted" || event.name == "straggler") said.push_back(event.text);
  });
  std::vector<std::unique_ptr<Child>> workers;
  for (int w = 0; w < kRanks; w++) {
    std::vector<std::string> all = Network::prefix(static_cast<std::uint32_t>(w));
    for (const std::string& word : {std::string(WARREN_PACER), cluster.address(), cluster.root_file(),
                                    std::to_string(w), std::to_string(kRanks), "host" + std::to_string(w),
                                    std::string("auto"), std::string("1000"), std::string("1000"), std::string("16")}) {
      all.push_back(word);
    }
    auto child = Child::start(
        {all, cluster.file("worker.log"), [&](pid_t pid) { return cables.wire(static_cast<std::uint32_t>(w), pid); }});
    ASSERT_TRUE(child.ok()) << child.status().describe();
    workers.push_back(std::move(child).value());
  }
  for (const auto& worker : workers) {
    const int status = worker->wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  const std::lock_guard lock(mutex);
  EXPECT_THAT(said, ::testing::IsEmpty());
}

}  // namespace
}  // namespace warren

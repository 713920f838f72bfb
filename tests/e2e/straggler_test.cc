// Verdicts on real processes: who is stopped, starved or behind a slow link is named, and nobody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "chaos/process/child.h"
#include "chaos/process/network.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/starved.h"

namespace warren {
namespace {

using chaos::process::Child;
using chaos::process::Network;
using std::chrono::milliseconds;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::Starved;

// A verdict takes half a window and three looks: 8 s with the round timeout of these jobs.
constexpr std::chrono::seconds kPatience(120);

// What the tracker has said of the job, "slow_link 1>2".
class Verdicts {
 public:
  void take(const LogEvent& event) {
    const std::lock_guard lock(mutex_);
    if (event.name == "planned") planned_ = true;
    if (event.name == "straggler") {
      standing_.push_back(label(event));
      texts_.push_back(event.text);
    }
    if (event.name == "straggler_cleared") std::erase(standing_, label(event));
    if (event.name == "interrupted") ended_ = event.text;
    changed_.notify_all();
  }
  bool await_plan() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return planned_; });
  }
  // The first verdict's text; "" when none comes.
  std::string await_verdict() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return !texts_.empty(); });
    return texts_.empty() ? "" : texts_.front();
  }
  bool await_none_standing() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return standing_.empty(); });
  }
  // All that have stood.
  std::vector<std::string> texts() {
    const std::lock_guard lock(mutex_);
    return texts_;
  }
  std::vector<std::string> standing() {
    const std::lock_guard lock(mutex_);
    return standing_;
  }
  std::string ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  static std::string label(const LogEvent& event) {
    std::string kind, rank, peer;
    for (const auto& [name, value] : event.fields) {
      if (name == "kind") kind = value;
      if (name == "rank") rank = value;
      if (name == "peer") peer = ">" + value;
    }
    return kind + " " + rank + peer;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool planned_ = false;
  std::vector<std::string> standing_, texts_;
  std::string ended_;
};

struct Job {
  int size = 4;
  std::string algorithm = "ring";
  std::int64_t elements = 1 << 16;
  int work_us = 2000;
};

// Worker i has rank i: the first plan gives ranks in the order of hosts and ids.
std::vector<std::string> words(const Cluster& cluster, const Job& job, int worker, const std::string& host) {
  return {WARREN_PACER,
          cluster.address(),
          cluster.root_file(),
          std::to_string(worker),
          std::to_string(job.size),
          host,
          job.algorithm,
          std::to_string(job.elements),
          std::to_string(job.work_us)};
}

std::vector<std::unique_ptr<Child>> start_on_one_host(const Cluster& cluster, const Job& job) {
  std::vector<std::unique_ptr<Child>> workers;
  for (int w = 0; w < job.size; w++) {
    auto child = Child::start({words(cluster, job, w, "here"), cluster.file("worker.log"), {}});
    EXPECT_TRUE(child.ok()) << child.status().describe();
    workers.push_back(std::move(child).value());
  }
  return workers;
}

TEST(Stragglers, AStoppedRankIsHungAndTheWaitingOnesAreNot) {
  Verdicts verdicts;
  Cluster cluster("127.0.0.1", false, [&](std::string_view, const LogEvent& e) { verdicts.take(e); });
  const auto workers = start_on_one_host(cluster, {});
  ASSERT_TRUE(verdicts.await_plan());
  workers[2]->kill_group(SIGSTOP);
  EXPECT_THAT(verdicts.await_verdict(), HasSubstr("hung: rank 2"));
  EXPECT_THAT(verdicts.standing(), ::testing::ElementsAre("hung 2"));
  workers[2]->kill_group(SIGCONT);
  EXPECT_TRUE(verdicts.await_none_standing());
  EXPECT_EQ(verdicts.texts().size(), 1u);
  EXPECT_EQ(verdicts.ended(), "");
}

TEST(Stragglers, ARankWithATenthOfACpuIsSlow) {
  for (const milliseconds period : {milliseconds(100), milliseconds(600)}) {
    Verdicts verdicts;
    Cluster cluster("127.0.0.1", false, [&](std::string_view, const LogEvent& e) { verdicts.take(e); });
    const auto workers = start_on_one_host(cluster, {});
    ASSERT_TRUE(verdicts.await_plan());
    {
      const Starved starved([&](int signal) { workers[1]->kill_group(signal); }, period / 10, period - period / 10);
      EXPECT_THAT(verdicts.await_verdict(), HasSubstr("slow_rank: rank 1"));
    }
    EXPECT_TRUE(verdicts.await_none_standing());
    EXPECT_EQ(verdicts.texts().size(), 1u) << "its victims are not to blame";
  }
}

// Eight ranks that have as much to do, on whatever this machine has.
TEST(Stragglers, ABusyMachineIsNone) {
  const char* text = std::getenv("WARREN_TEST_STRAGGLER_SECONDS");  // NOLINT(concurrency-mt-unsafe): before any thread
  const std::chrono::seconds watched(text == nullptr ? 12 : std::atoi(text));
  for (const auto& [elements, work_us] : {std::pair{std::int64_t{1}, 0}, {1 << 20, 0}, {1 << 14, 2000}}) {
    Verdicts verdicts;
    Cluster cluster("127.0.0.1", false, [&](std::string_view, const LogEvent& e) { verdicts.take(e); });
    const auto workers = start_on_one_host(cluster, {8, "auto", elements, work_us});
    ASSERT_TRUE(verdicts.await_plan());
    std::this_thread::sleep_for(watched);  // nothing is awaited: nothing must be said
    EXPECT_THAT(verdicts.texts(), ::testing::IsEmpty());
    EXPECT_EQ(verdicts.ended(), "");
  }
}

// Last: it puts this process into a network of its own.
TEST(StragglersOfHosts, ALinkOf100MbitIsSlow) {
  const auto network = Network::create(4);
  if (!network.ok()) GTEST_SKIP() << network.status().describe();
  Network cables = network.value();
  Verdicts verdicts;
  Cluster cluster(Network::tracker_address(), false, [&](std::string_view, const LogEvent& e) { verdicts.take(e); });
  const std::string narrow =
      "tc qdisc add dev eth0 root handle 1: htb default 1 && tc class add dev eth0 parent 1: classid 1:1 htb rate "
      "10gbit quantum 60000 && tc class add dev eth0 parent 1: classid 1:2 htb rate 100mbit quantum 60000 && tc filter "
      "add dev eth0 parent 1: protocol ip u32 match ip dst 10.77.0.4/32 flowid 1:2 && exec \"$@\"";
  std::vector<std::unique_ptr<Child>> workers;
  for (int w = 0; w < 4; w++) {
    std::vector<std::string> all = Network::prefix(static_cast<std::uint32_t>(w));
    if (w == 1) all.insert(all.end(), {"/bin/sh", "-c", narrow, "sh"});
    const auto own = words(cluster, {4, "ring", 1 << 20, 1000}, w, "host" + std::to_string(w));
    all.insert(all.end(), own.begin(), own.end());
    auto child = Child::start(
        {all, cluster.file("worker.log"), [&](pid_t pid) { return cables.wire(static_cast<std::uint32_t>(w), pid); }});
    ASSERT_TRUE(child.ok()) << child.status().describe();
    workers.push_back(std::move(child).value());
  }
  ASSERT_TRUE(verdicts.await_plan());
  const std::string text = verdicts.await_verdict();
  EXPECT_THAT(text, HasSubstr("slow_link: bytes of rank 1"));
  EXPECT_THAT(text, HasSubstr("come slowly to rank 2"));
  EXPECT_THAT(verdicts.standing(), ::testing::ElementsAre("slow_link 1>2"));
  EXPECT_EQ(verdicts.ended(), "");
}

}  // namespace
}  // namespace warren

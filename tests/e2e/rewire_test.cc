// A job of real processes behind a slow link: its bytes go by way of others, and its sums stay right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
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
using ::testing::HasSubstr;

// What the narrow class of host 1's cable has carried.
std::uint64_t narrow_bytes(pid_t of_host) {
  const std::string command =
      "nsenter --net=/proc/" + std::to_string(of_host) + "/ns/net tc -s class show dev eth0 classid 1:2";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::array<char, 4096> text{};
  const std::size_t n = std::fread(text.data(), 1, text.size() - 1, pipe.get());
  const std::string said(text.data(), n);
  const std::size_t at = said.find("Sent ");
  return at == std::string::npos ? 0 : std::stoull(said.substr(at + 5));
}

TEST(Rewire, ALinkOf100MbitIsGoneAround) {
  constexpr int kRanks = 4, kRounds = 400;
  constexpr std::int64_t kElements = 1 << 20;
  const auto network = Network::create(kRanks);
  if (!network.ok()) GTEST_SKIP() << network.status().describe();
  Network cables = network.value();
  std::mutex mutex;
  std::vector<std::string> rewired, ended;
  std::uint64_t carried_before = 0;
  pid_t host1 = 0;
  const auto take = [&](std::string_view, const LogEvent& event) {
    const std::lock_guard lock(mutex);
    if (event.name == "interrupted") ended.push_back(event.text);
    if (event.name != "rewired") return;
    rewired.push_back(event.text);
    carried_before = narrow_bytes(host1);
  };
  Cluster cluster(Network::tracker_address(), false, take);
  const std::string narrow =
      "tc qdisc add dev eth0 root handle 1: htb default 1 && tc class add dev eth0 parent 1: classid 1:1 htb rate "
      "10gbit quantum 60000 && tc class add dev eth0 parent 1: classid 1:2 htb rate 100mbit quantum 60000 && tc filter "
      "add dev eth0 parent 1: protocol ip u32 match ip dst 10.77.0.4/32 flowid 1:2 && exec \"$@\"";
  std::vector<std::unique_ptr<Child>> workers;
  for (int w = 0; w < kRanks; w++) {
    std::vector<std::string> all = Network::prefix(static_cast<std::uint32_t>(w));
    if (w == 1) all.insert(all.end(), {"/bin/sh", "-c", narrow, "sh"});
    for (const std::string& word :
         {std::string(WARREN_PACER), cluster.address(), cluster.root_file(), std::to_string(w), std::to_string(kRanks),
          "host" + std::to_string(w), std::string("ring"), std::to_string(kElements), std::string("1000"),
          std::to_string(kRounds)}) {
      all.push_back(word);
    }
    auto child = Child::start(
        {all, cluster.file("worker.log"), [&](pid_t pid) { return cables.wire(static_cast<std::uint32_t>(w), pid); }});
    ASSERT_TRUE(child.ok()) << child.status().describe();
    workers.push_back(std::move(child).value());
    if (w == 1) {
      const std::lock_guard lock(mutex);
      host1 = workers.back()->pid();
    }
  }
  for (const auto& worker : workers) {
    const int status = worker->wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  const std::lock_guard lock(mutex);
  ASSERT_EQ(rewired.size(), 1u);
  EXPECT_THAT(rewired.front(), HasSubstr("go by way of ranks 0, 3"));
  ASSERT_EQ(ended.size(), 1u) << ended.back();
  EXPECT_THAT(ended.front(), HasSubstr("has been slow for"));
  // A round sends 6 MiB over each link: most had no part in it.
  const std::uint64_t all = std::uint64_t{kRounds} * kElements * 4 * 2 * (kRanks - 1) / kRanks;
  EXPECT_GT(carried_before, 0u);
  EXPECT_LT(carried_before, all / 2);
}

}  // namespace
}  // namespace warren

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

constexpr int kRanks = 4, kRounds = 400;
constexpr std::int64_t kElements = 1 << 20;
// A round sends 6 MiB over each link of the ring.
constexpr std::uint64_t kRoundBytes = std::uint64_t{kElements} * 4 * 2 * (kRanks - 1) / kRanks;

// Of host 1's cable: what goes to host 2, at 100 Mbit/s, and to host 0.
enum class Class { kNarrow = 2, kToHost0 = 3 };
std::uint64_t carried_bytes(pid_t of_host, Class what) {
  const std::string command = "nsenter --net=/proc/" + std::to_string(of_host) +
                              "/ns/net tc -s class show dev eth0 classid 1:" + std::to_string(static_cast<int>(what));
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::array<char, 4096> text{};
  const std::size_t n = std::fread(text.data(), 1, text.size() - 1, pipe.get());
  const std::string said(text.data(), n);
  const std::size_t at = said.find("Sent ");
  return at == std::string::npos ? 0 : std::stoull(said.substr(at + 5));
}

// Four ranks in a ring, each on a host of its own.
class Rewire : public ::testing::Test {
 protected:
  // Not ok: this machine has no networks to play with.
  [[nodiscard]] Status run(const std::string& setting) {
    const auto network = Network::create(kRanks);
    if (!network.ok()) return network.status();
    Network cables = network.value();
    Cluster cluster(Network::tracker_address(), false,
                    [this](std::string_view, const LogEvent& event) { take(event); });
    const std::string narrow =
        "tc qdisc add dev eth0 root handle 1: htb default 1 && tc class add dev eth0 parent 1: classid 1:1 htb rate "
        "10gbit quantum 60000 && tc class add dev eth0 parent 1: classid 1:2 htb rate 100mbit quantum 60000 && "
        "tc class add dev eth0 parent 1: classid 1:3 htb rate 10gbit quantum 60000 && "
        "tc filter add dev eth0 parent 1: protocol ip u32 match ip dst 10.77.0.4/32 flowid 1:2 && "
        "tc filter add dev eth0 parent 1: protocol ip u32 match ip dst 10.77.0.2/32 flowid 1:3 && exec \"$@\"";
    std::vector<std::unique_ptr<Child>> workers;
    for (int w = 0; w < kRanks; w++) {
      std::vector<std::string> all = Network::prefix(static_cast<std::uint32_t>(w));
      if (w == 1) all.insert(all.end(), {"/bin/sh", "-c", narrow, "sh"});
      for (const std::string& word :
           {std::string("/usr/bin/env"), setting, std::string(WARREN_PACER), cluster.address(), cluster.root_file(),
            std::to_string(w), std::to_string(kRanks), "host" + std::to_string(w), std::string("ring"),
            std::to_string(kElements), std::string("1000"), std::to_string(kRounds)}) {
        all.push_back(word);
      }
      auto child = Child::start({all, cluster.file("worker.log"),
                                 [&](pid_t pid) { return cables.wire(static_cast<std::uint32_t>(w), pid); }});
      EXPECT_TRUE(child.ok()) << child.status().describe();
      if (!child.ok()) return {};
      workers.push_back(std::move(child).value());
      if (w == 1) {
        const std::lock_guard lock(mutex_);
        host1_ = workers.back()->pid();
      }
    }
    for (const auto& worker : workers) {
      const int status = worker->wait();
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    return {};
  }

  void take(const LogEvent& event) {
    const std::lock_guard lock(mutex_);
    if (event.name == "interrupted") ended_.push_back(event.text);
    if (event.name == "rewired") {
      rewired_.push_back(event.text);
      narrow_before_ = carried_bytes(host1_, Class::kNarrow);
    }
    if (event.name == "reordered") reordered_.push_back(event.text);
    // The order is in force once a version that is two after the one of its plan has been begun.
    if (event.name != "committed" || reordered_.empty() || ++commits_ < 3) return;
    (commits_ == 3 ? to_host0_at_first_ : to_host0_at_last_) = carried_bytes(host1_, Class::kToHost0);
  }

  std::mutex mutex_;
  std::vector<std::string> rewired_, reordered_, ended_;
  std::uint64_t narrow_before_ = 0, to_host0_at_first_ = 0, to_host0_at_last_ = 0;
  std::uint64_t commits_ = 0;  // since it was said
  pid_t host1_ = 0;
};

TEST_F(Rewire, ALinkOf100MbitIsGoneAround) {
  if (const Status s = run("WARREN_DETERMINISTIC=1"); !s.ok()) GTEST_SKIP() << s.describe();
  const std::lock_guard lock(mutex_);
  ASSERT_EQ(rewired_.size(), 1u);
  EXPECT_THAT(rewired_.front(), HasSubstr("go by way of ranks 0, 3"));
  ASSERT_EQ(ended_.size(), 1u) << ended_.back();
  EXPECT_THAT(ended_.front(), HasSubstr("has been slow for"));
  EXPECT_EQ(reordered_.size(), 0u);
  // Most rounds had no part in it.
  EXPECT_GT(narrow_before_, 0u);
  EXPECT_LT(narrow_before_, kRounds * kRoundBytes / 2);
}

// Then nothing goes from rank 1 by way of rank 0 either: the next one in the ring is rank 3.
TEST_F(Rewire, WithLeaveTheRingGoesPastIt) {
  if (const Status s = run("WARREN_DETERMINISTIC=0"); !s.ok()) GTEST_SKIP() << s.describe();
  const std::lock_guard lock(mutex_);
  ASSERT_EQ(rewired_.size(), 1u);
  ASSERT_EQ(reordered_.size(), 1u);
  EXPECT_THAT(reordered_.front(), HasSubstr("past the link between rank 1 (worker 1 on host host1) and rank 2"));
  ASSERT_EQ(ended_.size(), 1u) << ended_.back();
  ASSERT_GT(commits_, 10u);
  const std::uint64_t rounds = (commits_ - 3) * 8;
  EXPECT_GT(to_host0_at_first_, kRoundBytes) << "half of some rounds went there";
  EXPECT_LT(to_host0_at_last_ - to_host0_at_first_, rounds * kRoundBytes / 20);
}

}  // namespace
}  // namespace warren

#include "tracker/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/sanitized.h"

namespace warren::tracker {
namespace {

PlannerInput worker(std::string id, std::string host, int rank = -1) {
  PlannerInput in;
  in.worker_id = std::move(id);
  in.host_id = host;
  in.domain_id = std::move(host);
  if (rank >= 0) in.rank = Rank(rank);
  return in;
}

std::vector<int> ranks(const std::vector<PlannerInput>& workers) {
  std::vector<int> out;
  for (const Rank r : plan_topology(workers).rank) out.push_back(r.value);
  return out;
}

using Ranks = std::vector<int>;

TEST(NaturalLess, CountsAsPeopleDo) {
  const std::vector<std::string> rising = {"",    "0",   "00", "01",  "1",    "2",     "9",
                                           "10",  "100", "a",  "a1",  "a1b2", "a1b10", "a2",
                                           "a10", "ab",  "b",  "w-9", "w-10", "w-10a", "w-18446744073709551616",
                                           "x"};
  for (std::size_t i = 0; i < rising.size(); ++i) {
    for (std::size_t j = 0; j < rising.size(); ++j) {
      EXPECT_EQ(natural_less(rising[i], rising[j]), i < j) << rising[i] << " < " << rising[j];
    }
  }
}

TEST(Topology, OneHostCountsUpByWorkerId) {
  EXPECT_EQ(ranks({worker("10", "h"), worker("9", "h"), worker("0", "h")}), (Ranks{2, 1, 0}));
}

TEST(Topology, TheRanksOfAHostStandTogether) {
  EXPECT_EQ(ranks({worker("0", "a"), worker("1", "b"), worker("2", "a"), worker("3", "b")}), (Ranks{0, 2, 1, 3}));
  EXPECT_EQ(ranks({worker("3", "a"), worker("1", "b"), worker("2", "a"), worker("0", "b")}), (Ranks{3, 1, 2, 0}));
}

TEST(Topology, AReplacementTakesTheGapWhereverItRuns) {
  EXPECT_EQ(ranks({worker("0", "a", 0), worker("new", "z"), worker("2", "b", 2)}), (Ranks{0, 1, 2}));
}

TEST(Topology, NewWorkersSitNextToTheirHost) {
  // Free: 1 and 4. The one of host b (ranks 3 and 5) goes to 4 though its id is the smaller.
  EXPECT_EQ(ranks({worker("0", "a", 0), worker("x2", "a"), worker("2", "b", 3), worker("x1", "b"), worker("4", "b", 5),
                   worker("5", "c", 2)}),
            (Ranks{0, 1, 3, 4, 5, 2}));
}

TEST(Topology, AWholeNewHostTakesARunThatHoldsIt) {
  // Free: 0, 2, 3. Host n has two workers, host m one.
  EXPECT_EQ(ranks({worker("a", "k", 1), worker("b", "n"), worker("c", "n"), worker("d", "m"), worker("e", "k", 4)}),
            (Ranks{1, 2, 3, 0, 4}));
}

TEST(Topology, WithoutARunThatIsLongEnoughTheLongestAreUsed) {
  // Free: 0, 2, 3, 5. Host n has three workers: 2, 3 and the first single.
  EXPECT_EQ(ranks({worker("a", "k", 1), worker("b", "n"), worker("c", "n"), worker("d", "n"), worker("e", "k", 4),
                   worker("f", "m")}),
            (Ranks{1, 0, 2, 3, 4, 5}));
}

TEST(Topology, NobodyIsAPlanToo) {
  EXPECT_TRUE(plan_topology({}).rank.empty());
}

TEST(TopologyDeathTest, TwoWorkersWithOneRankAreABug) {
  EXPECT_DEATH((void)plan_topology(std::vector{worker("a", "h", 0), worker("b", "h", 0)}), "kept ranks are distinct");
  EXPECT_DEATH((void)plan_topology(std::vector{worker("a", "h", 1)}), "kept ranks are distinct");
}

// What holds for every plan, whoever is new.
void check(const std::vector<PlannerInput>& workers, const PlannerOutput& out) {
  const std::size_t n = workers.size();
  ASSERT_EQ(out.rank.size(), n);
  std::set<int> seen;
  std::vector<std::string> host_of(n);
  for (std::size_t i = 0; i < n; ++i) {
    const int r = out.rank[i].value;
    ASSERT_TRUE(r >= 0 && r < static_cast<int>(n) && seen.insert(r).second) << "ranks are 0 to n - 1, once each";
    if (workers[i].rank) {
      ASSERT_EQ(r, workers[i].rank->value) << "a rank is kept";
    }
    host_of[static_cast<std::size_t>(r)] = workers[i].host_id;
  }
  std::map<std::string, std::uint32_t> count;
  for (std::size_t r = 0; r < n; ++r) ASSERT_EQ(out.local_rank[r], count[host_of[r]]++);
  for (std::size_t r = 0; r < n; ++r) ASSERT_EQ(out.local_size[r], count[host_of[r]]);
}

std::size_t seams(const std::vector<PlannerInput>& workers, const PlannerOutput& out) {
  std::vector<std::string> host_of(workers.size());
  for (std::size_t i = 0; i < workers.size(); ++i)
    host_of[static_cast<std::size_t>(out.rank[i].value)] = workers[i].host_id;
  std::size_t n = 0;
  for (std::size_t r = 1; r < host_of.size(); ++r) n += host_of[r] != host_of[r - 1];
  return n;
}

TEST(TopologyProperty, ThousandsOfWorlds) {
  std::mt19937_64 random(7);
  for (int world = 0; world < 3000; ++world) {
    const std::size_t n = 1 + random() % 40, hosts = 1 + random() % 8;
    std::vector<PlannerInput> workers;
    std::set<std::string> used;
    for (std::size_t i = 0; i < n; ++i) {
      workers.push_back(worker("w" + std::to_string(i), "h" + std::to_string(random() % hosts)));
      used.insert(workers.back().host_id);
    }
    std::shuffle(workers.begin(), workers.end(), random);
    const PlannerOutput first = plan_topology(workers);
    check(workers, first);
    ASSERT_EQ(seams(workers, first), used.size() - 1) << "in a new job every host is one block";
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        if (workers[i].host_id == workers[j].host_id && natural_less(workers[i].worker_id, workers[j].worker_id)) {
          ASSERT_LT(first.rank[i], first.rank[j]) << "within a host by worker id";
        }
      }
    }

    // The order in which the inputs come changes nothing.
    std::vector<PlannerInput> shuffled = workers;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    std::map<std::string, int> by_id;
    for (std::size_t i = 0; i < n; ++i) by_id[workers[i].worker_id] = first.rank[i].value;
    const PlannerOutput again = plan_topology(shuffled);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(again.rank[i].value, by_id[shuffled[i].worker_id]);

    // Some are lost; others come in their place, from anywhere.
    for (std::size_t i = 0; i < n; ++i) {
      workers[i].rank = first.rank[i];
      if (random() % 3 == 0) workers[i] = worker("r" + std::to_string(i), "h" + std::to_string(random() % (hosts + 2)));
    }
    check(workers, plan_topology(workers));
  }
}

TEST(TopologyProperty, ReplacementsFromTheSameHostsRestoreTheBlocks) {
  std::mt19937_64 random(11);
  for (int world = 0; world < 500; ++world) {
    std::vector<PlannerInput> workers;
    for (std::size_t i = 0; i < 32; ++i)
      workers.push_back(worker("w" + std::to_string(i), "h" + std::to_string(i / 8)));
    const PlannerOutput first = plan_topology(workers);
    for (std::size_t i = 0; i < 32; ++i) {
      // At least one of each host stays, so that the others know where to go.
      if (i % 8 == 0 || random() % 2 == 0) workers[i].rank = first.rank[i];
    }
    const PlannerOutput out = plan_topology(workers);
    check(workers, out);
    ASSERT_EQ(seams(workers, out), 3u);
  }
}

TEST(TopologyProperty, TheLargestWorldIsPlanned) {
  std::vector<PlannerInput> workers;
  for (int i = 0; i < (kAddressSanitized ? 2048 : 16384); ++i)
    workers.push_back(worker(std::to_string(i), "h" + std::to_string(i / 2), i % 2 ? -1 : i));
  check(workers, plan_topology(workers));
}

}  // namespace
}  // namespace warren::tracker

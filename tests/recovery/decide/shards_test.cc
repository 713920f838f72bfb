#include "recovery/decide/shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace warren {
namespace {

std::set<std::uint64_t> bytes_of(const Ranges& r) {
  std::set<std::uint64_t> out;
  for (const Interval& i : r.intervals()) {
    for (std::uint64_t v = i.begin; v < i.end; ++v) out.insert(v);
  }
  return out;
}

TEST(Shards, EveryByteIsHeldInAsManyDomainsAsThereShouldBe) {
  for (const std::vector<std::uint32_t>& domains :
       {std::vector<std::uint32_t>{0}, {0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3, 4}, {0, 1, 0, 1, 2, 2, 2}}) {
    const std::set<std::uint32_t> distinct(domains.begin(), domains.end());
    for (std::uint32_t replicas = 1; replicas <= 4; ++replicas) {
      for (const std::uint64_t total : {0ull, 1ull, 5ull, 1000ull}) {
        std::vector<std::set<std::uint32_t>> in(total);
        std::uint64_t copies = 0;
        for (std::uint32_t rank = 0; rank < domains.size(); ++rank) {
          const Ranges duty = ShardHolders(domains, replicas).duty(rank, total);
          copies += duty.size();
          for (const std::uint64_t v : bytes_of(duty)) in[v].insert(domains[rank]);
        }
        const std::uint64_t wanted = std::min<std::uint64_t>(replicas, distinct.size());
        for (const auto& d : in) EXPECT_EQ(d.size(), wanted);
        EXPECT_EQ(copies, total * wanted);  // and no more often than that
      }
    }
  }
}

// The first rank of each machine once held all second replicas of the machine before: 9 of 32 shards, the others 1.
// Ranks move from machine to machine as spares take them.
TEST(Shards, RanksOfEqualMachinesHoldEquallyMuch) {
  std::vector<std::uint32_t> domains;
  for (std::uint32_t rank = 0; rank < 32; ++rank) domains.push_back(rank / 8);
  std::mt19937 random(1);
  for (int order = 0; order < 50; ++order) {
    for (std::uint32_t replicas = 1; replicas <= 4; ++replicas) {
      const ShardHolders holders(domains, replicas);
      for (std::uint32_t rank = 0; rank < 32; ++rank) EXPECT_EQ(holders.duty(rank, 3200).size(), 100 * replicas);
    }
    std::ranges::shuffle(domains, random);
  }
}

// A machine of few ranks next to one of many: it holds what that one needs, spread over its ranks.
TEST(Shards, AMachineSpreadsWhatItHoldsOverItsRanks) {
  const std::vector<std::uint32_t> domains = {0, 0, 0, 0, 0, 0, 1, 1};
  const ShardHolders holders(domains, 2);
  EXPECT_EQ(holders.duty(6, 8).size(), 4u);
  EXPECT_EQ(holders.duty(7, 8).size(), 4u);
}

}  // namespace
}  // namespace warren

#include "recovery/decide/ring_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/sanitized.h"

namespace warren {
namespace {

using Ranks = std::vector<std::uint32_t>;

// A rank on each host, in their order.
RingProblem alone(std::uint32_t hosts, std::map<HostPair, std::uint32_t> slowness) {
  RingProblem p;
  p.hosts.resize(hosts);
  std::iota(p.hosts.begin(), p.hosts.end(), 0u);
  p.absent.assign(hosts, false);
  p.slowness = std::move(slowness);
  p.current = p.hosts;
  return p;
}

bool names_all(Ranks ranks, std::size_t n) {
  std::ranges::sort(ranks);
  for (std::size_t i = 0; i < n; ++i) {
    if (ranks.size() != n || ranks[i] != i) return false;
  }
  return true;
}

TEST(RingOrder, GoesAroundASlowLinkWithTwoNewOnes) {
  const RingProblem p = alone(4, {{{1, 2}, 1}});
  EXPECT_EQ(cost_of(p, p.current), (RingCost{1, 1, 0}));
  const Ranks found = find_ring(p);
  EXPECT_TRUE(names_all(found, 4));
  EXPECT_EQ(cost_of(p, found), (RingCost{0, 0, 2}));
}

TEST(RingOrder, StaysWhereNothingIsBetter) {
  const RingProblem usual = alone(6, {});
  EXPECT_EQ(find_ring(usual), usual.current);
  const RingProblem elsewhere = alone(6, {{{0, 2}, 3}});
  EXPECT_EQ(find_ring(elsewhere), elsewhere.current) << "no link of the ring";
  const RingProblem three = alone(3, {{{0, 1}, 1}});
  EXPECT_EQ(find_ring(three), three.current) << "three hosts have one ring";
  const RingProblem machine = alone(5, {{{0, 1}, 1}, {{1, 2}, 1}, {{1, 3}, 1}, {{1, 4}, 1}});
  EXPECT_EQ(find_ring(machine), machine.current) << "all links of a host are slow";
}

TEST(RingOrder, PrefersTheLesserEvil) {
  // Of host 0 all links are slow: two of them are needed.
  const RingProblem p = alone(5, {{{0, 1}, 4}, {{0, 2}, 1}, {{0, 3}, 2}, {{0, 4}, 4}});
  const RingCost cost = cost_of(p, find_ring(p));
  EXPECT_EQ(cost.worst, 2u);
  EXPECT_EQ(cost.sum, 3u);
}

TEST(RingOrder, KeepsRanksOfAHostTogetherAndTheDirection) {
  RingProblem p = alone(10, {{{1, 2}, 1}});
  p.hosts = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4};
  const Ranks found = find_ring(p);
  ASSERT_TRUE(names_all(found, 10));
  EXPECT_EQ(cost_of(p, found), (RingCost{0, 0, 2}));
  for (std::size_t i = 0; i < 10; i += 2) {
    EXPECT_EQ(p.hosts[found[i]], p.hosts[found[i + 1]]);
    EXPECT_LT(found[i], found[i + 1]);
  }
  // Of the three links that stay, two or more go the way that they did.
  int same = 0;
  for (std::size_t i = 0; i < 10; i += 2) same += (p.hosts[found[i]] + 1) % 5 == p.hosts[found[(i + 2) % 10]] ? 1 : 0;
  EXPECT_GE(same, 2);
}

TEST(RingOrder, WhoIsAbsentHasNoLink) {
  RingProblem p = alone(5, {{{1, 2}, 1}});
  p.absent[2] = true;
  EXPECT_EQ(cost_of(p, p.current), (RingCost{0, 0, 0}));
  EXPECT_EQ(find_ring(p), p.current);
  p = alone(6, {{{1, 2}, 1}});
  p.absent[4] = true;
  const Ranks found = find_ring(p);
  EXPECT_TRUE(names_all(found, 6));
  EXPECT_EQ(found.back(), 4u);
  EXPECT_EQ(cost_of(p, found), (RingCost{0, 0, 2}));
}

TEST(RingOrder, IsTheBestOfAllForFewHosts) {
  std::mt19937_64 random(7);
  int better = 0;
  for (int round = 0; round < 600; ++round) {
    const auto n = static_cast<std::uint32_t>(4 + round % 4);
    RingProblem p = alone(n, {});
    for (std::uint32_t a = 0; a < n; ++a) {
      for (std::uint32_t b = a + 1; b < n; ++b) {
        if (random() % 3 == 0) p.slowness[{a, b}] = static_cast<std::uint32_t>(1 + random() % 3);
      }
    }
    std::shuffle(p.current.begin(), p.current.end(), random);
    Ranks order = p.hosts;
    RingCost best = cost_of(p, p.current);
    do best = std::min(best, cost_of(p, order));
    while (std::next_permutation(order.begin() + 1, order.end()));
    const Ranks found = find_ring(p);
    const RingCost cost = cost_of(p, found), today = cost_of(p, p.current);
    ASSERT_TRUE(names_all(found, n));
    ASSERT_EQ(found, find_ring(p)) << "the same for the same";
    ASSERT_EQ(std::pair(cost.worst, cost.sum), std::pair(best.worst, best.sum)) << "problem " << round;
    if (std::pair(best.worst, best.sum) == std::pair(today.worst, today.sum)) {
      ASSERT_EQ(found, p.current) << "problem " << round;
    } else {
      ASSERT_EQ(cost, best) << "problem " << round;
      ++better;
    }
  }
  EXPECT_GT(better, 200);
}

TEST(RingOrder, OfManyHostsLeavesNoSlowLink) {
  std::mt19937_64 random(11);
  for (const std::uint32_t n : {13u, 40u, 257u, 1024u}) {
    for (int round = 0; round < (kAddressSanitized ? 2 : 10); ++round) {
      RingProblem p = alone(n, {});
      std::shuffle(p.current.begin(), p.current.end(), random);
      // A third of the ring's links, and as many others.
      for (std::uint32_t i = 0; i < n; ++i) {
        const auto other = static_cast<std::uint32_t>(random() % n);
        const std::uint32_t next = p.current[(i + 1) % n];
        if (random() % 3 == 0) p.slowness[host_pair(p.current[i], next)] = 1 + i % 2;
        if (other != i && random() % 3 == 0) p.slowness[host_pair(i, other)] = 1 + i % 2;
      }
      const Ranks found = find_ring(p);
      ASSERT_TRUE(names_all(found, n));
      EXPECT_EQ(cost_of(p, found).worst, 0u) << n << " hosts, problem " << round;
    }
  }
}

// The lesser evil, too: all links of a host are slow.
TEST(RingOrder, OfManyHostsTakesTheLeastSlowLinks) {
  RingProblem p = alone(30, {});
  for (std::uint32_t other = 1; other < 30; ++other) p.slowness[{0, other}] = other % 7 == 3 ? 1 : 4;
  const RingCost cost = cost_of(p, find_ring(p));
  EXPECT_EQ(cost.worst, 1u);
  EXPECT_EQ(cost.sum, 2u);
}

}  // namespace
}  // namespace warren

// Every schedule of every collective, all ranks together (I1, I2).
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/worker/schedule/worlds.h"

namespace warren::schedule::symbolic {
namespace {

std::vector<std::int32_t> roots(const World& world) {
  if (!has_root(world.collective)) return {0};
  if (world.size > 9) return {0, world.size * 2 / 3};
  std::vector<std::int32_t> all(static_cast<std::size_t>(world.size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

class EverySchedule : public testing::TestWithParam<std::int32_t> {
 protected:
  // All algorithms of all collectives, with every kind of root and aliasing.
  void check_all(const std::vector<Sizes>& sizes, const std::vector<Order>& orders, bool only_ring = false) {
    for (const Collective collective : kCollectives) {
      for (const Algorithm algorithm : algorithms_for(collective)) {
        if (only_ring && algorithm != Algorithm::kRing) continue;
        for (const Sizes& s : sizes) {
          if (collective == Collective::kBarrier && s.count != 0) continue;
          World world = world_of(collective, algorithm, GetParam(), s);
          for (const std::int32_t root : roots(world)) {
            world.root = root;
            const std::vector<Schedule> schedules = make_all(world);
            // In place more accesses meet than out of place, and none fewer.
            world.in_place = true;
            ASSERT_EQ(check_form(world, schedules), "") << world.describe();
            ASSERT_EQ(check_races(world, schedules), "") << world.describe();
            for (const Order order : orders) {
              world.in_place = seed_ % 2 == 0;
              ASSERT_EQ(check_run(world, schedules, order, ++seed_), "")
                  << world.describe() << ", order " << static_cast<int>(order) << ", seed " << seed_;
              ++runs_;
            }
          }
        }
      }
    }
    RecordProperty("runs", static_cast<int>(runs_));
  }

  std::uint64_t seed_ = 0;
  std::uint64_t runs_ = 0;
};

using FewRanks = EverySchedule;
TEST_P(FewRanks, IsRightForEverySizeAndOrder) {
  const auto k = static_cast<std::uint64_t>(GetParam());
  const std::vector<Sizes> sizes = {{0, 1},
                                    {0, 64},
                                    {1, 1},
                                    {1, 64},
                                    {k - 1, 1},
                                    {k, 1},
                                    {k + 1, 1},
                                    {k + 1, 64},
                                    {k, 256},
                                    {3 * k + 2, 2},
                                    {5 * k + 3, 1},
                                    {9 * k * 2 + 5, 3},
                                    {2 * k + 1, 1000},
                                    {64, 64},
                                    {130, 64}};
  // Each order out of place and in place.
  check_all(sizes, {Order::kInOrder, Order::kInOrder, Order::kRandom, Order::kRandom, Order::kLateSends,
                    Order::kLateSends, Order::kLateLocal, Order::kLateLocal});
}
INSTANTIATE_TEST_SUITE_P(Size, FewRanks, testing::Range(1, 10));

using ManyRanks = EverySchedule;
TEST_P(ManyRanks, IsRightForSomeSizes) {
  const auto k = static_cast<std::uint64_t>(GetParam());
  const Order order = GetParam() % 2 == 0 ? Order::kRandom : Order::kLateSends;
  // Above 32 the two sizes take turns, and whether it is in place: half of the time of all.
  const bool all = GetParam() <= 32 || GetParam() == 64;
  std::vector<Sizes> sizes = {{0, 1}};
  if (all || GetParam() / 2 % 2 == 0) sizes.push_back({k + 1, 256});
  if (all || GetParam() / 2 % 2 == 1) sizes.push_back({5 * k + 3, 3});
  if (!all) seed_ = k / 4;
  check_all(sizes, {order});
  // Segments that are more than one turn long.
  if (GetParam() % 16 == 3 || GetParam() == 64) check_all({{5 * k + 3, 1}}, {Order::kRandom}, true);
}
INSTANTIATE_TEST_SUITE_P(Size, ManyRanks, testing::Range(10, 65));

// Turns of 5, 11 and 16 chunks, and what is left.
using LongTurns = EverySchedule;
TEST_P(LongTurns, OfARingAreRight) {
  const auto k = static_cast<std::uint64_t>(GetParam());
  check_all({{61 * k + 3, 1}, {140 * k + 1, 1}, {200 * k + 5, 1}}, {Order::kRandom, Order::kLateSends}, true);
}
INSTANTIATE_TEST_SUITE_P(Size, LongTurns, testing::Values(2, 3, 5));

// Bracketed by positions; which rank has which makes no other difference.
TEST(Schedule, OfARingInAnyOrderOfRanks) {
  std::uint64_t seed = 0;
  for (std::int32_t size = 1; size <= 17; ++size) {
    const auto k = static_cast<std::uint64_t>(size);
    for (const Sizes& s : {Sizes{0, 1}, Sizes{k - 1, 1}, Sizes{5 * k + 3, 3}, Sizes{61 * k + 3, 1}}) {
      for (const Placement& place : placements(size)) {
        World world = world_of(Collective::kAllreduce, Algorithm::kRing, size, s);
        world.order = any_order(size, ++seed);
        place.put(world);
        std::mt19937_64 random(seed);
        world.replicas = static_cast<std::uint32_t>(random() % 3);
        world.element_bytes = random() % 2 == 0 ? 1 : kWholeBytes + 1;
        world.in_place = true;
        const std::vector<Schedule> schedules = make_all(world);
        world.in_place = random() % 2 == 0;
        ASSERT_EQ(check(world, schedules, random() % 2 == 0 ? Order::kRandom : Order::kLateSends, seed), "")
            << world.describe();
        for (std::int32_t rank = 0; rank < size && size > 2 && place.hosts.empty(); ++rank) {
          const auto at = std::ranges::find(world.order, static_cast<std::uint32_t>(rank)) - world.order.begin();
          const auto next = static_cast<std::int32_t>(world.order[static_cast<std::size_t>((at + 1) % size)]);
          for (const Step& step : schedules[static_cast<std::size_t>(rank)].steps) {
            ASSERT_TRUE(step.kind != StepKind::kSend || step.peer == next) << world.describe();
          }
        }
      }
    }
  }
}

std::uint64_t longest_step(const std::vector<Schedule>& schedules) {
  std::uint64_t longest = 0;
  for (const Schedule& schedule : schedules) {
    for (const Step& step : schedule.steps) longest = std::max(longest, step.count);
  }
  return longest;
}

TEST(Schedule, WhereThereAreGpusNeighbouringChunksAreOnePiece) {
  constexpr std::uint64_t kElement = kWholeBytes + 1, kMostOfAHost = 7, kMostExchanged = 15;
  std::uint64_t seed = 0;
  for (const std::int32_t size : {2, 3, 5}) {
    const auto k = static_cast<std::uint64_t>(size);
    for (const std::uint64_t chunks : {7, 8, 9, 12, 31, 61}) {
      for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter}) {
        for (const bool exchanges : {false, true}) {
          const bool whole = collective == Collective::kAllreduce;
          // Some segments have a chunk more than others.
          World world{.collective = collective, .algorithm = Algorithm::kRing, .size = size};
          world.count = whole ? chunks * k + 1 : chunks;
          world.hosts.assign(k, 7);
          world.on = {.maps = true, .cores = 2, .gpus = true};
          world.element_bytes = kElement;
          world.replicas = 1 + static_cast<std::uint32_t>(seed % 2);
          world.exchanges = exchanges;
          if (exchanges && !can_exchange(world.request(0))) continue;
          world.in_place = true;
          std::vector<Schedule> schedules = make_all(world);
          const std::uint64_t most = exchanges ? kMostExchanged : kMostOfAHost;
          const std::uint64_t units = whole ? chunks + 1 : chunks;
          EXPECT_EQ(longest_step(schedules), std::clamp<std::uint64_t>(units / 4, 1, most)) << world.describe();
          world.in_place = ++seed % 2 == 0;
          ASSERT_EQ(check(world, schedules, seed % 4 < 2 ? Order::kRandom : Order::kLateSends, seed), "")
              << world.describe();
          // A later attempt finds single chunks.
          world.exchanges = false;
          world.resumed = true;
          EXPECT_EQ(longest_step(make_all(world)), 1u) << world.describe();
        }
      }
    }
  }
}

// Who keeps copies for another failure domain of its host received joined pieces into slots of a chunk each, one over
// the other.
TEST(Schedule, WhatIsKeptForOtherDomainsOfAHostHasRoom) {
  for (const std::int32_t size : {2, 3, 4, 8}) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
      World world{.collective = Collective::kReduceScatter, .algorithm = algorithm, .size = size};
      world.count = 31;
      world.hosts.assign(static_cast<std::size_t>(size), 7);
      for (std::int32_t rank = 0; rank < size; ++rank) world.domains.push_back(static_cast<std::uint32_t>(rank % 2));
      world.on = {.maps = true, .cores = 2, .gpus = true};
      world.element_bytes = kWholeBytes + 1;
      world.replicas = 2;
      world.in_place = true;
      const std::vector<Schedule> schedules = make_all(world);
      EXPECT_EQ(longest_step(schedules), 1u) << world.describe();
      ASSERT_EQ(check_form(world, schedules), "") << world.describe();
      ASSERT_EQ(check_races(world, schedules), "") << world.describe();
    }
  }
}

// Of each peer some lie on the GPU at once.
TEST(Schedule, ManyRanksExchangeSmallerPieces) {
  World world{.collective = Collective::kAllreduce, .algorithm = Algorithm::kRing, .size = 64};
  world.count = 64 * 61;
  world.element_bytes = kWholeBytes + 1;
  world.replicas = 2;
  world.exchanges = true;
  EXPECT_EQ(longest_step({make(world.request(0)).value()}), 5u) << "64 MiB for three of each of 63";
}

// From some size on, as GPUs then have a part in it; below, inputs of two ranks go as messages.
TEST(Schedule, TwoRanksOfAHostLendEachOtherLargeInputs) {
  std::uint64_t seed = 0;
  for (const std::uint64_t count : {20, 32, 33, 100, 331}) {
    for (const std::uint64_t chunk : {1, 7, 40, 1000}) {
      for (const std::uint32_t replicas : {0u, 1u, 2u}) {
        World world = world_of(Collective::kAllreduce, Algorithm::kButterfly, 2, {count, chunk});
        world.hosts = {4, 4};
        world.replicas = replicas;
        world.element_bytes = 64 << 10;
        world.in_place = true;
        const std::vector<Schedule> schedules = make_all(world);
        world.in_place = ++seed % 2 == 0;
        ASSERT_EQ(check(world, schedules, seed % 4 < 2 ? Order::kRandom : Order::kLateSends, seed), "")
            << world.describe();
        for (const Schedule& schedule : schedules) {
          std::uint64_t lent = 0;
          for (const Step& step : schedule.steps) lent += step.lent ? step.count : 0;
          // Half of the input; what takes one message each way goes at once.
          const bool at_once = count <= chunk / 16;
          EXPECT_EQ(lent > 0, count > 32 && !at_once) << world.describe();
          if (lent > 0) {
            EXPECT_NEAR(static_cast<double>(lent), static_cast<double>(count) / 2,
                        static_cast<double>(count) / 2 * 0.1);
          }
        }
      }
    }
  }
}

// One hop, and one pass over all inputs, which are lent where somebody says when they have been read.
TEST(Schedule, AReduceScatterOnAHostGoesStraightToItsOwners) {
  std::uint64_t seed = 0;
  for (const std::int32_t size : {2, 3, 4, 7, 16, 17}) {
    for (const Algorithm algorithm : algorithms_for(Collective::kReduceScatter)) {
      for (const Sizes& s : {Sizes{3, 1}, Sizes{5, 64}, Sizes{11, 4}, Sizes{40, 3}}) {
        for (const std::uint32_t replicas : {0u, 1u, 2u}) {
          World world{.collective = Collective::kReduceScatter, .algorithm = algorithm, .size = size};
          world.count = s.count;
          world.chunk_elements = s.chunk_elements;
          world.hosts.assign(static_cast<std::size_t>(size), 4);
          world.replicas = replicas;
          world.element_bytes = 8 << 10;
          world.in_place = true;
          const std::vector<Schedule> schedules = make_all(world);
          const bool straight = size <= 16 && s.count >= 2 && s.count * world.element_bytes >= (16 << 10);
          world.in_place = ++seed % 2 == 0;
          const Order order = seed % 3 == 0 ? Order::kRandom : seed % 3 == 1 ? Order::kLateSends : Order::kLateLocal;
          ASSERT_EQ(check(world, schedules, order, seed), "") << world.describe();
          for (const Schedule& schedule : schedules) {
            std::uint64_t lent = 0, sent = 0;
            std::size_t combines = 0, reduces = 0;
            for (const Step& step : schedule.steps) {
              if (step.kind == StepKind::kSend && step.count != 0) (step.lent ? lent : sent) += step.count;
              if (step.kind == StepKind::kCombine) combines++;
              if (step.kind == StepKind::kReduce) reduces++;
            }
            const std::uint64_t theirs = s.count * static_cast<std::uint64_t>(size - 1);
            ASSERT_EQ(lent + sent, theirs) << world.describe();
            ASSERT_EQ(lent, straight && replicas > 0 ? theirs : 0) << world.describe();
            ASSERT_EQ(combines == 0, !straight);
            ASSERT_EQ(reduces == 0, straight);
          }
        }
      }
    }
  }
}

TEST(Schedule, IsAPureFunctionOfItsRequest) {
  for (const Collective collective : kCollectives) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      World world{.collective = collective, .algorithm = algorithm, .size = 6, .count = 50, .counts = {}};
      world.chunk_elements = 4;
      world.counts = equal_counts(collective, 6, 5);
      if (!world.counts.empty()) world.counts[2] = 0;
      if (!world.counts.empty()) world.counts[3] = 30;
      const std::vector<Schedule> once = make_all(world);
      const std::vector<Schedule> again = make_all(world);
      for (std::size_t rank = 0; rank < once.size(); ++rank) {
        EXPECT_EQ(once[rank].successors, again[rank].successors);
        EXPECT_EQ(once[rank].pending, again[rank].pending);
        ASSERT_EQ(once[rank].steps.size(), again[rank].steps.size());
        for (std::size_t i = 0; i < once[rank].steps.size(); ++i) {
          const Step& a = once[rank].steps[i];
          const Step& b = again[rank].steps[i];
          EXPECT_TRUE(a.kind == b.kind && a.finish == b.finish && a.peer == b.peer && a.message == b.message &&
                      a.count == b.count && a.a == b.a && a.b == b.b && a.dst == b.dst);
        }
      }
    }
  }
}

TEST(Schedule, LongTurnsOfARingTakeMoreScratchUpToALimit) {
  for (const std::uint64_t chunks : {192, 1000}) {
    World world{.collective = Collective::kAllreduce, .algorithm = Algorithm::kRing, .size = 4, .counts = {}};
    world.chunk_elements = 64;
    world.count = 4 * chunks * 64;
    for (const Schedule& schedule : make_all(world)) EXPECT_EQ(schedule.scratch_elements, 22u * 64);
  }
}

// Scratch depends on the chunk and on how many peers a rank has, never on the size of the buffer.
TEST(Schedule, ScratchIsAFewChunksAPeer) {
  constexpr std::uint64_t kChunk = 64;
  for (const Collective collective : kCollectives) {
    if (collective == Collective::kBarrier) continue;
    for (const Algorithm algorithm : algorithms_for(collective)) {
      for (const std::int32_t size : {2, 3, 8, 13, 64}) {
        World world{.collective = collective, .algorithm = algorithm, .size = size, .counts = {}};
        world.chunk_elements = kChunk;
        std::uint64_t before = 0;
        for (const std::uint64_t chunks : {5, 15}) {
          world.count = chunks * kChunk;
          if (collective == Collective::kAllreduce) world.count *= static_cast<std::uint64_t>(size);
          world.counts = equal_counts(collective, size, world.count);
          std::uint64_t most = 0;
          for (const Schedule& schedule : make_all(world)) {
            std::set<std::int32_t> peers;
            for (const Step& step : schedule.steps) {
              if (step.peer >= 0) peers.insert(step.peer);
            }
            EXPECT_LE(schedule.scratch_elements, (6 * peers.size() + 4) * kChunk) << world.describe();
            most = std::max(most, schedule.scratch_elements);
          }
          if (before != 0) {
            EXPECT_EQ(most, before) << world.describe();
          }
          before = most;
        }
      }
    }
  }
}

}  // namespace
}  // namespace warren::schedule::symbolic

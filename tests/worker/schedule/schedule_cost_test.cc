// What schedules cost, against the formulas and against the table of docs/algorithms.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "tests/worker/schedule/worlds.h"

namespace warren::schedule::symbolic {
namespace {

struct Totals {
  std::uint64_t most_sent = 0, most_received = 0, all_messages = 0, most_scratch = 0;
};

Totals totals(const World& world) {
  Totals totals;
  for (const Schedule& schedule : make_all(world)) {
    const Cost c = cost(schedule);
    totals.most_sent = std::max(totals.most_sent, c.sent_elements);
    totals.most_received = std::max(totals.most_received, c.received_elements);
    totals.all_messages += c.sends;
    totals.most_scratch = std::max(totals.most_scratch, schedule.scratch_elements);
  }
  return totals;
}

World allreduce(Algorithm algorithm, std::int32_t size, std::uint64_t count, std::uint64_t chunk_elements) {
  World world{.collective = Collective::kAllreduce, .algorithm = algorithm, .size = size, .counts = {}};
  world.count = count;
  world.chunk_elements = chunk_elements;
  return world;
}

TEST(Cost, TheRingMovesEachElementTwiceLessOneSegment) {
  for (const std::int32_t size : {2, 3, 7, 8, 64}) {
    const auto k = static_cast<std::uint64_t>(size);
    const std::uint64_t n = k * 100;
    for (const Schedule& schedule : make_all(allreduce(Algorithm::kRing, size, n, 30))) {
      const Cost c = cost(schedule);
      EXPECT_EQ(c.sent_elements, 2 * n * (k - 1) / k);
      EXPECT_EQ(c.received_elements, 2 * n * (k - 1) / k);
      EXPECT_EQ(c.reduced_elements, n * (k - 1) / k);
      EXPECT_EQ(c.copied_elements, n * (k - 1) / k);
      EXPECT_EQ(c.sends, 2 * (k - 1) * 4);  // 100 elements are four chunks
      EXPECT_EQ(c.receives, 2 * (k - 1) * 4);
    }
    EXPECT_EQ(hops(make_all(allreduce(Algorithm::kRing, size, n, 100))), 2 * (k - 1));
  }
}

TEST(Cost, TheButterflyMovesAsMuchInFewerSteps) {
  for (const std::int32_t size : {2, 4, 16, 64}) {
    const auto k = static_cast<std::uint64_t>(size);
    const auto levels = static_cast<std::uint32_t>(std::countr_zero(k));
    const std::uint64_t n = k * 100;
    for (const Schedule& schedule : make_all(allreduce(Algorithm::kButterfly, size, n, n))) {
      EXPECT_EQ(cost(schedule).sent_elements, 2 * n * (k - 1) / k);
      EXPECT_EQ(cost(schedule).sends, 2 * levels);
    }
    EXPECT_EQ(hops(make_all(allreduce(Algorithm::kButterfly, size, n, n))), 2 * levels);
    EXPECT_EQ(hops(make_all(allreduce(Algorithm::kButterfly, size, n, 16 * n))), levels);
    for (const Schedule& schedule : make_all(allreduce(Algorithm::kButterfly, size, n, 16 * n))) {
      EXPECT_EQ(cost(schedule).sent_elements, n * levels);
    }
  }
}

// Eight ranks on two cores, 96 KiB: a message a rank each way.
TEST(Cost, OneOwnerOfAHostThatSharesCoresTakesFewestMessages) {
  World world = allreduce(Algorithm::kButterfly, 8, 96 << 10, 256 << 10);
  world.hosts.assign(8, 1);
  const std::uint64_t each_owns = totals(world).all_messages;
  world.on.cores = 2;
  EXPECT_EQ(totals(world).all_messages, 2U * 7);
  EXPECT_GT(each_owns, 40U);
  EXPECT_EQ(hops(make_all(world)), 2U);
  world.on.maps = false;
  EXPECT_EQ(totals(world).all_messages, 2U * 7);
  // A core for each, or for many; or cores that are not known.
  for (const std::uint32_t cores : {0U, 5U, 8U}) {
    world.on = {.maps = true, .cores = cores};
    EXPECT_EQ(totals(world).all_messages, each_owns);
  }
  // More cores, or bytes: the owners' messages are carried out by all of them.
  world.on.cores = 4;
  EXPECT_EQ(totals(world).all_messages, each_owns);
  world.count = 64 << 10;
  EXPECT_EQ(totals(world).all_messages, 2U * 7);
  world.on.cores = 2;
  world.count = (256 << 10) + 1;
  EXPECT_GT(totals(world).all_messages, 40U);
}

TEST(Cost, TheOneOwnerIsWhoIsNamed) {
  World world = allreduce(Algorithm::kButterfly, 5, 600, 256);
  world.hosts.assign(5, 1);
  world.on.cores = 2;
  world.replicas = 2;
  for (world.owner = 0; world.owner < 5; ++world.owner) {
    EXPECT_TRUE(has_owner(world.request(0)));
    const std::vector<Schedule> schedules = make_all(world);
    EXPECT_EQ(check(world, schedules, Order::kRandom, 7), "");
    for (std::int32_t rank = 0; rank < 5; ++rank) {
      const Cost c = cost(schedules[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(c.published_elements, rank == world.owner ? 600U : 0U);
      EXPECT_EQ(c.sends, (rank == world.owner ? 4U : 1U) * 4);  // two parts of each of two blocks
    }
  }
}

bool moves_alike(const World& a, const World& b) {
  const std::vector<Schedule> one = make_all(a), other = make_all(b);
  return std::ranges::equal(one, other, [](const Schedule& x, const Schedule& y) {
    return std::ranges::equal(x.steps, y.steps, [](const Step& p, const Step& q) {
      return p.kind == q.kind && p.peer == q.peer && p.count == q.count;
    });
  });
}

// More than four ranks of a host that send each other bytes by TCP go as ranks of different hosts do.
TEST(Cost, ByTcpManyRanksOfAHostAreAsFarFromEachOtherAsHosts) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kButterfly}) {
    for (const std::int32_t size : {4, 5, 8}) {
      const World apart = allreduce(algorithm, size, 4 << 20, 1 << 20);
      World together = apart;
      together.hosts.assign(static_cast<std::size_t>(size), 1);
      EXPECT_FALSE(moves_alike(together, apart));
      together.on.maps = false;
      EXPECT_EQ(moves_alike(together, apart), size > 4) << together.describe();
    }
  }
}

TEST(Cost, TheStarsRootMovesEverythingForEverybody) {
  const Schedule root = make_all(allreduce(Algorithm::kStar, 8, 1000, 100))[0];
  EXPECT_EQ(cost(root).sent_elements + cost(root).received_elements, 2 * 1000U * 7);
  EXPECT_EQ(cost(root).reduced_elements, 1000U * 7);
  EXPECT_EQ(hops(make_all(allreduce(Algorithm::kStar, 8, 1000, 1000))), 2U);
}

// Chunks let all ranks of a chain be busy at once: it is as long as the chain and the chunks together.
TEST(Cost, AChainCarriesTheBufferOnce) {
  World world{
      .collective = Collective::kBroadcast, .algorithm = Algorithm::kRing, .size = 8, .count = 1000, .counts = {}};
  world.chunk_elements = 100;
  for (const Schedule& schedule : make_all(world)) {
    EXPECT_LE(cost(schedule).sent_elements, 1000U);
    EXPECT_LE(cost(schedule).received_elements, 1000U);
  }
  EXPECT_EQ(hops(make_all(world)), 7U);
}

struct Logged {
  std::uint64_t published = 0, publishes = 0, sent = 0, messages = 0;
};

Logged logged(const World& world) {
  Logged all;
  for (const Schedule& schedule : make_all(world)) {
    const Cost c = cost(schedule);
    all.published += c.published_elements;
    all.publishes += c.publishes;
    all.sent += c.sent_elements;
    all.messages += c.sends;
  }
  return all;
}

// What is logged over the uninterrupted ring travels nowhere, and is min(R, domains) times the result.
TEST(Cost, TheRingLogsWithoutAMessage) {
  for (const std::int32_t size : {2, 5, 8, 16}) {
    World world = allreduce(Algorithm::kRing, size, 1000, 30);
    world.element_bytes = kWholeBytes;
    for (const Placement& place : placements(size)) {
      if (!place.domains.empty()) continue;  // hosts that share a domain publish more than they must
      place.put(world);
      const Logged without = logged(world);
      EXPECT_EQ(without.publishes, 0U);
      std::set<std::uint32_t> domains;
      for (std::int32_t rank = 0; rank < size; ++rank) domains.insert(world.domain(rank));
      for (world.replicas = 1; world.replicas <= 3; ++world.replicas) {
        const Logged with = logged(world);
        EXPECT_EQ(with.published, 1000 * std::min<std::uint64_t>(world.replicas, domains.size())) << world.describe();
        EXPECT_EQ(with.messages, without.messages);
        EXPECT_EQ(with.sent, without.sent);
      }
      world.replicas = 0;
    }
  }
}

// Where results differ by rank, the owner sends what it reduced to where the other copies are kept. What it received as
// it is, its sender keeps. The closing exchange is empty.
TEST(Cost, OneSidedResultsAreSentToWhereTheirCopiesAre) {
  for (const Collective collective : {Collective::kReduce, Collective::kReduceScatter, Collective::kGather,
                                      Collective::kScatter, Collective::kAllToAll}) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      World world = world_of(collective, algorithm, 8, {80, 5});
      const bool reduces = collective == Collective::kReduce || collective == Collective::kReduceScatter;
      const std::uint64_t blocks = collective == Collective::kReduce ? 1 : collective == Collective::kAllToAll ? 64 : 8;
      const std::uint64_t own = collective == Collective::kAllToAll ? 8 : 1;
      const std::uint64_t chunks = world.count / 5;  // of each block
      const Logged without = logged(world);
      for (world.replicas = 1; world.replicas <= 3; ++world.replicas) {
        const Logged with = logged(world);
        EXPECT_EQ(with.published, world.replicas * blocks * world.count);
        std::uint64_t sent = blocks * (world.replicas - 1);
        if (!reduces && world.replicas > 1) sent -= blocks - own;
        EXPECT_EQ(with.sent - without.sent, sent * world.count) << world.describe();
        // The keepers tell the root, which tells all; or all tell one rank, which tells all.
        const bool at_root = collective == Collective::kReduce || collective == Collective::kGather;
        const std::uint64_t closing = (at_root ? world.replicas - 1 : 7) + 7;
        EXPECT_EQ(with.messages - without.messages, sent * chunks + closing) << world.describe();
      }
    }
  }
}

// The columns of the document that are counted, as it must print them: 8 ranks, buffers of 1,048,576 elements in all,
// chunks of 65,536; hops and messages for one element a rank.
constexpr std::int32_t kSize = 8;

World large(Collective collective, Algorithm algorithm) {
  constexpr std::uint64_t kElements = std::uint64_t{1} << 20;
  World world{.collective = collective, .algorithm = algorithm, .size = kSize};
  world.chunk_elements = std::uint64_t{1} << 16;
  const bool whole =
      collective == Collective::kAllreduce || collective == Collective::kReduce || collective == Collective::kBroadcast;
  world.count = whole ? kElements : kElements / kSize;
  world.counts = equal_counts(world.collective, kSize, world.count);
  return world;
}

World one_element_a_rank(World world) {
  world.count = 1;
  world.counts = equal_counts(world.collective, kSize, world.count);
  return world;
}

std::vector<std::string> counted(Collective collective, Algorithm algorithm) {
  const World world = large(collective, algorithm);
  const World small = one_element_a_rank(world);
  const Totals of_large = totals(world);
  std::vector<std::string> columns;
  for (const std::uint64_t number : {std::uint64_t{hops(make_all(small))}, totals(small).all_messages,
                                     of_large.most_sent, of_large.most_received, of_large.most_scratch}) {
    columns.push_back(std::to_string(number));
  }
  return columns;
}

// The same of what the log adds: copies of the result for R = 1, 2, 3, and messages for R = 2, 3, every rank a host and
// a domain of its own.
std::vector<std::string> counted_logged(Collective collective, Algorithm algorithm) {
  std::vector<std::string> columns;
  for (const std::uint32_t replicas : {1U, 2U, 3U}) {
    World world = large(collective, algorithm);
    world.replicas = replicas;
    const Logged all = logged(world);
    const bool all_to_all = collective == Collective::kAllToAll || collective == Collective::kAllToAllv;
    const std::uint64_t result = all_to_all ? std::uint64_t{kSize} << 20 : std::uint64_t{1} << 20;
    EXPECT_EQ(all.published % result, 0U);
    columns.push_back(std::to_string(collective == Collective::kBarrier ? all.publishes : all.published / result));
  }
  for (const std::uint32_t replicas : {2U, 3U}) {
    World world = one_element_a_rank(large(collective, algorithm));
    const std::uint64_t without = logged(world).messages;
    world.replicas = replicas;
    columns.push_back(std::to_string(logged(world).messages - without));
  }
  return columns;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, '|');) {
    const auto first = cell.find_first_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return cells;
}

// Rows: | collective | algorithm | hops | counted | messages | sent | counted | received | counted | scratch |
// and, of the log: | collective | algorithm | copies | R = 1 | 2 | 3 | messages | R = 2 | 3 |
TEST(Cost, TheDocumentPrintsWhatIsCounted) {
  std::ifstream document(WARREN_SOURCE_DIR "/docs/algorithms.md");
  ASSERT_TRUE(document.is_open());
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> rows, logged_rows;
  for (std::string line; std::getline(document, line);) {
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() == 11) rows[{cells[1], cells[2]}] = {cells[4], cells[5], cells[7], cells[9], cells[10]};
    if (cells.size() == 10) logged_rows[{cells[1], cells[2]}] = {cells[4], cells[5], cells[6], cells[8], cells[9]};
  }
  std::size_t served = 0;
  for (const Collective collective : kCollectives) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      ++served;
      const std::pair<std::string, std::string> key{warren::to_string(collective), to_string(algorithm)};
      EXPECT_EQ(rows[key], counted(collective, algorithm)) << "row of " << key.first << " by " << key.second;
      EXPECT_EQ(logged_rows[key], counted_logged(collective, algorithm))
          << "row of the log of " << key.first << " by " << key.second;
    }
  }
  EXPECT_EQ(logged_rows.size(), served + 2) << "a row for each pair, a head and its rule";
  EXPECT_EQ(rows.size(), served + 2) << "a row for each pair, a head and its rule";
}

}  // namespace
}  // namespace warren::schedule::symbolic

// Allreduces, reduce_scatters and allgathers among hosts of which some have several ranks: right for every layout, and
// what crosses between hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <iomanip>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "tests/worker/schedule/worlds.h"
#include "worker/schedule/generators.h"

namespace warren::schedule::symbolic {
namespace {

struct Way {
  Collective collective{};
  Algorithm algorithm{};
};
constexpr Way kAllreduces[] = {{Collective::kAllreduce, Algorithm::kRing},
                               {Collective::kAllreduce, Algorithm::kButterfly}};
constexpr Way kReductions[] = {
    {Collective::kAllreduce, Algorithm::kRing},      {Collective::kAllreduce, Algorithm::kButterfly},
    {Collective::kReduceScatter, Algorithm::kRing},  {Collective::kReduceScatter, Algorithm::kDirect},
    {Collective::kReduceScatterv, Algorithm::kRing}, {Collective::kReduceScatterv, Algorithm::kDirect}};
constexpr Way kWays[] = {
    {Collective::kAllreduce, Algorithm::kRing},     {Collective::kAllreduce, Algorithm::kButterfly},
    {Collective::kReduceScatter, Algorithm::kRing}, {Collective::kReduceScatter, Algorithm::kDirect},
    {Collective::kAllgather, Algorithm::kRing},     {Collective::kAllgather, Algorithm::kDirect},
    {Collective::kAllgatherv, Algorithm::kRing},    {Collective::kAllgatherv, Algorithm::kDirect}};
constexpr Order kOrders[] = {Order::kInOrder,   Order::kRandom,      Order::kLateSends,
                             Order::kLateLocal, Order::kLatePublish, Order::kEagerSends};

World world_on(const Way& way, const std::vector<std::uint32_t>& hosts, const Sizes& sizes) {
  World world = world_of(way.collective, way.algorithm, static_cast<std::int32_t>(hosts.size()), sizes);
  world.hosts = hosts;
  world.element_bytes = kWholeBytes + 1;  // nothing is little
  return world;
}

// Hosts of these sizes, side by side.
std::vector<std::uint32_t> side_by_side(const std::vector<std::size_t>& sizes) {
  std::vector<std::uint32_t> hosts;
  for (std::size_t host = 0; host < sizes.size(); ++host) {
    hosts.insert(hosts.end(), sizes[host], static_cast<std::uint32_t>(host));
  }
  return hosts;
}

std::vector<std::vector<std::uint32_t>> layouts(std::int32_t size) {
  std::vector<std::vector<std::uint32_t>> all;
  const auto k = static_cast<std::uint32_t>(size);
  for (std::uint32_t share = 2; share <= 5; ++share) {
    std::vector<std::uint32_t> equal, turns, growing;
    for (std::uint32_t rank = 0; rank < k; ++rank) {
      equal.push_back(rank / share);
      turns.push_back(rank % share);
      growing.push_back(share * rank * rank / (k * k));
    }
    all.insert(all.end(), {equal, turns, growing});
  }
  all.push_back(side_by_side({k - 1, 1}));
  all.push_back(side_by_side({1, k - 1}));
  std::mt19937_64 random(k);
  for (int i = 0; i < 6; ++i) {
    std::vector<std::uint32_t>& any = all.emplace_back();
    const std::uint64_t hosts = 2 + random() % (k - 1);
    for (std::uint32_t rank = 0; rank < k; ++rank) any.push_back(static_cast<std::uint32_t>(random() % hosts));
  }
  return all;
}

class EveryLayout : public testing::TestWithParam<std::int32_t> {};

TEST_P(EveryLayout, IsRightInEveryOrderWithAndWithoutALog) {
  const auto k = static_cast<std::uint64_t>(GetParam());
  std::uint64_t seed = 100 * k;
  int by_hosts = 0;
  for (const std::vector<std::uint32_t>& hosts : layouts(GetParam())) {
    for (const Way& way : kWays) {
      for (const Sizes& sizes : {Sizes{0, 64}, Sizes{k + 1, 3}, Sizes{3 * k + 2, 2}, Sizes{9 * k + 5, 3}}) {
        World world = world_on(way, hosts, sizes);
        if (!on_several_hosts(world.request(0))) continue;
        ++by_hosts;
        world.replicas = static_cast<std::uint32_t>(++seed % 4);
        world.in_place = true;
        const bool has_order = way.collective == Collective::kAllreduce && way.algorithm == Algorithm::kRing;
        if (has_order && seed % 3 == 0) world.order = any_order(GetParam(), seed);
        const std::vector<Schedule> schedules = make_all(world);
        for (const Order order : {kOrders[seed % std::size(kOrders)], Order::kRandom}) {
          world.in_place = seed % 2 == 0 || order == Order::kRandom;
          ASSERT_EQ(check(world, schedules, order, seed), "")
              << world.describe() << ", order " << static_cast<int>(order) << ", seed " << seed;
        }
      }
    }
  }
  EXPECT_GT(by_hosts, 20);
}
INSTANTIATE_TEST_SUITE_P(Size, EveryLayout, testing::Range(3, 17));

// --- Many hosts, and many ranks of a host

TEST(Wide, IsRightInEveryOrder) {
  const std::vector<std::vector<std::size_t>> shapes = {
      std::vector<std::size_t>(20, 2), {1, 20, 19}, {40, 1}, std::vector<std::size_t>(3, 17)};
  std::uint64_t seed = 0;
  int by_hosts = 0;
  for (const std::vector<std::size_t>& shape : shapes) {
    const std::vector<std::uint32_t> hosts = side_by_side(shape);
    for (const Way& way : kWays) {
      World world = world_on(way, hosts, {2 * hosts.size() + 3, 3});
      by_hosts += on_several_hosts(world.request(0)) ? 1 : 0;
      // Each of the 8 ways has another number of replicas in each of the 4 shapes.
      ++seed;
      world.replicas = static_cast<std::uint32_t>(seed / 8 + seed) % 4;
      world.on.maps = true;
      const Order order = kOrders[seed % std::size(kOrders)];
      ASSERT_EQ(check(world, make_all(world), order, seed), "") << world.describe() << ", seed " << seed;
    }
  }
  EXPECT_GT(by_hosts, 24);
}

// Elements of a rank's messages to one of its peers, and from it.
struct Talk {
  std::vector<std::uint64_t> sent, received;
};
std::map<std::int32_t, Talk> talks(const World& world, std::int32_t rank) {
  const Result<Schedule> made = make(world.request(rank));
  EXPECT_TRUE(made.ok()) << made.status().describe();
  std::map<std::int32_t, Talk> all;
  for (const Step& step : made.value().steps) {
    if (step.kind == StepKind::kSend) all[step.peer].sent.push_back(step.count);
    if (step.kind == StepKind::kRecv) all[step.peer].received.push_back(step.count);
  }
  return all;
}

// A rank talks to its host and to its neighbours of two other hosts, and they expect just these messages. The ranks of
// a host share out what crosses.
TEST(Wide, AThousandHostsOfEightTalkToTheirNeighbours) {
  constexpr std::uint64_t kHosts = 1024, kOfEach = 8, kSegment = 3;
  const std::vector<std::uint32_t> layout = side_by_side(std::vector<std::size_t>(kHosts, kOfEach));
  const World world = world_on(kAllreduces[0], layout, {layout.size() * kSegment, kSegment});
  constexpr std::int32_t kRank = 2731;
  const std::map<std::int32_t, Talk> own = talks(world, kRank);
  EXPECT_LE(own.size(), kOfEach - 1 + 4);
  std::uint64_t crosses = 0;
  for (const auto& [peer, talk] : own) {
    const std::map<std::int32_t, Talk> theirs = talks(world, peer);
    ASSERT_TRUE(theirs.contains(kRank)) << peer;
    EXPECT_EQ(talk.sent, theirs.at(kRank).received) << peer;
    EXPECT_EQ(talk.received, theirs.at(kRank).sent) << peer;
    if (world.host(peer) == world.host(kRank)) continue;
    for (const std::uint64_t elements : talk.sent) crosses += elements;
  }
  EXPECT_LE(crosses, 2 * kHosts * kSegment);
  EXPECT_GE(crosses, 2 * (kHosts - 2) * kSegment);
}

// A rank was lost, and the job has shrunk: a host beside the smaller one does not link each rank with each of its.
TEST(Wide, AHostThatIsOneSmallerTalksToFew) {
  std::vector<std::size_t> shape(5, 16);
  shape[2] = 15;
  const std::vector<std::uint32_t> layout = side_by_side(shape);
  const World world = world_on(kAllreduces[0], layout, {layout.size() * 3, 3});
  ASSERT_TRUE(on_several_hosts(world.request(0)));
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(layout.size()); ++rank) {
    std::size_t of_other_hosts = 0;
    for (const auto& [peer, talk] : talks(world, rank)) of_other_hosts += world.host(peer) != world.host(rank) ? 1 : 0;
    EXPECT_LE(of_other_hosts, 8u) << rank;
  }
}

// Hosts of one and two ranks by turns: the two ranks of a host lead for as many owners.
TEST(Wide, RanksOfAHostShareWhatCrosses) {
  std::vector<std::size_t> shape;
  for (int i = 0; i < 8; i++) shape.insert(shape.end(), {1, 2});
  const std::vector<std::uint32_t> layout = side_by_side(shape);
  const World world = world_on({Collective::kAllgather, Algorithm::kRing}, layout, {layout.size() * 3, 3});
  const std::vector<Schedule> schedules = make_all(world);
  for (std::size_t rank = 1; rank + 1 < layout.size(); rank += 3) {
    std::array<std::uint64_t, 2> sent{};
    for (std::size_t i = 0; i < 2; i++) {
      for (const Step& step : schedules[rank + i].steps) {
        const bool crosses = step.kind == StepKind::kSend && world.host(step.peer) != layout[rank];
        sent[i] += crosses ? step.count : 0;
      }
    }
    EXPECT_LE(std::max(sent[0], sent[1]) - std::min(sent[0], sent[1]), 2 * 3U) << rank;
  }
}

// All ranks of a host have slots for all others, so large messages among many go flat.
TEST(Wide, SlotsAreBounded) {
  for (const std::uint64_t chunk : {std::uint64_t{32} << 10, std::uint64_t{1} << 20}) {
    World world = world_on(kAllreduces[0], side_by_side({128, 128}), {256 * chunk, chunk});
    Request request = world.request(0);
    request.element_bytes = request.partial_bytes = 4;
    EXPECT_EQ(on_several_hosts(request), chunk < (1 << 20)) << chunk;
    const auto made = make(request);
    ASSERT_TRUE(made.ok());
    EXPECT_LE(made.value().scratch_elements * 4, std::uint64_t{1} << 30);
  }
}

TEST(Wide, UpToAThousandHostsAndAHundredRanksOfAHost) {
  const auto by_hosts = [](std::size_t hosts, std::size_t of_each) {
    const World world = world_on(kAllreduces[0], side_by_side(std::vector<std::size_t>(hosts, of_each)), {1 << 20, 1});
    return on_several_hosts(world.request(0));
  };
  EXPECT_TRUE(by_hosts(1024, 2));
  EXPECT_TRUE(by_hosts(128, 128));
  EXPECT_FALSE(by_hosts(1025, 2)) << "a leader talks to those of all hosts, by direct exchange";
  EXPECT_FALSE(by_hosts(2, 129)) << "a leader talks to all ranks of its host";
  World apart = world_on(kAllreduces[0], side_by_side({17, 17}), {1 << 20, 1});
  EXPECT_TRUE(on_several_hosts(apart.request(0)));
  apart.on.maps = false;
  EXPECT_FALSE(on_several_hosts(apart.request(0))) << "each two ranks of a host have a connection";
}

// --- What crosses between hosts

struct Crossing {
  std::uint64_t all = 0;           // elements
  std::uint64_t most_of_host = 0;  // that leave one
  std::uint64_t most_of_rank = 0;
};

Crossing crossing(const World& where, const std::vector<Schedule>& schedules) {
  Crossing crossing;
  std::map<std::uint32_t, std::uint64_t> of_host;
  for (std::int32_t rank = 0; rank < where.size; ++rank) {
    std::uint64_t of_rank = 0;
    for (const Step& step : schedules[static_cast<std::size_t>(rank)].steps) {
      const bool crosses = step.kind == StepKind::kSend && where.host(rank) != where.host(step.peer);
      of_rank += crosses ? step.count : 0;
    }
    crossing.all += of_rank;
    of_host[where.host(rank)] += of_rank;
    crossing.most_of_rank = std::max(crossing.most_of_rank, of_rank);
  }
  for (const auto& [host, elements] : of_host) crossing.most_of_host = std::max(crossing.most_of_host, elements);
  return crossing;
}

Crossing by_hosts(const World& world) {
  return crossing(world, make_all(world));
}
// The same ranks, who do not know where they sit.
Crossing flat(const World& world) {
  World apart = world;
  apart.hosts.clear();
  return crossing(world, make_all(apart));
}

constexpr std::uint64_t kElements = 64 * 5 * 7 * 9;

// The partial result of a segment crosses to each other host, and back to the owner's unless that is the last of its
// host; its final crosses to each other host.
TEST(Crossing, TheRingsPartialsWalkFromHostToHost) {
  for (const auto& [hosts, of_each] :
       {std::pair<std::uint64_t, std::uint64_t>{2, 2}, {2, 4}, {2, 8}, {3, 2}, {3, 3}, {4, 4}, {2, 7}, {5, 3}}) {
    const std::uint64_t k = hosts * of_each;
    const World world = world_on(kAllreduces[0], side_by_side(std::vector<std::size_t>(hosts, of_each)), {k * 90, 30});
    const Crossing counted = by_hosts(world);
    const std::uint64_t segment = 90;
    EXPECT_EQ(counted.all, segment * (k * hosts - hosts + k * (hosts - 1)));
    EXPECT_EQ(counted.most_of_host * hosts, counted.all);  // all hosts alike
    EXPECT_LT(counted.all, flat(world).all);
    EXPECT_LE(counted.most_of_rank, counted.most_of_host / of_each + 2 * segment);
  }
}

// Where hosts are equal powers of two, side by side, nothing less can cross: each host's sum once, each final once.
TEST(Crossing, TheButterflysIsTheLeast) {
  for (const auto& [hosts, of_each] :
       {std::pair<std::uint64_t, std::uint64_t>{2, 2}, {2, 4}, {2, 8}, {4, 2}, {4, 4}, {8, 2}, {3, 2}, {3, 4}}) {
    const std::uint64_t k = hosts * of_each;
    const World world =
        world_on(kAllreduces[1], side_by_side(std::vector<std::size_t>(hosts, of_each)), {k * 96, k * 48});
    ASSERT_TRUE(on_several_hosts(world.request(0))) << world.describe();
    const Crossing counted = by_hosts(world);
    EXPECT_EQ(counted.all, 2 * world.count * (hosts - 1)) << world.describe();
    if (std::has_single_bit(k)) {
      EXPECT_EQ(counted.most_of_host, 2 * world.count * (hosts - 1) / hosts);
      EXPECT_EQ(counted.most_of_rank, counted.most_of_host / of_each);
    }
  }
}

// A part of an allgather crosses once a host. A reduce_scatter crosses as an allreduce by ring does on its way in;
// where the order is that of ranks, what the last host has made crosses to all other owners.
TEST(Crossing, HalvesOfAnAllreduceCrossAsItDoes) {
  for (const auto& [hosts, of_each] : {std::pair<std::uint64_t, std::uint64_t>{2, 2}, {2, 8}, {3, 3}, {4, 4}, {2, 7}}) {
    const std::uint64_t k = hosts * of_each, segment = 90;
    const std::vector<std::uint32_t> layout = side_by_side(std::vector<std::size_t>(hosts, of_each));
    for (const Way& way : kWays) {
      const World world = world_on(way, layout, {k * segment, 30});
      if (way.collective == Collective::kAllgather) {
        const Crossing counted = by_hosts(world);
        EXPECT_EQ(counted.all, segment * k * (hosts - 1));
        EXPECT_EQ(counted.most_of_host * hosts, counted.all);
        EXPECT_EQ(counted.most_of_rank * of_each, counted.most_of_host) << "all ranks alike";
        EXPECT_LT(counted.all, flat(world).all);
      } else if (way.collective == Collective::kReduceScatter && way.algorithm == Algorithm::kRing) {
        EXPECT_EQ(by_hosts(world).all, segment * (k * hosts - hosts));
      } else if (way.collective == Collective::kReduceScatter) {
        EXPECT_EQ(by_hosts(world).all, segment * (k * (hosts - 1) + k - of_each));
      }
    }
  }
}

// Where accumulators are wider than values, few inputs of a host are sent as they are.
TEST(Crossing, WiderPartialsCrossWhereTheyAreLess) {
  const auto crosses = [](const std::vector<std::size_t>& sizes, std::uint64_t partial_bytes) {
    const World world =
        world_on({Collective::kReduceScatter, Algorithm::kDirect}, side_by_side(sizes), {kElements, 64});
    Request request = world.request(0);
    request.element_bytes = 2 * kWholeBytes;
    request.partial_bytes = partial_bytes;
    return on_several_hosts(request);
  };
  EXPECT_TRUE(crosses({2, 2}, 2 * kWholeBytes));
  EXPECT_FALSE(crosses({2, 2}, 4 * kWholeBytes)) << "3 partial results, each of two, for 4 inputs";
  EXPECT_TRUE(crosses({1, 3}, 4 * kWholeBytes)) << "4 values and a partial result, for 6 inputs";
  EXPECT_TRUE(crosses({4, 4}, 4 * kWholeBytes));
}

// Hosts of different sizes: each drives what its share of the ranks owns, and takes part in all of it.
TEST(Crossing, NeverMoreThanFlat) {
  std::uint64_t less = 0, layouts_seen = 0;
  for (std::int32_t size = 3; size <= 16; ++size) {
    for (const std::vector<std::uint32_t>& hosts : layouts(size)) {
      for (const Way& way : kWays) {
        const World world = world_on(way, hosts, {kElements, 2048});
        if (!on_several_hosts(world.request(0))) continue;
        const Crossing counted = by_hosts(world);
        const Crossing apart = flat(world);
        // The butterfly's pieces differ by some elements.
        EXPECT_LE(counted.all, apart.all + apart.all / 100) << world.describe();
        ++layouts_seen;
        less += counted.all < apart.all * 99 / 100 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(less, layouts_seen / 2);
  RecordProperty("layouts", static_cast<int>(layouts_seen));
  RecordProperty("less", static_cast<int>(less));
}

std::string in_n(std::uint64_t elements) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << static_cast<double>(elements) / static_cast<double>(1 << 20);
  return text.str();
}

// Rows: | collective, algorithm | ranks a host, with a plus between | all hosts send | flat | busiest host | flat |
// rank | flat |
TEST(Crossing, TheDocumentPrintsWhatIsCounted) {
  std::ifstream document(WARREN_SOURCE_DIR "/docs/algorithms.md");
  ASSERT_TRUE(document.is_open());
  const std::map<std::string, Collective> collectives = {{"allreduce,", Collective::kAllreduce},
                                                         {"reduce_scatter,", Collective::kReduceScatter},
                                                         {"allgather,", Collective::kAllgather}};
  int rows = 0;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with('|')) continue;
    std::istringstream in(line);
    std::string bar, name, algorithm, hosts, counted, word;
    in >> bar >> name >> algorithm >> bar >> hosts >> bar;
    if (hosts.find('+') == std::string::npos || !collectives.contains(name)) continue;
    while (in >> word) counted += word + " ";
    ++rows;
    std::vector<std::size_t> sizes;
    std::istringstream numbers(hosts);
    for (std::string number; std::getline(numbers, number, '+');) sizes.push_back(std::stoul(number));
    World world =
        world_on({collectives.at(name), parse_algorithm(algorithm).value()}, side_by_side(sizes), {1 << 20, 1 << 16});
    world.element_bytes = 4;
    ASSERT_TRUE(on_several_hosts(world.request(0))) << line;
    const Crossing own = by_hosts(world);
    const Crossing apart = flat(world);
    std::string expected;
    for (const std::uint64_t number :
         {own.all, apart.all, own.most_of_host, apart.most_of_host, own.most_of_rank, apart.most_of_rank}) {
      expected += in_n(number) + " | ";
    }
    expected.pop_back();
    EXPECT_EQ(counted, expected + " ") << line;
  }
  EXPECT_EQ(rows, 35);
}

TEST(Crossing, TakesAFewHopsAHost) {
  for (const std::size_t hosts : {2, 3, 4}) {
    for (const std::size_t of_each : {2, 4}) {
      const std::uint64_t k = hosts * of_each;
      const std::vector<std::uint32_t> layout = side_by_side(std::vector<std::size_t>(hosts, of_each));
      EXPECT_EQ(hops(make_all(world_on(kAllreduces[0], layout, {k, 64}))), 2 * hosts + (of_each > 2 ? 1 : 0));
      for (const Way& way : kWays) {
        if (way.collective == Collective::kAllreduce) continue;
        const bool reduces = way.collective == Collective::kReduceScatter;
        const bool at_once = !reduces && way.algorithm == Algorithm::kDirect;
        EXPECT_LE(hops(make_all(world_on(way, layout, {4 * k, 64}))), at_once ? 2 : hosts + (reduces ? 1 : 0))
            << to_string(way.collective) << " " << to_string(way.algorithm) << " " << hosts << " " << of_each;
      }
      if (hosts == 3) continue;
      EXPECT_EQ(hops(make_all(world_on(kAllreduces[1], layout, {4 * k, 64}))), hosts + 2);
    }
  }
}

// It does not grow with the buffer.
TEST(Crossing, ScratchIsAFewChunksAPeer) {
  for (std::int32_t size = 3; size <= 16; ++size) {
    for (const std::vector<std::uint32_t>& hosts : layouts(size)) {
      for (const Way& way : kWays) {
        const auto k = static_cast<std::uint64_t>(size);
        // Counts of an allgatherv are those of a rank.
        const std::uint64_t of_rank = way.collective == Collective::kAllgatherv ? 1 : k;
        const World some = world_on(way, hosts, {20 * of_rank * 64, 64});
        const World more = world_on(way, hosts, {30 * of_rank * 64, 64});
        if (!on_several_hosts(some.request(0))) continue;
        const std::vector<Schedule> of_some = make_all(some), of_more = make_all(more);
        for (std::size_t rank = 0; rank < of_some.size(); ++rank) {
          EXPECT_EQ(of_some[rank].scratch_elements, of_more[rank].scratch_elements) << some.describe();
          std::set<std::int32_t> peers;
          for (const Step& step : of_some[rank].steps) peers.insert(step.peer);
          // Of a chain that is the same for all owners, one rank may sum for all of them.
          const bool direct = way.algorithm == Algorithm::kDirect;
          EXPECT_LE(of_some[rank].scratch_elements, 10 * 64 * peers.size() + (direct ? 64 * k : 0)) << some.describe();
        }
      }
    }
  }
}

// Only a combining step knows that a loan has stood before it writes to the output, where an operand may lie. And a GPU
// has a whole host's inputs at once.
TEST(Loans, AllInputsOfAHostAreReadByCombiningSteps) {
  std::uint64_t partials = 0, finals = 0;
  for (std::int32_t size = 3; size <= 9; ++size) {
    for (const std::vector<std::uint32_t>& hosts : layouts(size)) {
      for (const Way& way : kReductions) {
        World world = world_on(way, hosts, {kElements, 2048});
        world.replicas = 1;
        if (!on_several_hosts(world.request(0))) continue;
        const std::vector<Schedule> schedules = make_all(world);
        for (std::int32_t rank = 0; rank < size; ++rank) {
          const Schedule& schedule = schedules[static_cast<std::size_t>(rank)];
          // By place in scratch: who sent what came there last, and whether it is lent.
          std::map<std::uint64_t, bool> lent;
          const auto is_lent = [&](const Place& operand) {
            return operand.space == Space::kScratch && lent[operand.at];
          };
          for (const Step& step : schedule.steps) {
            if (step.kind == StepKind::kReduce) {
              EXPECT_TRUE(step.a.form == Form::kPartial && step.b.form == Form::kPartial) << world.describe();
            } else if (step.kind == StepKind::kCombine) {
              for (std::uint32_t k = 0; k < step.operands; ++k) {
                const bool loan = is_lent(schedule.operands[step.first_operand + k]);
                (step.finish ? finals : partials) += loan ? 1 : 0;
              }
            }
            if (step.dst.space == Space::kScratch) lent[step.dst.at] = false;
            if (step.kind != StepKind::kRecv) continue;
            for (const Step& sent : schedules[static_cast<std::size_t>(step.peer)].steps) {
              if (sent.kind != StepKind::kSend || sent.peer != rank || sent.message != step.message) continue;
              lent[step.dst.at] = sent.lent;
              const bool reads_input = sent.a.space == Space::kInput && sent.count != 0;
              EXPECT_EQ(sent.lent && sent.count != 0, reads_input && world.host(rank) == world.host(step.peer));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(partials, 1000U);
  EXPECT_GT(finals, 1000U);
}

}  // namespace
}  // namespace warren::schedule::symbolic

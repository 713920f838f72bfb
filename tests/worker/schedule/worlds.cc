#include "tests/worker/schedule/worlds.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace warren::schedule::symbolic {

bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

std::vector<std::uint64_t> equal_counts(Collective collective, std::int32_t size, std::uint64_t count) {
  const auto ranks = static_cast<std::size_t>(size);
  switch (collective) {
    case Collective::kAllgatherv:
    case Collective::kReduceScatterv: return std::vector<std::uint64_t>(ranks, count);
    case Collective::kAllToAllv: return std::vector<std::uint64_t>(ranks * ranks, count);
    default: return {};
  }
}

World world_of(Collective collective, Algorithm algorithm, std::int32_t size, const Sizes& sizes) {
  World world{.collective = collective, .algorithm = algorithm, .size = size};
  world.chunk_elements = sizes.chunk_elements;
  const bool whole =
      collective == Collective::kAllreduce || collective == Collective::kReduce || collective == Collective::kBroadcast;
  const auto uneven = [&](std::int32_t i) {
    const auto few = sizes.count / 2 + static_cast<std::uint64_t>(i % 5);
    return i % 3 == 0 ? 0 : i % 3 == 1 ? sizes.count : few;
  };
  if (collective == Collective::kAllgatherv || collective == Collective::kReduceScatterv) {
    for (std::int32_t rank = 0; rank < size; ++rank) world.counts.push_back(uneven(rank));
  } else if (collective == Collective::kAllToAllv) {
    // As many elements a rank as of others.
    for (std::int32_t i = 0; i < size * size; ++i) {
      const std::uint64_t all = uneven(i / size + 2 * (i % size));
      world.counts.push_back(all / static_cast<std::uint64_t>(size) +
                             (all != 0 ? static_cast<std::uint64_t>(i % 2) : 0));
    }
  } else if (collective != Collective::kBarrier) {
    world.count = whole ? sizes.count : sizes.count / static_cast<std::uint64_t>(size) + sizes.count % 2;
  }
  return world;
}

std::vector<std::uint32_t> any_order(std::int32_t size, std::uint64_t seed) {
  std::vector<std::uint32_t> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0u);
  std::mt19937_64 random(seed);
  std::shuffle(ranks.begin(), ranks.end(), random);
  return ranks;
}

void Placement::put(World& world) const {
  world.hosts = hosts;
  world.domains = domains;
  world.on = on;
}

std::vector<Placement> placements(std::int32_t size) {
  std::vector<Placement> all(10);
  const auto k = static_cast<std::uint32_t>(size);
  std::uint32_t growing = 0, until = 1;
  for (std::uint32_t rank = 0; rank < k; ++rank) {
    // The first one stays empty: all apart.
    all[1].hosts.push_back(7);
    all[2].hosts.push_back(rank / 2);
    all[3].hosts.push_back(rank % (k / 2 + 1));
    all[4].hosts.push_back(rank / 2);
    all[4].domains.push_back(rank / 4);
    all[5].hosts.push_back(rank + 1 == k ? 1 : 0);
    if (rank == until) until += ++growing + 1;
    all[6].hosts.push_back(growing);
    all[7].hosts.push_back(7);
    all[8].hosts.push_back(7);
    all[9].hosts.push_back(rank + 1 == k ? 1 : 0);
  }
  all[7].on = {.maps = true, .cores = 2, .gpus = true};
  all[8].on = {.maps = false, .cores = 2};
  all[9].on = {.maps = false, .cores = 2};
  return all;
}

}  // namespace warren::schedule::symbolic

// What tests run schedules over: collectives, sizes, placements.
#pragma once

#include <vector>

#include "tests/worker/schedule/symbolic.h"

namespace warren::schedule::symbolic {

inline constexpr Collective kCollectives[] = {
    Collective::kAllreduce, Collective::kReduce,     Collective::kBroadcast,      Collective::kBarrier,
    Collective::kAllgather, Collective::kAllgatherv, Collective::kReduceScatter,  Collective::kGather,
    Collective::kScatter,   Collective::kAllToAll,   Collective::kReduceScatterv, Collective::kAllToAllv,
};

[[nodiscard]] bool has_root(Collective collective);

struct Sizes {
  std::uint64_t count = 0;
  std::uint64_t chunk_elements = 1;
};

// Of a collective that has counts, all of which are this one; of others none.
[[nodiscard]] std::vector<std::uint64_t> equal_counts(Collective collective, std::int32_t size, std::uint64_t count);

// Where counts are per rank, as many chunks as elsewhere; those of uneven collectives are as unequal as can be: none,
// few, several chunks.
[[nodiscard]] World world_of(Collective collective, Algorithm algorithm, std::int32_t size, const Sizes& sizes);

// Ranks of a ring in any order, by seed.
[[nodiscard]] std::vector<std::uint32_t> any_order(std::int32_t size, std::uint64_t seed);

// By rank.
struct Placement {
  std::vector<std::uint32_t> hosts, domains;
  Host on = {};
  void put(World& world) const;
};
// All apart; all together; neighbours; every other one; two hosts a domain; one alone; one more a host each time; all
// together, and they share two cores; likewise, and by TCP; one alone, by TCP.
[[nodiscard]] std::vector<Placement> placements(std::int32_t size);

}  // namespace warren::schedule::symbolic

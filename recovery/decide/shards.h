// Who logs which shard of a checkpoint's global state: pure, so that all ranks agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "recovery/base/ranges.h"

namespace warren {

// Ranks that hold shard `shard` of as many shards as there are ranks: from rank `shard` on, in rank order, the first of
// each failure domain, min(replicas, domains) of them. `domains` by rank.
[[nodiscard]] inline std::vector<std::uint32_t> shard_holders(std::uint32_t shard,
                                                              std::span<const std::uint32_t> domains,
                                                              std::uint32_t replicas) {
  std::vector<std::uint32_t> holders, seen;
  const auto size = static_cast<std::uint32_t>(domains.size());
  for (std::uint32_t i = 0; i < size && holders.size() < std::max(replicas, 1u); ++i) {
    const std::uint32_t rank = (shard + i) % size;
    if (std::find(seen.begin(), seen.end(), domains[rank]) != seen.end()) continue;
    seen.push_back(domains[rank]);
    holders.push_back(rank);
  }
  return holders;
}

// The bytes of shard `shard` of a global state; empty (begin = end) where it has fewer bytes than shards.
[[nodiscard]] inline Interval shard_of(std::uint32_t shard, std::uint64_t total_bytes, std::uint64_t shards) {
  const std::uint64_t least = total_bytes / shards, longer = total_bytes % shards;
  const std::uint64_t begin = shard * least + std::min<std::uint64_t>(shard, longer);
  return {begin, begin + least + (shard < longer ? 1 : 0)};
}

// The bytes of a global state of `total_bytes` that `rank` logs.
[[nodiscard]] inline Ranges shard_duty(std::uint32_t rank, std::uint64_t total_bytes,
                                       std::span<const std::uint32_t> domains, std::uint32_t replicas) {
  Ranges duty;
  const std::uint64_t size = domains.size();
  for (std::uint32_t s = 0; s < size; ++s) {
    const auto holders = shard_holders(s, domains, replicas);
    if (std::find(holders.begin(), holders.end(), rank) == holders.end()) continue;
    const Interval shard = shard_of(s, total_bytes, size);
    duty.add(shard.begin, shard.end);
  }
  return duty;
}

}  // namespace warren

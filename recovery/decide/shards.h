// Decides which rank logs which shard of a checkpoint's global state. Pure, so that all ranks agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "recovery/base/ranges.h"

namespace warren {

// The bytes of shard `shard` of a global state; empty (begin = end) where it has fewer bytes than shards.
[[nodiscard]] inline Interval shard_of(std::uint32_t shard, std::uint64_t total_bytes, std::uint64_t shards) {
  const std::uint64_t least = total_bytes / shards, longer = total_bytes % shards;
  const std::uint64_t begin = shard * least + std::min<std::uint64_t>(shard, longer);
  return {begin, begin + least + (shard < longer ? 1 : 0)};
}

// The ranks that hold each shard, where there are as many shards as ranks. Rank s holds shard s. Failure domains follow
// each other in the order in which they have their first ranks: the domains after that of rank s hold a replica each,
// and there the rank that has the place that s has in its own. So no rank of equal machines holds more than another,
// whatever ranks they have.
class ShardHolders {
 public:
  // `domains` by rank.
  ShardHolders(std::span<const std::uint32_t> domains, std::uint32_t replicas) : replicas_(std::max(replicas, 1u)) {
    std::map<std::uint32_t, std::uint32_t> number_of;
    for (std::uint32_t rank = 0; rank < domains.size(); ++rank) {
      const auto number = number_of.emplace(domains[rank], static_cast<std::uint32_t>(members_.size())).first->second;
      if (number == members_.size()) members_.emplace_back();
      seats_.push_back({number, static_cast<std::uint32_t>(members_[number].size())});
      members_[number].push_back(rank);
    }
  }

  // min(replicas, domains) of them, of distinct domains; the shard's own rank first.
  [[nodiscard]] std::vector<std::uint32_t> of(std::uint32_t shard) const {
    std::vector<std::uint32_t> holders;
    for (std::size_t i = 0; i < std::min<std::size_t>(replicas_, members_.size()); ++i) {
      const std::vector<std::uint32_t>& there = members_[(seats_[shard].domain + i) % members_.size()];
      holders.push_back(there[seats_[shard].place % there.size()]);
    }
    return holders;
  }
  [[nodiscard]] bool holds(std::uint32_t rank, std::uint32_t shard) const {
    return std::ranges::count(of(shard), rank) != 0;
  }
  // The bytes of a global state of `total_bytes` that `rank` logs.
  [[nodiscard]] Ranges duty(std::uint32_t rank, std::uint64_t total_bytes) const {
    Ranges duty;
    for (std::uint32_t s = 0; s < seats_.size(); ++s) {
      if (!holds(rank, s)) continue;
      const Interval shard = shard_of(s, total_bytes, seats_.size());
      duty.add(shard.begin, shard.end);
    }
    return duty;
  }

 private:
  struct Seat {
    std::uint32_t domain, place;
  };
  std::uint32_t replicas_;
  std::vector<std::vector<std::uint32_t>> members_;  // of each domain, in rank order
  std::vector<Seat> seats_;                          // of each rank
};

}  // namespace warren

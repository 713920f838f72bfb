// By way of whom the bytes of a slow link go: pure functions (docs/decisions/0012, Rewire).
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "recovery/wire/messages.pb.h"

namespace warren {

// Two ranks that have a link.
struct RankPair {
  std::uint32_t a = 0, b = 0;  // a < b
  friend auto operator<=>(const RankPair&, const RankPair&) = default;
};
[[nodiscard]] RankPair pair_of(std::uint32_t rank, std::uint32_t other);

struct Ways {
  std::vector<std::uint32_t> relays;  // rising; at most limits::kMaxRelays
  std::string obstacle;               // why there is none
};
// One rank of each host but those of the two, so that none has more to carry than it must; none where a link between
// the two hosts in question is one of `slow`. `members` are a plan's, by rank. O(ranks + relays · slow).
[[nodiscard]] Ways find_ways(const google::protobuf::RepeatedPtrField<wire::Member>& members, const RankPair& pair,
                             const std::set<RankPair>& slow);

}  // namespace warren

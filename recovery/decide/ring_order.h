// In which order the ring visits hosts so that it uses no slow link: pure functions (docs/decisions/0012, Another ring
// order).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace warren {

// Two hosts that have a link, by number, the lower first.
using HostPair = std::pair<std::uint32_t, std::uint32_t>;
[[nodiscard]] HostPair host_pair(std::uint32_t host, std::uint32_t other);

struct RingProblem {
  std::vector<std::uint32_t> hosts;            // by rank; any numbers
  std::vector<bool> absent;                    // by rank; who is has a place in the order, and no link
  std::map<HostPair, std::uint32_t> slowness;  // of links; where one is missing, 0: as usual
  std::vector<std::uint32_t> current;          // all ranks in today's order
};

// Of an order of all ranks; less is better.
struct RingCost {
  std::uint32_t worst = 0;  // slowness of the slowest link that it uses between two hosts
  std::uint64_t sum = 0;    // of all those
  std::uint32_t fresh = 0;  // how many of them today's order does not use
  friend auto operator<=>(const RingCost&, const RingCost&) = default;
};
[[nodiscard]] RingCost cost_of(const RingProblem& problem, std::span<const std::uint32_t> order);
// The links that it uses between two hosts.
[[nodiscard]] std::vector<HostPair> links_of(const RingProblem& problem, std::span<const std::uint32_t> order);

// Hosts among which the best order is found. Of more, links are taken out of today's order two by two for as long as
// that makes it better, which leaves a slow one only where its ends have slow links to half of the hosts or so.
inline constexpr std::size_t kMostHostsExactly = 12;

// All ranks in the best order in which those of a host follow each other; today's, unless that one has a slower link,
// or more slow ones. The same for the same problem. O(2^hosts · hosts²), of many hosts O(hosts) for each slow link.
[[nodiscard]] std::vector<std::uint32_t> find_ring(const RingProblem& problem);

}  // namespace warren

// Which spare takes which place of a lost rank, and whether it may: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warren {

// The place of a rank that was lost, by where it was.
struct FreePlace {
  std::string_view host_id, domain_id;
  // Only a spare of the same host may take it.
  bool for_its_host = false;
  // What was there was slow: a spare of another host comes first.
  bool rather_elsewhere = false;
};
struct IdleSpare {
  std::string_view host_id, domain_id;
  std::uint64_t arrival = 0;  // who has waited longest comes first
};

// For each place the index of a spare, or nothing: one of its host, where its log is, else of its failure domain, else
// any. No spare stands twice. O(n log n), and O(n) for each place that is rather taken from elsewhere.
[[nodiscard]] std::vector<std::optional<std::size_t>> choose_spares(std::span<const FreePlace> places,
                                                                    std::span<const IdleSpare> spares);

// Whether what was logged can be reached: each piece lies in min(replicas, domains) failure domains, nobody knows
// which, on one host of each. `domain_of` names those of all hosts that had ranks; only the hosts in `there` answer for
// what they hold. `left` are domains that count as lost since earlier plans. Without replicas nothing is logged: true.
[[nodiscard]] bool within_reach(const std::map<std::string, std::string>& domain_of, const std::set<std::string>& there,
                                const std::set<std::string>& left, std::uint32_t replicas);

}  // namespace warren

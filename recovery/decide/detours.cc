#include "recovery/decide/detours.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "recovery/base/limits.h"

namespace warren {

RankPair pair_of(std::uint32_t rank, std::uint32_t other) {
  return {std::min(rank, other), std::max(rank, other)};
}

Ways find_ways(const google::protobuf::RepeatedPtrField<wire::Member>& members, const RankPair& pair,
               const std::set<RankPair>& slow) {
  const auto host = [&](std::uint32_t rank) -> std::string_view {
    return members.at(static_cast<int>(rank)).host_id();
  };
  const std::string_view of_a = host(pair.a), of_b = host(pair.b);
  if (of_a == of_b) return {{}, "both are on host " + std::string(of_a)};
  // Hosts that are as badly off with one of the two.
  std::set<std::string_view> cut;
  for (const RankPair& s : slow) {
    for (const auto& [one, other] : {std::pair(host(s.a), host(s.b)), std::pair(host(s.b), host(s.a))}) {
      if (one == of_a || one == of_b) cut.insert(other);
    }
  }
  std::map<std::string_view, std::vector<std::uint32_t>> hosts;
  for (const wire::Member& m : members) {
    if (!m.absent() && m.host_id() != of_a && m.host_id() != of_b) hosts[m.host_id()].push_back(m.rank());
  }
  if (hosts.empty()) return {{}, "there is no third host"};
  std::erase_if(hosts, [&](const auto& h) { return cut.contains(h.first); });
  if (hosts.empty()) return {{}, "the links of all other hosts to one of the two are slow as well"};
  // Of a host's ranks, and of many hosts, other pairs take others.
  std::vector<std::uint32_t> all;
  for (const auto& [name, ranks] : hosts) all.push_back(ranks[(pair.a + pair.b) % ranks.size()]);
  std::ranges::sort(all);
  const auto first = static_cast<std::ptrdiff_t>(pair.a % all.size());
  std::rotate(all.begin(), all.begin() + first, all.end());
  all.resize(std::min(all.size(), limits::kMaxRelays));
  std::ranges::sort(all);
  return {std::move(all), {}};
}

}  // namespace warren

#include "recovery/spares.h"

#include <algorithm>
#include <numeric>

namespace warren {
namespace {

// Spares under a name, those that have waited longest last.
using Queues = std::map<std::string_view, std::vector<std::size_t>>;

std::optional<std::size_t> take(Queues& queues, std::string_view name, std::vector<bool>& taken) {
  const auto queue = queues.find(name);
  if (queue == queues.end()) return std::nullopt;
  while (!queue->second.empty()) {
    const std::size_t spare = queue->second.back();
    queue->second.pop_back();
    if (taken[spare]) continue;
    taken[spare] = true;
    return spare;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::optional<std::size_t>> choose_spares(std::span<const FreePlace> places,
                                                      std::span<const IdleSpare> spares) {
  std::vector<std::size_t> newest_first(spares.size());
  std::iota(newest_first.begin(), newest_first.end(), 0);
  std::ranges::sort(newest_first, [&](std::size_t a, std::size_t b) { return spares[a].arrival > spares[b].arrival; });
  Queues by_host, by_domain, all;
  for (const std::size_t i : newest_first) {
    by_host[spares[i].host_id].push_back(i);
    by_domain[spares[i].domain_id].push_back(i);
    all[""].push_back(i);
  }
  std::vector<bool> taken(spares.size(), false);
  std::vector<std::optional<std::size_t>> chosen(places.size());
  const auto pass = [&](Queues& queues, bool elsewhere, auto name_of) {
    for (std::size_t p = 0; p < places.size(); ++p) {
      if (chosen[p] || (elsewhere && places[p].for_its_host)) continue;
      chosen[p] = take(queues, name_of(places[p]), taken);
    }
  };
  pass(by_host, false, [](const FreePlace& p) { return p.host_id; });
  pass(by_domain, true, [](const FreePlace& p) { return p.domain_id; });
  pass(all, true, [](const FreePlace&) { return std::string_view(); });
  return chosen;
}

bool within_reach(const std::map<std::string, std::string>& domain_of, const std::set<std::string>& there,
                  const std::set<std::string>& left, std::uint32_t replicas) {
  if (replicas == 0) return true;
  std::set<std::string_view> domains(left.begin(), left.end()), missing(left.begin(), left.end());
  for (const auto& [host, domain] : domain_of) {
    domains.insert(domain);
    if (!there.contains(host)) missing.insert(domain);
  }
  return missing.size() < std::min<std::size_t>(replicas, domains.size());
}

}  // namespace warren

#include "recovery/decide/spares.h"

#include <algorithm>
#include <functional>
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

// Of its failure domain, else any, but for those of its own host.
std::optional<std::size_t> take_elsewhere(const FreePlace& place, std::span<const IdleSpare> spares,
                                          const std::vector<std::size_t>& newest_first, std::vector<bool>& taken) {
  std::optional<std::size_t> found;
  for (const std::size_t spare : newest_first) {  // the last one has waited longest
    if (taken[spare] || spares[spare].host_id == place.host_id) continue;
    const bool nearer = spares[spare].domain_id == place.domain_id;
    if (found && !nearer && spares[*found].domain_id == place.domain_id) continue;
    found = spare;
  }
  if (found) taken[*found] = true;
  return found;
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
  const auto pass = [&](Queues& queues, auto wanted, auto name_of) {
    for (std::size_t p = 0; p < places.size(); ++p) {
      if (!chosen[p] && wanted(places[p])) chosen[p] = take(queues, name_of(places[p]), taken);
    }
  };
  const auto elsewhere_first = [](const FreePlace& p) { return p.rather_elsewhere && !p.for_its_host; };
  const auto anywhere = [](const FreePlace& p) { return !p.for_its_host; };
  const auto host_of = [](const FreePlace& p) { return p.host_id; };
  pass(by_host, std::not_fn(elsewhere_first), host_of);
  for (std::size_t p = 0; p < places.size(); ++p) {
    if (elsewhere_first(places[p])) chosen[p] = take_elsewhere(places[p], spares, newest_first, taken);
  }
  pass(by_host, elsewhere_first, host_of);
  pass(by_domain, anywhere, [](const FreePlace& p) { return p.domain_id; });
  pass(all, anywhere, [](const FreePlace&) { return std::string_view(); });
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

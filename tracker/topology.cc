#include "tracker/topology.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/check.h"

namespace warren::tracker {
namespace {

struct Host {
  std::vector<std::size_t> arriving;  // indices of workers without a rank, by worker id
  std::vector<std::size_t> ranks;     // what its workers have, rising
};

// The hosts, by their smallest worker ids.
std::vector<Host> group_by_host(std::span<const PlannerInput> workers) {
  std::vector<std::size_t> by_id(workers.size());
  for (std::size_t i = 0; i < by_id.size(); ++i) by_id[i] = i;
  std::sort(by_id.begin(), by_id.end(),
            [&](std::size_t a, std::size_t b) { return natural_less(workers[a].worker_id, workers[b].worker_id); });
  std::map<std::string_view, std::size_t> index;
  std::vector<Host> hosts;
  for (const std::size_t i : by_id) {
    const auto [it, is_new] = index.emplace(workers[i].host_id, hosts.size());
    if (is_new) hosts.push_back({});
    Host& host = hosts[it->second];
    if (workers[i].rank) {
      host.ranks.push_back(static_cast<std::size_t>(workers[i].rank->value));
    } else {
      host.arriving.push_back(i);
    }
  }
  for (Host& host : hosts) std::sort(host.ranks.begin(), host.ranks.end());
  return hosts;
}

// `count` free ranks for a host that has `ranks`: first those between its own, then those nearest to them; of two as
// near, the lower.
std::vector<std::size_t> nearest(const std::vector<bool>& taken, const std::vector<std::size_t>& ranks,
                                 std::size_t count) {
  struct Free {
    std::size_t outside, distance, rank;  // how far from the span of the host's ranks, and from the nearest of them
    auto operator<=>(const Free&) const = default;
  };
  std::vector<Free> free;
  for (std::size_t r = 0; r < taken.size(); ++r) {
    if (taken[r]) continue;
    const auto above = std::lower_bound(ranks.begin(), ranks.end(), r);
    if (above == ranks.end()) {
      free.push_back({r - ranks.back(), r - ranks.back(), r});
    } else if (above == ranks.begin()) {
      free.push_back({*above - r, *above - r, r});
    } else {
      free.push_back({0, std::min(*above - r, r - *std::prev(above)), r});
    }
  }
  std::sort(free.begin(), free.end());
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(free[i].rank);
  return chosen;
}

// `count` free ranks side by side in the first run that is long enough; where there is none, out of the longest runs.
std::vector<std::size_t> together(const std::vector<bool>& taken, std::size_t count) {
  struct Run {
    std::size_t begin, length;
  };
  std::vector<Run> runs;
  for (std::size_t r = 0; r < taken.size();) {
    std::size_t end = r;
    while (end < taken.size() && !taken[end]) ++end;
    if (end - r >= count) {
      runs.assign(1, {r, count});
      break;
    }
    if (end > r) runs.push_back({r, end - r});
    r = end + 1;
  }
  std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.length > b.length; });
  std::vector<std::size_t> chosen;
  for (const Run& run : runs) {
    for (std::size_t r = run.begin; r < run.begin + run.length && chosen.size() < count; ++r) chosen.push_back(r);
  }
  return chosen;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view text, std::size_t at) {
    while (at < text.size() && text[at] == '0') ++at;
    std::size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    return text.substr(at, end - at);
  };
  const auto skip_number = [](std::string_view text, std::size_t at) {
    while (at < text.size() && is_digit(text[at])) ++at;
    return at;
  };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::string_view x = number(a, i), y = number(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      i = skip_number(a, i);
      j = skip_number(b, j);
    } else if (a[i] != b[j]) {
      return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
    } else {
      ++i;
      ++j;
    }
  }
  const bool a_ends = i == a.size(), b_ends = j == b.size();
  if (a_ends != b_ends) return a_ends;
  return a < b;  // equal but for leading zeros
}

PlannerOutput plan_topology(std::span<const PlannerInput> workers) {
  const std::size_t n = workers.size();
  PlannerOutput out;
  out.rank.assign(n, kNoRank);
  std::vector<bool> taken(n, false);
  for (std::size_t i = 0; i < n; ++i) {
    if (!workers[i].rank) continue;
    const auto r = static_cast<std::size_t>(workers[i].rank->value);
    WARREN_CHECK(workers[i].rank->value >= 0 && r < n && !taken[r], "kept ranks are distinct ranks of this world");
    taken[r] = true;
    out.rank[i] = *workers[i].rank;
  }
  std::vector<Host> hosts = group_by_host(workers);
  // Who has neighbours to join goes first.
  std::stable_partition(hosts.begin(), hosts.end(), [](const Host& host) { return !host.ranks.empty(); });
  for (const Host& host : hosts) {
    if (host.arriving.empty()) continue;
    std::vector<std::size_t> chosen =
        host.ranks.empty() ? together(taken, host.arriving.size()) : nearest(taken, host.ranks, host.arriving.size());
    std::sort(chosen.begin(), chosen.end());
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      taken[chosen[k]] = true;
      out.rank[host.arriving[k]] = Rank(static_cast<std::int32_t>(chosen[k]));
    }
  }

  std::vector<std::string_view> host_of(n);
  for (std::size_t i = 0; i < n; ++i) host_of[static_cast<std::size_t>(out.rank[i].value)] = workers[i].host_id;
  std::map<std::string_view, std::uint32_t> size;
  out.local_rank.resize(n);
  out.local_size.resize(n);
  for (std::size_t r = 0; r < n; ++r) out.local_rank[r] = size[host_of[r]]++;
  for (std::size_t r = 0; r < n; ++r) out.local_size[r] = size[host_of[r]];
  return out;
}

}  // namespace warren::tracker

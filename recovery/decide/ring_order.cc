#include "recovery/decide/ring_order.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "recovery/base/check.h"

namespace warren {
namespace {

// Hosts that have a rank which is there, by their first place in today's order; and what of it is to be kept.
class Search {
 public:
  explicit Search(const RingProblem& problem) : problem_(problem) {
    std::map<std::uint32_t, std::size_t> numbers;
    std::vector<std::size_t> today;
    for (const std::uint32_t rank : problem.current) {
      if (problem.absent[rank]) continue;
      const auto [at, added] = numbers.try_emplace(problem.hosts[rank], hosts_.size());
      if (added) hosts_.push_back(problem.hosts[rank]);
      today.push_back(at->second);
    }
    for (std::size_t i = 0; i < today.size(); ++i) {
      const std::size_t next = today[(i + 1) % today.size()];
      if (today[i] != next) ways_.emplace(today[i], next);
    }
    for (const auto& [pair, slowness] : problem.slowness) {
      const auto a = numbers.find(pair.first), b = numbers.find(pair.second);
      if (a != numbers.end() && b != numbers.end()) slowness_[std::minmax(a->second, b->second)] = slowness;
    }
  }

  [[nodiscard]] std::size_t size() const { return hosts_.size(); }

  [[nodiscard]] std::vector<std::size_t> best() const {
    std::vector<std::size_t> tour = size() <= kMostHostsExactly ? exactly() : step_by_step();
    // Either way round it costs the same.
    std::vector<std::size_t> back = tour;
    std::reverse(back.begin() + 1, back.end());
    return std::pair(kept_ways(back), tour) > std::pair(kept_ways(tour), back) ? back : tour;
  }

  // With those of hosts that have no rank which is there at the end.
  [[nodiscard]] std::vector<std::uint32_t> ranks_of(const std::vector<std::size_t>& tour) const {
    std::map<std::uint32_t, std::size_t> places;
    for (std::size_t i = 0; i < tour.size(); ++i) places.emplace(hosts_[tour[i]], i);
    const auto place = [&](std::uint32_t rank) {
      const auto at = places.find(problem_.hosts[rank]);
      return at == places.end() ? tour.size() : at->second;
    };
    std::vector<std::uint32_t> ranks(problem_.hosts.size());
    std::iota(ranks.begin(), ranks.end(), 0u);
    std::ranges::stable_sort(ranks, {}, place);
    return ranks;
  }

 private:
  [[nodiscard]] std::uint32_t slowness(std::size_t a, std::size_t b) const {
    const auto at = slowness_.find(std::minmax(a, b));
    return at == slowness_.end() ? 0 : at->second;
  }
  [[nodiscard]] std::int64_t fresh(std::size_t a, std::size_t b) const {
    return ways_.contains({a, b}) || ways_.contains({b, a}) ? 0 : 1;
  }
  [[nodiscard]] std::size_t kept_ways(const std::vector<std::size_t>& tour) const {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < tour.size(); ++i) kept += ways_.contains({tour[i], tour[(i + 1) % tour.size()]});
    return kept;
  }

  // The slowest link as fast as can be, and then the least of what adds up.
  [[nodiscard]] std::vector<std::size_t> exactly() const {
    std::set<std::uint32_t> limits{0};
    for (const auto& [pair, slowness] : slowness_) limits.insert(slowness);
    for (const std::uint32_t limit : limits) {
      if (auto tour = shortest(limit)) return std::move(*tour);
    }
    WARREN_UNREACHABLE("without a limit there is one");
  }

  // Held and Karp: the best way from host 0 over a set of the others to one of them, for one set after the other.
  [[nodiscard]] std::optional<std::vector<std::size_t>> shortest(std::uint32_t limit) const {
    static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
    const std::size_t n = size();
    WARREN_CHECK(n > 1 && n <= kMostHostsExactly, "so few hosts have so few sets");
    const std::size_t others = n - 1;
    std::vector<std::uint64_t> length(n * n, kNone);
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = 0; b < n; ++b) {
        if (a == b || slowness(a, b) > limit) continue;
        length[a * n + b] = slowness(a, b) * (n + 1) + static_cast<std::uint64_t>(fresh(a, b));
      }
    }
    const std::size_t sets = std::size_t{1} << others;
    std::vector<std::uint64_t> best(sets * others, kNone);
    for (std::size_t last = 0; last < others; ++last) best[(std::size_t{1} << last) * others + last] = length[last + 1];
    for (std::size_t set = 1; set < sets; ++set) {
      for (std::size_t last = 0; last < others; ++last) {
        const std::uint64_t so_far = best[set * others + last];
        if (so_far == kNone) continue;
        for (std::size_t next = 0; next < others; ++next) {
          const std::size_t bit = std::size_t{1} << next;
          const std::uint64_t step = length[(last + 1) * n + next + 1];
          if ((set & bit) != 0 || step == kNone) continue;
          std::uint64_t& there = best[(set | bit) * others + next];
          there = std::min(there, so_far + step);
        }
      }
    }
    // Back from host 0, by what came from where.
    std::vector<std::size_t> tour;
    std::size_t set = sets - 1, after = 0;
    std::uint64_t rest = kNone;
    while (set != 0) {
      std::size_t from = others;
      for (std::size_t last = 0; last < others; ++last) {
        const std::uint64_t so_far = best[set * others + last], step = length[(last + 1) * n + after];
        if (so_far == kNone || step == kNone) continue;
        if (tour.empty() ? so_far + step < rest : so_far + step == rest) {
          from = last;
          if (!tour.empty()) break;
          rest = so_far + step;
        }
      }
      if (from == others) return std::nullopt;
      rest -= length[(from + 1) * n + after];
      tour.push_back(after = from + 1);
      set &= ~(std::size_t{1} << from);
    }
    tour.push_back(0);
    std::reverse(tour.begin(), tour.end());
    return tour;
  }

  // Takes the slowest link out together with another one, and turns what lies between around: each time the slowness of
  // the two that come is less than that of the two that go, which has an end.
  [[nodiscard]] std::vector<std::size_t> step_by_step() const {
    const std::size_t n = size();
    std::vector<std::size_t> tour(n);
    std::iota(tour.begin(), tour.end(), std::size_t{0});
    const auto end_of = [&](std::size_t link) { return tour[(link + 1) % n]; };
    const auto slowness_of = [&](std::size_t link) { return slowness(tour[link], end_of(link)); };
    std::set<std::pair<std::size_t, std::size_t>> stays;  // nothing is better
    for (std::size_t steps = 4 * n; steps > 0; --steps) {
      std::size_t slow = n;
      for (std::size_t link = 0; link < n; ++link) {
        if (slowness_of(link) == 0 || stays.contains(std::minmax(tour[link], end_of(link)))) continue;
        if (slow == n || slowness_of(link) > slowness_of(slow)) slow = link;
      }
      if (slow == n) break;
      using Gain = std::tuple<std::uint32_t, std::int64_t, std::int64_t>;
      std::optional<std::pair<Gain, std::size_t>> best;
      for (std::size_t link = 0; link < n; ++link) {
        if (link == slow || (link + 1) % n == slow || (slow + 1) % n == link) continue;
        const std::uint32_t one = slowness(tour[slow], tour[link]), other = slowness(end_of(slow), end_of(link));
        const std::uint32_t gone = slowness_of(slow), also = slowness_of(link);
        if (std::pair(std::max(one, other), std::min(one, other)) >=
            std::pair(std::max(gone, also), std::min(gone, also))) {
          continue;
        }
        const Gain gain{
            std::max(one, other), std::int64_t{one} + other - also,
            fresh(tour[slow], tour[link]) + fresh(end_of(slow), end_of(link)) - fresh(tour[link], end_of(link))};
        if (!best || gain < best->first) best = {gain, link};
      }
      if (!best) {
        stays.insert(std::minmax(tour[slow], end_of(slow)));
        continue;
      }
      stays.clear();
      const auto [first, last] = std::minmax(slow, best->second);
      std::reverse(tour.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                   tour.begin() + static_cast<std::ptrdiff_t>(last) + 1);
    }
    return tour;
  }

  const RingProblem& problem_;
  std::vector<std::uint32_t> hosts_;                                       // by number
  std::set<std::pair<std::size_t, std::size_t>> ways_;                     // today's, in its direction
  std::map<std::pair<std::size_t, std::size_t>, std::uint32_t> slowness_;  // the lower number first
};

}  // namespace

HostPair host_pair(std::uint32_t host, std::uint32_t other) {
  return std::minmax(host, other);
}

std::vector<HostPair> links_of(const RingProblem& problem, std::span<const std::uint32_t> order) {
  std::vector<std::uint32_t> hosts;
  for (const std::uint32_t rank : order) {
    if (!problem.absent[rank]) hosts.push_back(problem.hosts[rank]);
  }
  std::vector<HostPair> links;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const std::uint32_t next = hosts[(i + 1) % hosts.size()];
    if (hosts[i] != next) links.push_back(host_pair(hosts[i], next));
  }
  return links;
}

RingCost cost_of(const RingProblem& problem, std::span<const std::uint32_t> order) {
  const std::vector<HostPair> today = links_of(problem, problem.current);
  const std::set<HostPair> known(today.begin(), today.end());
  RingCost cost;
  for (const HostPair& link : links_of(problem, order)) {
    const auto at = problem.slowness.find(link);
    const std::uint32_t slowness = at == problem.slowness.end() ? 0 : at->second;
    cost.worst = std::max(cost.worst, slowness);
    cost.sum += slowness;
    cost.fresh += known.contains(link) ? 0 : 1;
  }
  return cost;
}

std::vector<std::uint32_t> find_ring(const RingProblem& problem) {
  WARREN_CHECK(problem.absent.size() == problem.hosts.size() && problem.current.size() == problem.hosts.size(),
               "all ranks are told of");
  const Search search(problem);
  // Three hosts have one ring.
  if (search.size() <= 3) return problem.current;
  std::vector<std::uint32_t> found = search.ranks_of(search.best());
  const RingCost today = cost_of(problem, problem.current), then = cost_of(problem, found);
  return std::pair(then.worst, then.sum) < std::pair(today.worst, today.sum) ? found : problem.current;
}

}  // namespace warren

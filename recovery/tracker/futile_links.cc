#include "recovery/tracker/futile_links.h"

#include <algorithm>
#include <utility>

namespace warren {

namespace {
// Generations that a link has ended in a row before another way is taken. Once is chance, and twice a slow start.
constexpr int kMostFutile = 3;
constexpr std::size_t kMostNoted = 256;
}  // namespace

bool FutileLinks::Link::is_unusable() const {
  return generations >= kMostFutile;
}

void FutileLinks::note(std::uint32_t reporter, std::uint32_t peer, const std::string& why, Generation generation,
                       TimeMs began) {
  const RankPair pair = pair_of(reporter, peer);
  if (links_.size() == kMostNoted && !links_.contains(pair)) return;
  Link& link = links_[pair];
  if (!link.since) link.since = began;
  if (std::exchange(link.newest, generation) != generation) ++link.generations;
  (reporter == pair.a ? link.why_a : link.why_b) = why;
}

void FutileLinks::forget_if(const std::function<bool(const RankPair&)>& gone) {
  std::erase_if(links_, [&](const auto& entry) { return gone(entry.first); });
}

void FutileLinks::judge_anew(std::uint32_t rank) {
  for (auto& [pair, link] : links_) {
    if (pair.a == rank || pair.b == rank) link.generations = 0;
  }
}

bool FutileLinks::any_unusable() const {
  return std::ranges::any_of(links_, [](const auto& entry) { return entry.second.is_unusable(); });
}

std::optional<FutileLinks::Worst> FutileLinks::worst_rank(const std::function<bool(const RankPair&)>& counts) const {
  std::map<std::uint32_t, int> by_rank;
  for (const auto& [pair, link] : links_) {
    if (!link.is_unusable() || !counts(pair)) continue;
    ++by_rank[pair.a];
    ++by_rank[pair.b];
  }
  if (by_rank.empty()) return std::nullopt;
  const auto most = std::ranges::max_element(by_rank, {}, [](const auto& entry) { return entry.second; });
  return Worst{most->first, most->second, by_rank.size()};
}

}  // namespace warren

#include "recovery/wire/state_digest.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"

namespace warren {
namespace {

using Digests = std::map<std::size_t, wire::StateDigest>;
using Ranks = std::vector<std::size_t>;

// Ranks that are alike. The fewest come first: they are the likely culprits.
template <class Key>
std::vector<std::pair<Key, Ranks>> by_size(const std::map<Key, Ranks>& alike) {
  std::vector<std::pair<Key, Ranks>> groups(alike.begin(), alike.end());
  std::ranges::sort(groups, {}, [](const auto& group) { return std::pair(group.second.size(), group.second.front()); });
  return groups;
}

std::string names(const Ranks& ranks, const std::function<std::string(std::size_t)>& name) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamesInText); ++i) text += (i == 0 ? "" : ", ") + name(ranks[i]);
  if (ranks.size() > kNamesInText) text += " and " + std::to_string(ranks.size() - kNamesInText) + " more";
  return text;
}

// So many groups of ranks are named. More would leave no room for the place, as the tracker's texts are cut off.
constexpr std::size_t kGroupsInText = 4;

std::string more(std::size_t groups) {
  if (groups <= kGroupsInText) return {};
  return "; and " + std::to_string(groups - kGroupsInText) + " more different ones";
}

struct Difference {
  std::uint64_t begin = 0, end = 0;      // bytes
  std::map<std::uint64_t, Ranks> alike;  // by hash
};

std::optional<Difference> first_difference(const Digests& digests) {
  std::uint64_t most = 0, piece_bytes = 0;
  for (const auto& [rank, d] : digests) {
    most = std::max(most, d.global_bytes());
    // Much longer states have larger pieces. Their lengths differ, which is said.
    if (piece_bytes != 0 && d.piece_bytes() != piece_bytes && d.global_bytes() != 0) return std::nullopt;
    if (d.global_bytes() != 0) piece_bytes = d.piece_bytes();
  }
  for (std::uint64_t begin = 0; begin < most; begin += piece_bytes) {
    Difference found{begin, std::min(most, begin + piece_bytes), {}};
    const auto piece = static_cast<int>(begin / piece_bytes);
    for (const auto& [rank, d] : digests) {
      // A state that has ended is another one than those that go on.
      const std::uint64_t hash = piece < d.hashes_size() ? d.hashes(piece) : 0;
      if (hash != 0 || begin >= d.global_bytes()) found.alike[hash].push_back(rank);
    }
    if (found.alike.size() > 1) return found;
  }
  return std::nullopt;
}

std::string where(const Difference& d) {
  return "the first difference is in MiB " + std::to_string(d.begin / limits::kStatePieceBytes) + " (bytes " +
         std::to_string(d.begin) + " to " + std::to_string(d.end - 1) + ")";
}

}  // namespace

std::uint64_t digest_piece_bytes(std::uint64_t state_bytes, std::uint32_t world_size) {
  const std::uint64_t most = limits::state_hashes(world_size);
  std::uint64_t bytes = limits::kStatePieceBytes;
  while (state_bytes > most * bytes) bytes *= 2;
  return bytes;
}

std::string difference_of_states(const Digests& digests, const std::function<std::string(std::size_t)>& name) {
  std::map<std::pair<std::uint64_t, bool>, Ranks> shapes;  // length of the global state, whether there is a local one
  for (const auto& [rank, d] : digests) shapes[{d.global_bytes(), d.has_local()}].push_back(rank);
  const auto difference = first_difference(digests);
  if (shapes.size() > 1) {
    std::string text;
    const auto groups = by_size(shapes);
    for (std::size_t i = 0; i < std::min(groups.size(), kGroupsInText); ++i) {
      const auto& [shape, ranks] = groups[i];
      text += (text.empty() ? "" : "; ") + names(ranks, name) + " gave a global state of " +
              std::to_string(shape.first) + " bytes and " + (shape.second ? "a local state" : "no local state");
    }
    return text + more(groups.size()) + (difference ? "; " + where(*difference) : "");
  }
  if (!difference) return {};
  std::string text = "global states of " + std::to_string(digests.begin()->second.global_bytes()) + " bytes differ: ";
  const auto groups = by_size(difference->alike);
  for (std::size_t i = 0; i < std::min(groups.size(), kGroupsInText); ++i) {
    text += (i == 0 ? "" : i == 1 ? " gave other bytes than " : " and than ") + names(groups[i].second, name);
  }
  return text + more(groups.size()) + "; " + where(*difference);
}

std::string stale_copy(const std::map<std::size_t, wire::Vote>& votes,
                       const std::function<std::string(std::size_t)>& name) {
  for (const auto& [holder, vote] : votes) {
    for (const wire::LocalCopy& copy : vote.copies()) {
      const auto owner = votes.find(copy.rank());
      if (owner == votes.end() || owner->second.local_hash() == 0 || owner->second.local_hash() == copy.hash())
        continue;
      return name(holder) + " holds another local state of " + name(copy.rank()) + " than that has given since";
    }
  }
  return {};
}

}  // namespace warren

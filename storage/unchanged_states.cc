#include "storage/unchanged_states.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace warren::storage {

std::optional<UnchangedStates::Place> UnchangedStates::place_of(const RecordKey& key, std::uint64_t first_byte,
                                                                std::uint32_t payload_bytes) {
  if (bin_of(key).kind != Bin::Kind::kStates || payload_bytes < kLeastBytes) return std::nullopt;
  return Place{key.kind, key.round.sequence, first_byte, payload_bytes};
}

std::optional<Bin> UnchangedStates::find(const Place& place, const Hash128& hash) const {
  const auto known = newest_.find(place);
  if (known == newest_.end() || known->second.hash != hash || worn_.contains(known->second.lies_in)) {
    return std::nullopt;
  }
  return known->second.lies_in;
}

void UnchangedStates::put(const Bin& of, const Place& place, const Hash128& hash, const Bin& lies_in) {
  newest_.insert_or_assign(place, Known{hash, lies_in});
  refers_[of][lies_in] += place.payload_bytes;
  if (of == lies_in) bytes_[of] += place.payload_bytes;
}

void UnchangedStates::drop(const std::function<bool(const Bin&)>& obsolete) {
  std::erase_if(refers_, [&](const auto& of) { return obsolete(of.first); });
  std::erase_if(bytes_, [&](const auto& data) { return !referred_to(data.first); });
  std::erase_if(newest_, [&](const auto& known) { return !bytes_.contains(known.second.lies_in); });
  std::erase_if(worn_, [&](const Bin& bin) { return !bytes_.contains(bin); });
  wear();
}

bool UnchangedStates::referred_to(const Bin& bin) const {
  return std::ranges::any_of(refers_, [&](const auto& of) { return of.second.contains(bin); });
}

std::uint64_t UnchangedStates::bytes_in(const Bin& bin) const {
  const auto found = bytes_.find(bin);
  return found == bytes_.end() ? 0 : found->second;
}

void UnchangedStates::wear() {
  std::vector<std::pair<std::uint64_t, Bin>> origins;  // by how much of them the newest version uses
  for (const auto& [bin, bytes] : bytes_) {
    if (refers_.contains(bin)) continue;
    std::uint64_t used = 0;
    for (const auto& [of, by_origin] : refers_) {
      if (const auto to = by_origin.find(bin); to != by_origin.end()) used = to->second;
    }
    if (used < bytes / 2) worn_.insert(bin);
    origins.emplace_back(used, bin);
  }
  if (origins.size() <= kMostOrigins) return;
  std::ranges::sort(origins);
  for (std::size_t i = 0; i < origins.size() - kMostOrigins; ++i) worn_.insert(origins[i].second);
}

}  // namespace warren::storage

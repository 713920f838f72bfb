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

void UnchangedStates::refer(const Bin& of, const Place& place, const Bin& lies_in) {
  refers_[of].insert_or_assign(place, lies_in);
  Data& data = data_[lies_in];
  if (of == lies_in && data.places.insert(place).second) data.bytes += place.payload_bytes;
}

void UnchangedStates::wrote(const Bin& of, const Place& place, const Hash128& hash, const Bin& lies_in) {
  refer(of, place, lies_in);
  newest_.insert_or_assign(place, Known{hash, lies_in});
}

void UnchangedStates::drop(const std::function<bool(const Bin&)>& obsolete) {
  std::erase_if(refers_, [&](const auto& of) { return obsolete(of.first); });
  std::set<Bin> used;
  for (const auto& [of, places] : refers_) {
    for (const auto& [place, lies_in] : places) used.insert(lies_in);
  }
  std::erase_if(data_, [&](const auto& data) { return !used.contains(data.first); });
  std::erase_if(newest_, [&](const auto& known) { return !used.contains(known.second.lies_in); });
  std::erase_if(worn_, [&](const Bin& bin) { return !used.contains(bin); });
  for (auto& [bin, data] : data_) ++data.commits;
  wear();
}

bool UnchangedStates::referred_to(const Bin& bin) const {
  return data_.contains(bin);
}

std::uint64_t UnchangedStates::bytes_in(const Bin& bin) const {
  const auto found = data_.find(bin);
  return found == data_.end() ? 0 : found->second.bytes;
}

void UnchangedStates::wear() {
  if (refers_.empty()) return;
  std::map<Bin, std::uint64_t> in_use;  // by the newest version
  for (const auto& [place, lies_in] : refers_.rbegin()->second) in_use[lies_in] += place.payload_bytes;
  std::vector<std::pair<std::uint64_t, Bin>> origins;
  for (const auto& [bin, data] : data_) {
    if (data.commits > kMostCommits) worn_.insert(bin);
    if (refers_.contains(bin)) continue;
    const std::uint64_t used = in_use[bin];
    if (used < data.bytes / 2) worn_.insert(bin);
    origins.emplace_back(used, bin);
  }
  if (origins.size() <= kMostOrigins) return;
  std::ranges::sort(origins);
  for (std::size_t i = 0; i < origins.size() - kMostOrigins; ++i) worn_.insert(origins[i].second);
}

}  // namespace warren::storage

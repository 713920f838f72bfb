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
  std::vector<Bin>& lie_in = refers_[of][place];
  if (std::ranges::find(lie_in, lies_in) == lie_in.end()) lie_in.push_back(lies_in);
  Data& data = data_[lies_in];
  if (of == lies_in && data.places.insert(place).second) data.bytes += place.payload_bytes;
}

void UnchangedStates::wrote(const Bin& of, const Place& place, const Hash128& hash, const Bin& lies_in) {
  refer(of, place, lies_in);
  refers_[of][place] = {lies_in};
  newest_.insert_or_assign(place, Known{hash, lies_in});
}

void UnchangedStates::drop(const std::function<bool(const Bin&)>& obsolete) {
  const std::size_t gone = std::erase_if(refers_, [&](const auto& of) { return obsolete(of.first); });
  std::set<Bin> used;
  for (const auto& [of, places] : refers_) {
    for (const auto& [place, lie_in] : places) used.insert(lie_in.begin(), lie_in.end());
  }
  std::erase_if(data_, [&](const auto& data) { return !used.contains(data.first) && obsolete(data.first); });
  std::erase_if(newest_, [&](const auto& known) { return !used.contains(known.second.lies_in); });
  std::erase_if(worn_, [&](const Bin& bin) { return !used.contains(bin); });
  if (gone == 0) return;
  for (auto& [bin, data] : data_) ++data.commits;
}

bool UnchangedStates::referred_to(const Bin& bin) const {
  return data_.contains(bin);
}

std::uint64_t UnchangedStates::bytes_in(const Bin& bin) const {
  const auto found = data_.find(bin);
  return found == data_.end() ? 0 : found->second.bytes;
}

std::vector<UnchangedStates::Place> UnchangedStates::worn(const Bin& of) {
  const auto found = refers_.find(of);
  if (found == refers_.end()) return {};
  std::map<Bin, std::uint64_t> in_use;
  for (const auto& [place, lie_in] : found->second) {
    for (const Bin& bin : lie_in) in_use[bin] += place.payload_bytes;
  }
  in_use.erase(of);
  std::vector<std::pair<std::uint64_t, Bin>> origins;
  for (const auto& [bin, used] : in_use) {
    const Data& data = data_.at(bin);
    if (used < data.bytes / 2 || data.commits > kMostCommits) {
      worn_.insert(bin);
    } else if (!worn_.contains(bin)) {
      origins.emplace_back(used, bin);
    }
  }
  std::ranges::sort(origins);
  for (std::size_t i = 0; i + kMostOrigins < origins.size(); ++i) worn_.insert(origins[i].second);
  std::vector<Place> again;
  for (const auto& [place, lie_in] : found->second) {
    const auto leaves = [&](const Bin& bin) { return bin != of && worn_.contains(bin); };
    if (std::ranges::any_of(lie_in, leaves)) again.push_back(place);
  }
  return again;
}

}  // namespace warren::storage

#include "worker/rounds/closed_rounds.h"

#include <algorithm>

namespace warren::worker {

void ClosedRounds::close(GroupId group, Version version, Sequence rounds) {
  std::uint64_t& closed = rounds_[{group, version}];
  closed = std::max(closed, rounds.value);
}

void ClosedRounds::committed(Version version) {
  std::erase_if(rounds_, [&](const auto& entry) {
    const Version closed = entry.first.second;
    return closed < version && closed != kPreamble;
  });
}

std::optional<std::uint64_t> ClosedRounds::rounds_of(GroupId group, Version version) const {
  const auto closed = rounds_.find({group, version});
  return closed == rounds_.end() ? std::nullopt : std::optional(closed->second);
}

wire::Position ClosedRounds::position_of(const Key& key, std::uint64_t rounds) {
  wire::Position p;
  p.set_group(key.first.value);
  p.set_version(key.second.value);
  p.set_rounds(rounds);
  p.set_closed(true);
  return p;
}

std::vector<wire::Position> ClosedRounds::positions_of(Version version) const {
  std::vector<wire::Position> positions;
  for (const auto& [key, rounds] : rounds_) {
    if (key.second == version) positions.push_back(position_of(key, rounds));
  }
  return positions;
}

}  // namespace warren::worker

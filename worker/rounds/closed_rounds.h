// How many rounds groups have done in versions that are over and not obsolete, and in this one before they were
// destroyed. A new life may ask for them, and a group that is made again goes on from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"

namespace warren::worker {

class ClosedRounds {
 public:
  using Key = std::pair<GroupId, Version>;

  // The group has no more rounds in this version.
  void close(GroupId group, Version version, Sequence rounds);
  // Without a log no life asks, and no commit would make this obsolete: a group of this version is not remembered.
  void forget_one() { complete_ = false; }
  // All groups that were destroyed in this version are here.
  [[nodiscard]] bool complete() const { return complete_; }
  void begin_version() { complete_ = true; }
  // Rounds of versions below are obsolete, but for the preamble's.
  void committed(Version version);

  [[nodiscard]] std::size_t size() const { return rounds_.size(); }
  // Nothing: the group has not been closed in this version.
  [[nodiscard]] std::optional<std::uint64_t> rounds_of(GroupId group, Version version) const;
  [[nodiscard]] const std::map<Key, std::uint64_t>& all() const { return rounds_; }
  // By group.
  [[nodiscard]] std::vector<wire::Position> positions_of(Version version) const;
  [[nodiscard]] static wire::Position position_of(const Key& key, std::uint64_t rounds);

 private:
  std::map<Key, std::uint64_t> rounds_;
  bool complete_ = true;
};

}  // namespace warren::worker

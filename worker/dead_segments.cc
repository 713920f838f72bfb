#include "worker/dead_segments.h"

#include <algorithm>
#include <utility>

namespace warren::worker {

std::vector<Incarnation> DeadSegments::committed(Version version, std::span<const Incarnation> attached,
                                                 std::span<const Incarnation> members) {
  std::map<Incarnation, Version> still;
  std::vector<Incarnation> obsolete;
  for (const Incarnation life : attached) {
    if (std::ranges::find(members, life) != members.end()) continue;
    const auto before = found_.find(life);
    const Version found = before == found_.end() ? version : before->second;
    // When `found` was told here, no life can have begun a version later than `found` + 1: that version's commit needs
    // this rank's vote for it. A new life is told `found` late, with its plan.
    if (version.value >= found.value + 2) {
      obsolete.push_back(life);
    } else {
      still.emplace(life, found);
    }
  }
  found_ = std::move(still);
  return obsolete;
}

}  // namespace warren::worker

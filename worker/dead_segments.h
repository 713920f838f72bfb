// Which log segments of a host's dead lives serve nobody any more.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "recovery/ids.h"

namespace warren::worker {

class DeadSegments {
 public:
  // To be called with each version whose commit this life is told, in rising order. `members`: the lives of the newest
  // plan; of `attached`, the others are dead. Returns those of them whose segments may go: all that they have logged is
  // obsolete, but rounds of the preamble, which their successors have replayed and logged again.
  [[nodiscard]] std::vector<Incarnation> committed(Version version, std::span<const Incarnation> attached,
                                                   std::span<const Incarnation> members);

 private:
  std::map<Incarnation, Version> found_;  // dead lives: the newest commit when this life first saw that they were
};

}  // namespace warren::worker

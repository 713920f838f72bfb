// The traits of this process that a join tells the tracker.
#pragma once

#include "recovery/wire/messages.pb.h"

namespace warren::worker {

// The cores that the process may run on now; those that cannot be told are left out. `maps`, `gpu`: as in wire::Traits.
[[nodiscard]] wire::Traits traits_of_process(bool maps, bool gpu);

}  // namespace warren::worker

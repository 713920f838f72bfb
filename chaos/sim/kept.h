// Logs, disks and mirrors of a host outlive its workers. Their next lives tell of them in their joins.
#pragma once

#include <optional>
#include <string>

#include "chaos/sim/hosts.h"
#include "chaos/sim/sim_mirror.h"
#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"
#include "storage/result_store.h"

namespace warren::chaos {

// By its disk, and by the job's mirror; null: there is none.
[[nodiscard]] std::optional<wire::Held> held_on(storage::ResultStore& store, const SimMirror* mirror);
// By its launcher, in segments of dead lives.
[[nodiscard]] wire::Logged kept_by_launcher(const std::string& host, Hosts& hosts, Incarnation self);

}  // namespace warren::chaos

// What a host's memory says of rounds that no living rank may have seen: whoever has logged something of a round had
// completed those before it, and may have returned them.
#pragma once

#include <span>

#include "recovery/ids.h"
#include "recovery/messages.pb.h"
#include "storage/host_log.h"

namespace warren::worker {

// Of the newest timeline that memory has rounds of. `kept`, for a join: the lives whose segments `reader` reads, that
// of the worker's own last life among them if the launcher has kept it. What is too much for a message
// (recovery/limits.h) is left out, ranges first: it is computed again.
[[nodiscard]] wire::Logged logged_on(HostLogReader& reader, std::span<const Incarnation> kept = {});
[[nodiscard]] bool says_nothing(const wire::Logged& logged);

}  // namespace warren::worker

// What a host's memory says of rounds that no living rank may have seen: whoever has logged something of a round had
// completed those before it, and may have returned them.
#pragma once

#include "recovery/messages.pb.h"
#include "storage/host_log.h"

namespace warren::worker {

// Of the newest timeline that memory has rounds of. What is too much for a join is left out, ranges first: it is
// computed again.
[[nodiscard]] wire::Logged logged_on(HostLogReader& reader);

}  // namespace warren::worker

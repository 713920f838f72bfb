// A plan on its way to a worker: its members as columns (wire::PackedMembers). Of large jobs these take a tenth of the
// bytes. The codec converts, and everything else has the list of members. Pure functions.
#pragma once

#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

// The name that a life's segment socket has, so that plans need not say it. Where another process has that name, the
// socket has another one, and plans say that.
[[nodiscard]] std::string segment_socket_of(Incarnation life);

// A valid plan, whole or told by its changes, as it travels.
[[nodiscard]] wire::Plan packed(wire::Plan plan);

// The plan that packed() has made this of. Makes no more of any message than the largest plan takes. The members are
// not judged: validate_told() does that.
// kCorrupt: it has a list of members, or its columns do not fit together, or lead over a limit of plans.
[[nodiscard]] Result<wire::Plan> unpack(wire::Plan plan);

}  // namespace warren

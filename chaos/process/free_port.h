// A port for a tracker that is started again, and so must come back where it was.
#pragma once

#include <cstdint>

#include "recovery/base/result.h"

namespace warren::chaos::process {

// A port of 127.0.0.1 that nobody has now. Below those that the system gives to connections, where there is room: a
// job's own would soon have one that its tracker has left. Another process may take it all the same; then the tracker
// says so.
[[nodiscard]] Result<std::uint16_t> free_port();

}  // namespace warren::chaos::process

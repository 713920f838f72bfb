// rabit's own tracker, which dmlc-submit starts, and under whose address Warren's workers find no tracker of Warren's.
#pragma once

#include <cstdint>
#include <string>

#include "recovery/base/result.h"
#include "worker/system/netinfo.h"

namespace warren::worker {

// kRefused: rabit's tracker answers at this address; the message says what to do, and that tracker's log says that
// `worker_id` was there. kOk: something else answers, or nothing does within `timeout_ms`.
//
// rabit's tracker, and so dmlc-submit, ends once each rank has said that it shuts down. The first life (`attempt` is 0)
// of a worker whose id is a number says so for that rank.
//
// Comes before any other connection: rabit's tracker ends, and from then on is silent, when a connection begins with
// anything but its own protocol. Warren's tracker closes this one at once.
[[nodiscard]] Status refuse_rabits_tracker(const HostPort& tracker, const std::string& worker_id, std::uint32_t attempt,
                                           std::int64_t timeout_ms);

}  // namespace warren::worker

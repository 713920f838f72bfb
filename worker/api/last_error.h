// The failure of a thread's newest call that failed: what warren_last_error and warren_last_failure tell.
#pragma once

#include <cstdint>

#include "recovery/base/result.h"
#include "warren/c_api.h"

namespace warren::api {

// Keeps a failure for this thread, and gives its code. `rank`: of this worker in its job; -1: it has none.
warren_code report(const Status& status, std::int32_t rank = -1) noexcept;

}  // namespace warren::api

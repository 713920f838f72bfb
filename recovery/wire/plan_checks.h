// The check of a plan, also of one that a worker says it knows.
#pragma once

#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "recovery/wire/progress_checks.h"

namespace warren::checks {

// Of a plan that says everything. `most`: whether a worker claims it, or the tracker has decided it.
[[nodiscard]] Status check_plan(const wire::Plan& p, const Most& most);

}  // namespace warren::checks

// Collectives and messages, blocking and asynchronous.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/group.h"

namespace warren_python {

void bind_collectives(nanobind::class_<Calls>& calls);
void bind_messages(nanobind::class_<Calls>& calls);

}  // namespace warren_python

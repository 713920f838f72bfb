// Checkpoints of states that lie in several buffers. What the bytes mean is _state.py's.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/group.h"

namespace warren_python {

void bind_checkpoints(nanobind::class_<Communicator, Group>& communicator);

}  // namespace warren_python

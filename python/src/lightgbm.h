// LightGBM's network over a communicator: the two functions that LGBM_NetworkInitWithFunctions takes.
#pragma once

#include <nanobind/nanobind.h>

namespace warren_python {

void bind_lightgbm(nanobind::module_& module);

}  // namespace warren_python

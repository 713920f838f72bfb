// The options that go with one call beside its arguments.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/group.h"
#include "warren/c_api.h"

namespace warren_python {

// The operation of a name; throws ValueError with the names that there are.
warren_op op_of(nanobind::handle name);

// The options of one call: the user's line, the name of a set-up round, wire type and algorithm (None: as settings
// say).
class Said {
 public:
  explicit Said(const Calls& calls);
  Said(const Calls& calls, nanobind::handle wire, nanobind::handle algorithm);
  [[nodiscard]] const warren_call_options* get() const { return &options_; }

 private:
  warren_call_options options_{};
};

}  // namespace warren_python

// The options that go with one call beside its arguments.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/group.h"
#include "python/src/handle.h"
#include "warren/c_api.h"

namespace warren_python {

// The operation of a name; throws ValueError with the names that there are.
warren_op op_of(nanobind::handle name);

// The arguments of a call beside its buffers. None, or no value: as settings say.
struct Extras {
  nanobind::handle wire = {}, algorithm = {}, prepare = {};
};

// The options of one call: the user's line, the name of a set-up round, and the extras. A prepare function is kept in
// `call`, which has to outlive the call.
class Said {
 public:
  Said(const Calls& calls, const Extras& extras, Call& call);
  [[nodiscard]] const warren_call_options* get() const { return &options_; }

 private:
  warren_call_options options_;
};

}  // namespace warren_python

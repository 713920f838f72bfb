// The options of warren.init as the C interface's.
#pragma once

#include <nanobind/nanobind.h>

#include <list>
#include <string>

#include "warren/c_api.h"

namespace warren_python {

// Reads a dict of settings by the names of docs/settings.md; None stands for a setting that is not given. Throws
// TypeError for an unknown name or a value of a wrong type, and ValueError for a number out of range.
class Options {
 public:
  explicit Options(const nanobind::dict& given);
  [[nodiscard]] const warren_options& get() const { return options_; }

 private:
  warren_options options_{};
  std::list<std::string> texts_;  // what options_ points to
};

}  // namespace warren_python

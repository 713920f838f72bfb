// The options of warren.init as the C interface's.
#pragma once

#include <nanobind/nanobind.h>

#include <list>
#include <string>

#include "warren/c_api.h"

namespace warren_python {

// Reads a dict of settings by the names of docs/settings.md; None stands for a setting that is not given. Throws
// TypeError for an unknown name or for a value that is no str, path, bool or int. The library checks the values.
class Options {
 public:
  explicit Options(const nanobind::dict& given);
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
  [[nodiscard]] const warren_options& get() const { return options_; }

 private:
  const char* keep(std::string text);

  warren_options options_{};
  std::list<std::string> texts_;  // what options_ points to
};

void bind_options(nanobind::module_& module);

}  // namespace warren_python

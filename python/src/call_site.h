// Where a call stands in the user's program.
#pragma once

#include <cstdint>
#include <string>

namespace warren_python {

// The first Python frame outside the package. The strings belong to the frame's code, which lives
// while the frame runs.
struct CallSite {
  const char* file = nullptr;
  const char* function = nullptr;
  std::int32_t line = 0;
};
CallSite call_site();
// The folder of the package, with a slash at its end.
void set_package_folder(std::string folder);

}  // namespace warren_python

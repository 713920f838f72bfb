// Where a call stands in the user's program.
#pragma once

#include <cstdint>
#include <string>

namespace warren_python {

// The call site (warren_site_of) of the first Python frame outside the package; 0: there is none.
std::uint64_t call_site();
// The folder of the package, with a slash at its end.
void set_package_folder(std::string folder);

}  // namespace warren_python

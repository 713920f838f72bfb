// Where a call stands in the user's program.
#pragma once

#include <cstdint>
#include <string>

namespace warren_python {

// The call site (warren_site_of) of the first Python frame that is of no layer; 0: there is none.
std::uint64_t call_site();
// Code of this folder, which has a slash at its end, lies between the user's and the library: the package, or another
// one that calls it. Comes before that code makes calls.
void add_layer(std::string folder);

}  // namespace warren_python

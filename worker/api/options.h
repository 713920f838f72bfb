// Structs of options, whose size says which version of the header a program was compiled with.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "recovery/base/result.h"
#include "warren/c_api.h"

namespace warren::api {

// Of all that this library knows.
warren_options all_defaults();

// As much of it as the caller's struct has room for, whose size it then says.
template <class Options>
void give_sized(Options* options, Options all, size_t size) {
  if (options == nullptr) return;
  all.struct_size = size;
  std::memcpy(options, &all, std::min(size, sizeof all));
}

// A struct of the caller's header, which may be older: what that does not know is as in `all`.
template <class Options>
Result<Options> of_this_version(const Options& given, Options all, const char* init) {
  if (given.struct_size < sizeof given.struct_size || given.struct_size > sizeof all) {
    return Status(Code::kInvalidArgument, std::string("the options were not filled by ") + init +
                                              ", or by that of a newer version than this library (" + WARREN_VERSION +
                                              ")");
  }
  std::memcpy(&all, &given, given.struct_size);
  all.struct_size = sizeof all;
  return all;
}

}  // namespace warren::api

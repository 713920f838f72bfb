// Values of flags that gflags does not check itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "recovery/base/result.h"

namespace warren::cli {

// least: 1, or 0 where 0 means "any free one". kInvalidArgument names the flag.
[[nodiscard]] inline Result<std::uint16_t> port_of(const char* flag, std::int32_t value, std::int32_t least) {
  if (value >= least && value <= 65535) return static_cast<std::uint16_t>(value);
  return Status(Code::kInvalidArgument, std::string(flag) + " is " + std::to_string(value) + ": give a port from " +
                                            std::to_string(least) + " to 65535");
}

// Of --memory.
[[nodiscard]] inline bool is_memory(std::string_view value) {
  return value == "cpu" || value == "gpu";
}

}  // namespace warren::cli

// Two ranks that never reach each other in the usual way, however often they try.
#pragma once

#include <cstdint>

#include "recovery/base/ids.h"

namespace warren::chaos {

struct BadLink {
  enum class What : std::uint8_t {
    kNoWay,     // between two hosts: no connection comes up, but by way of others
    kNoMemory,  // of one host: neither maps the other's segment
  };
  What what = What::kNoWay;
  Rank a, b;  // a < b
  [[nodiscard]] bool is_between(Rank one, Rank other) const {
    return (one == a && other == b) || (one == b && other == a);
  }
};

}  // namespace warren::chaos

// Results that a full log has given up, though a new life might need them (docs/decisions/0028-a-full-log.md).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "recovery/base/ids.h"

namespace warren {

// The newest of them that a log names.
struct GivenUp {
  Timeline timeline;
  Version version;  // kPreamble: some of the preamble are gone, which every new life needs, whatever is committed

  // Whether no life needs them any more.
  [[nodiscard]] bool obsolete(std::optional<Version> committed) const {
    return version != kPreamble && committed && version < *committed;
  }
  // What is lost for longer counts as newer.
  [[nodiscard]] std::pair<std::uint32_t, std::uint64_t> order() const {
    return {timeline.value, version == kPreamble ? UINT64_MAX : version.value};
  }
  friend bool operator==(const GivenUp&, const GivenUp&) = default;
};

}  // namespace warren

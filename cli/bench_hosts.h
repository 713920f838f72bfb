// `warren bench --explain --explain_hosts=N`: the traffic of one of several hosts, by hosts (docs/algorithms.md, "Among
// several hosts") and without that.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "worker/schedule/costs.h"

namespace warren::cli {

// A table for people, of the algorithms whose bytes move by hosts, or a line that says that none does. `what` has more
// ranks than `hosts`, which is 2 or more. Ranks sit side by side, and elements have 4 bytes.
[[nodiscard]] std::string explain_hosts(const schedule::Case& what, std::int32_t hosts);

// The rows of that table as JSON objects; none: an empty array.
[[nodiscard]] nlohmann::ordered_json explain_hosts_json(const schedule::Case& what, std::int32_t hosts);

}  // namespace warren::cli

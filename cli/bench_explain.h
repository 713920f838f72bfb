// `warren bench --explain`: why an algorithm is chosen, from its estimated costs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "worker/schedule/costs.h"

namespace warren::cli {

// A table for people: each network and algorithm with its estimated time and the terms of it, in microseconds; then
// what is chosen, and why. `what` has two ranks or more and a collective that some algorithm serves.
[[nodiscard]] std::string explain(const schedule::Case& what, const schedule::Costs& costs);

// The same as one JSON object.
[[nodiscard]] nlohmann::ordered_json explain_json(const schedule::Case& what, const schedule::Costs& costs);

// "ranks on one host, 2 cores", "each rank on a host of its own".
[[nodiscard]] std::string describe(const schedule::Network& network);

}  // namespace warren::cli

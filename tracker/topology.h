// Who sits where: ranks and local ranks of a job. Pure.
//
// A worker that had a rank keeps it. The others, host by host (hosts in the order of their smallest worker ids, workers
// of a host in the order of theirs), get the free ranks: next to the ranks that their host has, else a free run that
// holds the whole host. So a new job has the ranks of a host side by side, and worker ids that count up give ranks that
// count up.
#pragma once

#include <span>
#include <string_view>

#include "recovery/tracker/topology_planner.h"

namespace warren::tracker {

// As people count: runs of digits compare as numbers, so "w-9" is before "w-10". A strict total order on strings.
[[nodiscard]] bool natural_less(std::string_view a, std::string_view b);

// The inputs are one world: as many workers as ranks, ids distinct, kept ranks distinct and below their number
// (checked).
[[nodiscard]] PlannerOutput plan_topology(std::span<const PlannerInput> workers);

}  // namespace warren::tracker

// The function that seats workers: its input and its output. The machine is given it, because it knows topologies and
// so belongs to tracker/.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/ids.h"

namespace warren {

struct PlannerInput {
  std::string worker_id, host_id, domain_id;
  std::optional<Rank> rank;  // assigned in an earlier plan: kept
};
struct PlannerOutput {
  std::vector<Rank> rank;                             // by index of the input
  std::vector<std::uint32_t> local_rank, local_size;  // by rank
};
using TopologyPlanner = std::function<PlannerOutput(std::span<const PlannerInput>)>;

}  // namespace warren

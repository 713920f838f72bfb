// Costs as a file: what `warren bench --fit` writes and the setting `costs` names. JSON, all members required:
//
//   {"format": 1,
//    "networks": [{"one_host": true, "cores": 2, "most_ranks": 0, "hop_ns": 200, "message_ns": 250,
//                  "shared_message_ns": 800, "byte_ps": 40, "reduced_byte_ps": 60, "logged_byte_ps": 60}],
//    "measured": [{"collective": "allreduce", "ranks": 8, "from_bytes": 65536, "algorithm": "star"}]}
#pragma once

#include <string>
#include <string_view>

#include "recovery/base/result.h"
#include "worker/schedule/costs.h"

namespace warren::worker {

// kInvalidArgument: no such JSON, a format of another version, a member that is missing, unknown or out of range, no
// network for groups of any size, what was measured not in rising order; the message names the place.
[[nodiscard]] Result<schedule::Costs> parse_costs(std::string_view text);

// The same of a file; kUnavailable: it cannot be read. Messages name it. No path: the default costs.
[[nodiscard]] Result<schedule::Costs> read_costs(const std::string& path);

// What parse_costs() reads: one line, or several for people.
[[nodiscard]] std::string to_json(const schedule::Costs& costs, bool for_people);

// Eight hexadecimal digits that differ where costs do, or what is chosen by them.
[[nodiscard]] std::string name_of(const schedule::Costs& costs);

// As the job's settings keep it: the name, a space, the JSON.
[[nodiscard]] std::string settings_text(const schedule::Costs& costs);

}  // namespace warren::worker

// A tracker's /status as a table for people. Pure.
#pragma once

#include <string>
#include <string_view>

#include "recovery/base/result.h"

namespace warren::cli {

// `json`: what GET /status gave. `job`: show this one alone; empty: all. kCorrupt: not a tracker's status.
// kInvalidArgument: there is no such job (those there are, are named).
// `why`: instead of the ranks, who waits for whom, who is to blame and by what evidence, and what comes next.
[[nodiscard]] Result<std::string> status_table(std::string_view json, std::string_view job, bool why = false);
// Of the same, what it says of one job; errors likewise.
[[nodiscard]] Result<std::string> status_of_job(std::string_view json, std::string_view job);

}  // namespace warren::cli

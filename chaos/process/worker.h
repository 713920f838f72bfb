// The program of a chaos run's workers: runs the chaos program through Warren's public interface, and tells what came
// out of each call.
#pragma once

#include <cstdint>
#include <string>

#include "chaos/process/program.h"
#include "recovery/base/result.h"

namespace warren::chaos::process {

// A run's folder, which holds all that its workers need to know.
[[nodiscard]] Status write_shape(const std::string& folder, const ProgramShape& shape);
// kInvalidArgument: there is none, or it is damaged.
[[nodiscard]] Result<ProgramShape> read_shape(const std::string& folder);

// Runs worker number WARREN_WORKER_ID; everything else is taken from WARREN_* variables. Returns the
// exit code: 0; 1 when a call failed; 2 when the folder cannot be used.
[[nodiscard]] int run_worker(const std::string& folder);

}  // namespace warren::chaos::process

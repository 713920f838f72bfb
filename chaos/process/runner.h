// One run of `warren chaos`: a job of real processes, faults, and the judgement of every result.
#pragma once

#include <atomic>

#include "chaos/process/report.h"
#include "recovery/base/result.h"

namespace warren::chaos::process {

// Says what happens on standard error. `interrupt` ends the run early. Single-threaded callers only: it may move the
// calling thread into another network namespace. kUnavailable: the run could not begin.
[[nodiscard]] Result<ChaosReport> run_chaos(const ChaosOptions& options, const std::atomic<bool>& interrupt);

}  // namespace warren::chaos::process

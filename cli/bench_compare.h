// `warren bench --compare` and `--fit`: algorithms that take turns in one job, and the costs that explain their times.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_cell.h"
#include "worker/settings/settings.h"

namespace warren::cli {

struct Comparison {
  std::vector<Cell> cells;  // those that one algorithm alone serves are left out
  std::string fit_file;     // gets the costs, written by rank 0; empty: none
  bool json = false;
};

// Collective: every rank of `comm` runs the same cells, each by every algorithm that serves it and by "auto"; rank 0
// prints. `errors` are wrong elements.
[[nodiscard]] Status compare(warren_comm* comm, const Comparison& comparison, const worker::Settings& settings,
                             std::uint64_t& errors);

}  // namespace warren::cli

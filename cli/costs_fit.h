// Costs that explain what was measured.
#pragma once

#include <span>

#include "worker/schedule/costs.h"

namespace warren::cli {

// How long a call took by one algorithm, in microseconds: half of the turns were shorter than the median, a quarter
// shorter than `low_us`, a quarter longer than `high_us`.
struct Timing {
  schedule::Case what;
  schedule::Algorithm algorithm{};
  double median_us = 0, low_us = 0, high_us = 0;
};

// The rates that come nearest to the timings, by the squares of relative errors, none below 0. `where` says how ranks
// sit and what cores they have; rates that no timing tells of stay as they are there.
[[nodiscard]] schedule::Network fit_rates(std::span<const Timing> timings, const schedule::Network& where);

// Where another algorithm than the one that these costs choose was faster by more than a tenth and by more than the
// spread of the two: what was measured, up to four times the largest size. `timings` are sorted by collective, size of
// the group and bytes.
[[nodiscard]] std::vector<schedule::Measured> measured_better(std::span<const Timing> timings,
                                                              const schedule::Costs& costs);

}  // namespace warren::cli

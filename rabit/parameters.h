// What arguments and variables say to a program of rabit's, in Warren's terms.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rabit/outcome.h"

namespace rabit::layer {

// The value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// Where a process is to end: mock=rank,version,sequence,trial.
struct KillPoint {
  int rank = 0, version = 0, sequence = 0, trial = 0;
  auto operator<=>(const KillPoint&) const = default;
};

struct Parameters {
  // Nobody named a tracker or a world of more than one: this process is the world.
  bool alone = true;
  // Started by dmlc-submit in another role than that of a worker: there is nothing to do.
  bool not_a_worker = false;
  // What is given to warren_create; empty or 0: Warren's own settings decide.
  std::string tracker, worker_id;
  int world_size = 0;
  int replicas = 0;
  int trial = 0;  // how often this worker was started before
  std::vector<KillPoint> kill_points;
  bool report_stats = false;
  bool infer_setup_rounds = true;
  bool stop_process_on_error = true;  // false: errors are thrown
  // For standard error: what was given and has another meaning here, or none.
  std::vector<std::string> notes;
};

// `arguments`: those of the program; what is not of the form key=value, or a key of its own, is its own affair. Key by
// key an argument comes before Warren's variable, and that before rabit's and dmlc-submit's: also for the tracker,
// whose host may come from one and its port from another. An error names the key. `kill_points`: whether the library
// serves mock=.
[[nodiscard]] Outcome read_parameters(std::span<const char* const> arguments, const Environment& environment,
                                      bool kill_points, Parameters& out);

}  // namespace rabit::layer

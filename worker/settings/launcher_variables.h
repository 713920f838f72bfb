// What launchers tell their processes through the environment, in Warren's terms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "recovery/base/result.h"
#include "worker/settings/settings.h"

namespace warren::worker {

struct FromLauncher {
  struct Value {
    std::string text;
    std::string variable;  // where it came from: "SLURM_PROCID"
  };
  // Worker id and world size come from one launcher, the innermost of those that are there: mpirun or torchrun inside
  // of a Slurm job number the processes, Slurm only their nodes. The others come from the innermost that has them.
  std::optional<Value> worker_id, world_size;
  std::optional<Value> tracker, tracker_port, job, attempt;
};

// kInvalidArgument: a variable contradicts itself or says that this process is no worker. Numbers are checked by who
// uses them.
[[nodiscard]] Result<FromLauncher> read_launcher(const Environment& env);

// How many workers of the job share this machine, if the innermost launcher tells; else 1. kInvalidArgument: not a
// number.
[[nodiscard]] Result<std::uint64_t> read_local_world_size(const Environment& env);

}  // namespace warren::worker

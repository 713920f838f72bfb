// The setting of a simulated job: drawn from its seed, unless options say something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "chaos/sim/faults.h"
#include "chaos/sim/options.h"
#include "chaos/sim/program.h"
#include "chaos/sim/random.h"
#include "chaos/sim/world.h"
#include "recovery/wire/messages.pb.h"

namespace warren::chaos {

struct Setting {
  std::uint32_t world_size = 2;
  std::optional<Recipe> recipe;
  FaultPlan faults;
  bool large = false;
  wire::JobSettings job;
  std::int64_t join_timeout_ms = 0;
  Micros safety_us = 0;  // how long faults strike
  Program::Shape program;
  bool salted = false;
  bool disks = false, mirror = false;
  bool spills = false;     // logs hold little more than what has to stay there: the rest goes to disks
  bool full_logs = false;  // which give up their oldest results
  bool gpus = false, nccl = false;
  bool says_gpu = true;      // workers that have one say so
  bool gpus_fail = false;    // NCCL's calls fail, and GPUs stall, now and then
  bool one_host = false;     // all ranks are on one
  std::size_t together = 0;  // all ranks, on so many hosts; 0: as is drawn
  std::uint32_t spares = 0;
  std::uint64_t spares_at = 0;  // turns the hosts that they are on
  bool follows = false;         // these hold the newest checkpoint
  bool ends_process = true;     // of workers whose life is over: the program does not hear why
  bool launcher_each = false;   // each worker has a launcher of its own; else one a host
  std::uint32_t late = 0;       // workers that come some time, if the job may begin without them
  bool survivable = true;       // no more failure domains are lost than there are copies to spare
  // Cores and shared memory, as workers can tell of them: nothing; all the same two cores; each something else.
  enum class Sees : std::uint8_t { kNothing, kTwoCores, kAnything };
  Sees sees = Sees::kNothing;

  [[nodiscard]] std::int64_t timeout_ms() const { return static_cast<std::int64_t>(job.round_timeout_ms()); }
  [[nodiscard]] bool shrinks() const { return job.min_workers() > 0; }
};

// One seed in so many has a world whose plan is announced in several steps: without a log, and with slow starts only.
[[nodiscard]] bool has_large_world(std::uint64_t seed);

[[nodiscard]] Setting draw_setting(Random& random, const SimOptions& options);

// In one line, for people. `steps`: of the program.
[[nodiscard]] std::string describe(const Setting& setting, std::size_t steps);

}  // namespace warren::chaos

// The things that all parts of one simulated run share: options, setting, world, program, judge, and the memory and
// disks of machines. Each of them owns its state; this struct only holds them together.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "chaos/sim/hosts.h"
#include "chaos/sim/judge.h"
#include "chaos/sim/options.h"
#include "chaos/sim/program.h"
#include "chaos/sim/setting.h"
#include "chaos/sim/sim_mirror.h"
#include "chaos/sim/world.h"
#include "storage/fake_result_store.h"

namespace warren::chaos {

inline constexpr const char* kJob = "sim";

struct Run {
  explicit Run(const SimOptions& asked)
      : options(asked),
        draws(asked.seed * 0x10001 + 7),
        setting(draw_setting(draws, asked)),
        world(Random::mix(asked.seed), setting.faults, asked.mutant, asked.transcript),
        program(draws, setting.program),
        judge(world, program, hosts, setting.job, setting.salted) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const SimOptions options;
  Random draws;
  const Setting setting;
  World world;
  Program program;
  Hosts hosts;
  Judge judge;
  std::map<std::string, std::shared_ptr<storage::FakeResultDisk>> disks;  // by host
  std::optional<SimMirror> mirror;
};

}  // namespace warren::chaos

// Options of a simulated run: values instead of those that its seed would draw, and faults at stated places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/bad_link.h"
#include "chaos/sim/chance.h"
#include "chaos/sim/deadlock.h"
#include "chaos/sim/faults.h"
#include "chaos/sim/kill_point.h"
#include "chaos/sim/mutant.h"
#include "chaos/sim/program.h"
#include "chaos/sim/straggler.h"

namespace warren::chaos {

struct SimOptions {
  std::uint64_t seed = 1;
  Mutant mutant = Mutant::none;
  bool transcript = false;
  // Instead of what the seed decides, or draws.
  std::optional<Chances::Kept> chances;
  std::optional<std::uint32_t> world_size;
  std::optional<FaultPlan> faults;
  std::optional<std::int64_t> round_timeout_ms;
  std::optional<std::uint32_t> replicas;
  std::optional<std::string> algorithm;
  std::optional<std::uint64_t> chunk_bytes;  // with `gpus`
  std::optional<bool> groups, survivable;
  std::optional<Collective> collective;  // all rounds are of it, and there are no messages
  std::optional<bool> disks;             // hosts have them
  std::optional<bool> spills;            // logs in memory are small, and the rest goes to disks
  std::optional<bool> full_logs;         // logs have no room for all results of a version, nor have disks
  std::optional<bool> mirror;            // and the job a mirror of its checkpoints
  std::optional<std::uint32_t> spares;   // beyond the world size; not where something is to happen at a stated place
  std::optional<bool> follows;           // spares hold the newest checkpoint
  std::optional<std::uint64_t> replace_after_ms;  // a rank that holds up the others leaves its place to a spare
  std::optional<bool> rewires;                    // the bytes of a slow link may go by way of others
  std::optional<bool> reorders;                   // and the ring may go around it
  bool many_versions = false;                     // ten checkpoints or more
  std::optional<bool> shrinks;               // the job goes on without lost ranks; of two ranks or more, with a log
  std::optional<std::uint32_t> min_workers;  // of such a job
  std::optional<std::uint64_t> grace_ms;
  // Of such a job, which may begin without them: so many workers come late. 0: it begins with all.
  std::optional<std::uint32_t> late;
  std::optional<bool> inferred;    // the program has set-up rounds without names, and rounds that recur
  std::optional<bool> gpus;        // workers have some; with a log, and not in mode shrink
  std::optional<bool> nccl;        // which moves bytes among them
  std::optional<bool> gpus_fail;   // NCCL's calls fail and GPUs stall, now and then
  std::optional<bool> lends;       // ranks of a host have allreduces of inputs that they lend
  std::vector<std::string> hosts;  // by worker; each a failure domain of its own
  // The tracker dies before it carries out its effect of this number (from 0).
  std::optional<std::uint64_t> tracker_dies_before_effect;
  std::optional<std::int64_t> tracker_away_us;  // and is started again so much later; nullopt: soon
  bool journal_dies_too = false;
  // Of the commit of this number (from 1) one worker alone hears; then the tracker's machine goes with its disk, and
  // the worker stands still for longer than the others are asked what they know, and not for as long as would fence it.
  struct LoneCommit {
    std::uint64_t commit = 1;
    std::size_t worker = 0;
  };
  std::optional<LoneCommit> lone_commit;
  std::optional<Straggler> straggler;
  std::optional<Deadlock> deadlock;  // of the workers' first lives
  std::optional<BadLink> bad_link;
  // A life of a worker dies at its passage of this number (from 0) through a place, alone or with its machine.
  struct Death {
    std::size_t worker = 0;
    KillPoint at = KillPoint::kEffect;
    std::uint64_t passage = 0;
    bool with_host = false;
    std::uint32_t attempt = 0;  // of which life; 0: the first
    bool with_cluster = false;  // all processes of the job, and the tracker
    bool with_disks = false;    // and all disks but the tracker's
    // Its worker is started again so much later; nullopt: soon.
    std::optional<std::int64_t> away_us{};
    // Alone: its kernel tells its peers nothing. nullopt: as is drawn.
    std::optional<bool> silently{};
  };
  std::vector<Death> deaths;
  // A worker's first life gives another state than the others for its checkpoint of this number (from 1).
  struct OtherState {
    std::size_t worker = 0;
    std::uint64_t checkpoint = 1;
  };
  std::optional<OtherState> other_state;
  // The machine of a worker's first life is taken away, as it has been told at that life's passage of this number (from
  // 0) through a place: it is there for so long, and its workers' next lives begin elsewhere.
  struct Notice {
    std::size_t worker = 0;
    KillPoint at = KillPoint::kReturn;
    std::uint64_t passage = 0;
    std::int64_t within_us = 0;
    // So much later another worker's machine is lost, without a word.
    std::optional<std::size_t> then{};
    std::int64_t then_us = 0;
  };
  std::vector<Notice> notices;
};

}  // namespace warren::chaos

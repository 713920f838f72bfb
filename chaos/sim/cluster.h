// A whole job from one seed: a tracker, its workers and their launchers, the networks between them, what goes wrong,
// and the rules that decide whether it went well.
//
// A run has a safety phase under faults and a liveness phase in which faults stop, everybody who is missing is started,
// and everything must finish within a bounded time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/bad_link.h"
#include "chaos/sim/deadlock.h"
#include "chaos/sim/faults.h"
#include "chaos/sim/kill_point.h"
#include "chaos/sim/mutant.h"
#include "chaos/sim/straggler.h"
#include "recovery/wire/frame.h"

namespace warren::chaos {

// One seed in so many has a world whose plan is announced in several steps: without a log, and with slow starts only.
[[nodiscard]] constexpr bool has_large_world(std::uint64_t seed) {
  return seed % 250 == 97;
}

struct SimOptions {
  std::uint64_t seed = 1;
  Mutant mutant = Mutant::none;
  bool transcript = false;
  // Instead of what the seed draws.
  std::optional<std::uint32_t> world_size;
  std::optional<FaultPlan> faults;
  std::optional<std::int64_t> round_timeout_ms;
  std::optional<std::uint32_t> replicas;
  std::optional<std::string> algorithm;
  std::optional<std::uint64_t> chunk_bytes;  // with `gpus`
  std::optional<bool> groups, survivable;
  std::optional<Collective> collective;  // all rounds are of it, and there are no messages
  std::optional<bool> disks;             // hosts have them
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

struct SimOutcome {
  std::string verdict;  // empty: every invariant held
  std::uint64_t digest = 0;
  FaultCounts faults{};
  bool under_faults = false;
  std::uint64_t rounds = 0, events = 0, generations = 0, lives = 0;
  std::uint64_t most_events_waiting = 0;  // at once
  std::uint64_t commits = 0, rollbacks = 0, second_faults = 0;
  std::uint64_t most_pending = 0;    // versions that one life had taken and nobody had committed
  std::uint64_t kept_rounds = 0;     // that disks gave to plans after no life had survived
  std::uint64_t spills = 0;          // of memory logs that were full
  std::uint64_t given_up = 0;        // times that one gave up results
  std::uint64_t met = 0, unmet = 0;  // times that a new life asked whether the next round is its call's, by the answer
  std::uint64_t followed = 0, loaded_followed = 0;  // checkpoints that spares have held, and with which they have begun
  bool lost_for_good = false;                       // more was lost than was kept, and it was said
  std::uint64_t from_mirror = 0;                    // timelines that began from the mirror's newest checkpoint
  std::uint64_t rebuilt = 0;                        // trackers that went on from what members told
  std::uint64_t stragglers_named = 0, replaced = 0;
  std::uint64_t exchanged = 0;         // rounds that NCCL has moved among GPUs, by rank
  std::uint64_t lent = 0;              // inputs that stayed on a GPU, where others of the host have read them
  std::uint64_t from_gpus = 0;         // pieces of results that came from another rank's GPU
  std::uint64_t came_home = 0;         // of those inputs: of which something came back after an interrupt
  std::uint64_t fell = 0;              // pieces that others had taken the place of when they were read
  std::uint64_t taken_up = 0;          // partial results of another host that a GPU has gone on from
  std::uint64_t sent_on = 0;           // pieces of lent inputs that were sent to another host
  std::uint64_t copied = 0;            // likewise, that were parts of the result as they were
  std::uint64_t handed_on = 0;         // finals from other hosts that were brought to where others read them
  std::uint64_t gpus_failed = 0;       // lives that this has ended
  std::uint64_t reordered_rounds = 0;  // results for which the ring had another order than that of ranks
  std::uint64_t shrunk = 0,
                grown = 0;  // plans without ranks that the ones before had, and with ones that those had not
  std::uint64_t tracker_effects = 0;
  std::vector<std::array<std::uint64_t, kKillPoints>> passages;  // of each worker's first life
  std::int64_t virtual_ms = 0;
  std::int64_t liveness_ms = 0;  // how long it took to finish once faults had stopped
  std::string setting;           // in one line, for people
  std::vector<std::uint64_t> tracker_transitions, worker_transitions;
  std::vector<std::string> transcript;
};

[[nodiscard]] SimOutcome simulate(const SimOptions& options);

}  // namespace warren::chaos

// A job as the tracker's machine knows it at one moment: for /status, metrics and the simulator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/decide/verdict.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

enum class JobState : std::uint8_t { kGathering, kRunning, kInterrupted, kFinished };

struct JobView {
  // Counters of one life, or of all lives, as wire::GpuCounters has them.
  struct GpuCounts {
    std::uint64_t readers = 0, inputs_lent = 0, finals_from_gpus = 0, rounds_exchanged = 0;
  };
  struct Member {
    Rank rank;  // kNoRank before the first plan
    std::string worker_id, host_id;
    Incarnation incarnation;  // 0: lost, its place is kept
    bool alive = false;
    std::int64_t last_heard_ms_ago = 0;
    std::uint64_t rounds_finished = 0, bytes_moved = 0;
    GpuCounts gpu;
    std::uint32_t attempt = 0;
    std::vector<wire::CurrentRound> rounds;
    std::optional<wire::Activity> activity;  // as of its newest heartbeat of this generation
    std::optional<wire::Draining> draining;  // with what is left of its time
    bool replaced = false;                   // it leaves because a spare takes its place
    bool excluded = false;                   // it leaves, and the job goes on without it
    bool absent = false;                     // the job goes on without it
    bool suspect = false;                    // alive, as far as is known, and silent for longer than it usually is
    std::uint32_t lives = 0;                 // that have had the rank, or are about to
    bool waits = false;                      // for the next plan: it has joined, or stopped
    bool candidate = false;                  // for the place of another worker; with `waits`
    std::optional<wire::LogFill> log;        // as its newest heartbeat tells
    std::string disk_trouble;                // as its newest heartbeat tells; empty: its disk takes what it has to
  };
  struct Spare {
    std::string worker_id, host_id;
    Incarnation incarnation;
    std::int64_t last_heard_ms_ago = 0;
    Rank called_for = kNoRank;
    std::optional<Version> followed;  // the checkpoint that it holds
  };

  JobState state;
  bool lost = false;  // the job cannot go on: `last_interrupt` says why, and what to do
  Generation generation;
  std::uint32_t world_size = 0, replicas = 0;
  std::uint32_t min_workers = 0;  // 0: the job waits for lost ranks
  Timeline timeline;
  std::optional<Version> committed;
  std::string unprotected;               // why a loss would undo what is not committed; empty: it would not
  std::vector<wire::Position> frontier;  // of the newest plan
  std::vector<wire::Detour> detours;     // of the newest plan
  std::vector<wire::RingOrder> orders;   // of the newest plan
  std::size_t votes = 0;                 // for the next version
  std::vector<std::string> waiting_for;  // who keeps the next plan from being made, at most kMaxMissingNames
  std::string last_interrupt;            // why the last generation ended; empty: none did
  std::vector<Member> members;
  std::vector<Spare> spares;
  std::uint64_t spares_used = 0;  // that have taken a place
  std::uint64_t interrupts = 0, joins = 0, refusals = 0;
  std::uint64_t preemptions = 0;  // members that left because their places were needed elsewhere
  // Over all ranks and their lives, also those that are over, as far as this tracker was told; a round counts for
  // each of its ranks. Readers: of the lives that are there.
  GpuCounts gpu;
  // Since the newest round that a member has finished, replayed ones too, and since the newest commit; without one,
  // since this tracker has known the job.
  std::int64_t last_round_ms_ago = 0, last_commit_ms_ago = 0;
  TimeMs now;  // of this view
  StragglerLimits limits;
  // The waits of ranks for each other, by round; while no generation runs, the workers that are waited for.
  std::vector<std::string> waits;
  std::vector<StragglerWatch::Standing> verdicts;
  std::array<std::uint64_t, kBlames> verdicts_ever{};  // by kind
};

}  // namespace warren

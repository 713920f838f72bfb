// Helpers for the tests of the machines: messages in a few words, effects as lines of text, transitions counted over
// the whole test program.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/machine.h"
#include "recovery/tracker/invariants.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/wire/codec.h"
#include "recovery/worker/worker_machine.h"

namespace warren::test {

inline constexpr std::uint64_t kTracker = 900;  // the tracker's incarnation

wire::JobSettings settings(std::uint32_t world_size, std::uint32_t replicas = 0);
wire::Join join(const std::string& worker, const std::string& host, std::uint32_t world_size,
                std::uint32_t replicas = 0);
// Ranks in the order of the input where they are free; ring in rank order; everybody under rank 0.
PlannerOutput plan_simply(std::span<const PlannerInput> workers);
wire::Plan plan_of(std::uint64_t generation,
                   const std::vector<std::pair<std::string, std::uint64_t>>& workers_and_lives);
// Rank's call in round 0.`sequence`, waiting for ranks since `waited_ms`.
wire::CurrentRound round(std::uint64_t sequence, std::uint64_t count, std::vector<std::uint32_t> waiting_for,
                         std::uint64_t waited_ms);

// How far a rank is in a version of a group; rendered as "2.17", "2.17|" when closed, "2.17[0,8)" with what is final.
wire::Position position(std::uint64_t version, std::uint64_t rounds, bool closed = false,
                        const std::vector<std::pair<std::uint64_t, std::uint64_t>>& final = {},
                        std::uint64_t group = 0);
// Likewise, of a result of so many bytes.
wire::Position in_flight(std::uint64_t version, std::uint64_t rounds, std::uint64_t begin, std::uint64_t end,
                         std::uint64_t total_bytes);

// The set-up round of the n-th name; rendered as "s7|" when done, else "s7[0,8)" with what is final, "s7@2" of
// timeline 2.
wire::Setup setup(std::uint64_t group, std::uint64_t n, bool done,
                  const std::vector<std::pair<std::uint64_t, std::uint64_t>>& final = {}, std::uint32_t timeline = 0);

wire::Envelope from_worker(std::uint64_t life);
wire::Envelope from_tracker(std::uint64_t to_life);

// One line an effect. Log lines read "log NAME: text"; `logs` false leaves them out.
std::string render(const std::vector<TrackerEffect>& effects, bool logs = true);
std::string render(const std::vector<WorkerEffect>& effects, bool logs = true);
std::string render(const wire::Envelope& envelope);
std::string render(const wire::Position& position);
std::string render(const wire::Setup& setup);

// Adds a machine's counters to those of the whole program; at its end every transition must have been hit.
void record_transitions(std::string_view machine, std::span<const char* const> names,
                        std::span<const std::uint64_t> counts);

// A tracker's machine with a clock and a disk. Each call returns what the machine did, as lines. Messages pass through
// encoder and validator; the machine's invariants are checked after every event.
class TrackerScript {
 public:
  // `replicas`: of all who join.
  explicit TrackerScript(bool logs = false, std::uint32_t replicas = 0) : logs_(logs), replicas_(replicas) { boot(); }
  // Of TrackerMachine::Options.
  explicit TrackerScript(std::size_t most_plan_bytes_out) : most_plan_bytes_out_(most_plan_bytes_out) { boot(); }
  ~TrackerScript() { retire_machine(); }
  TrackerScript(const TrackerScript&) = delete;
  TrackerScript& operator=(const TrackerScript&) = delete;

  // The tracker dies and starts again from its disk. `promised`: as many members of its plan as it needs to act have
  // heard of it.
  void restart(bool promised = true);
  // What `life` says once it has heard the newest term of this tracker.
  [[nodiscard]] wire::Envelope promised(std::uint64_t life) const;

  std::string send(wire::Envelope envelope);
  std::string join(const std::string& worker, std::uint64_t life, std::uint32_t world_size,
                   const std::string& host = "h");
  std::string beat(std::uint64_t life, std::uint64_t generation, std::vector<wire::CurrentRound> rounds = {});
  std::string link_broken(std::uint64_t life, std::uint64_t generation, std::uint32_t peer, std::uint64_t peer_life,
                          const std::string& evidence = "connection reset");
  // The peer's process has.
  std::string gone(std::uint64_t life, std::uint64_t generation, std::uint32_t peer, std::uint64_t peer_life);
  std::string stopped(std::uint64_t life, std::uint64_t generation);
  std::string finalize(std::uint64_t life, std::uint64_t generation, std::uint64_t version = 0);
  std::string give_up(std::uint64_t life, std::uint64_t generation, const std::string& reason = {});
  // It is preempted and goes on serving for so long; it has done rounds and set-up rounds of `timeline`.
  std::string serves(std::uint64_t life, std::uint64_t generation, std::uint64_t serves_ms,
                     const std::vector<wire::Position>& positions = {}, const std::vector<wire::Setup>& setups = {},
                     std::uint32_t timeline = 0);
  std::string report(std::uint64_t life, std::uint64_t generation, std::uint64_t version,
                     const std::vector<wire::Position>& positions = {}, const std::vector<wire::Setup>& setups = {});
  std::string load(std::uint64_t life);
  std::string vote(std::uint64_t life, std::uint64_t version, const std::vector<wire::Position>& positions = {},
                   std::uint32_t timeline = 0, const std::vector<wire::Setup>& setups = {});
  // With what it has given; or that alone, as it lacks something.
  std::string vote_for(std::uint64_t life, std::uint64_t version, const wire::StateDigest& state);
  std::string tell_state(std::uint64_t life, std::uint64_t version, const wire::StateDigest& state);
  std::string log_gap(std::uint64_t life, std::uint64_t generation,
                      const std::string& reason = "round 0.3 is held by nobody", std::optional<wire::Setup> setup = {});
  // It cannot load this one: no host holds it.
  std::string checkpoint_lost(std::uint64_t life, std::uint64_t generation, std::uint64_t version,
                              std::uint32_t timeline = 0);
  std::string round_failed(std::uint64_t life, std::uint64_t generation, Code code, const std::string& reason);
  // Time passes; the machine is called at each of its deadlines. `while_alive` sends heartbeats of these lives.
  std::string pass(std::int64_t ms);
  std::string pass_alive(std::int64_t ms, std::vector<std::uint64_t> lives, std::uint64_t generation);
  // The tracker's process stands still.
  std::string sleep(std::int64_t ms);

  TrackerMachine& machine() { return *machine_; }
  std::string& disk() { return disk_; }
  std::int64_t now() const { return now_; }
  // All effects ever, for comparison of runs.
  const std::string& transcript() const { return transcript_; }
  bool forgotten() const { return forgotten_; }

 private:
  void boot();
  void retire_machine();
  std::string carry_out(const std::vector<TrackerEffect>& effects);

  bool logs_ = false;
  std::uint32_t replicas_ = 0;
  std::optional<std::size_t> most_plan_bytes_out_;
  std::int64_t now_ = 0;
  std::string disk_;
  std::uint64_t term_ = 1;
  std::string transcript_;
  bool forgotten_ = false;
  std::optional<TrackerMachine> machine_;
  TrackerInvariants invariants_;  // of this machine
};

}  // namespace warren::test

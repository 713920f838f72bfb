// The tracker's view of one job: who is in it, who has which rank, which epoch is in force.
//
// States: gathering → running → (loss, desync, give-up) interrupted → gathering → … → finished. A worker is known by its
// worker id; each of its lives by an incarnation. Its rank is assigned when the job is first complete and is kept for
// all its lives. An interrupt ends the epoch for all members: each answers Stopped and joins again in a new life (or the same
// process creates a new communicator); who does not answer within a round timeout is fenced.
//
// Rules this machine keeps (DESIGN.md section 6, I6, I7):
//  - An epoch's plan is persisted before it is announced; epochs only rise, also over restarts.
//  - A message of an incarnation that is not the worker's current one changes nothing and is answered with Refused(closed).
//  - A join with the worker id of a live member replaces it: the newer life wins, and if the job was running it is
//    interrupted.
//  - Every wait has a deadline or a log event that says who is waited for, repeated at most every 10 s.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "recovery/ids.h"
#include "recovery/machine.h"
#include "recovery/messages.pb.h"
#include "recovery/result.h"

namespace warren {

// What the planner knows of a worker, and what it decides. Given to the machine, because the planner lives in tracker/.
struct PlannerInput {
  std::string worker_id, host_id, domain_id;
  std::optional<Rank> rank;  // assigned in an earlier plan: kept
};
struct PlannerOutput {
  std::vector<Rank> rank;  // by index of the input
  std::vector<std::uint32_t> ring;
  std::vector<std::int32_t> tree_parent;
  std::vector<std::uint32_t> local_rank, local_size;  // by rank
};
using TopologyPlanner = std::function<PlannerOutput(std::span<const PlannerInput>)>;

// Effects, in the order in which they must be carried out.
namespace tracker_effect {
// Store under the job's own key; durable before the next effect.
struct Persist {
  std::string bytes;
};
// Forget what was persisted for the job: it has finished.
struct Forget {};
// To the connection of this incarnation (the shell remembers where its last authenticated message came from).
struct Send {
  Incarnation to;
  wire::Envelope envelope;
};
// The connection of this incarnation may be forgotten once what was sent has gone out.
struct Drop {
  Incarnation who;
};
struct Log {
  LogEvent event;
};
}  // namespace tracker_effect
using TrackerEffect = std::variant<tracker_effect::Persist, tracker_effect::Forget, tracker_effect::Send,
                                   tracker_effect::Drop, tracker_effect::Log>;

class TrackerMachine {
 public:
  enum class State : std::uint8_t { kGathering, kRunning, kInterrupted, kFinished };

  // Each transition that the machine can take; counted, so that the simulator can tell that all were exercised.
  enum class Transition : std::uint8_t;
  [[nodiscard]] static std::span<const char* const> transition_names();
  [[nodiscard]] std::span<const std::uint64_t> transition_counts() const { return transitions_; }

  struct Options {
    std::string job;
    Incarnation self;          // the tracker's own
    TopologyPlanner planner;
  };
  // `persisted`: what an earlier life of the tracker stored for this job; empty: a new job. A new job takes its settings
  // from the first valid Join. kCorrupt: the persisted bytes are not ours (the message says what to do).
  static Result<TrackerMachine> make(Options options, std::string_view persisted, TimeMs now);

  // A message that passed decode_envelope(Side::kWorker), for this job, from an authenticated connection.
  void on_message(const wire::Envelope& envelope, TimeMs now, std::vector<TrackerEffect>& effects);
  // Call when next_deadline() has come (calling early does nothing).
  void on_tick(TimeMs now, std::vector<TrackerEffect>& effects);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  // For /status and the simulator.
  struct MemberView {
    Rank rank;  // kNoRank before the first plan
    std::string worker_id, host_id;
    Incarnation incarnation;  // 0: lost, its place is kept
    bool alive = false;
    std::int64_t last_heard_ms_ago = 0;
    std::uint64_t rounds_finished = 0, bytes_moved = 0;
    std::uint32_t attempt = 0;
    std::vector<wire::CurrentRound> rounds;
  };
  struct View {
    State state;
    Epoch epoch;
    std::uint32_t world_size = 0;
    std::string last_interrupt;  // why the last epoch ended; empty: none did
    std::vector<MemberView> members;
    std::uint64_t interrupts = 0, joins = 0, refusals = 0;
  };
  [[nodiscard]] View view(TimeMs now) const;
  [[nodiscard]] State state() const;
  // Checks the machine's own consistency (WARREN_CHECK); the simulator calls it after every event.
  void check_invariants() const;

 private:
  std::vector<std::uint64_t> transitions_;
  // … the implementer's
};

}  // namespace warren

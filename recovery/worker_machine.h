// A worker's side of the protocol: joining, being a member of an epoch, stopping on an interrupt, leaving.
//
// States: joining → member → (interrupt) stopping → broken, or member → leaving → finished; joining and member may fail.
// Rules this machine keeps: it answers an interrupt with Stopped only after the shell has said that the data path stopped (I6);
// it takes no plan or interrupt of an epoch that is not newer than what it knows; messages that do not name its
// incarnation change nothing; the tracker's silence is reported in the log and is not an error while the data path
// moves, and a join that the tracker does not answer ends with an error after join_timeout_ms (never a worker that
// trains alone).
#pragma once

#include <cstdint>
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

namespace worker_effect {
// To the tracker, in order; lost if there is no connection (the machine repeats what matters).
struct Send {
  wire::Envelope envelope;
};
// The plan of a new epoch is in force: open links, let calls run.
struct Install {
  wire::Plan plan;
};
// Stop the data path of all epochs before `epoch`, then call on_stopped(epoch). Calls in flight fail with `why`.
struct StopDataPath {
  Epoch epoch;
  Status why;
};
// This worker is out of the job: every later call fails with `why`. Comes once, last but for Log.
struct Fail {
  Status why;
};
// finalize is complete everywhere. Comes once, last but for Log.
struct Finished {};
struct Log {
  LogEvent event;
};
}  // namespace worker_effect
using WorkerEffect = std::variant<worker_effect::Send, worker_effect::Install, worker_effect::StopDataPath,
                                  worker_effect::Fail, worker_effect::Finished, worker_effect::Log>;

class WorkerMachine {
 public:
  enum class State : std::uint8_t { kIdle, kJoining, kMember, kStopping, kBroken, kLeaving, kFinished, kFailed };

  enum class Transition : std::uint8_t;
  [[nodiscard]] static std::span<const char* const> transition_names();
  [[nodiscard]] std::span<const std::uint64_t> transition_counts() const { return transitions_; }

  struct Options {
    std::string job;
    Incarnation self;
    wire::Join join;  // complete and valid
    std::int64_t join_timeout_ms = 0;
    std::string tracker_name;  // "10.0.0.1:9100", for messages
  };
  explicit WorkerMachine(Options options);

  void start(TimeMs now, std::vector<WorkerEffect>& effects);
  // A message that passed decode_envelope(Side::kTracker).
  void on_message(const wire::Envelope& envelope, TimeMs now, std::vector<WorkerEffect>& effects);
  // The control connection reports that the tracker refused the key, or that there is nobody: goes into join's error text.
  void on_connection_trouble(const std::string& what, TimeMs now, std::vector<WorkerEffect>& effects);
  // A data link of the current epoch broke (reported once per peer and epoch).
  void on_link_broken(Epoch epoch, Rank peer, const std::string& evidence, TimeMs now, std::vector<WorkerEffect>& effects);
  // A round failed here with a desync or corrupt frames: ends the epoch for all.
  void on_round_failed(Epoch epoch, const Status& why, TimeMs now, std::vector<WorkerEffect>& effects);
  // The shell has stopped the data path as StopDataPath asked.
  void on_stopped(Epoch epoch, TimeMs now, std::vector<WorkerEffect>& effects);
  // The program called finalize (all its rounds are done), or gives up (destroy without finalize, with a reason).
  void leave(bool finalize, const std::string& reason, TimeMs now, std::vector<WorkerEffect>& effects);
  void on_tick(TimeMs now, std::vector<WorkerEffect>& effects);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  // What the next heartbeat reports; the shell sets it just before on_tick, from atomics.
  struct Progress {
    std::uint64_t rounds_finished = 0, bytes_moved = 0;
    std::vector<wire::CurrentRound> rounds;  // at most limits::kMaxRoundsPerHeartbeat
  };
  void set_progress(Progress progress);

  [[nodiscard]] State state() const;
  [[nodiscard]] Epoch epoch() const;
  void check_invariants() const;

 private:
  std::vector<std::uint64_t> transitions_;
  // … the implementer's
};

}  // namespace warren

// One life of a worker in its job. It decides when this rank votes, where the program starts, and which segments of
// dead lives go. It also decides what is reported to the tracker, and how the life ends. It has no lock, thread, file
// or socket, and is told the time. The session (worker/session/session.h), the simulator and the tests of recovery run
// this same object.
//
// Its owner tells it what has happened, and carries out take_effects() afterwards. Where nothing is logged (replicas 0)
// it has an engine alone.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "recovery/worker/worker_machine.h"
#include "storage/host_log.h"
#include "worker/life/checkpoints.h"
#include "worker/life/dead_segments.h"
#include "worker/life/life_effect.h"
#include "worker/life/loading.h"
#include "worker/rounds/engine.h"
#include "worker/rounds/recall.h"

namespace warren::worker {

class Life {
 public:
  // `ends_process`: when this life is over, its process ends and is started again, and the program hears nothing.
  Life(RoundTransport& transport, RoundBoard& board, bool ends_process)
      : board_(board), ends_process_(ends_process), engine_(transport, board) {}
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  // From here on results and states are logged. Before the first plan.
  void keep_log(Incarnation self, std::unique_ptr<HostLog> log, std::unique_ptr<HostLogReader> reader,
                Recall::Clock clock, Recall::SendRequest send);
  // A vote says that what it speaks of survives the loss of power. After keep_log().
  void vote_when_durable() { durable_ = true; }
  [[nodiscard]] bool votes_when_durable() const { return durable_; }
  // Checkpoints are copied to a mirror, which is asked for what the log has lost. After keep_log().
  void use_mirror();

  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] const Engine& engine() const { return engine_; }
  [[nodiscard]] bool logs() const { return kept_ != nullptr; }
  // Where it logs.
  [[nodiscard]] HostLog& log() { return *kept_->log; }
  [[nodiscard]] Recall& recall() { return kept_->recall; }
  [[nodiscard]] Checkpoints& checkpoints() { return kept_->checkpoints; }
  [[nodiscard]] const Checkpoints& checkpoints() const { return kept_->checkpoints; }
  [[nodiscard]] Loading& loading() { return kept_->loading; }
  // The newest plan and commit, and set-up rounds of the newest vote.
  [[nodiscard]] const wire::Known& known() const { return known_; }

  // Once, in their order.
  [[nodiscard]] bool has_effects() const { return !effects_.empty(); }
  [[nodiscard]] std::vector<LifeEffect> take_effects() { return std::exchange(effects_, {}); }

  // The steps of a plan. know(), which returns what was known before. The owner opens the transport and tells the disk.
  // install(). Once all ranks of the host have mapped each other's segments, open().
  wire::Known know(wire::Known now) { return std::exchange(known_, std::move(now)); }
  void install(const Engine::Plan& plan, const Replayer::Plan& replay);
  void open(TimeMs now);
  // A plan has been opened once.
  [[nodiscard]] bool opened() const { return opened_; }

  // The fate of a process whose life is over.
  enum class Ending : std::uint8_t {
    kTellsProgram,  // calls fail, until the program makes a new communicator
    kJoinsAgain,    // the program waits for its first plan, and has seen nothing of this life: another one begins
    kRolledBack,    // the process ends, to start again from the last checkpoint
    kFenced         // likewise, and this worker alone: the others go on
  };
  [[nodiscard]] Ending ending(const Status& why, bool fenced) const;
  // An interrupt, or the end of this life: nothing of the generation moves any more. Calls stay where a plan follows,
  // or the process ends.
  WorkerMachine::Standing stop(const worker_effect::StopDataPath& what);
  // The worker's machine has ended this life, and the program hears why.
  void failed(const Status& why);
  // This life cannot go on, and the others need not wait for it: as after its death, another one takes its place.
  void end(const Status& why, Blame blame);
  // All ranks have finalized.
  void finished();
  [[nodiscard]] bool is_finished() const { return finished_; }
  // The program lets go of the communicator.
  void close();
  [[nodiscard]] bool closed() const { return closed_; }
  // Why calls fail; success while they do not, or once the job is finished.
  [[nodiscard]] const Status& failure() const { return failure_; }
  // Why calls fail once the engine has stopped.
  [[nodiscard]] Status gone() const {
    return failure_.ok() ? Status(Code::kClosed, "the communicator has been closed") : failure_;
  }

  // The segment of a life of this host, which was not there before.
  [[nodiscard]] Status attach(Incarnation life, std::span<const std::byte> segment, std::shared_ptr<const void> keeper);
  // As a spare: a checkpoint is to be fetched; the plan, where it is a new one, says from whom.
  void follow(const worker_effect::Follow& what, const std::optional<Replayer::Plan>& from);
  void tracker_away(bool away);
  void committed(Version version, Timeline timeline, TimeMs now);
  // The log of a rank has answered. Of a reply whose payloads come apart, they stand one after the other.
  void fetched(Rank from, const wire::FetchReply& reply);
  void fetched(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads);

  // Deadlines of its own; where it logs.
  void tick(TimeMs now);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  // The engine has moved: reports what has failed in it.
  void report_trouble();
  // Something of a checkpoint may have come, or was given.
  void look_at_checkpoints();
  // Checkpoints::take() or one of its kind has returned this.
  void taken(const Status& status);
  // More than one look at segments of dead lives is needed, or they cannot be taken over.
  [[nodiscard]] bool takes_over() const { return look_again_.has_value() || !taken_over_.ok(); }

 private:
  // The parts of a life that logs.
  struct Kept {
    Kept(Engine& engine, std::vector<LifeEffect>& effects, std::unique_ptr<HostLog> own,
         std::unique_ptr<HostLogReader> reader, Recall::Clock clock, Recall::SendRequest send)
        : log(std::move(own)),
          recall(*log, std::move(reader), std::move(clock), std::move(send)),
          checkpoints(engine, recall),
          loading(engine, checkpoints, effects) {}
    std::unique_ptr<HostLog> log;
    Recall recall;
    Checkpoints checkpoints;
    Loading loading;
    DeadSegments dead_segments;
  };
  void tell(MachineEvent event) { effects_.emplace_back(std::move(event)); }
  void look_at_replies();
  void look_at_dead_segments(TimeMs now);
  [[nodiscard]] Status take_over_setups();

  RoundBoard& board_;
  const bool ends_process_;
  Incarnation self_;
  std::vector<LifeEffect> effects_;
  Engine engine_;
  std::unique_ptr<Kept> kept_;  // null: nothing is logged
  bool durable_ = false, mirrors_ = false;
  std::uint64_t follows_run_ = 0;  // of the job whose checkpoints it fetches as a spare
  wire::Known known_;
  bool opened_ = false, finished_ = false, closed_ = false;
  Status failure_;
  std::optional<TimeMs> look_again_;  // at segments of dead lives
  Status taken_over_;                 // by the newest look at them
};

}  // namespace warren::worker

// What a heartbeat says of the data path: the rounds under way as the board shows them, since when, and what this rank
// did lately. The control thread looks at the board several times a heartbeat interval, so that the data path needs no
// clock: what it is seen at counts for the time since the look before.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "recovery/worker/worker_machine.h"
#include "worker/rounds/round_board.h"

namespace warren::worker {

// Writes which round it is, and what is called, into a heartbeat's entry.
void tell(const RoundId& round, const Fingerprint& fingerprint, wire::CurrentRound& r);

// The control thread's; the simulator's workers have one each.
class ProgressReporter {
 public:
  // `sample_ms`: how often sample() is called (recovery/base/machine.h). Of the time between two looks that were
  // further apart, so much is not known: the process did not run.
  explicit ProgressReporter(std::int64_t sample_ms) : sample_ms_(sample_ms) {}

  void sample(const RoundBoard& board, TimeMs now);
  // Before a look: for so long since the one before, the thread that moves calls could have run and had no core. If it
  // sleeps, its process was held up, and not by other ranks.
  void had_no_core(std::int64_t ms) { without_core_ms_ += ms; }
  // For the next heartbeat. Takes a sample too.
  [[nodiscard]] WorkerMachine::Progress read(const RoundBoard& board, TimeMs now);

  // Since when each look has found the program outside of calls, and none has ended meanwhile; nothing: it is inside.
  [[nodiscard]] std::optional<TimeMs> outside_since() const { return outside_since_; }

  // A plan has come: nobody waits longer than its generation, nor is judged by what was before. While ranks are
  // suspended, nobody can end a wait.
  void restart();

 private:
  struct WaitingRound {
    RoundId round;
    std::uint64_t moves;  // of messages: what has moved there starts the wait anew
    bool waits;           // for somebody: a rank that still makes its input does not
    TimeMs since;
  };
  // One end of one link, in one part of the window.
  struct LinkPart {
    std::uint64_t sent = 0, received = 0;
    std::int64_t awaited_ms = 0, blocked_ms = 0;
  };
  // What was seen between two heartbeats.
  struct Part {
    std::int64_t ms = 0, outside_ms = 0, idle_ms = 0, held_ms = 0;
    std::uint64_t replayed = 0;
    std::map<std::uint32_t, LinkPart> links;
  };
  struct LinkSeen {
    RoundBoard::Moved moved;
    TimeMs arrived;  // something has; or the generation began
  };

  void end_part();
  [[nodiscard]] std::optional<wire::Activity> activity(const RoundBoard& board, TimeMs now) const;

  const std::int64_t sample_ms_;
  std::uint64_t finished_ = 0;                    // rounds, by then
  std::map<GroupId, WaitingRound> waiting_;       // a group's round, since the first heartbeat that saw it
  std::shared_ptr<const wire::Blocked> blocked_;  // as the board showed it last
  TimeMs blocked_since_;
  std::optional<TimeMs> outside_since_;
  std::uint64_t finished_outside_ = 0;  // rounds, by then
  std::optional<TimeMs> sampled_;
  std::uint64_t replayed_ = 0;        // rounds, by then
  std::int64_t without_core_ms_ = 0;  // since then
  std::vector<LinkSeen> seen_;        // by peer
  Part part_;
  std::deque<Part> window_;
  std::map<std::uint32_t, double> usual_bytes_per_s_;  // by peer: a mean over this life
};

}  // namespace warren::worker

// What a heartbeat says of the data path: the rounds under way as the board shows them, and since when.
#pragma once

#include <map>

#include "recovery/worker_machine.h"
#include "worker/round_board.h"

namespace warren::worker {

// The control thread's; the simulator's workers have one each.
class ProgressReporter {
 public:
  [[nodiscard]] WorkerMachine::Progress read(const RoundBoard& board, TimeMs now);

  // A plan has come: nobody waits longer than its epoch. While ranks are suspended, nobody can end a wait.
  void restart() { waiting_.clear(); }

 private:
  struct WaitingRound {
    RoundId round;
    std::uint64_t moves;  // of messages: what has moved there starts the wait anew
    TimeMs since;
  };
  std::map<GroupId, WaitingRound> waiting_;  // a group's round, since the first heartbeat that saw it
};

}  // namespace warren::worker

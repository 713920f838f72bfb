// The calls of all groups that are outstanding: how many there are, and how each ends. It lists the work outside the
// lock of the engine's owner: prepare functions, moves of buffers, and results to be brought back.
//
// Calls are their makers', and stay where they are until they have finished.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "recovery/base/result.h"
#include "worker/rounds/call.h"
#include "worker/rounds/trace.h"

namespace warren::worker {

class OutstandingCalls {
 public:
  // Hears of calls; outlives this. Before the first call.
  void use(Trace& trace) { trace_ = &trace; }

  // A call that was accepted is outstanding from now on.
  void accept(Call& call) {
    count_++;
    if (trace_ != nullptr && !call.traced) trace_->issued(call);
  }
  [[nodiscard]] std::size_t count() const { return count_; }

  // Prepare functions. The call's is to be called.
  void ask_prepare(Call& call);
  // A call whose prepare function is to be called now. null: none.
  [[nodiscard]] Call* take_prepare();
  // The generation is over. GroupRounds asks again for what was asked for and not taken.
  void forget_prepares() { prepares_.clear(); }

  // Buffers that move (BufferStream). Lists the call if its buffers move, and are not listed. The prepare function
  // moves the first ones itself.
  void move_on(Call& call);
  // A call whose buffers are to be moved now; then moved(). null: none.
  [[nodiscard]] Call* take_moving();
  // True: the call's round is not over, and is to hear of it.
  [[nodiscard]] bool moved(Call& call, const Status& status);
  // Calls whose buffers move, but for those that were taken.
  [[nodiscard]] const std::vector<Call*>& moving() const { return moving_; }

  // The call's round is over: the interrupt of a generation undoes it no more. The call finishes when its results have
  // been brought back.
  void conclude(Call& call, const Status& status);
  // The call is over for its group, and finishes when nothing of it moves any more.
  void end(Call& call, const Status& status);
  void finish(Call& call, const Status& status);
  // Ends a call that was not accepted, as others end.
  void end_unsent(const std::shared_ptr<Call>& call, const Status& status);
  // A call whose results are to be brought back now; then finish(). null: none.
  [[nodiscard]] Call* take_delivery();
  // Nothing is prepared or brought back any more.
  void stop(const Status& why);

  // take_prepare(), take_moving() or take_delivery() has one.
  [[nodiscard]] bool has_work_outside() const { return !prepares_.empty() || !deliveries_.empty() || !moving_.empty(); }
  // Calls that have finished since the last look, for callbacks. The owner clears it.
  [[nodiscard]] std::vector<std::shared_ptr<Call>>& finished() { return finished_; }

 private:
  std::size_t count_ = 0;
  std::vector<Call*> prepares_;    // asked for
  std::vector<Call*> deliveries_;  // to be brought back
  std::vector<Call*> moving_;
  std::vector<std::shared_ptr<Call>> finished_;
  Trace* trace_ = nullptr;
};

}  // namespace warren::worker

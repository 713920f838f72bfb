// The trouble that a life's data path cannot overcome by itself: a failure, or a round that the log has lost. Its owner
// takes each once, and reports it to the tracker.
#pragma once

#include <optional>
#include <utility>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/worker/worker_machine.h"

namespace warren::worker {

class Trouble {
 public:
  struct Failure {
    Status status;
    Rank peer = kNoRank;  // the other end, where one link is to blame
    // A function of the program's has failed: this life is over, and nothing moves until the owner has stopped it.
    bool by_program = false;
  };
  using Gap = WorkerMachine::Gap;

  // The first failure of a generation counts.
  void fail(const Status& status, Rank peer) {
    if (failed_) return;
    failed_ = true;
    failure_ = Failure{peer == kNoRank ? status : status.about(peer), peer};
  }
  // Takes the place of what has failed beside it, which another generation would mend.
  void fail_by_program(const Status& status) {
    failed_ = true;
    failure_ = Failure{status, kNoRank, true};
  }
  void lack(Gap gap) { gap_ = std::move(gap); }

  // Nothing begins any more in this generation.
  [[nodiscard]] bool failed() const { return failed_; }
  // A failure that nobody has taken; null: there is none.
  [[nodiscard]] const Failure* failure() const { return failure_ ? &*failure_ : nullptr; }
  [[nodiscard]] bool has_gap() const { return gap_.has_value(); }
  [[nodiscard]] std::optional<Failure> take_failure() { return std::exchange(failure_, std::nullopt); }
  [[nodiscard]] std::optional<Gap> take_gap() { return std::exchange(gap_, std::nullopt); }
  // The generation is over, and with it all trouble but a program's failure that nobody has taken.
  void end_generation() {
    gap_.reset();
    if (failure_ && failure_->by_program) return;
    failed_ = false;
    failure_.reset();
  }

 private:
  std::optional<Failure> failure_;
  std::optional<Gap> gap_;
  bool failed_ = false;
};

}  // namespace warren::worker

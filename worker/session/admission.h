// The way of a call from the program to the engine. Its buffers are staged, and the rules of mode shrink and of fusion
// are asked. A worker that drains holds it back. A state that a lazy checkpoint owes is given first.
//
// Threads: under the session's lock, unless a function says otherwise. Functions that take the lock may let go of it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/life/life.h"
#include "worker/rounds/call.h"
#include "worker/schedule/schedule.h"
#include "worker/session/batches.h"
#include "worker/session/checkpoint_calls.h"
#include "worker/session/driver.h"
#include "worker/session/gpus.h"
#include "worker/session/lent_memory.h"
#include "worker/settings/settings.h"

namespace warren::worker {

class Admission {
 public:
  // All of these outlive this.
  Admission(const Settings& settings, Driver& driver, Life& life, Gpus& gpus, LentMemory& lent, const Batches& batches,
            CheckpointCalls& checkpoints)
      : shrinks_(settings.min_workers != 0),
        driver_(driver),
        life_(life),
        gpus_(gpus),
        lent_(lent),
        batches_(batches),
        checkpoints_(checkpoints) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // This worker drains: no call begins any more. From any thread, without the lock.
  void begin_nothing() { drains_.store(true, std::memory_order_relaxed); }

  // Refuses a call that mode shrink does not have. kInvalidArgument: the job is in this mode. From any thread, without
  // the lock.
  [[nodiscard]] Status needs_mode_wait(std::string_view what) const;
  // Gives buffers on a GPU the copies that the engine works on, and tells the ranks of this host which memory they
  // share for it. Without the lock.
  [[nodiscard]] Status stage(Call& call, const GroupShape& shape);

  // Whether the program may make this call now.
  [[nodiscard]] Status may_call(GroupId group, const Call& call) const;
  // Nothing holds back a plain call, so that may_call() and let_in() would find nothing to do.
  [[nodiscard]] bool is_open() const {
    return !driver_.has_callers() && !batches_.fuses() && !batches_.has_unsent() && !checkpoints_.owes_state() &&
           !shrinks_ && !drains_.load(std::memory_order_relaxed);
  }
  // Waits with nothing under way, until this worker has left, if it drains.
  void stay_out(std::unique_lock<std::mutex>& lock);
  // Waits if this worker drains, and gives a state that is owed.
  [[nodiscard]] Status let_in(std::unique_lock<std::mutex>& lock);
  // Lets an asynchronous call in, and gives it to the engine. The call lives until it has finished.
  [[nodiscard]] Status submit(std::unique_lock<std::mutex>& lock, GroupId group, const std::shared_ptr<Call>& call);

 private:
  [[nodiscard]] Engine& engine() { return life_.engine(); }

  const bool shrinks_;  // ranks may be lost for good
  Driver& driver_;
  Life& life_;
  Gpus& gpus_;
  LentMemory& lent_;
  const Batches& batches_;
  CheckpointCalls& checkpoints_;
  std::atomic<bool> drains_{false};
};

}  // namespace warren::worker

// The program's calls: collectives and messages. A blocking call drives the engine in the program's thread until the
// call has finished. An asynchronous call is given to the engine, and is waited or asked for later.
//
// Calls that were put together (FusedCalls) are sent first. Admission then lets the call in.
//
// Threads: from the program's threads, one at a time, but for functions that say otherwise. Functions that take the
// lock of the session are called under it, and may let go of it; the others take it themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "warren/c_api.h"
#include "worker/life/life.h"
#include "worker/rounds/call.h"
#include "worker/schedule/schedule.h"
#include "worker/session/admission.h"
#include "worker/session/batches.h"
#include "worker/session/checkpoint_calls.h"
#include "worker/session/control.h"
#include "worker/session/deadlines.h"
#include "worker/session/driver.h"
#include "worker/session/fused_calls.h"
#include "worker/session/gpus.h"
#include "worker/system/copy_memory.h"

namespace warren::worker {

class Calls {
 public:
  // `copies`: memory for calls that have a wire type. All others outlive this.
  Calls(Driver& driver, Life& life, const Gpus& gpus, const Batches& batches, CheckpointCalls& checkpoints,
        Admission& admission, FusedCalls& fused, std::shared_ptr<CopyMemory> copies)
      : driver_(driver),
        life_(life),
        gpus_(gpus),
        batches_(batches),
        checkpoints_(checkpoints),
        admission_(admission),
        fused_(fused),
        copies_(std::move(copies)) {}
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  // Asks for end_overdue() in time; outlives all calls. Before the first call.
  void use(Control& control) { control_ = &control; }

  // Refuses a call that mode shrink does not have. kInvalidArgument: the job is in this mode.
  [[nodiscard]] Status needs_mode_wait(std::string_view what) const { return admission_.needs_mode_wait(what); }

  // Before run() or submit(), for a validated call. Buffers on a GPU get copies that the engine works on, and so do
  // those of a call that has a wire type. A send's buffer is read here.
  [[nodiscard]] Status stage(Call& call, const GroupShape& shape);
  // Runs a validated call. Blocks until the call has finished, and returns its result.
  [[nodiscard]] Status run(GroupId group, Call& call);
  // Runs a validated call that is neither staged nor a set-up round. Small calls that repeat others take the shortest
  // way. `contributors`: as Call's.
  [[nodiscard]] Status run(GroupId group, const GroupShape& shape, const CallSpec& spec,
                           std::shared_ptr<const std::vector<Rank>>& contributors);
  // Takes a validated call that lives until it has finished.
  [[nodiscard]] Status submit(GroupId group, const std::shared_ptr<Call>& call);
  // A call that was submitted is to finish within so long from now. Otherwise this life is over, with kTimeout.
  void finish_within(const std::shared_ptr<Call>& call, std::int64_t timeout_ms);

  // Waits for a call. Safe beside a thread that is inside another call.
  [[nodiscard]] Status wait(Call& call);
  // Waits for the call for `timeout_ms` at most. Returns whether the call has finished.
  [[nodiscard]] bool wait_for(Call& call, std::int64_t timeout_ms);
  [[nodiscard]] bool test(Call& call);
  // `callback` is called once, outside the lock; at once if the call has finished. wait() and test() see the call as
  // finished only when its callback has returned.
  [[nodiscard]] Status on_complete(Call& call, warren_callback callback, void* context);

  // Whether the world's next round was, or is being, called from one of these sites (Engine::ask_next). Waits for
  // outstanding calls, and until a rank can tell.
  [[nodiscard]] Result<bool> meets(std::vector<std::uint64_t> sites);

  // Sends calls that were put together, and waits until no call is outstanding.
  void end_all(std::unique_lock<std::mutex>& lock);
  // Ends this life if a call is overdue (finish_within()). Returns the next time at which one may be. From the control
  // thread, under the lock.
  [[nodiscard]] std::optional<TimeMs> end_overdue(TimeMs now);

 private:
  [[nodiscard]] Status clear_way(std::unique_lock<std::mutex>& lock, GroupId group, const Call& call);
  [[nodiscard]] Status drive_through(std::unique_lock<std::mutex>& lock, GroupId group, Call& call);
  [[nodiscard]] Status run_by_call(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape,
                                   const CallSpec& spec, bool clear,
                                   std::shared_ptr<const std::vector<Rank>>& contributors);
  [[nodiscard]] Engine& engine() { return life_.engine(); }

  Driver& driver_;
  Life& life_;
  const Gpus& gpus_;
  const Batches& batches_;
  CheckpointCalls& checkpoints_;
  Admission& admission_;
  FusedCalls& fused_;
  const std::shared_ptr<CopyMemory> copies_;
  Control* control_ = nullptr;
  Deadlines deadlines_;
};

}  // namespace warren::worker

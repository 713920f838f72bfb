#include "worker/session/admission.h"

#include <string>

namespace warren::worker {

Status Admission::needs_mode_wait(std::string_view what) const {
  if (!shrinks_) [[likely]]
    return {};
  return {Code::kInvalidArgument,
          std::string(what) +
              ": mode shrink does not have this. It has allreduce and barrier on all ranks, with inputs that stand in "
              "memory of the CPU, and checkpoints of a global state; mode=wait has everything"};
}

Status Admission::stage(Call& call, const GroupShape& shape) {
  Status staged = driver_.judge(gpus_.stage(call, shape));
  lent_.tell_of_shares(driver_.mutex());
  return staged;
}

Status Admission::may_call(GroupId group, const Call& call) const {
  if (shrinks_) [[unlikely]] {
    const Collective c = call.spec.collective;
    if (group != kWorldGroup) return needs_mode_wait("a call on a group");
    if (!call.setup.empty()) return needs_mode_wait("the set-up round \"" + call.setup + "\"");
    if (c != Collective::kAllreduce && c != Collective::kBarrier) return needs_mode_wait(to_string(c));
    // Both fill the input when the round begins: too late for what is kept for another attempt at it.
    if (call.buffers != nullptr) return needs_mode_wait("a wire type, or a buffer on a GPU");
    if (call.spec.prepare != nullptr) return needs_mode_wait("a prepare function");
  }
  return batches_.may_call(group, call);
}

void Admission::stay_out(std::unique_lock<std::mutex>& lock) {
  if (!drains_.load(std::memory_order_relaxed)) [[likely]]
    return;
  driver_.drive(lock, [&] { return engine().outstanding() == 0 || engine().stopped(); });
  driver_.run_callbacks(lock);
  driver_.await(lock, [&] { return engine().stopped(); });
}

Status Admission::let_in(std::unique_lock<std::mutex>& lock) {
  stay_out(lock);
  return checkpoints_.give_state(lock);
}

Status Admission::submit(std::unique_lock<std::mutex>& lock, GroupId group, const std::shared_ptr<Call>& call) {
  Status status = let_in(lock);
  if (!status.ok()) return status;
  call->self = call;
  status = engine().submit(group, *call);
  if (!status.ok()) {
    call->self.reset();
    return status;
  }
  if (!call->finished.load(std::memory_order_relaxed)) driver_.wake_engine();
  driver_.run_callbacks(lock);
  return {};
}

}  // namespace warren::worker

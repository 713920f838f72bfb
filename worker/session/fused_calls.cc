#include "worker/session/fused_calls.h"

#include <new>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "worker/rounds/narrowing.h"

namespace warren::worker {

Status FusedCalls::begin(GroupId group) {
  if (const Status status = admission_.needs_mode_wait("fusion_begin"); !status.ok()) return status;
  const std::lock_guard lock(driver_.mutex());
  return batches_.begin(group);
}

void FusedCalls::end() {
  std::unique_lock lock(driver_.mutex());
  send(lock);
  batches_.end();
}

void FusedCalls::end(std::unique_lock<std::mutex>& lock, GroupId group) {
  if (!batches_.fuses(group)) return;
  send(lock);
  batches_.end();
}

// Whether a batch is sent may depend on the program's earlier calls alone (fusion.h).
Status FusedCalls::submit(GroupId group, const GroupShape& shape, const std::shared_ptr<Call>& call,
                          std::uint64_t most_bytes) {
  const CallSpec& spec = call->spec;
  const bool takes = Batch::takes(*call, most_bytes);
  OnGpu on_gpu;
  if (takes && gpus_.staging() != nullptr) {
    auto found = find(spec, shape);
    if (!found.ok()) return found.status();
    on_gpu = std::move(found).value();
  } else if (const Status staged = admission_.stage(*call, shape); !staged.ok()) {
    return staged;
  }
  if (const auto reducer = Reducer::make(spec.type, spec.op, static_cast<std::uint32_t>(shape.size), spec.custom_bytes,
                                         spec.custom, spec.custom_context);
      !reducer.ok()) {
    return reducer.status();
  }
  std::unique_lock lock(driver_.mutex());
  if (!takes) return submit_alone(lock, group, shape, call);
  if (!batches_.fits(group, *call, most_bytes)) send(lock);
  if (const Status added = add(lock, group, shape, call, std::move(on_gpu)); !added.ok()) return added;
  if (batches_.full(most_bytes)) send(lock);
  return {};
}

Result<FusedCalls::OnGpu> FusedCalls::find(const CallSpec& spec, const GroupShape& shape) {
  Staging& staging = *gpus_.staging();
  const auto lies = staging.find(spec, shape);
  if (!lies.ok()) return driver_.judge(lies.status());
  auto marked = staging.mark(lies.value(), spec.stream);
  if (!marked.ok()) {
    const std::lock_guard lock(driver_.mutex());
    driver_.end_life(marked.status());
    return marked.status();
  }
  return OnGpu{lies.value(), std::move(marked).value()};
}

// A call that is no part of any batch.
Status FusedCalls::submit_alone(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape,
                                const std::shared_ptr<Call>& call) {
  if (call->setup.empty()) send(lock);
  if (call->spec.wire != DataType{}) {
    if (const Status narrowed = narrow(*call, shape, copies_); !narrowed.ok()) return narrowed;
  }
  return admission_.submit(lock, group, call);
}

// Makes a call the next part of the batch.
Status FusedCalls::add(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape,
                       const std::shared_ptr<Call>& call, OnGpu on_gpu) {
  if (const Status in = admission_.let_in(lock); !in.ok()) return in;
  if (engine().stopped()) return life_.gone();
  call->fingerprint = fingerprint_of(call->spec, 0);
  if (trace_ != nullptr) {
    trace_->issued(*call);
    call->traced = true;
  }
  try {
    batches_.add(group, shape, call, on_gpu.lies, std::move(on_gpu.ready));
  } catch (...) {  // one knows of it, the other perhaps not
    driver_.abandon_call(lock);
    throw;
  }
  return {};
}

void FusedCalls::send() {
  std::unique_lock lock(driver_.mutex());
  send(lock);
}

// Failures of the parts are told to the threads that wait for them. Another thread may send the batch, because one of
// its parts was waited for or freed. The next call of this thread comes after that batch on all ranks.
void FusedCalls::send(std::unique_lock<std::mutex>& lock) {
  if (!batches_.has_unsent()) [[likely]]
    return;
  if (!batches_.await_turn(lock)) return;
  std::optional<Batches::Turn> turn(std::in_place, batches_, lock);
  // One rank may have as many calls under way as there may be, and another rank fewer: no part is refused for that.
  driver_.drive(lock, [&] { return engine().outstanding() < limits::kMaxOutstandingRounds || engine().stopped(); });
  std::vector<std::shared_ptr<Call>> lost;
  Batch batch = turn->take();
  Result<std::shared_ptr<Call>> call = Status(Code::kExhausted, "no memory to put allreduces together");
  // Closing the batch may wait for a GPU. No other call of the program's comes in between.
  lock.unlock();
  try {
    call = batch.close(copies_, gpus_.staging(), lost);
    lent_.tell_of_shares(driver_.mutex());
  } catch (const std::bad_alloc&) {
    // As if it had said so; its parts are among those that are lost.
  }
  lock.lock();
  Status status = call.status();
  // The other ranks make this round, and only this rank can make its part of it.
  if (!call.ok()) driver_.end_life(status);
  if (call.ok()) {
    status = admission_.submit(lock, batch.group(), call.value());
    if (!status.ok())
      lost = call.value()->parts.empty() ? std::vector{call.value()} : std::exchange(call.value()->parts, {});
  }
  turn.reset();
  for (const auto& part : lost) engine().end_unsent(part, status);
  driver_.run_callbacks(lock);
}

}  // namespace warren::worker

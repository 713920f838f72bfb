#include "worker/rounds/outstanding_calls.h"

#include <utility>

#include "recovery/base/check.h"

namespace warren::worker {

void OutstandingCalls::ask_prepare(Call& call) {
  call.prepare = Call::Prepare::kAsked;
  prepares_.push_back(&call);
}

Call* OutstandingCalls::take_prepare() {
  if (prepares_.empty()) return nullptr;
  Call* call = prepares_.back();
  prepares_.pop_back();
  call->prepare = Call::Prepare::kRuns;
  return call;
}

void OutstandingCalls::move_on(Call& call) {
  const BufferStream* stream = stream_of(call);
  if (stream == nullptr || call.prepare == Call::Prepare::kRuns || call.moves != Call::Moves::kNot ||
      !stream->moves()) {
    return;
  }
  moving_.push_back(&call);
  call.moves = Call::Moves::kListed;
}

Call* OutstandingCalls::take_moving() {
  if (moving_.empty()) return nullptr;
  Call* call = moving_.front();
  moving_.erase(moving_.begin());
  call->moves = Call::Moves::kTaken;
  return call;
}

bool OutstandingCalls::moved(Call& call, const Status& status) {
  call.moves = Call::Moves::kNot;
  if (call.concluded) {
    end(call, call.status.ok() ? status : call.status);
    return false;
  }
  WARREN_CHECK(status.ok(), "whoever cannot move a buffer has stopped the engine");
  move_on(call);
  return true;
}

void OutstandingCalls::conclude(Call& call, const Status& status) {
  if (BufferStream* stream = stream_of(call); stream != nullptr) {
    if (status.ok()) stream->conclude();
    return end(call, status);
  }
  if (!status.ok() || call.buffers == nullptr || !call.buffers->delivers()) return finish(call, status);
  deliveries_.push_back(&call);
}

void OutstandingCalls::end(Call& call, const Status& status) {
  BufferStream* stream = stream_of(call);
  if (stream == nullptr) return finish(call, status);
  call.concluded = true;
  call.status = status;
  if (!status.ok()) stream->give_up();
  move_on(call);
  if (call.moves == Call::Moves::kTaken || stream->moves()) return;
  if (call.moves == Call::Moves::kListed) std::erase(moving_, &call);
  finish(call, status);
}

void OutstandingCalls::finish(Call& call, const Status& status) {
  count_--;
  call.status = status.ok() || call.setup.empty() ? status : status.because_of_this(name_of(call));
  if (!call.status.ok() && call.status.round().empty()) call.status = call.status.about(call.round);
  if (trace_ != nullptr) trace_->ended(call);
  std::shared_ptr<Call> self = std::move(call.self);
  for (const auto& part : std::exchange(call.parts, {})) end_unsent(part, call.status);
  // The caller may free a blocking call as soon as it sees this.
  if (call.callback == nullptr) call.settled.store(true, std::memory_order_release);
  call.finished.store(true, std::memory_order_release);
  if (self) finished_.push_back(std::move(self));
}

void OutstandingCalls::end_unsent(const std::shared_ptr<Call>& call, const Status& status) {
  call->status = status;
  if (trace_ != nullptr && call->traced) trace_->ended(*call);
  if (call->callback == nullptr) call->settled.store(true, std::memory_order_release);
  call->finished.store(true, std::memory_order_release);
  finished_.push_back(call);
}

Call* OutstandingCalls::take_delivery() {
  if (deliveries_.empty()) return nullptr;
  Call* call = deliveries_.front();
  deliveries_.erase(deliveries_.begin());
  return call;
}

void OutstandingCalls::stop(const Status& why) {
  prepares_.clear();
  for (Call* call : std::exchange(deliveries_, {})) finish(*call, why);
}

}  // namespace warren::worker

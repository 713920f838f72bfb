#include "worker/session/outside_work.h"

#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace warren::worker {
namespace {

// Between two looks at what moves when the engine has stopped.
constexpr auto kLookPause = std::chrono::microseconds(20);

}  // namespace

std::string describe(const Call& call, Rank self) {
  if (call.spec.collective == Collective::kPoint) {
    return "rank " + std::to_string(self.value) + "'s message from rank " + std::to_string(call.spec.root);
  }
  return "rank " + std::to_string(self.value) + "'s " + to_string(call.fingerprint) + ", " + to_string(call.round);
}

OutsideWork::Done OutsideWork::go_on(std::unique_lock<std::mutex>& lock) {
  if (gpus_.has_gone_shares()) gpus_.release_gone(lock);
  if (engine().has_work_outside()) {
    if (prepare(lock) || deliver(lock)) return Done::kWorked;
    if (move(lock)) return Done::kMoved;
  }
  Done done = Done::kNothing;
  if (engine().has_gpu_work()) {
    if (gpus_.move_combines(lock, life_)) return Done::kMoved;
    // A life that has ended says so before anything waits for a GPU again.
    if (life_.has_effects()) return Done::kLooked;
    done = Done::kLooked;
  }
  if (engine().has_exchange_under_way()) {
    if (gpus_.move_exchanged(lock, life_)) return Done::kMoved;
    if (life_.has_effects()) return Done::kLooked;
    done = Done::kLooked;
  }
  if (states_.any()) return states_.move(lock) ? Done::kMoved : Done::kLooked;
  return done;
}

// Calls what fills a call's input; true if there was something.
bool OutsideWork::prepare(std::unique_lock<std::mutex>& lock) {
  Call* call = engine().take_prepare();
  if (call == nullptr) return false;
  lock.unlock();
  Status filled;
  {
    const TraceSpan span(trace_, TraceFile::Row::kBuffers, "prepare");
    filled =
        call_program(session_, "the prepare function", [&] { return call->spec.prepare(call->spec.prepare_context); });
  }
  lock.lock();
  const Blame blame = filled.ok() ? Blame::kNobody : Blame::kProgram;
  if (filled.ok() && call->buffers != nullptr) filled = call->buffers->filled();
  // The bytes in the buffer must not become part of a result.
  if (!filled.ok()) life_.end(filled.because_of_this("cannot read the input of " + describe(*call)), blame);
  engine().prepared(*call);
  return true;
}

// Brings a call's results to where the program wants them; true if there was something.
bool OutsideWork::deliver(std::unique_lock<std::mutex>& lock) {
  Call* call = engine().take_delivery();
  if (call == nullptr) return false;
  lock.unlock();
  Status status;
  {
    const TraceSpan span(trace_, TraceFile::Row::kBuffers, "deliver");
    status = call->buffers->deliver();
  }
  lock.lock();
  if (!status.ok()) {
    status = status.because_of_this("cannot write the result of " + describe(*call));
    life_.end(status, Blame::kNobody);
  }
  engine().delivered(*call, status);
  return true;
}

// Moves a call's buffers as far as they go; true if something came.
bool OutsideWork::move(std::unique_lock<std::mutex>& lock) {
  Call* call = engine().take_moving();
  if (call == nullptr) return false;
  BufferStream& stream = *call->buffers->stream();
  const auto move_on = [&]() -> Result<bool> {
    try {
      return stream.move();
    } catch (const std::bad_alloc&) {
      return Status(Code::kExhausted, "no memory");  // the engine is to have the call back
    }
  };
  lock.unlock();
  auto moved = move_on();
  lock.lock();
  while (moved.ok() && engine().stopped() && stream.moves()) {
    // Nobody may come again for what is still under way.
    lock.unlock();
    std::this_thread::sleep_for(kLookPause);
    moved = move_on();
    lock.lock();
  }
  Status status = moved.status();
  if (!status.ok()) {
    try {
      status = status.because_of_this("cannot move the buffers of " + describe(*call));
    } catch (const std::bad_alloc&) {  // the engine is to have the call back
    }
    life_.end(status, Blame::kNobody);
  }
  engine().moved(*call, status);
  return !status.ok() || moved.value();
}

void OutsideWork::end_moves(std::unique_lock<std::mutex>& lock) {
  while (engine().has_moving()) (void)move(lock);
}

bool OutsideWork::moves() const {
  const Engine& engine = life_.engine();
  return engine.has_moving() || engine.has_gpu_work() || engine.has_exchange_under_way() || states_.any();
}

bool OutsideWork::goes_on_alone() const {
  const Engine& engine = life_.engine();
  return engine.unsettled() || engine.has_gpu_work() || states_.any() || gpus_.has_gone_shares();
}

}  // namespace warren::worker

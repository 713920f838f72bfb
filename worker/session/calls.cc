#include "worker/session/calls.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "worker/rounds/narrowing.h"
#include "worker/session/outside_work.h"

namespace warren::worker {
namespace {

// Between two looks at a call whose caller has left it with an exception.
constexpr auto kLookAgain = std::chrono::microseconds(20);

}  // namespace

Status Calls::stage(Call& call, const GroupShape& shape) {
  if (const Status staged = admission_.stage(call, shape); !staged.ok()) return staged;
  return call.spec.wire == DataType{} ? Status() : narrow(call, shape, copies_);
}

Status Calls::run(GroupId group, Call& call) {
  std::unique_lock lock(driver_.mutex());
  const Status status = clear_way(lock, group, call);
  return status.ok() ? drive_through(lock, group, call) : status;
}

Status Calls::run(GroupId group, const GroupShape& shape, const CallSpec& spec,
                  std::shared_ptr<const std::vector<Rank>>& contributors) {
  const bool plain = gpus_.staging() == nullptr && spec.wire == DataType{} && spec.prepare == nullptr;
  std::unique_lock lock(driver_.mutex(), std::defer_lock);
  if (plain) lock.lock();
  const bool clear = plain && admission_.is_open();
  bool done = false;
  try {
    if (clear) {  // and so the lock is held
      done = engine().run_at_once(group, spec, driver_.begin_call());
    }
  } catch (...) {
    driver_.abandon_call(lock);
    throw;
  }
  if (!done) return run_by_call(lock, group, shape, spec, clear, contributors);
  if (!engine().finished_calls().empty()) driver_.run_callbacks(lock);
  // A message that its link had no room for: the engine's thread sees to it while the program computes.
  if (engine().unsettled()) [[unlikely]]
    driver_.hand_over();
  driver_.yield_to_control(lock);
  contributors = nullptr;
  return {};
}

// `lock` is held, unless the buffers may have to be staged. `clear`: nothing holds the call back, and a round that may
// have begun continues before anything else.
Status Calls::run_by_call(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape,
                          const CallSpec& spec, bool clear, std::shared_ptr<const std::vector<Rank>>& contributors) {
  Call call;
  call.spec = spec;
  Status status;
  if (!lock.owns_lock()) {
    status = stage(call, shape);
    if (!status.ok()) return status;
    lock.lock();
  }
  if (!clear) status = clear_way(lock, group, call);
  if (status.ok()) status = drive_through(lock, group, call);
  contributors = std::move(call.contributors);
  return status;
}

Status Calls::clear_way(std::unique_lock<std::mutex>& lock, GroupId group, const Call& call) {
  if (Status status = admission_.may_call(group, call); !status.ok()) return status;
  // A set-up round may be made by one life alone, and ends no batch: it has no number among the others.
  if (call.setup.empty()) fused_.send(lock);
  return admission_.let_in(lock);
}

Status Calls::drive_through(std::unique_lock<std::mutex>& lock, GroupId group, Call& call) {
  call.blocking = true;
  bool submitted = false;
  try {
    if (Status status = engine().submit(group, call); !status.ok()) return status;
    submitted = true;
    driver_.drive(lock, [&] { return call.finished.load(std::memory_order_relaxed); });
  } catch (...) {
    driver_.abandon_call(lock);
    // The engine has the call until the work of GPUs for it has ended, and what another thread prepares or delivers.
    // The engine's thread takes what is left.
    driver_.end_moves(lock);
    while (submitted && !call.finished.load(std::memory_order_relaxed)) {
      lock.unlock();
      std::this_thread::sleep_for(kLookAgain);
      lock.lock();
    }
    throw;
  }
  if (!engine().finished_calls().empty()) driver_.run_callbacks(lock);
  return call.status;
}

Status Calls::submit(GroupId group, const std::shared_ptr<Call>& call) {
  std::unique_lock lock(driver_.mutex());
  if (Status status = admission_.may_call(group, *call); !status.ok()) return status;
  if (call->setup.empty()) fused_.send(lock);
  return admission_.submit(lock, group, call);
}

Status Calls::wait(Call& call) {
  if (call.in_batch.load(std::memory_order_relaxed)) fused_.send();
  if (!call.settled.load(std::memory_order_acquire)) {
    std::unique_lock lock(driver_.mutex());
    driver_.drive(lock, [&] { return call.finished.load(std::memory_order_relaxed); });
    driver_.run_callbacks(lock);
    // Another thread may be inside the callback.
    driver_.await_others(lock, [&] { return call.settled.load(std::memory_order_relaxed); });
  }
  return call.status;
}

bool Calls::wait_for(Call& call, std::int64_t timeout_ms) {
  const auto until = Driver::Clock::now() + std::chrono::milliseconds(timeout_ms);
  if (call.in_batch.load(std::memory_order_relaxed)) fused_.send();
  if (call.settled.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(driver_.mutex());
  driver_.drive(
      lock, [&] { return call.finished.load(std::memory_order_relaxed) || Driver::Clock::now() >= until; }, until);
  driver_.run_callbacks(lock);
  return driver_.await_others_until(lock, until, [&] { return call.settled.load(std::memory_order_relaxed); });
}

void Calls::finish_within(const std::shared_ptr<Call>& call, std::int64_t timeout_ms) {
  {
    const std::lock_guard lock(driver_.mutex());
    deadlines_.add(call, timeout_ms, Driver::now());
  }
  control_->tick();
}

bool Calls::test(Call& call) {
  if (call.in_batch.load(std::memory_order_relaxed)) fused_.send();
  if (call.settled.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(driver_.mutex());
  driver_.yield_to_control(lock);  // a program may call this again and again, and leave the lock free for moments only
  driver_.take_what_came(lock);
  return call.settled.load(std::memory_order_relaxed);
}

Status Calls::on_complete(Call& call, warren_callback callback, void* context) {
  {
    const std::lock_guard lock(driver_.mutex());
    if (call.callback != nullptr) return {Code::kInvalidArgument, "this handle has a callback already"};
    call.callback = callback;
    call.callback_context = context;
    if (!call.finished.load(std::memory_order_relaxed)) return {};
    const auto& waiting = engine().finished_calls();
    const bool will_be_called =
        std::any_of(waiting.begin(), waiting.end(), [&](const auto& c) { return c.get() == &call; });
    call.settled.store(false, std::memory_order_relaxed);
    if (will_be_called) return {};
  }
  driver_.call_back(call);
  const std::lock_guard lock(driver_.mutex());
  driver_.notify();
  return {};
}

Result<bool> Calls::meets(std::vector<std::uint64_t> sites) {
  if (const Status status = needs_mode_wait("meets_round"); !status.ok()) return status;
  std::unique_lock lock(driver_.mutex());
  if (batches_.fuses())
    return Status(Code::kInvalidArgument, "meets_round comes before fusion_begin or after fusion_end");
  driver_.drive(lock, [&] { return engine().idle(kWorldGroup) || engine().stopped(); });
  driver_.run_callbacks(lock);
  if (engine().stopped()) return life_.gone();
  if (engine().version() == kPreamble) {
    return Status(Code::kInvalidArgument, "meets_round comes after load_checkpoint");
  }
  if (const Status given = checkpoints_.give_state(lock); !given.ok()) return given;
  engine().ask_next(std::move(sites));
  std::optional<bool> met;
  driver_.drive(lock, [&] { return (met = engine().take_answer()) || engine().stopped(); });
  if (!met) return life_.gone();
  return *met;
}

void Calls::end_all(std::unique_lock<std::mutex>& lock) {
  fused_.send(lock);
  driver_.drive(lock, [&] { return engine().outstanding() == 0; });
  driver_.run_callbacks(lock);
}

std::optional<TimeMs> Calls::end_overdue(TimeMs now) {
  const auto over = deadlines_.overdue(now);
  const auto call = over && !life_.closed() ? over->call.lock() : nullptr;
  if (call == nullptr) return deadlines_.next();
  const std::vector<std::string> waits = engine().describe_waits();
  driver_.end_life(Status(Code::kTimeout, describe(*call, engine().plan().self) + " has not finished within the " +
                                              std::to_string(over->timeout_ms) + " ms that its timeout_ms gives it" +
                                              (waits.empty() ? "" : "; " + waits.front())));
  return deadlines_.next();
}

}  // namespace warren::worker

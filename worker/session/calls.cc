// Calls of the program: collectives, messages, fusion, and groups.
#include "worker/session/session.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/decide/verdict.h"

namespace warren::worker {
namespace {

// Between two looks at a call whose caller has left it with an exception.
constexpr auto kLookAgain = std::chrono::microseconds(20);

}  // namespace

Status Session::stage(Call& call, const GroupShape& shape) {
  if (const Status staged = stage_on_gpu(call, shape); !staged.ok()) return staged;
  return call.spec.wire == DataType{} ? Status() : narrow(call, shape, copy_memory_);
}

Status Session::stage_on_gpu(Call& call, const GroupShape& shape) {
  Status staged = driver_.judge(gpus_.stage(call, shape));
  lent_.tell_of_shares(driver_.mutex());
  return staged;
}

// A worker that drains begins nothing. Its threads wait here, with nothing under way, until it has left.
void Session::stay_out(std::unique_lock<std::mutex>& lock) {
  if (!drains_.load(std::memory_order_relaxed)) [[likely]]
    return;
  driver_.drive(lock, [&] { return engine().outstanding() == 0 || engine().stopped(); });
  driver_.run_callbacks(lock);
  driver_.await(lock, [&] { return engine().stopped(); });
}

Status Session::run(GroupId group, Call& call) {
  std::unique_lock lock(driver_.mutex());
  const Status status = clear_way(lock, group, call);
  return status.ok() ? drive_through(lock, group, call) : status;
}

Status Session::run(GroupId group, const GroupShape& shape, const CallSpec& spec,
                    std::shared_ptr<const std::vector<Rank>>& contributors) {
  const bool plain = gpus_.staging() == nullptr && spec.wire == DataType{} && spec.prepare == nullptr;
  std::unique_lock lock(driver_.mutex(), std::defer_lock);
  if (plain) lock.lock();
  const bool clear = plain && way_is_clear();
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

// `lock` is held, unless the buffers may have to be staged. `clear`: the way is, and a round that may have begun is
// gone on with before anything else.
Status Session::run_by_call(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape,
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

// Nothing of what clear_way() does would be to do.
bool Session::way_is_clear() const {
  return !driver_.has_callers() && !batches_.fuses() && !batches_.has_unsent() && !checkpoints_.owes_state() &&
         settings_.min_workers == 0 && !drains_.load(std::memory_order_relaxed);
}

Status Session::clear_way(std::unique_lock<std::mutex>& lock, GroupId group, const Call& call) {
  if (Status status = may_call(group, call); !status.ok()) return status;
  // A set-up round may be made by one life alone, and ends no batch: it has no number among the others.
  if (call.setup.empty()) send_batch(lock);
  stay_out(lock);
  return checkpoints_.give_state(lock);
}

Status Session::drive_through(std::unique_lock<std::mutex>& lock, GroupId group, Call& call) {
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

Status Session::submit(GroupId group, const std::shared_ptr<Call>& call) {
  std::unique_lock lock(driver_.mutex());
  if (Status status = may_call(group, *call); !status.ok()) return status;
  if (call->setup.empty()) send_batch(lock);
  return submit(lock, group, call);
}

Status Session::needs_mode_wait(std::string_view what) const {
  if (settings_.min_workers == 0) [[likely]]
    return {};
  return {Code::kInvalidArgument,
          std::string(what) +
              ": mode shrink does not have this. It has allreduce and barrier on all ranks, with inputs that stand in "
              "memory of the CPU, and checkpoints of a global state; mode=wait has everything"};
}

Status Session::may_call(GroupId group, const Call& call) const {
  if (settings_.min_workers != 0) [[unlikely]] {
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

Status Session::begin_fusion(GroupId group) {
  if (const Status status = needs_mode_wait("fusion_begin"); !status.ok()) return status;
  const std::lock_guard lock(driver_.mutex());
  return batches_.begin(group);
}

void Session::end_fusion() {
  std::unique_lock lock(driver_.mutex());
  send_batch(lock);
  batches_.end();
}

Status Session::submit(std::unique_lock<std::mutex>& lock, GroupId group, const std::shared_ptr<Call>& call) {
  stay_out(lock);
  Status status = checkpoints_.give_state(lock);
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

// Whether it is sent or not may hang on what was said of earlier calls alone (worker/session/fusion.h).
Status Session::fuse(GroupId group, const GroupShape& shape, const std::shared_ptr<Call>& call,
                     std::uint64_t most_bytes) {
  const CallSpec& spec = call->spec;
  const bool takes = Batch::takes(*call, most_bytes);
  std::optional<Staging::Lies> lies;
  std::unique_ptr<DeviceCopies::Event> after;
  if (Staging* const staging = gpus_.staging(); staging != nullptr && takes) {
    const auto found = staging->find(spec, shape);
    if (!found.ok()) return driver_.judge(found.status());
    lies = found.value();
    auto marked = staging->mark(*lies, spec.stream);
    if (!marked.ok()) {
      const std::lock_guard lock(driver_.mutex());
      driver_.end_life(marked.status());
      return marked.status();
    }
    after = std::move(marked).value();
  } else if (const Status staged = stage_on_gpu(*call, shape); !staged.ok()) {
    return staged;
  }
  if (const auto reducer = Reducer::make(spec.type, spec.op, static_cast<std::uint32_t>(shape.size), spec.custom_bytes,
                                         spec.custom, spec.custom_context);
      !reducer.ok()) {
    return reducer.status();
  }
  std::unique_lock lock(driver_.mutex());
  if (!takes) {
    if (call->setup.empty()) send_batch(lock);
    if (call->spec.wire != DataType{}) {
      if (const Status narrowed = narrow(*call, shape, copy_memory_); !narrowed.ok()) return narrowed;
    }
    return submit(lock, group, call);
  }
  if (!batches_.fits(group, *call, most_bytes)) send_batch(lock);
  stay_out(lock);
  if (const Status given = checkpoints_.give_state(lock); !given.ok()) return given;
  if (engine().stopped()) return life_.gone();
  call->fingerprint = fingerprint_of(call->spec, 0);
  if (trace_) {
    trace_->issued(*call);
    call->traced = true;
  }
  try {
    batches_.add(group, shape, call, lies, std::move(after));
  } catch (...) {  // one knows of it, the other perhaps not
    driver_.abandon_call(lock);
    throw;
  }
  if (batches_.full(most_bytes)) send_batch(lock);
  return {};
}

void Session::send_fused() {
  std::unique_lock lock(driver_.mutex());
  send_batch(lock);
}

// Failures of the parts are told to the threads that wait for them. Another thread may send the batch, because one of
// its parts was waited for or freed. The next call of this thread comes after that batch on all ranks.
void Session::send_batch(std::unique_lock<std::mutex>& lock) {
  if (!batches_.has_unsent()) [[likely]]
    return;
  if (!batches_.await_turn(lock)) return;
  std::optional<Batches::Turn> turn(std::in_place, batches_, lock);
  // As many calls as there may be at once are under way on one rank and not on another: what was taken is not refused.
  driver_.drive(lock, [&] { return engine().outstanding() < limits::kMaxOutstandingRounds || engine().stopped(); });
  std::vector<std::shared_ptr<Call>> lost;
  Batch batch = turn->take();
  Result<std::shared_ptr<Call>> call = Status(Code::kExhausted, "no memory to put allreduces together");
  // What it takes for them may wait for a GPU. No other call of the program's comes in between.
  lock.unlock();
  try {
    call = batch.close(copy_memory_, gpus_.staging(), lost);
    lent_.tell_of_shares(driver_.mutex());
  } catch (const std::bad_alloc&) {
    // As if it had said so; its parts are among those that are lost.
  }
  lock.lock();
  Status status = call.status();
  // The others will make this round, and nobody else can make this rank's part in it.
  if (!call.ok()) driver_.end_life(status);
  if (call.ok()) {
    status = submit(lock, batch.group(), call.value());
    if (!status.ok())
      lost = call.value()->parts.empty() ? std::vector{call.value()} : std::exchange(call.value()->parts, {});
  }
  turn.reset();
  for (const auto& part : lost) engine().end_unsent(part, status);
  driver_.run_callbacks(lock);
}

Status Session::wait(Call& call) {
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (!call.settled.load(std::memory_order_acquire)) {
    std::unique_lock lock(driver_.mutex());
    driver_.drive(lock, [&] { return call.finished.load(std::memory_order_relaxed); });
    driver_.run_callbacks(lock);
    // Another thread may be inside the callback.
    driver_.await_others(lock, [&] { return call.settled.load(std::memory_order_relaxed); });
  }
  return call.status;
}

bool Session::wait_for(Call& call, std::int64_t timeout_ms) {
  const auto until = Driver::Clock::now() + std::chrono::milliseconds(timeout_ms);
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (call.settled.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(driver_.mutex());
  driver_.drive(
      lock, [&] { return call.finished.load(std::memory_order_relaxed) || Driver::Clock::now() >= until; }, until);
  driver_.run_callbacks(lock);
  return driver_.await_others_until(lock, until, [&] { return call.settled.load(std::memory_order_relaxed); });
}

void Session::finish_within(const std::shared_ptr<Call>& call, std::int64_t timeout_ms) {
  {
    const std::lock_guard lock(driver_.mutex());
    deadlines_.add(call, timeout_ms, now());
  }
  control_->tick();
}

bool Session::test(Call& call) {
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (call.settled.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(driver_.mutex());
  driver_.yield_to_control(lock);  // a program may call this again and again, and leave the lock free for moments only
  driver_.take_what_came(lock);
  return call.settled.load(std::memory_order_relaxed);
}

Status Session::on_complete(Call& call, warren_callback callback, void* context) {
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

Result<bool> Session::meets(std::vector<std::uint64_t> sites) {
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

Engine::Channels Session::used_channels() {
  const std::lock_guard lock(driver_.mutex());
  return engine().used_channels();
}

Status Session::add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  const std::lock_guard lock(driver_.mutex());
  if (!life_.failure().ok()) return life_.failure();
  return engine().add_group(id, std::move(members), channel);
}

Status Session::make_group(GroupId id, const std::vector<Rank>& members, std::uint64_t site) {
  const auto rank = static_cast<std::int32_t>(std::ranges::find(members, self_) - members.begin());
  if (Status added = add_group(id, members, Engine::kMeetingChannel); !added.ok()) return added;
  auto used = used_channels();
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = DataType::kU64;
  spec.op = ReduceOp::kBitOr;
  spec.input = spec.output = used.data();
  spec.count = used.size();
  spec.site = site;
  std::shared_ptr<const std::vector<Rank>> contributors;
  Status status = run(id, {rank, static_cast<std::int32_t>(members.size())}, spec, contributors);
  const auto channel = Engine::free_channel(used);
  if (status.ok() && !channel) status = no_channel();
  if (!status.ok()) {
    remove_group(id);
    return status;
  }
  const std::lock_guard lock(driver_.mutex());
  engine().move_group(id, *channel);
  return {};
}

Status Session::no_channel() {
  return {Code::kExhausted, "over " + std::to_string(limits::kMaxGroups) +
                                " groups at once: destroy communicators that are no longer needed"};
}

void Session::remove_group(GroupId id) {
  std::unique_lock lock(driver_.mutex());
  if (!engine().has_group(id)) return;
  if (batches_.fuses(id)) {
    send_batch(lock);
    batches_.end();
  }
  // Where the engine has stopped, all calls have finished but one whose prepare function runs.
  driver_.drive(lock, [&] { return engine().idle(id); });
  driver_.run_callbacks(lock);
  engine().remove_group(id);
  driver_.hand_over();
}

bool Session::setup_known(GroupId group, const std::string& name) {
  const std::lock_guard lock(driver_.mutex());
  return engine().setup_known(group, setup_sequence(name));
}

Result<void*> Session::allocate(std::uint64_t bytes) {
  return lent_.allocate(bytes, driver_.mutex());
}

Status Session::free(void* memory) {
  return lent_.free(memory, driver_.mutex());
}

}  // namespace warren::worker

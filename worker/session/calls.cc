// Calls of the program: collectives, messages, fusion, groups, and memory.
#include "worker/session/session_parts.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/decide/verdict.h"

namespace warren::worker {

Status Session::stage(Call& call, const GroupShape& shape) {
  if (const Status staged = stage_on_gpu(call, shape); !staged.ok()) return staged;
  return call.spec.wire == DataType{} ? Status() : narrow(call, shape, copy_memory_);
}

Status Session::stage_on_gpu(Call& call, const GroupShape& shape) {
  if (staging_ == nullptr) return {};
  Status staged = judge(staging_->stage(call, shape));
  tell_of_shares();
  return staged;
}

// What a GPU has said outside of the lock: one that fails ends this life.
Status Session::judge(const Status& status) {
  if (status.code() == Code::kUnavailable || status.code() == Code::kTimeout) {
    const std::lock_guard lock(mutex_);
    end_life(status);
  }
  return status;
}

Status Session::run(GroupId group, Call& call) {
  std::unique_lock lock(mutex_);
  const Status status = clear_way(lock, group, call);
  return status.ok() ? drive_through(lock, group, call) : status;
}

Status Session::run(GroupId group, const GroupShape& shape, const CallSpec& spec,
                    std::shared_ptr<const std::vector<Rank>>& contributors) {
  const bool plain = staging_ == nullptr && spec.wire == DataType{} && spec.prepare == nullptr;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (plain) lock.lock();
  const bool clear = plain && way_is_clear();
  bool done = false;
  try {
    if (clear) {  // and so the lock is held
      core_.called();
      done = engine().run_at_once(group, spec, core_.free() ? looks_ : 0);
    }
  } catch (...) {
    abandon_call(lock);
    throw;
  }
  if (!done) return run_by_call(lock, group, shape, spec, clear, contributors);
  if (!engine().finished_calls().empty()) run_callbacks(lock);
  yield_to_control(lock);
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
  return callers_ == 0 && !fusing_ && batch_.empty() && !sends_batch_ && serialize_ == nullptr &&
         settings_.min_workers == 0 && !drains_.load(std::memory_order_relaxed);
}

Status Session::clear_way(std::unique_lock<std::mutex>& lock, GroupId group, const Call& call) {
  if (Status status = may_call(group, call); !status.ok()) return status;
  // A set-up round may be made by one life alone, and ends no batch: it has no number among the others.
  if (call.setup.empty()) send_batch(lock);
  stay_out(lock);
  return give_state(lock);
}

Status Session::drive_through(std::unique_lock<std::mutex>& lock, GroupId group, Call& call) {
  call.blocking = true;
  bool submitted = false;
  try {
    if (Status status = engine().submit(group, call); !status.ok()) return status;
    submitted = true;
    drive(lock, [&] { return call.finished.load(std::memory_order_relaxed); });
  } catch (...) {
    abandon_call(lock);
    // What a GPU has under way for it comes to its end, and so does what another thread prepares or delivers; until
    // then the engine has the call. Its own thread takes what is left.
    end_moves(lock);
    while (submitted && !call.finished.load(std::memory_order_relaxed)) {
      lock.unlock();
      std::this_thread::sleep_for(kShortestMovePause);
      lock.lock();
    }
    throw;
  }
  if (!engine().finished_calls().empty()) run_callbacks(lock);
  return call.status;
}

Status Session::submit(GroupId group, const std::shared_ptr<Call>& call) {
  std::unique_lock lock(mutex_);
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

// Not all ranks exchange messages or call what another group calls, and so a batch would end at some of them alone.
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
  if (!fusing_ || (group == *fusing_ && call.spec.collective != Collective::kPoint)) [[likely]]
    return {};
  return {Code::kInvalidArgument, std::string(to_string(call.spec.collective)) +
                                      ": messages, and calls of other communicators, come before fusion_begin or "
                                      "after fusion_end"};
}

Status Session::begin_fusion(GroupId group) {
  if (const Status status = needs_mode_wait("fusion_begin"); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  if (fusing_) return {Code::kInvalidArgument, "fusion_begin: the one before, of any communicator, has not ended"};
  fusing_ = group;
  return {};
}

void Session::end_fusion() {
  std::unique_lock lock(mutex_);
  send_batch(lock);
  fusing_.reset();
}

Status Session::submit(std::unique_lock<std::mutex>& lock, GroupId group, const std::shared_ptr<Call>& call) {
  stay_out(lock);
  Status status = give_state(lock);
  if (!status.ok()) return status;
  call->self = call;
  status = engine().submit(group, *call);
  if (!status.ok()) {
    call->self.reset();
    return status;
  }
  if (!call->finished.load(std::memory_order_relaxed)) wake(engine_wake_);
  run_callbacks(lock);
  return {};
}

// Whether it is sent or not may hang on what was said of earlier calls alone (worker/session/fusion.h).
Status Session::fuse(GroupId group, const GroupShape& shape, const std::shared_ptr<Call>& call,
                     std::uint64_t most_bytes) {
  const CallSpec& spec = call->spec;
  const bool takes = Batch::takes(*call, most_bytes);
  Staging::Lies lies;
  std::unique_ptr<DeviceCopies::Event> after;
  if (staging_ != nullptr && takes) {
    const auto found = staging_->find(spec, shape);
    if (!found.ok()) return judge(found.status());
    lies = found.value();
    auto marked = staging_->mark(lies, spec.stream);
    if (!marked.ok()) {
      const std::lock_guard lock(mutex_);
      end_life(marked.status());
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
  std::unique_lock lock(mutex_);
  if (!takes) {
    if (call->setup.empty()) send_batch(lock);
    if (call->spec.wire != DataType{}) {
      if (const Status narrowed = narrow(*call, shape, copy_memory_); !narrowed.ok()) return narrowed;
    }
    return submit(lock, group, call);
  }
  if (!batch_.empty() && !batch_.fits(group, *call, most_bytes)) send_batch(lock);
  stay_out(lock);
  if (const Status given = give_state(lock); !given.ok()) return given;
  if (engine().stopped()) return gone();
  call->fingerprint = fingerprint_of(call->spec, 0);
  if (trace_) {
    trace_->issued(*call);
    call->traced = true;
  }
  try {
    if (staging_ != nullptr) Staging::add(lies, std::move(after), batch_.on_gpu());
    batch_.add(group, shape, call);
  } catch (...) {  // one knows of it, the other perhaps not
    abandon_call(lock);
    throw;
  }
  if (batch_.full(most_bytes)) send_batch(lock);
  return {};
}

void Session::send_fused() {
  std::unique_lock lock(mutex_);
  send_batch(lock);
}

// Its parts' failures are told to those who wait for them. Another thread may be at it, for whom a part was waited for
// or freed, and has let go of the lock: whatever comes next comes after that batch on all ranks, and waits for it.
void Session::send_batch(std::unique_lock<std::mutex>& lock) {
  if (batch_.empty() && !sends_batch_) [[likely]]
    return;
  changed_.wait(lock, [&] { return !sends_batch_; });
  if (batch_.empty()) return;
  struct Sending {
    Sending(Session& session, std::unique_lock<std::mutex>& held) : session_(session), lock_(held) {
      session_.sends_batch_ = true;
    }
    ~Sending() {
      if (!lock_.owns_lock()) lock_.lock();  // after an exception
      session_.sends_batch_ = false;
      session_.changed_.notify_all();
    }
    Sending(const Sending&) = delete;
    Sending& operator=(const Sending&) = delete;
    Session& session_;
    std::unique_lock<std::mutex>& lock_;
  };
  std::optional<Sending> sending(std::in_place, *this, lock);
  // As many calls as there may be at once are under way on one rank and not on another: what was taken is not refused.
  drive(lock, [&] { return engine().outstanding() < limits::kMaxOutstandingRounds || engine().stopped(); });
  std::vector<std::shared_ptr<Call>> lost;
  Batch batch = std::exchange(batch_, {});
  Result<std::shared_ptr<Call>> call = Status(Code::kExhausted, "no memory to put allreduces together");
  // What it takes for them may wait for a GPU. No other call of the program's comes in between.
  lock.unlock();
  try {
    call = batch.close(copy_memory_, staging_.get(), lost);
    if (staging_ != nullptr) tell_of_shares();
  } catch (const std::bad_alloc&) {
    // As if it had said so; its parts are among those that are lost.
  }
  lock.lock();
  Status status = call.status();
  // The others will make this round, and nobody else can make this rank's part in it.
  if (!call.ok()) end_life(status);
  if (call.ok()) {
    status = submit(lock, batch.group(), call.value());
    if (!status.ok())
      lost = call.value()->parts.empty() ? std::vector{call.value()} : std::exchange(call.value()->parts, {});
  }
  sending.reset();
  for (const auto& part : lost) engine().end_unsent(part, status);
  run_callbacks(lock);
}

Status Session::wait(Call& call) {
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (!call.settled.load(std::memory_order_acquire)) {
    std::unique_lock lock(mutex_);
    drive(lock, [&] { return call.finished.load(std::memory_order_relaxed); });
    run_callbacks(lock);
    // Another thread may be inside the callback.
    changed_.wait(lock, [&] { return call.settled.load(std::memory_order_relaxed); });
  }
  return call.status;
}

bool Session::wait_for(Call& call, std::int64_t timeout_ms) {
  const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (call.settled.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(mutex_);
  drive(
      lock, [&] { return call.finished.load(std::memory_order_relaxed) || Clock::now() >= until; }, until);
  run_callbacks(lock);
  return changed_.wait_until(lock, until, [&] { return call.settled.load(std::memory_order_relaxed); });
}

void Session::finish_within(const std::shared_ptr<Call>& call, std::int64_t timeout_ms) {
  {
    const std::lock_guard lock(mutex_);
    deadlines_.add(call, timeout_ms, now());
  }
  control_->tick();
}

bool Session::test(Call& call) {
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (call.settled.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(mutex_);
  yield_to_control(lock);  // a program may call this again and again, and leave the lock free for moments only
  const Inside here(*this);
  const bool moved = engine().progress();
  report_failure();
  run_callbacks(lock);
  // What this has posted is not among the descriptors that the engine's thread sleeps on.
  if (moved && engine().outstanding() > 0) wake(engine_wake_);
  // Nor those that another caller does, whose call this may have finished, as the last one too.
  if (moved && callers_ != 0) wake(caller_wake_);
  return call.settled.load(std::memory_order_relaxed);
}

Status Session::on_complete(Call& call, warren_callback callback, void* context) {
  {
    const std::lock_guard lock(mutex_);
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
  call_back(call);
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
  return {};
}

Result<bool> Session::meets(std::vector<std::uint64_t> sites) {
  if (const Status status = needs_mode_wait("meets_round"); !status.ok()) return status;
  std::unique_lock lock(mutex_);
  if (fusing_) return Status(Code::kInvalidArgument, "meets_round comes before fusion_begin or after fusion_end");
  drive(lock, [&] { return engine().idle(kWorldGroup) || engine().stopped(); });
  run_callbacks(lock);
  if (engine().stopped()) return gone();
  if (engine().version() == kPreamble) {
    return Status(Code::kInvalidArgument, "meets_round comes after load_checkpoint");
  }
  if (const Status given = give_state(lock); !given.ok()) return given;
  engine().ask_next(std::move(sites));
  std::optional<bool> met;
  drive(lock, [&] { return (met = engine().take_answer()) || engine().stopped(); });
  if (!met) return gone();
  return *met;
}

Engine::Channels Session::used_channels() {
  const std::lock_guard lock(mutex_);
  return engine().used_channels();
}

Status Session::add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
  engine().move_group(id, *channel);
  return {};
}

Status Session::no_channel() {
  return {Code::kExhausted, "over " + std::to_string(limits::kMaxGroups) +
                                " groups at once: destroy communicators that are no longer needed"};
}

void Session::remove_group(GroupId id) {
  std::unique_lock lock(mutex_);
  if (!engine().has_group(id)) return;
  if (fusing_ == id) {
    send_batch(lock);
    fusing_.reset();
  }
  // Where the engine has stopped, all calls have finished but one whose prepare function runs.
  drive(lock, [&] { return engine().idle(id); });
  run_callbacks(lock);
  engine().remove_group(id);
  hand_over();
}

bool Session::setup_known(GroupId group, const std::string& name) {
  const std::lock_guard lock(mutex_);
  return engine().setup_known(group, setup_sequence(name));
}

Result<void*> Session::allocate(std::uint64_t bytes) {
  auto made = HostMemory::make(bytes);
  if (!made.ok()) return made.status();
  const std::span<std::byte> all = made.value()->bytes();
  OwnedFd fd(::fcntl(made.value()->fd(), F_DUPFD_CLOEXEC, 0));
  if (!fd.open()) return Status(Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno));
  const std::lock_guard lock(mutex_);
  const auto number = memory_.add(std::move(made).value());
  if (!number.ok()) return number.status();
  control_->lend(number.value(), std::make_shared<const OwnedFd>(std::move(fd)), all.size());
  return static_cast<void*>(all.data());
}

Status Session::free(void* memory) {
  std::optional<HostMemory::Removed> removed;  // unmapped outside the lock
  const std::lock_guard lock(mutex_);
  removed = memory_.remove(memory);
  if (!removed) {
    return {Code::kInvalidArgument, "this is no memory that was allocated with this communicator's job, or was freed"};
  }
  control_->take_back(removed->memory);
  return {};
}

// Completes outstanding calls; a checkpoint may be taken once await_commit() has returned, too.
Status Session::end_calls(std::unique_lock<std::mutex>& lock) {
  if (engine().version() == kPreamble) {
    return {Code::kInvalidArgument, "checkpoint comes after load_checkpoint, which says where the program starts"};
  }
  send_batch(lock);
  drive(lock, [&] { return engine().outstanding() == 0; });
  run_callbacks(lock);
  stay_out(lock);
  if (!life_.failure().ok()) return life_.failure();
  if (!life_.logs()) return {};
  if (disk_) {
    if (Status s = disk_->writer().takes_checkpoints(); !s.ok()) return s;
  }
  return give_state(lock);
}

Status Session::checkpoint_from(std::int32_t root, Places global, const Places* local, void* stream,
                                std::uint64_t site) {
  if (const Status status = needs_mode_wait("a checkpoint from a root"); !status.ok()) return status;
  if (root < 0 || root >= static_cast<std::int32_t>(world_size())) {
    return {Code::kInvalidArgument, "the root of a checkpoint is rank " + std::to_string(root) + ", and the job has " +
                                        std::to_string(world_size()) + " ranks"};
  }
  const Span span(trace_.get(), TraceFile::Row::kCheckpoints, "checkpoint");
  std::unique_lock lock(mutex_);
  Status status = end_calls(lock);
  if (!status.ok()) return status;
  if (!life_.logs()) return engine().begin_version(engine().version().next());
  const bool is_root = self_.value == root;
  // Before the others have heard of the call.
  const std::uint64_t bytes = is_root ? bytes_of(global) : 0;
  const std::uint64_t local_bytes = local == nullptr ? 0 : bytes_of(*local);
  status = Checkpoints::may_hold(std::max(bytes, local_bytes));
  if (!status.ok()) return status;
  lock.unlock();
  const auto global_state = read_places(is_root ? global : Places(), stream);
  if (!global_state.ok()) return global_state.status();
  const auto local_state = read_places(local == nullptr ? Places() : *local, stream);
  if (!local_state.ok()) return local_state.status();
  const PlacedState* const roots = is_root ? &global_state.value().state : nullptr;
  auto agreed = share_hashes(root, roots, site);
  if (!agreed.ok()) return agreed.status();
  lock.lock();
  status = await_commit(lock);
  if (!status.ok()) return status;
  status = life_.checkpoints().take_from_root(roots, local == nullptr ? nullptr : &local_state.value().state,
                                              std::move(agreed).value());
  look_at_taken(status);
  return status;
}

}  // namespace warren::worker

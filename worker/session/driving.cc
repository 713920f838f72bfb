// Who drives the engine, and what the driving thread does outside the lock.
#include "worker/session/session_parts.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "recovery/base/text.h"
#include "recovery/decide/verdict.h"
#include "storage/segment_memory.h"

namespace warren::worker {
namespace {

constexpr auto kWaitLogInterval = std::chrono::seconds(10);
constexpr int kSleepMs = 1000;
constexpr auto kLongestMovePause = std::chrono::microseconds(1000);
constexpr timespec kNoTime = {};

}  // namespace

// Who drains begins nothing: it waits here, with nothing under way, until it has left.
void Session::stay_out(std::unique_lock<std::mutex>& lock) {
  if (!drains_.load(std::memory_order_relaxed)) [[likely]]
    return;
  drive(lock, [&] { return engine().outstanding() == 0 || engine().stopped(); });
  run_callbacks(lock);
  await(lock, [&] { return engine().stopped(); });
}

Status Session::ask() const {
  if (interrupt_.asks == nullptr) return {};
  const Status goes_on =
      call_program(*this, "the interrupt function", [&] { return interrupt_.asks(interrupt_.context); });
  return goes_on.ok() ? goes_on : Status(Code::kClosed, "the program has interrupted its wait");
}

void Session::ask(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const Status goes_on = ask();
  lock.lock();
  if (!goes_on.ok()) end_life(goes_on, Blame::kProgram);
}

// What is asked may take long (an interpreter's lock): the engine's thread drives meanwhile.
void Session::ask_while_driving(std::unique_lock<std::mutex>& lock) {
  callers_--;
  hand_over();
  ask(lock);
  callers_++;
}

int Session::sleep_ms(Clock::time_point until) const {
  const auto most = interrupt_.asks != nullptr ? kAskInterval : std::chrono::milliseconds(kSleepMs);
  if (until == Clock::time_point::max()) return static_cast<int>(most.count());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), most).count());
}

void Session::yield_to_control(std::unique_lock<std::mutex>& lock) {
  if (control_waits_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  while (control_waits_.load() != 0) sched_yield();
  lock.lock();
}

void Session::report_failure() {
  life_.report_trouble();
  carry_out();
}

void Session::run_callbacks(std::unique_lock<std::mutex>& lock) {
  while (!engine().finished_calls().empty()) {
    // Those without a callback now are called by on_complete() itself, which also holds the lock when it looks.
    std::vector<std::shared_ptr<Call>> calls;
    calls.swap(engine().finished_calls());
    std::erase_if(calls, [](const auto& call) { return call->callback == nullptr; });
    const Counted calls_back(calling_back_);
    lock.unlock();
    for (const auto& call : calls) call_back(*call);
    lock.lock();
    changed_.notify_all();
  }
}

void Session::call_back(Call& call) const {
  const std::string text = call.status.describe();
  const Inside here(*this);
  call.callback(static_cast<warren_code>(call.status.code()), call.status.ok() ? nullptr : text.c_str(),
                call.callback_context);
  call.settled.store(true, std::memory_order_release);
}

bool Session::inside_callback() {
  return Inside::any();
}

bool Session::calls_back_here() const {
  return Inside::of(*this);
}

void Session::log_waits(std::chrono::steady_clock::time_point& next) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next) return;
  // The first look only starts the clock.
  if (next != std::chrono::steady_clock::time_point()) {
    for (const std::string& line : engine().describe_waits()) log_(WARREN_LOG_INFO, line);
    if (const std::string text = waits_for_load_ ? life_.loading().describe_wait() : ""; !text.empty()) {
      log_(WARREN_LOG_INFO, text);
    }
    if (waits_for_commit_) log_(WARREN_LOG_INFO, describe_commit_wait());
  }
  next = now + kWaitLogInterval;
}

void Session::sleep(std::unique_lock<std::mutex>& lock, int wake_fd, int timeout_ms, bool watch_links) {
  std::vector<pollfd> fds;
  const bool moves = watch_links && (engine().has_moving() || engine().has_gpu_work() ||
                                     engine().has_exchange_under_way() || states_move());
  if (watch_links && life_.logs()) {
    if (const auto deadline = life_.recall().next_deadline()) {
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(*deadline - now(), 0, timeout_ms));
    }
  }
  if (watch_links) {
    engine().publish_waits();
    fds.swap(pollfds_);  // keeps its memory; one sleeper at a time uses it
    fds.clear();
    transport_.collect_pollfds(fds);
  }
  fds.push_back({wake_fd, POLLIN, 0});
  // A program that computes while messages may be asked for does not wait.
  const bool waits = watch_links && (callers_ != 0 || engine().outstanding() > 0);
  if (waits) board_.asleep.fetch_add(1, std::memory_order_relaxed);
  // Looks at buffers that move are too many to be drawn.
  const std::int64_t asleep_ns = waits && trace_ && !moves ? TraceFile::now_ns() : 0;
  std::vector<std::string> waits_for;
  if (asleep_ns != 0) waits_for = engine().describe_waits();
  if (moves) {
    move_pause_ =
        std::clamp<std::chrono::microseconds>(move_pause_ + move_pause_ / 4, kShortestMovePause, kLongestMovePause);
    const timespec pause = {0, std::chrono::nanoseconds(move_pause_).count()};
    lock.unlock();
    (void)::ppoll(fds.data(), fds.size(), timeout_ms == 0 ? &kNoTime : &pause, nullptr);
  } else {
    lock.unlock();
    (void)::poll(fds.data(), fds.size(), timeout_ms);
  }
  if (waits) board_.asleep.fetch_sub(1, std::memory_order_relaxed);
  if (asleep_ns != 0) {
    trace_->was(TraceFile::Row::kWaits, asleep_ns, "waits",
                waits_for.empty() ? std::string_view() : std::string_view(waits_for.front()));
  }
  std::uint64_t count = 0;
  if (fds.back().revents != 0) (void)!::read(wake_fd, &count, sizeof count);
  lock.lock();
  if (!watch_links) return;
  transport_.woken();
  pollfds_.swap(fds);
  if (life_.logs()) {
    if (const auto deadline = life_.recall().next_deadline(); deadline && *deadline <= now()) life_.recall().on_tick();
  }
}

// Calls what fills a call's input, outside the lock; true if there was something.
bool Session::prepare(std::unique_lock<std::mutex>& lock) {
  Call* call = engine().take_prepare();
  if (call == nullptr) return false;
  lock.unlock();
  Status filled;
  {
    const Span span(trace_.get(), TraceFile::Row::kBuffers, "prepare");
    filled =
        call_program(*this, "the prepare function", [&] { return call->spec.prepare(call->spec.prepare_context); });
  }
  lock.lock();
  const Blame blame = filled.ok() ? Blame::kNobody : Blame::kProgram;
  if (filled.ok() && call->buffers != nullptr) filled = call->buffers->filled();
  // What lies in the buffer must not become part of a result.
  if (!filled.ok()) end_life(filled.because_of_this("cannot read the input of " + describe(*call)), blame);
  engine().prepared(*call);
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Brings a call's results to where the program wants them, outside the lock; true if there was something.
bool Session::deliver(std::unique_lock<std::mutex>& lock) {
  Call* call = engine().take_delivery();
  if (call == nullptr) return false;
  lock.unlock();
  Status status;
  {
    const Span span(trace_.get(), TraceFile::Row::kBuffers, "deliver");
    status = call->buffers->deliver();
  }
  lock.lock();
  if (!status.ok()) {
    status = status.because_of_this("cannot write the result of " + describe(*call));
    end_life(status);
  }
  engine().delivered(*call, status);
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Moves a call's buffers as far as they go, outside the lock; true if something came.
bool Session::move(std::unique_lock<std::mutex>& lock) {
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
    std::this_thread::sleep_for(kShortestMovePause);
    moved = move_on();
    lock.lock();
  }
  Status status = moved.status();
  if (!status.ok()) {
    try {
      status = status.because_of_this("cannot move the buffers of " + describe(*call));
    } catch (const std::bad_alloc&) {  // the engine is to have the call back
    }
    end_life(status);
  }
  engine().moved(*call, status);
  if (status.ok() && !moved.value()) return false;
  move_pause_ = {};
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Sees to the end of what moves when the engine has stopped.
void Session::end_moves(std::unique_lock<std::mutex>& lock) {
  while (engine().has_moving()) (void)move(lock);
}

// Moves what GPUs combine as far as it goes, outside the lock; true if something is done.
bool Session::move_gpu_work(std::unique_lock<std::mutex>& lock) {
  if (std::exchange(moves_gpu_work_, true)) return false;
  lock.unlock();
  const auto moved = staging_->combines().move();
  lock.lock();
  moves_gpu_work_ = false;
  if (!moved.ok()) end_life(moved.status().because_of_this("cannot combine inputs that ranks of this host lend"));
  if (!engine().take_done_gpu_work()) return false;
  move_pause_ = {};
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// The same of what GPUs exchange.
bool Session::move_exchanged(std::unique_lock<std::mutex>& lock) {
  if (moves_exchanged_.exchange(true)) return false;
  lock.unlock();
  const auto moved = staging_->exchange()->move();
  lock.lock();
  moves_exchanged_ = false;
  if (!moved.ok()) end_life(moved.status().because_of_this("cannot exchange what lies on GPUs"));
  if (!engine().take_done_exchanged()) return false;
  move_pause_ = {};
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Memory of GPUs that was made, or mapped, by a call of stage().
void Session::tell_of_shares() {
  auto news = staging_->shares().take_news();
  if (!news) return;
  if (!news->trouble.ok()) {
    log_(WARREN_LOG_WARNING,
         news->trouble.describe() + "; large collectives among the GPUs of this host go by way of the CPU");
  }
  const std::lock_guard lock(mutex_);
  if (news->made) {
    const std::span<const std::byte> memory = news->made->memory;
    const std::uint32_t number = memory_.add_on_gpu(memory);
    MemfdSegment& page = *news->made->page;
    OwnedFd fd(::fcntl(page.fd(), F_DUPFD_CLOEXEC, 0));
    // Without it finals come by way of the CPU.
    if (fd.open()) control_->lend(number - 1, std::make_shared<const OwnedFd>(std::move(fd)), page.bytes().size());
    control_->lend(number, std::make_shared<const OwnedFd>(std::move(news->made->fd)), memory.size(), true);
  }
  for (DeviceShares::Answer& answer : news->answers) {
    const bool mapped = answer.mapped.has_value();
    // Of a life that is over meanwhile it goes with the next plan.
    if (mapped) memory_.attach(answer.life, answer.memory, std::move(*answer.mapped), true);
    control_->answer(answer.life, answer.memory, mapped);
  }
}

// Runs what an engine's call owes its program or a GPU; true if there was something.
bool Session::work_outside(std::unique_lock<std::mutex>& lock) {
  if (has_gone_shares()) {
    lock.unlock();
    staging_->shares().release_gone();
    lock.lock();
  }
  if (engine().has_work_outside() && (prepare(lock) || deliver(lock) || move(lock))) return true;
  if (engine().has_gpu_work() && move_gpu_work(lock)) return true;
  if (engine().has_exchange_under_way() && move_exchanged(lock)) return true;
  return coming_ && move_states(lock);
}

// This life cannot go on, and the others need not wait for it: as after its death, another life takes its place.
void Session::end_life(const Status& why, Blame blame) {
  life_.end(why, blame);
  carry_out();
}

// For handlers of exceptions: the call goes with its caller, and the engine has it, and lets go of it but for what
// moves.
void Session::abandon_call(std::unique_lock<std::mutex>& lock) {
  if (!lock.owns_lock()) lock.lock();
  end_life(Status(Code::kExhausted, "a call of rank " + std::to_string(self_.value) +
                                        " ended with an exception, most likely for want of memory"));
}

// Ends sends that wait for their receives, and else shows on the board that this rank's calls wait for what other ranks
// have not begun, or that they do not. While a thread waits in a call, no other begins one (api/handles.h). True: a
// call has ended.
bool Session::look_whether_blocked(std::unique_lock<std::mutex>& lock) {
  const auto time = std::chrono::steady_clock::now();
  if (time < next_blocked_look_) return false;
  next_blocked_look_ = time + kBlockedLookInterval;
  if (end_waiting_sends(lock)) return true;
  const bool may_call = awaiting_job_ != 0 || calling_back_ != 0 || !batch_.empty() || sends_batch_ || states_move();
  std::optional<wire::Blocked> blocked = may_call ? std::nullopt : engine().blocked();
  if (!blocked) {
    show_unblocked();
    return false;
  }
  if (shown_blocked_ != nullptr && shown_blocked_->SerializeAsString() == blocked->SerializeAsString()) return false;
  shown_blocked_ = std::make_shared<const wire::Blocked>(std::move(*blocked));
  board_.show_blocked(shown_blocked_);
  return false;
}

// True: a call has ended.
bool Session::end_waiting_sends(std::unique_lock<std::mutex>& lock) {
  const std::vector<Rank> ranks = engine().end_waiting_sends();
  if (ranks.empty()) return false;
  if (!std::exchange(told_of_waiting_sends_, true)) {
    log_(WARREN_LOG_WARNING,
         "a send of rank " + std::to_string(self_.value) + " to rank " + std::to_string(ranks[0].value) +
             " has returned after a second in which that rank received nothing: the log has the message, which "
             "follows. Ranks that send to each other before they receive wait so each time: receive first, or send "
             "asynchronously (this is said once)");
  }
  if (!engine().finished_calls().empty()) run_callbacks(lock);
  return true;
}

void Session::show_unblocked() {
  if (shown_blocked_ == nullptr) return;
  shown_blocked_ = nullptr;
  board_.show_blocked(nullptr);
}

// Also what GPUs are at for a round that is no more: it holds memory that the next calls may need.
bool Session::has_to_go_on() const {
  return engine().outstanding() > 0 || engine().unsettled() || engine().has_gpu_work() || states_move() ||
         has_gone_shares();
}

// What goes on while nobody blocks is the engine's thread's.
void Session::hand_over() {
  // What has come for another caller may have been taken off its link here; and one of them watches from here on.
  if (callers_ != 0) {
    changed_.notify_all();
    return wake(caller_wake_);
  }
  if (has_to_go_on()) wake(engine_wake_);
}

void Session::engine_loop() {
  const Inside here(*this);
  std::unique_lock lock(mutex_);
  std::chrono::steady_clock::time_point next_log;
  while (true) {
    // Other threads finish calls too: with a plan, or with what was fetched.
    run_callbacks(lock);
    if (life_.closed()) return;
    const bool mine = callers_ == 0 && has_to_go_on();
    if (!mine) next_log = {};  // a caller that waits logs it
    if (mine) {
      const bool outside = work_outside(lock);
      const bool moved = engine().progress() || outside;
      // Who has come meanwhile may sleep for a call that this has finished.
      if (moved && callers_ != 0) wake(caller_wake_);
      run_callbacks(lock);
      if (life_.closed()) return;
      report_failure();
      look_at_checkpoints();
      yield_to_control(lock);
      if (moved) {
        next_log = {};
        continue;
      }
      log_waits(next_log);
    }
    sleep(lock, engine_wake_, mine ? kSleepMs : -1, mine);
  }
}

}  // namespace warren::worker

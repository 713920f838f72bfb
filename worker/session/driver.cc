#include "worker/session/driver.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "storage/start_thread.h"

namespace warren::worker {
namespace {

constexpr auto kWaitLogInterval = std::chrono::seconds(10);
constexpr int kSleepMs = 1000;
// GPUs wake no thread: a thread that sleeps looks again at buffers that move. Its pause grows to a fifth of the time
// since something came, so that what comes is found a fifth later at most.
constexpr auto kShortestMovePause = std::chrono::microseconds(20);
constexpr auto kLongestMovePause = std::chrono::microseconds(1000);
constexpr timespec kNoTime = {};
// A thread that must not only wait tries for the lock so often before it sleeps, and sleeps for so long between tries.
constexpr int kLockYields = 100;
constexpr auto kLockPause = std::chrono::microseconds(200);

}  // namespace

Driver::~Driver() {
  if (caller_wake_ >= 0) ::close(caller_wake_);
  if (engine_wake_ >= 0) ::close(engine_wake_);
}

TimeMs Driver::now() {
  return {std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count()};
}

Status Driver::open() {
  caller_wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  engine_wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (caller_wake_ >= 0 && engine_wake_ >= 0) return {};
  return {Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno)};
}

Status Driver::start(std::function<void()> ended) {
  const auto run = [this, ended = std::move(ended)] {
    engine_loop();
    ended();
  };
  return start_thread(engine_thread_, run);
}

void Driver::wake(int fd) {
  const std::uint64_t one = 1;
  (void)!::write(fd, &one, sizeof one);
}

Driver::Lock Driver::lock_for_control(const std::function<void()>& beat) {
  control_waits_.fetch_add(1);
  Lock lock(mutex_, std::try_to_lock);
  for (int tries = 0; !lock.owns_lock(); tries++) {
    if (tries < kLockYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kLockPause);
      beat();
    }
    (void)lock.try_lock();
  }
  control_waits_.fetch_sub(1);
  return lock;
}

Driver::Lock Driver::lock_before_callers() {
  control_waits_.fetch_add(1);
  Lock lock(mutex_);
  control_waits_.fetch_sub(1);
  return lock;
}

void Driver::let_control(Lock& lock) {
  lock.unlock();
  while (control_waits_.load() != 0) sched_yield();
  lock.lock();
}

Status Driver::ask() const {
  if (interrupt_.asks == nullptr) return {};
  const Status goes_on =
      call_program(session_, "the interrupt function", [&] { return interrupt_.asks(interrupt_.context); });
  return goes_on.ok() ? goes_on : Status(Code::kClosed, "the program has interrupted its wait");
}

void Driver::ask(Lock& lock) {
  lock.unlock();
  const Status goes_on = ask();
  lock.lock();
  if (!goes_on.ok()) end_life(goes_on, Blame::kProgram);
}

// The program may take long to answer (an interpreter's lock): the engine's thread drives meanwhile.
void Driver::ask_while_driving(Lock& lock) {
  callers_--;
  hand_over();
  ask(lock);
  callers_++;
}

int Driver::sleep_ms(Clock::time_point until) const {
  const auto most = interrupt_.asks != nullptr ? kAskInterval : std::chrono::milliseconds(kSleepMs);
  if (until == Clock::time_point::max()) return static_cast<int>(most.count());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), most).count());
}

void Driver::run_callbacks(Lock& lock) {
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

void Driver::call_back(Call& call) const {
  const std::string text = call.status.describe();
  const Inside here(session_);
  call.callback(static_cast<warren_code>(call.status.code()), call.status.ok() ? nullptr : text.c_str(),
                call.callback_context);
  call.settled.store(true, std::memory_order_release);
}

void Driver::log_waits(Clock::time_point& next) {
  const auto time = Clock::now();
  if (time < next) return;
  // The first look only starts the clock.
  if (next != Clock::time_point()) {
    for (const std::string& line : engine().describe_waits()) log_(WARREN_LOG_INFO, line);
    if (const std::string text = awaited_ != nullptr ? (*awaited_)() : ""; !text.empty()) log_(WARREN_LOG_INFO, text);
  }
  next = time + kWaitLogInterval;
}

void Driver::sleep(Lock& lock, int wake_fd, int timeout_ms, bool watch_links) {
  std::vector<pollfd> fds;
  const bool moves = watch_links && outside_.moves();
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
  if (waits) {
    board_.sleeper.store(gettid(), std::memory_order_relaxed);
    board_.asleep.fetch_add(1, std::memory_order_relaxed);
  }
  // Looks at buffers that move are too many to be drawn.
  const std::int64_t asleep_ns = waits && trace_ != nullptr && !moves ? TraceFile::now_ns() : 0;
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
    if (const auto deadline = life_.recall().next_deadline(); deadline && *deadline <= now()) {
      life_.recall().on_tick();
    }
  }
}

// True if there was something.
bool Driver::work_outside(Lock& lock) {
  const OutsideWork::Done done = outside_.go_on(lock);
  if (done == OutsideWork::Done::kNothing) [[likely]]
    return false;
  carry_out();
  if (done == OutsideWork::Done::kLooked) return false;
  if (done == OutsideWork::Done::kMoved) move_pause_ = {};
  // The thread that waits for it may sleep.
  wake(caller_wake_);
  return true;
}

void Driver::end_moves(Lock& lock) {
  if (!engine().has_moving()) return;
  outside_.end_moves(lock);
  carry_out();
  wake(caller_wake_);
}

void Driver::abandon_call(Lock& lock) {
  if (!lock.owns_lock()) lock.lock();
  end_life(Status(Code::kExhausted, "a call of rank " + std::to_string(engine().plan().self.value) +
                                        " ended with an exception, most likely for want of memory"));
}

Status Driver::judge(const Status& status) {
  if (status.code() == Code::kUnavailable || status.code() == Code::kTimeout) {
    const std::lock_guard lock(mutex_);
    end_life(status);
  }
  return status;
}

// Ends sends that wait for their receives. Otherwise shows on the board whether this rank's calls wait for what other
// ranks have not begun. While a thread waits in a call, no other begins one (api/handles.h). True: a call has ended.
bool Driver::look_whether_blocked(Lock& lock) {
  const auto time = Clock::now();
  if (time < next_blocked_look_) return false;
  next_blocked_look_ = time + kBlockedLookInterval;
  if (end_waiting_sends(lock)) return true;
  const bool may_call = awaiting_job_ != 0 || calling_back_ != 0 || batches_.has_unsent() || outside_.states_move();
  std::optional<wire::Blocked> blocked = may_call ? std::nullopt : engine().blocked();
  if (blocked) {
    blocked_sign_.show(std::move(*blocked));
  } else {
    blocked_sign_.take_away();
  }
  return false;
}

// True: a call has ended.
bool Driver::end_waiting_sends(Lock& lock) {
  const std::vector<Rank> ranks = engine().end_waiting_sends();
  if (ranks.empty()) return false;
  if (!std::exchange(told_of_waiting_sends_, true)) {
    log_(WARREN_LOG_WARNING,
         "a send of rank " + std::to_string(engine().plan().self.value) + " to rank " + std::to_string(ranks[0].value) +
             " has returned after a second in which that rank received nothing: the log has the message, which "
             "follows. Ranks that send to each other before they receive wait so each time: receive first, or send "
             "asynchronously (this is said once)");
  }
  if (!engine().finished_calls().empty()) run_callbacks(lock);
  return true;
}

void Driver::hand_over() {
  // This thread may have taken bytes for another caller off their link; and one of those watches from here on.
  if (callers_ != 0) {
    changed_.notify_all();
    return wake(caller_wake_);
  }
  if (has_to_go_on()) wake(engine_wake_);
}

void Driver::take_what_came(Lock& lock) {
  const Inside here(session_);
  const bool moved = engine().progress();
  report_failure();
  run_callbacks(lock);
  // The engine's thread may sleep, and what was posted here is not among its descriptors.
  if (moved && engine().outstanding() > 0) wake(engine_wake_);
  // Nor those that another caller does, whose call this may have finished, as the last one too.
  if (moved && callers_ != 0) wake(caller_wake_);
}

void Driver::engine_loop() {
  const Inside here(session_);
  Lock lock(mutex_);
  Clock::time_point next_log;
  while (true) {
    // Other threads finish calls too: with a plan, or with what was fetched.
    run_callbacks(lock);
    if (life_.closed()) return;
    const bool mine = callers_ == 0 && has_to_go_on();
    if (!mine) next_log = {};  // a caller that waits logs it
    if (mine) {
      const bool outside = work_outside(lock);
      const bool moved = engine().progress() || outside;
      // A caller that has come meanwhile may sleep for a call that this has finished.
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

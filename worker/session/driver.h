// The lock of a session, and the threads that drive its engine under it. A thread that waits in a call drives until the
// call is done. While no thread waits, the engine's thread drives what goes on by itself.
//
// One of the threads that wait sleeps on the links, and the others sleep until it tells them. Threads that come seldom,
// the control thread and that of the fetch service, get the lock before callers that spin (lock_for_control()).
//
// Threads: functions that take the lock are called under it, and may let go of it. Others say what they need.
#pragma once

#include <poll.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "recovery/base/result.h"
#include "worker/life/life.h"
#include "worker/rounds/call.h"
#include "worker/rounds/round_board.h"
#include "worker/session/batches.h"
#include "worker/session/blocked_sign.h"
#include "worker/session/inside.h"
#include "worker/session/interrupt.h"
#include "worker/session/log.h"
#include "worker/session/outside_work.h"
#include "worker/session/spare_core.h"
#include "worker/session/trace_file.h"
#include "worker/transport/link_transport.h"

namespace warren::worker {

class Driver {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;

  // `carries_out` carries out the effects of the life, under the lock. All others outlive this.
  Driver(const SessionMark& session, const Log& log, const Interrupt& interrupt, RoundBoard& board, Life& life,
         LinkTransport& transport, OutsideWork& outside, const Batches& batches, std::function<void()> carries_out)
      : session_(session),
        log_(log),
        interrupt_(interrupt),
        board_(board),
        life_(life),
        transport_(transport),
        outside_(outside),
        batches_(batches),
        carries_out_(std::move(carries_out)),
        blocked_sign_(board) {}
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  // Shows sleep that waits; outlives the engine's thread. Before the first call.
  void use(TraceFile& trace) { trace_ = &trace; }

  [[nodiscard]] static TimeMs now();

  // Makes the descriptors that wake threads. kUnavailable: the system has none.
  [[nodiscard]] Status open();
  // Starts the engine's thread, which ends once the life is closed. `ended` is called on it at its end, and may free
  // this object after detach(). kUnavailable: the system allows no more threads.
  [[nodiscard]] Status start(std::function<void()> ended);
  [[nodiscard]] bool on_engine_thread() const { return std::this_thread::get_id() == engine_thread_.get_id(); }
  // Waits for the end of the engine's thread, unless this is it.
  void join() {
    if (engine_thread_.joinable() && !on_engine_thread()) engine_thread_.join();
  }
  void detach() { engine_thread_.detach(); }

  // Guards the engine and all parts of the session.
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  // For threads that come seldom: callers that spin hold the lock for long, and let go of it when they see this.
  [[nodiscard]] Lock lock_before_callers();
  // The lock for the control thread, which heartbeats come from. It calls `beat` while another thread holds the lock
  // for long: a reduction of the program runs under it, states are copied, a full log waits for its disk.
  [[nodiscard]] Lock lock_for_control(const std::function<void()>& beat);
  // Lets threads have the lock that wait in lock_before_callers() or lock_for_control().
  void yield_to_control(Lock& lock) {
    if (control_waits_.load(std::memory_order_relaxed) != 0) let_control(lock);
  }

  // Drives the engine until `done`, which holds at the latest at `until`.
  template <class Done>
  void drive(Lock& lock, Done done, Clock::time_point until = Clock::time_point::max());
  // Waits for what other threads do, and asks the program now and then whether to go on.
  template <class Done>
  void await(Lock& lock, Done done);
  // Waits for what other threads do, without asking the program.
  template <class Done>
  void await_others(Lock& lock, Done done) {
    changed_.wait(lock, done);
  }
  // The same until a time. Returns whether it is done.
  template <class Done>
  bool await_others_until(Lock& lock, Clock::time_point until, Done done) {
    return changed_.wait_until(lock, until, done);
  }
  // Takes what has come, without waiting.
  void take_what_came(Lock& lock);
  // Asks the program, without the lock, whether the calling thread is to go on waiting. kClosed: it is not.
  [[nodiscard]] Status ask() const;

  // While one lives the calling thread waits for the job, and not for calls alone: it may call more.
  class AwaitsJob {
   public:
    // `text` says what for, for the log; empty: nothing is said.
    AwaitsJob(Driver& driver, Lock& lock, std::function<std::string()> text)
        : driver_(driver), lock_(lock), counted_(driver.awaiting_job_), text_(std::move(text)) {
      driver_.awaited_ = text_ ? &text_ : nullptr;
    }
    ~AwaitsJob() {
      // Another thread may be reading the text, also where an exception ends this wait without the lock.
      if (text_ && !lock_.owns_lock()) lock_.lock();
      has_come();
    }
    AwaitsJob(const AwaitsJob&) = delete;
    AwaitsJob& operator=(const AwaitsJob&) = delete;
    // The text is true no more.
    void has_come() {
      if (driver_.awaited_ == &text_) driver_.awaited_ = nullptr;
    }

   private:
    Driver& driver_;
    Lock& lock_;
    const Counted counted_;
    const std::function<std::string()> text_;
  };

  // Threads are inside drive(): they drive, or sleep in there.
  [[nodiscard]] bool has_callers() const { return callers_ != 0; }
  // Wakes threads that wait for what other threads do.
  void notify() { changed_.notify_all(); }
  // Wake threads that sleep on the links.
  void wake_callers() { wake(caller_wake_); }
  void wake_engine() { wake(engine_wake_); }
  void wake_sleepers() {
    wake(caller_wake_);
    wake(engine_wake_);
  }
  // Wakes all threads that sleep or wait.
  void wake_all() {
    wake_sleepers();
    notify();
  }
  // Leaves the driving to another caller, or to the engine's thread if something goes on by itself.
  void hand_over();

  // A call of the program's begins. Returns how often to look for a message of a small round at once.
  [[nodiscard]] int begin_call() {
    core_.called();
    return core_.free() ? looks_ : 0;
  }
  // For begin_call(), before others get the core; none where they need it.
  void look_at_once(int looks) { looks_ = looks; }

  // Calls the callbacks of calls that have finished, with the lock released.
  void run_callbacks(Lock& lock);
  // Calls a finished call's callback. Without the lock.
  void call_back(Call& call) const;
  // Sees to the end of buffers that move when the engine has stopped.
  void end_moves(Lock& lock);

  // Carries out the effects of the life. Any thread that holds the lock may.
  void carry_out() {
    if (life_.has_effects()) carries_out_();
  }
  // This life cannot go on, and the others need not wait for it: as after its death, another life takes its place.
  void end_life(const Status& why, Blame blame = Blame::kNobody) {
    life_.end(why, blame);
    carry_out();
  }
  // For handlers of exceptions: the call goes with its caller, and the engine has it, and lets go of it but for what
  // moves. Takes the lock if it is free.
  void abandon_call(Lock& lock);
  // Returns the status. If it is an error of a GPU, which a thread without the lock has met, this life ends.
  [[nodiscard]] Status judge(const Status& status);
  // The engine has moved: says what has failed in it.
  void report_failure() {
    life_.report_trouble();
    carry_out();
  }
  // Something of a checkpoint may have come, or was given.
  void look_at_checkpoints() {
    life_.look_at_checkpoints();
    carry_out();
  }

 private:
  // Polls without success before sleeping, each followed by a yield: the scheduler likes to put both ends of a loopback
  // connection on one core, and a spin without yield then keeps the peer from answering (measured: 55 µs instead of 8).
  // They last over twice a round trip on loopback. Where others need the core one yield may last longer than that, and
  // who sleeps is woken sooner than who yields (SpareCore).
  static constexpr auto kIdleTime = std::chrono::microseconds(60);
  static constexpr int kPollsBetweenLooksAtTheClock = 4;
  // A person who presses Ctrl-C notices a third of a second.
  static constexpr auto kAskInterval = std::chrono::milliseconds(100);
  static constexpr int kMovesBetweenLooksAtTheClock = 64;
  // From one look at what calls wait for to the next, while nothing moves.
  static constexpr std::chrono::milliseconds kBlockedLookInterval{900};

  static void wake(int fd);
  void let_control(Lock& lock);
  // Asks the program, with the lock released meanwhile. If the thread is not to go on waiting, this life is over.
  void ask(Lock& lock);
  void ask_while_driving(Lock& lock);
  [[nodiscard]] int sleep_ms(Clock::time_point until) const;
  void sleep(Lock& lock, int wake_fd, int timeout_ms, bool watch_links);
  bool work_outside(Lock& lock);
  bool look_whether_blocked(Lock& lock);
  bool end_waiting_sends(Lock& lock);
  void log_waits(Clock::time_point& next);
  // The engine has work that goes on by itself, whether or not anybody waits for it.
  [[nodiscard]] bool has_to_go_on() const { return engine().outstanding() > 0 || outside_.goes_on_alone(); }
  void engine_loop();
  [[nodiscard]] Engine& engine() { return life_.engine(); }
  [[nodiscard]] const Engine& engine() const { return life_.engine(); }

  const SessionMark& session_;
  const Log& log_;
  const Interrupt& interrupt_;
  RoundBoard& board_;
  Life& life_;
  LinkTransport& transport_;
  OutsideWork& outside_;
  const Batches& batches_;
  const std::function<void()> carries_out_;
  TraceFile* trace_ = nullptr;  // null: nobody wants it

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int callers_ = 0;                                        // threads inside drive()
  int awaiting_job_ = 0;                                   // of those, how many wait for something else than calls
  const std::function<std::string()>* awaited_ = nullptr;  // what one of these waits for, for the log
  int calling_back_ = 0;                                   // callbacks that run
  Clock::time_point next_blocked_look_;
  BlockedSign blocked_sign_;
  bool told_of_waiting_sends_ = false;
  int looks_ = 0;
  SpareCore core_;
  bool watched_ = false;  // one of them sleeps on the links, and the others until it tells
  std::vector<pollfd> pollfds_;
  std::chrono::microseconds move_pause_{};  // how long a sleeper leaves buffers alone that move

  std::atomic<int> control_waits_{0};  // threads that wait in lock_for_control() and lock_before_callers()
  int caller_wake_ = -1, engine_wake_ = -1;
  std::thread engine_thread_;
};

template <class Done>
void Driver::await(Lock& lock, Done done) {
  if (interrupt_.asks == nullptr) return changed_.wait(lock, done);
  while (!changed_.wait_for(lock, kAskInterval, done)) ask(lock);
}

template <class Done>
void Driver::drive(Lock& lock, Done done, Clock::time_point until) {
  if (done()) {
    // The lock is free for a moment only until the next call.
    yield_to_control(lock);
    return hand_over();
  }
  struct Unwatch {
    ~Unwatch() { watched = false; }
    bool& watched;
  };
  std::optional<Counted> caller(callers_);
  bool slept = false;  // nothing has moved since
  blocked_sign_.take_away();
  const Inside here(session_);  // reductions run in here
  int idle = 0, moves = 0;
  Clock::time_point idle_since, next_log, next_ask;
  const auto ask_now_and_then = [&] {
    const auto time = Clock::now();
    if (time < next_ask) return;
    // The first look only starts the clock.
    if (next_ask != Clock::time_point()) ask_while_driving(lock);
    next_ask = time + kAskInterval;
  };
  while (!done()) {
    const bool outside = work_outside(lock);
    // States that are logged piece by piece hold up no round.
    const bool moved = engine().progress() || outside;
    if (outside) report_failure();
    // Also of calls that another thread has finished: with a plan, or with what was fetched.
    if (!engine().finished_calls().empty()) run_callbacks(lock);
    if (moved) {
      idle = 0;
      slept = false;
      blocked_sign_.take_away();
      if (callers_ > 1) changed_.notify_all();
      yield_to_control(lock);
      if (interrupt_.asks != nullptr && ++moves % kMovesBetweenLooksAtTheClock == 0) ask_now_and_then();
      continue;
    }
    report_failure();
    look_at_checkpoints();
    yield_to_control(lock);
    bool idles = !core_.sleep_is_sooner();
    if (++idle % kPollsBetweenLooksAtTheClock == 0) {
      const auto time = Clock::now();
      if (idle == kPollsBetweenLooksAtTheClock) idle_since = time;
      idles = idles && time - idle_since < kIdleTime;
    }
    if (idles) {
      lock.unlock();
      const auto before = Clock::now();
      sched_yield();
      const auto yielded = Clock::now() - before;
      lock.lock();
      core_.yielded(yielded);
      RoundBoard::add(board_.yielded_ns, static_cast<std::uint64_t>(std::chrono::nanoseconds(yielded).count()));
      continue;
    }
    // Another look at what is posted comes before the sleep.
    if (engine().post_all()) continue;
    log_waits(next_log);
    if (std::exchange(slept, true)) {
      if (look_whether_blocked(lock)) continue;
    } else {
      next_blocked_look_ = Clock::now() + kBlockedLookInterval;
    }
    if (watched_) {
      // Both would sleep on the same descriptors, and who is sooner takes away what wakes the other.
      changed_.wait_for(lock, std::chrono::milliseconds(sleep_ms(until)));
    } else {
      watched_ = true;
      {
        const Unwatch at_end{watched_};
        sleep(lock, caller_wake_, sleep_ms(until), true);
      }
      core_.slept();
      if (callers_ > 1) changed_.notify_all();
    }
    if (interrupt_.asks != nullptr) ask_now_and_then();
    idle = 0;
  }
  caller.reset();
  blocked_sign_.take_away();
  hand_over();
}

}  // namespace warren::worker

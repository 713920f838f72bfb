// Parts that the sources of Session share: guards for callbacks and counts, spans of the timeline, and the loop that
// drives.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "worker/session/session.h"

namespace warren::worker {

// Polls without success before sleeping, each followed by a yield: the scheduler likes to put both ends of a loopback
// connection on one core, and a spin without yield then keeps the peer from answering (measured: 55 µs instead of 8).
// They last over twice a round trip on loopback. Where others need the core one yield may last longer than that, and
// who sleeps is woken sooner than who yields.
inline constexpr auto kIdleTime = std::chrono::microseconds(60);

inline constexpr int kPollsBetweenLooksAtTheClock = 4;

// A person who presses Ctrl-C notices a third of a second.
inline constexpr auto kAskInterval = std::chrono::milliseconds(100);

inline constexpr int kMovesBetweenLooksAtTheClock = 64;

// From one look at what calls wait for to the next, while nothing moves.
inline constexpr std::chrono::milliseconds kBlockedLookInterval(900);

// GPUs wake nobody: whoever sleeps looks at buffers that move after a while, which grows while nothing comes, to a
// fifth of the time since: what comes is found a fifth later at most.
inline constexpr auto kShortestMovePause = std::chrono::microseconds(20);

// While one lives the thread runs, or may run at any moment, a callback or a reduction that the program has given to
// this session: it must not enter it again.
class Inside {
 public:
  explicit Inside(const Session& session) : session_(session), outer_(std::exchange(innermost_, this)) {}
  ~Inside() { innermost_ = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  [[nodiscard]] static bool any() { return innermost_ != nullptr; }
  [[nodiscard]] static bool of(const Session& session) {
    const Inside* at = innermost_;
    while (at != nullptr && &at->session_ != &session) at = at->outer_;
    return at != nullptr;
  }

 private:
  static inline constinit thread_local const Inside* innermost_ = nullptr;
  const Session& session_;
  const Inside* const outer_;
};

// Counts what it is for while it lives.
class Counted {
 public:
  explicit Counted(int& count) : count_(count) { count_++; }
  ~Counted() { count_--; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int& count_;
};

// Calls a function of the program's outside the lock; anything but 0 is its failure. What it throws goes no further
// than here: above are calls that the engine still knows, and a thread of the library.
template <class Function>
Status call_program(const Session& session, const char* what, Function function) {
  const Inside here(session);
  try {
    if (const std::int32_t failed = function(); failed != 0) {
      return {Code::kInternal, std::string(what) + " has failed, and returned " + std::to_string(failed)};
    }
  } catch (const std::exception& e) {
    return {Code::kInternal, std::string(what) + " has thrown: " + e.what()};
  } catch (...) {
    return {Code::kInternal, std::string(what) + " has thrown"};
  }
  return {};
}

inline std::uint64_t bytes_of(Session::Places places) {
  std::uint64_t bytes = 0;
  // Nonsense stays too large.
  for (const auto& place : places) bytes += std::min<std::uint64_t>(place.size(), ~bytes);
  return bytes;
}

class Session::Span {
 public:
  Span(TraceFile* trace, TraceFile::Row row, const char* name)
      : trace_(trace), row_(row), name_(name), began_ns_(trace == nullptr ? 0 : TraceFile::now_ns()) {}
  ~Span() {
    if (trace_ != nullptr) trace_->was(row_, began_ns_, name_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  TraceFile* const trace_;
  const TraceFile::Row row_;
  const char* const name_;
  const std::int64_t began_ns_;
};

template <class Done>
void Session::await(std::unique_lock<std::mutex>& lock, Done done) {
  if (interrupt_.asks == nullptr) return changed_.wait(lock, done);
  while (!changed_.wait_for(lock, kAskInterval, done)) ask(lock);
}

template <class Done>
void Session::drive(std::unique_lock<std::mutex>& lock, Done done, Clock::time_point until) {
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
  bool slept = false;  // and nothing has moved since
  show_unblocked();
  const Inside here(*this);  // reductions run in here
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
      show_unblocked();
      if (callers_ > 1) changed_.notify_all();
      yield_to_control(lock);
      if (interrupt_.asks != nullptr && ++moves % kMovesBetweenLooksAtTheClock == 0) ask_now_and_then();
      continue;
    }
    report_failure();
    look_at_checkpoints();
    yield_to_control(lock);
    bool idles = true;
    if (++idle % kPollsBetweenLooksAtTheClock == 0) {
      const auto time = std::chrono::steady_clock::now();
      if (idle == kPollsBetweenLooksAtTheClock) idle_since = time;
      idles = time - idle_since < kIdleTime;
    }
    if (idles) {
      lock.unlock();
      const auto before = std::chrono::steady_clock::now();
      sched_yield();
      const auto yielded = std::chrono::steady_clock::now() - before;
      lock.lock();
      core_.yielded(yielded);
      continue;
    }
    // Another look at what is posted comes before the sleep.
    if (engine().post_all()) continue;
    log_waits(next_log);
    if (std::exchange(slept, true)) {
      if (look_whether_blocked(lock)) continue;
    } else {
      next_blocked_look_ = std::chrono::steady_clock::now() + kBlockedLookInterval;
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
      if (callers_ > 1) changed_.notify_all();
    }
    if (interrupt_.asks != nullptr) ask_now_and_then();
    idle = 0;
  }
  caller.reset();
  show_unblocked();
  hand_over();
}

}  // namespace warren::worker

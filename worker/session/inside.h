// Guards of threads that run a function of the program's: a callback, a reduction, a prepare function. Such a thread
// must not enter the same session again.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "recovery/base/result.h"

namespace warren::worker {

// The session that such a thread is inside of.
class SessionMark {
 public:
  SessionMark() = default;
  SessionMark(const SessionMark&) = delete;
  SessionMark& operator=(const SessionMark&) = delete;
};

// While one lives the thread runs, or may run at any moment, a function that the program has given to this session.
class Inside {
 public:
  explicit Inside(const SessionMark& session) : session_(session), outer_(std::exchange(innermost_, this)) {}
  ~Inside() { innermost_ = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  [[nodiscard]] static bool any() { return innermost_ != nullptr; }
  [[nodiscard]] static bool of(const SessionMark& session) {
    const Inside* at = innermost_;
    while (at != nullptr && &at->session_ != &session) at = at->outer_;
    return at != nullptr;
  }

 private:
  static inline constinit thread_local const Inside* innermost_ = nullptr;
  const SessionMark& session_;
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

// Calls a function of the program's outside the lock; anything but 0 is its failure. An exception of the function ends
// here: above are calls that the engine still knows, and a thread of the library.
template <class Function>
Status call_program(const SessionMark& session, const char* what, Function function) {
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

}  // namespace warren::worker

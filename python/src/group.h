// A communicator as Python holds it, and what becomes of it when the program, or the interpreter, ends.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "warren/c_api.h"

namespace warren_python {

// A state that is to be serialized later.
struct Lazy;

// A call whose handle nobody has any more. The end of this object waits for it.
class DroppedCall {
 public:
  DroppedCall() = default;
  DroppedCall(const DroppedCall&) = delete;
  DroppedCall& operator=(const DroppedCall&) = delete;
  virtual ~DroppedCall() = default;
  [[nodiscard]] virtual bool finished() const = 0;
};

// The communicator that warren_create made. Groups split from it, and handles, share it. All members are guarded by the
// interpreter lock.
class Job {
 public:
  // Joins the job. Waits without the interpreter lock.
  explicit Job(warren_options options);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  [[nodiscard]] warren_comm* comm() const { return comm_; }
  // The lazy checkpoint that is under way, or the last one.
  std::shared_ptr<Lazy> lazy;
  [[nodiscard]] bool open() const { return comm_ != nullptr; }
  // A child of fork has this process's memory, and nothing of the job.
  [[nodiscard]] bool is_of_this_process() const { return process_ == getpid(); }
  // Makes a call of the C interface, without the interpreter lock, and throws what it fails with.
  template <class Function>
  void call(const Function& function);
  // Throws the exception for the code. Where a function of the program's that the library ran has raised one, that is
  // its cause.
  void check(warren_code code);
  // Runs a function of the program's for the library, with the interpreter lock, on whatever thread of the library's.
  // Returns 1, and keeps the exception, if the function raises one.
  std::int32_t run(const std::function<void()>& function) noexcept;
  // Asks Python whether a signal has come, whose handler may raise something: for a thread that waits in a call.
  static std::int32_t interrupted(void* job) noexcept;
  // Until the call has finished, or this job ends.
  void keep(std::unique_ptr<DroppedCall> call);
  // Gives this worker's life up, whatever other threads are inside.
  void abort(const std::string& reason) const;
  // Ends this worker's part without finalize. Nothing happens the second time. Throws where another thread is inside a
  // call.
  void destroy();
  // Ends the calls that other threads are inside, and waits until they have left, for 2 s at most.
  void interrupt_calls();

 private:
  friend class InsideCall;
  warren_comm* comm_ = nullptr;
  pid_t process_ = 0;
  int inside_ = 0;  // calls under way
  std::vector<std::unique_ptr<DroppedCall>> dropped_;
  nanobind::object raised_;  // by a function of the program's that the library ran
  nanobind::object signal_;  // by a signal's handler, until a call has raised it
};

// Before the interpreter goes: ends every job of this process that is still open. A daemon thread that is inside a call
// gets Closed there: once the interpreter has gone it could not return.
void destroy_all_jobs() noexcept;

// While a call is under way: the interpreter lock is free, and the job is not destroyed.
class InsideCall {
 public:
  explicit InsideCall(Job& job) : job_(job) {
    ++job_.inside_;
    thread_ = PyEval_SaveThread();
  }
  InsideCall(const InsideCall&) = delete;
  InsideCall& operator=(const InsideCall&) = delete;
  ~InsideCall() {
    PyEval_RestoreThread(thread_);
    --job_.inside_;
  }

 private:
  Job& job_;
  PyThreadState* thread_ = nullptr;
};

template <class Function>
void Job::call(const Function& function) {
  warren_code code = WARREN_OK;
  {
    const InsideCall inside(*this);
    code = function();
  }
  check(code);
}

// An object that calls are made on: a communicator of the job or of a group, or one that names a set-up round or a
// timeout.
struct Calls {
  std::shared_ptr<Job> job;
  warren_comm* comm = nullptr;
  std::string once;             // the name of a set-up round; empty: it is none
  std::int64_t timeout_ms = 0;  // within which a call finishes; 0: none

  // Throws Closed where the job was destroyed.
  warren_comm* open() const;
};

// A communicator.
struct Group : Calls {
  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
};
// A communicator of the whole job.
struct Communicator : Group {};
// Calls with the name of a set-up round.
struct Once : Calls {};

}  // namespace warren_python

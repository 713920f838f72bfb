// A communicator as Python holds it, and what becomes of it when the program, or the interpreter, ends.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "warren/c_api.h"

namespace warren_python {

// The communicator that warren_create made. Groups split from it, and handles, share it. All members are guarded by the
// interpreter lock.
class Job {
 public:
  // Joins the job. Waits without the interpreter lock.
  explicit Job(const warren_options& options);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  [[nodiscard]] warren_comm* comm() const { return comm_; }
  [[nodiscard]] bool open() const { return comm_ != nullptr; }
  // A child of fork has this process's memory, and nothing of the job.
  [[nodiscard]] bool is_of_this_process() const { return process_ == getpid(); }
  // Ends this worker's part without finalize. Nothing happens the second time. Throws where another thread is inside a
  // call.
  void destroy();

 private:
  friend class InsideCall;
  warren_comm* comm_ = nullptr;
  pid_t process_ = 0;
  int inside_ = 0;  // calls under way
};

// Before the interpreter goes: ends every job of this process that is still open, but for those that a thread is
// inside.
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

// An object that collectives are called on: a communicator of the job or of a group, or one that names a set-up round.
struct Calls {
  std::shared_ptr<Job> job;
  warren_comm* comm = nullptr;
  std::string once;

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

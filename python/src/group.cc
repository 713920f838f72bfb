#include "python/src/group.h"

#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "python/src/failure.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

std::set<Job*>& living_jobs() {
  static auto* const jobs = new std::set<Job*>();
  return *jobs;
}

}  // namespace

Job::Job(warren_options options) : process_(getpid()) {
  options.interrupt = interrupted;
  options.interrupt_context = this;
  warren_code code = WARREN_OK;
  {
    nb::gil_scoped_release unlocked;
    code = warren_create(&options, &comm_);
  }
  check(code);
  living_jobs().insert(this);
}

Job::~Job() {
  living_jobs().erase(this);
  // No call is under way: it would share this object.
  if (comm_ == nullptr || !is_of_this_process()) return;
  nb::gil_scoped_release unlocked;
  warren_destroy(comm_);
}

std::int32_t Job::interrupted(void* job) noexcept {
  const nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() == 0) return 0;
  static_cast<Job*>(job)->signal_ = raised_exception();
  return 1;
}

void Job::check(warren_code code) {
  // Also where the call has finished in the meantime: the ones that follow fail.
  if (signal_.is_valid()) {
    const nb::object raised = std::move(signal_);
    signal_.reset();
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
    throw nb::python_error();
  }
  if (code == WARREN_OK) return;
  if (!raised_.is_valid()) fail(code);
  // An exception that is no error of the program's, such as KeyboardInterrupt, is raised as itself, and once.
  if (PyErr_GivenExceptionMatches(raised_.ptr(), PyExc_Exception) == 0) {
    const nb::object raised = std::move(raised_);
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
    throw nb::python_error();
  }
  fail(code, raised_);
}

std::int32_t Job::run(const std::function<void()>& function) noexcept {
  const nb::gil_scoped_acquire locked;
  try {
    function();
    return 0;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  raised_ = raised_exception();
  return 1;
}

void Job::keep(std::unique_ptr<DroppedCall> call) {
  std::vector<std::unique_ptr<DroppedCall>> finished;  // they end when this object is as it should be
  for (auto& dropped : dropped_) {
    if (dropped->finished()) finished.push_back(std::move(dropped));
  }
  std::erase(dropped_, nullptr);
  if (comm_ != nullptr && !call->finished()) dropped_.push_back(std::move(call));
}

void Job::abort(const std::string& reason) const {
  if (comm_ != nullptr && is_of_this_process()) warren_python::check(warren_abort(comm_, reason.c_str()));
}

void Job::destroy() {
  if (comm_ == nullptr) return;
  if (!is_of_this_process()) {
    comm_ = nullptr;
    return;
  }
  if (inside_ > 0) fail(WARREN_INVALID_ARGUMENT, "destroy: another thread is inside a call of this communicator");
  warren_comm* const comm = comm_;
  comm_ = nullptr;
  raised_.reset();  // its frames may hold this object
  {
    const nb::gil_scoped_release unlocked;
    warren_destroy(comm);
  }
  dropped_.clear();
  lazy.reset();  // its function may hold this object, too
}

void Job::interrupt_calls() {
  if (inside_ == 0) return;
  abort("the program ends, and a thread of it was inside a call");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (inside_ > 0 && std::chrono::steady_clock::now() < until) {
    // The thread needs the interpreter lock to leave. Calls tell nobody when they end, as that would slow each of them.
    const nb::gil_scoped_release unlocked;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void destroy_all_jobs() noexcept {
  const std::set<Job*> jobs = living_jobs();
  for (Job* job : jobs) {
    try {
      job->interrupt_calls();
      job->destroy();
    } catch (nb::python_error& busy) {
      busy.discard_as_unraisable("warren: at exit");
    }
  }
}

warren_comm* Calls::open() const {
  if (!job->open()) fail(WARREN_CLOSED, "this communicator was destroyed, or its `with` block has ended");
  return comm;
}

int Group::rank() const {
  return warren_rank(open());
}

int Group::size() const {
  return warren_world_size(open());
}

}  // namespace warren_python

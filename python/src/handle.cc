#include "python/src/handle.h"

#include <nanobind/stl/optional.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "python/src/failure.h"

namespace nb = nanobind;

namespace warren_python {

nb::object Call::finish() const {
  switch (kind) {
    case Kind::kReal: return nb::float_(number.real);
    case Kind::kWhole: return nb::int_(number.whole);
    case Kind::kZeroDimensions: return result[nb::tuple()];  // a NumPy scalar, as NumPy's own functions return
    case Kind::kResult: break;
  }
  return result;
}

std::int32_t Call::run_prepare(void* context) {
  auto& call = *static_cast<Call*>(context);
  return call.job->run([&] { call.prepare(); });
}

// The library's thread that finishes the call writes to the descriptor, and needs no interpreter lock for it: a thread
// that holds the lock for long delays no recovery.
struct Handle::Completion {
  int descriptor = -1;
  std::atomic<bool> finished{false};
  ~Completion() {
    if (descriptor >= 0) close(descriptor);
  }
};

void Handle::completed(warren_code /*code*/, const char* /*error*/, void* context) {
  const std::unique_ptr<std::shared_ptr<Completion>> completion(static_cast<std::shared_ptr<Completion>*>(context));
  (*completion)->finished.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  (void)!write((*completion)->descriptor, &one, sizeof(one));
}

class Handle::Dropped final : public DroppedCall {
 public:
  Dropped(warren_handle* handle, std::unique_ptr<Call> call, std::shared_ptr<Completion> completion)
      : handle_(handle), call_(std::move(call)), completion_(std::move(completion)) {}
  ~Dropped() override {
    const nb::gil_scoped_release unlocked;
    warren_handle_free(handle_);
  }
  [[nodiscard]] bool finished() const override {
    return completion_ == nullptr || completion_->finished.load(std::memory_order_acquire);
  }

 private:
  warren_handle* const handle_;
  const std::unique_ptr<Call> call_;
  const std::shared_ptr<Completion> completion_;  // null: nobody can tell
};

Handle::Handle(std::unique_ptr<Call> call) : call_(std::move(call)) {}

// A forked child has copies of the call's buffers, which nobody else touches: there is nothing to wait for.
Handle::~Handle() {
  if (handle_ == nullptr || !call_->job->is_of_this_process()) return;
  if (finished_) {
    const nb::gil_scoped_release unlocked;
    warren_handle_free(handle_);
    return;
  }
  const std::shared_ptr<Job> job = std::move(call_->job);
  try {
    (void)watch_completion();
  } catch (nb::python_error& no_descriptor) {
    no_descriptor.discard_as_unraisable("warren: a handle that nobody has waited for");
  }
  job->keep(std::make_unique<Dropped>(handle_, std::move(call_), std::move(completion_)));
}

nb::object Handle::wait(std::optional<double> timeout_s) {
  if (!timeout_s) {
    job().call([&] { return warren_wait(handle_); });
    finished_ = true;
    return call_->finish();
  }
  if (!(*timeout_s >= 0)) throw nb::value_error("wait: timeout is negative");
  const auto timeout_ms = static_cast<std::int64_t>(std::ceil(std::min(*timeout_s * 1000, 1e15)));
  std::int32_t finished = 0;
  job().call([&] { return warren_wait_for(handle_, timeout_ms, &finished); });
  finished_ = finished != 0;
  if (finished_) return call_->finish();
  PyErr_SetString(PyExc_TimeoutError, "wait: the call has not finished in that time; it goes on");
  throw nb::python_error();
}

bool Handle::done() {
  std::int32_t finished = 0;
  // Without the interpreter lock, which a prepare function that another thread runs may wait for.
  job().call([&] { return warren_test(handle_, &finished); });
  finished_ = finished != 0;
  return finished_;
}

int Handle::completion_descriptor() {
  const warren_code code = watch_completion();
  job().check(code);
  return completion_->descriptor;
}

warren_code Handle::watch_completion() {
  if (completion_ != nullptr) return WARREN_OK;
  auto completion = std::make_shared<Completion>();
  completion->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (completion->descriptor < 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  auto context = std::make_unique<std::shared_ptr<Completion>>(completion);
  warren_code code = WARREN_OK;
  {
    const nb::gil_scoped_release unlocked;
    code = warren_on_complete(handle_, completed, context.get());
  }
  if (code != WARREN_OK) return code;
  (void)context.release();  // the callback's
  completion_ = std::move(completion);
  return WARREN_OK;
}

void bind_handle(nb::module_& module) {
  nb::class_<Handle>(module, "Handle")
      .def("wait", &Handle::wait, nb::arg("timeout") = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> typing.Any"),
           "Waits until the call has finished and returns its result, each time the same; raises what the call failed "
           "with. timeout: in seconds; TimeoutError where it is over: the call goes on, and may be waited for again.")
      .def("done", &Handle::done, "Whether the call has finished. Does not wait.")
      .def("_completion_descriptor", &Handle::completion_descriptor);
}

}  // namespace warren_python

#include "python/src/handle.h"

#include <sys/eventfd.h>
#include <unistd.h>

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
  ~Completion() {
    if (descriptor >= 0) close(descriptor);
  }
};

void Handle::completed(warren_code /*code*/, const char* /*error*/, void* context) {
  const std::unique_ptr<std::shared_ptr<Completion>> completion(static_cast<std::shared_ptr<Completion>*>(context));
  const std::uint64_t one = 1;
  (void)!write((*completion)->descriptor, &one, sizeof(one));
}

Handle::~Handle() {
  if (handle_ == nullptr) return;
  if (!job().is_of_this_process()) {
    // The parent's call. What it reads and writes is this process's copy, which nobody touches.
    return;
  }
  nb::gil_scoped_release unlocked;
  warren_handle_free(handle_);
}

nb::object Handle::wait() {
  job().call([&] { return warren_wait(handle_); });
  return call_->finish();
}

bool Handle::done() {
  std::int32_t finished = 0;
  // Without the interpreter lock, which a prepare function that another thread runs may wait for.
  job().call([&] { return warren_test(handle_, &finished); });
  return finished != 0;
}

int Handle::completion_descriptor() {
  if (completion_ != nullptr) return completion_->descriptor;
  auto completion = std::make_shared<Completion>();
  completion->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (completion->descriptor < 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  auto context = std::make_unique<std::shared_ptr<Completion>>(completion);
  job().call([&] { return warren_on_complete(handle_, completed, context.get()); });
  (void)context.release();  // the callback's
  completion_ = std::move(completion);
  return completion_->descriptor;
}

void bind_handle(nb::module_& module) {
  nb::class_<Handle>(module, "Handle")
      .def("wait", &Handle::wait,
           "Waits until the call has finished and returns its result, each time the same; raises what the call failed "
           "with.")
      .def("done", &Handle::done, "Whether the call has finished. Does not wait.")
      .def("_completion_descriptor", &Handle::completion_descriptor);
}

}  // namespace warren_python

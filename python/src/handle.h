// A call with its buffers, and the handle of an asynchronous one.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "python/src/array.h"
#include "python/src/group.h"
#include "warren/c_api.h"

namespace warren_python {

// The buffers of one call and the object that it returns. The address stays while the call is under way.
struct Call {
  explicit Call(std::shared_ptr<Job> of) : job(std::move(of)) {}

  std::shared_ptr<Job> job;
  Array in, out;
  nanobind::object result;
  nanobind::object prepare;  // the program's function that fills the input, if there is one
  union {
    double real = 0;
    std::int64_t whole;
  } number;  // the buffer of a call on a Python number
  enum class Kind { kResult, kReal, kWhole, kZeroDimensions } kind = Kind::kResult;

  // The call returns this once it has finished.
  [[nodiscard]] nanobind::object finish() const;
  // The library's way to `prepare` of the Call at `context`: not 0 if that has raised something.
  static std::int32_t run_prepare(void* context);
};

// Of an asynchronous call, whose buffers live until it has finished, also where the handle does not.
class Handle {
 public:
  explicit Handle(std::unique_ptr<Call> call);
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();

  [[nodiscard]] Job& job() const { return *call_->job; }
  warren_handle** started() { return &handle_; }
  // Waits for the call without the interpreter lock, and returns what it gives. TimeoutError: it has not finished yet.
  nanobind::object wait(std::optional<double> timeout_s);
  [[nodiscard]] bool done();
  // A descriptor that becomes readable when the call has finished. It belongs to this object.
  int completion_descriptor();

 private:
  struct Completion;
  class Dropped;
  // Has completion_ told when the call has finished.
  warren_code watch_completion();
  static void completed(warren_code code, const char* error, void* context);

  std::unique_ptr<Call> call_;
  warren_handle* handle_ = nullptr;
  bool finished_ = false;  // as far as this object knows
  std::shared_ptr<Completion> completion_;
};

void bind_handle(nanobind::module_& module);

}  // namespace warren_python

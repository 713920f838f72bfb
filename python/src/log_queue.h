// A queue from which the package takes the library's log lines.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "warren/c_api.h"

namespace warren_python {

class LogQueue {
 public:
  // `lines`: of 4 MiB in all; the oldest ones are dropped where there would be more.
  explicit LogQueue(std::size_t lines);
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;
  ~LogQueue();

  [[nodiscard]] warren_log_queue* get() const { return queue_; }
  // Waits for the next line without the interpreter lock. None: the queue is empty, and no line comes any more.
  [[nodiscard]] nanobind::object next();

 private:
  warren_log_queue* queue_ = nullptr;
};

void bind_log_queue(nanobind::module_& module);

}  // namespace warren_python

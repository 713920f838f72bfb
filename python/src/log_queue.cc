#include "python/src/log_queue.h"

#include "python/src/failure.h"

namespace nb = nanobind;

namespace warren_python {

LogQueue::LogQueue(std::size_t lines) {
  check(warren_log_queue_create(lines, &queue_));
}

LogQueue::~LogQueue() {
  warren_log_queue_free(queue_);
}

nb::object LogQueue::next() {
  warren_log_level level = WARREN_LOG_INFO;
  const char* text = nullptr;
  warren_code code = WARREN_OK;
  {
    const nb::gil_scoped_release unlocked;
    code = warren_next_log(queue_, -1, &level, &text);
  }
  if (code == WARREN_CLOSED) return nb::none();
  check(code);
  // A line may hold bytes of a path that are not UTF-8.
  const nb::object line = nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strlen(text)), "replace"));
  return nb::make_tuple(static_cast<int>(level), line);
}

void bind_log_queue(nb::module_& module) {
  nb::class_<LogQueue>(module, "LogQueue").def(nb::init<std::size_t>(), nb::arg("lines")).def("next", &LogQueue::next);
}

}  // namespace warren_python

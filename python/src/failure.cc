#include "python/src/failure.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

// Never freed: exceptions may be thrown for as long as the interpreter runs.
nb::dict& classes() {
  static auto* const all = new nb::dict();
  return *all;
}

nb::object error_of(warren_code code, const char* text) {
  // The text may hold bytes of a path that are not UTF-8.
  const nb::object message = nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strlen(text)), "replace"));
  return classes()[nb::int_(static_cast<int>(code))](message);
}

// The newest failure of this thread's calls, as an exception with its fields.
nb::object last_error(warren_code code) {
  const warren_failure failure = warren_last_failure();
  nb::object error = error_of(code, failure.text);
  if (failure.rank >= 0) error.attr("rank") = failure.rank;
  if (failure.peer >= 0) error.attr("peer") = failure.peer;
  if (*failure.round != 0) error.attr("round") = failure.round;
  return error;
}

[[noreturn]] void throw_error(const nb::object& error) {
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace

void set_error_classes(nb::dict all) {
  classes() = std::move(all);
}

nb::object raised_exception() {
#if PY_VERSION_HEX >= 0x030C0000
  return nb::steal(PyErr_GetRaisedException());
#else
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return nb::steal(value);
#endif
}

void fail(warren_code code) {
  throw_error(last_error(code));
}

void fail(warren_code code, const char* text) {
  throw_error(error_of(code, text));
}

void fail(warren_code code, const nb::object& cause) {
  const nb::object error = last_error(code);
  PyException_SetCause(error.ptr(), nb::object(cause).release().ptr());
  throw_error(error);
}

}  // namespace warren_python

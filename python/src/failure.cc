#include "python/src/failure.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

// Never freed: exceptions may be thrown for as long as the interpreter runs.
nb::dict& classes() {
  static auto* const all = new nb::dict();
  return *all;
}

}  // namespace

void set_error_classes(nb::dict all) {
  classes() = std::move(all);
}

void fail(warren_code code) {
  const char* text = warren_last_error();
  fail(code, text != nullptr ? text : "the library gave no reason");
}

void fail(warren_code code, const char* text) {
  const nb::object kind = classes()[nb::int_(static_cast<int>(code))];
  // The text may hold bytes of a path that are not UTF-8.
  const nb::object message = nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strlen(text)), "replace"));
  PyErr_SetObject(kind.ptr(), message.ptr());
  throw nb::python_error();
}

}  // namespace warren_python

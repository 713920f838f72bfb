// Failures of the C interface as exceptions of the package.
#pragma once

#include <nanobind/nanobind.h>

#include "warren/c_api.h"

namespace warren_python {

// The exception classes, in a dict by the number of their code, as _errors.py has them.
void set_error_classes(nanobind::dict classes);
// Throws the exception for the code, with the text that the library has left for this thread.
[[noreturn]] void fail(warren_code code);
[[noreturn]] void fail(warren_code code, const char* text);
// The same, raised from `cause`.
[[noreturn]] void fail(warren_code code, const nanobind::object& cause);
// Takes the exception that is being raised, with its traceback.
nanobind::object raised_exception();

inline void check(warren_code code) {
  if (code != WARREN_OK) fail(code);
}

}  // namespace warren_python

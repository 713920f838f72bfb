#include "python/src/call_site.h"

#include <nanobind/nanobind.h>

#include <string_view>

namespace nb = nanobind;

namespace warren_python {
namespace {

std::string& package_folder() {
  static auto* const folder = new std::string();
  return *folder;
}

// The text of a str, which lives as long as the str; null where it has none.
const char* text_of(const nb::object& string) {
  const char* text = PyUnicode_Check(string.ptr()) ? PyUnicode_AsUTF8(string.ptr()) : nullptr;
  if (text == nullptr) PyErr_Clear();
  return text;
}

}  // namespace

void set_package_folder(std::string folder) {
  package_folder() = std::move(folder);
}

CallSite call_site() {
  nb::object frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame.is_valid() && !frame.is_none()) {
    auto* const at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(at)));
    // The code keeps both strings, and its frame, which is running, keeps the code.
    const char* const file = text_of(code.attr("co_filename"));
    if (file != nullptr && !std::string_view(file).starts_with(package_folder())) {
      return {file, text_of(code.attr("co_name")), PyFrame_GetLineNumber(at)};
    }
    frame = frame.attr("f_back");
  }
  return {};
}

}  // namespace warren_python

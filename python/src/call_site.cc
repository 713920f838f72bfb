#include "python/src/call_site.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "warren/c_api.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

// Folders of code that lies between the user's and the library. Guarded by the interpreter lock.
std::vector<std::string>& layers() {
  static auto* const folders = new std::vector<std::string>();
  return *folders;
}

bool is_of_a_layer(std::string_view path) {
  return std::ranges::any_of(layers(), [&](const std::string& folder) { return path.starts_with(folder); });
}

// The text of a str, which lives as long as the str; null where it has none.
const char* text_of(const nb::object& string) {
  const char* text = PyUnicode_Check(string.ptr()) ? PyUnicode_AsUTF8AndSize(string.ptr(), nullptr) : nullptr;
  if (text == nullptr) PyErr_Clear();
  return text;
}

// A place of the program that made a call. The code is kept, so that its address stays its own.
struct KnownPlace {
  PyObject* code = nullptr;
  int instruction = 0;
  std::uint64_t site = 0;  // 0: in a layer, or of no file
};

// The instruction that the frame is at.
int instruction_of(PyFrameObject* frame) {
#ifdef Py_LIMITED_API
  static const nb::handle name = nb::object(nb::steal(PyUnicode_InternFromString("f_lasti"))).release();
  const nb::object index = nb::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(frame), name.ptr()));
  return static_cast<int>(PyLong_AsLong(index.ptr()));
#else
  return PyFrame_GetLasti(frame);
#endif
}

// The place of a call from this frame. The same few places make most calls, and what is asked of Python is remembered.
std::uint64_t place_of(const nb::object& code, PyFrameObject* frame) {
  static std::array<KnownPlace, 64> known;  // guarded by the interpreter lock
  const int instruction = instruction_of(frame);
  const auto address = reinterpret_cast<std::uintptr_t>(code.ptr());
  KnownPlace& place = known[(address / 64 + static_cast<unsigned>(instruction) / 2) % known.size()];
  if (place.code != code.ptr() || place.instruction != instruction) {
    const nb::object file = code.attr("co_filename"), function = code.attr("co_name");
    const char* const path = text_of(file);
    const bool ours = path == nullptr || is_of_a_layer(path);
    const std::uint64_t site = ours ? 0 : warren_site_of(path, PyFrame_GetLineNumber(frame), text_of(function));
    PyObject* const before = std::exchange(place, {code.inc_ref().ptr(), instruction, site}).code;
    Py_XDECREF(before);  // may run code of the program's, which calls in
    return site;
  }
  return place.site;
}

}  // namespace

void add_layer(std::string folder) {
  layers().push_back(std::move(folder));
}

std::uint64_t call_site() {
  nb::object frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame.is_valid() && !frame.is_none()) {
    auto* const at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(at)));
    if (const std::uint64_t site = place_of(code, at); site != 0) return site;
    frame = frame.attr("f_back");
  }
  return 0;
}

}  // namespace warren_python

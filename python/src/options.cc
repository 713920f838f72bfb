#include "python/src/options.h"

#include <optional>

#include "python/src/failure.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

// A value as variables and files have it; nothing for one of a type that no setting has.
std::optional<std::string> text_of(nb::handle value) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True ? "1" : "0";
  nb::object text;
  if (PyIndex_Check(value.ptr())) {
    text = nb::str(nb::steal(PyNumber_Index(value.ptr())));
  } else {
    text = nb::steal(PyOS_FSPath(value.ptr()));
  }
  if (!text.is_valid()) PyErr_Clear();
  if (!text.is_valid() || !nb::isinstance<nb::str>(text)) return std::nullopt;
  Py_ssize_t length = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
  if (bytes == nullptr) throw nb::python_error();
  return std::string(bytes, static_cast<std::size_t>(length));
}

}  // namespace

const char* Options::keep(std::string text) {
  return texts_.emplace_back(std::move(text)).c_str();
}

Options::Options(const nb::dict& given) {
  warren_options_init(&options_);
  for (const auto& [key, value] : given) {
    if (value.is_none()) continue;
    const char* const name = keep(nb::cast<const char*>(key));
    const auto text = text_of(value);
    if (!text) {
      throw nb::type_error(
          (std::string("init: ") + name + " is " + nb::type_name(value.type()).c_str() + ", not str, bool or int")
              .c_str());
    }
    if (text->find('\0') != std::string::npos) {
      throw nb::value_error((std::string("init: ") + name + " has a null character in it").c_str());
    }
    const warren_code code = warren_options_set(&options_, name, keep(*text));
    if (code != WARREN_OK && !text->empty())
      throw nb::type_error((std::string("init: ") + warren_last_error()).c_str());
    check(code);
  }
}

void bind_options(nb::module_& module) {
  nb::class_<Options>(module, "Options").def(nb::init<const nb::dict&>(), nb::arg("given"));
}

}  // namespace warren_python

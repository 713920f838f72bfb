#include "python/src/said.h"

#include <array>
#include <string>
#include <string_view>

#include "python/src/call_site.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

struct Name {
  std::string_view text;
  int value;
};
constexpr std::array<Name, 8> kOps{{{"sum", WARREN_SUM},
                                    {"product", WARREN_PRODUCT},
                                    {"min", WARREN_MIN},
                                    {"max", WARREN_MAX},
                                    {"bit_and", WARREN_BIT_AND},
                                    {"bit_or", WARREN_BIT_OR},
                                    {"bit_xor", WARREN_BIT_XOR},
                                    {"average", WARREN_AVERAGE}}};
constexpr std::array<Name, 4> kWires{
    {{"f32", WARREN_F32}, {"f16", WARREN_F16}, {"bf16", WARREN_BF16}, {"i8", WARREN_I8}}};

// The value of the name that `given` is. The text of a str lives as long as the str.
template <std::size_t N>
int value_of(nb::handle given, const char* argument, const std::array<Name, N>& names) {
  if (PyUnicode_Check(given.ptr())) {
    Py_ssize_t length = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(given.ptr(), &length);
    if (text == nullptr) throw nb::python_error();
    for (const Name& name : names) {
      if (name.text == std::string_view(text, static_cast<std::size_t>(length))) return name.value;
    }
  }
  std::string known;
  for (const Name& name : names) known += (known.empty() ? "'" : "', '") + std::string(name.text);
  const std::string error = std::string(argument) + " is " + nb::repr(given).c_str() + "; there are " + known + "'";
  if (!PyUnicode_Check(given.ptr())) throw nb::type_error(error.c_str());
  throw nb::value_error(error.c_str());
}

}  // namespace

warren_op op_of(nb::handle name) {
  return static_cast<warren_op>(value_of(name, "op", kOps));
}

Said::Said(const Calls& calls, const Extras& extras, Call& call) {
  const auto given = [](nb::handle extra) { return extra.is_valid() && !extra.is_none(); };
  static const warren_call_options defaults = [] {
    warren_call_options all;
    warren_call_options_init(&all);
    return all;
  }();
  options_ = defaults;
  options_.site = call_site();
  if (!calls.once.empty()) options_.once = calls.once.c_str();
  options_.timeout_ms = calls.timeout_ms;
  if (given(extras.wire)) options_.wire = value_of(extras.wire, "wire", kWires);
  if (given(extras.algorithm)) {
    if (!nb::isinstance<nb::str>(extras.algorithm)) throw nb::type_error("algorithm is not a str");
    // The library knows the names.
    options_.algorithm = nb::cast<const char*>(extras.algorithm);
  }
  if (given(extras.prepare)) {
    if (PyCallable_Check(extras.prepare.ptr()) == 0) throw nb::type_error("prepare is not a function");
    call.prepare = nb::borrow(extras.prepare);
    options_.prepare = Call::run_prepare;
    options_.prepare_context = &call;
  }
}

}  // namespace warren_python

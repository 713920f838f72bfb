#include "python/src/options.h"

#include <nanobind/stl/string_view.h>

#include <array>
#include <limits>
#include <string_view>
#include <variant>

namespace nb = nanobind;

namespace warren_python {
namespace {

struct Inverted {
  std::int32_t warren_options::*field;
};
struct Switch {
  std::int32_t warren_options::*field;
};
struct Level {};
using Field = std::variant<const char * warren_options::*, std::int32_t warren_options::*,
                           std::int64_t warren_options::*, Switch, Inverted, Level>;
struct Setting {
  std::string_view name;
  Field field;
};

const std::array kSettings = {
    Setting{"tracker", &warren_options::tracker},
    Setting{"job", &warren_options::job},
    Setting{"worker_id", &warren_options::worker_id},
    Setting{"world_size", &warren_options::world_size},
    Setting{"max_workers", &warren_options::max_workers},
    Setting{"secret_file", &warren_options::secret_file},
    Setting{"insecure_no_auth", Switch{&warren_options::insecure_no_auth}},
    Setting{"host_id", &warren_options::host_id},
    Setting{"domain_id", &warren_options::domain_id},
    Setting{"bind_address", &warren_options::bind_address},
    Setting{"advertise_address", &warren_options::advertise_address},
    Setting{"round_timeout_ms", &warren_options::round_timeout_ms},
    Setting{"join_timeout_ms", &warren_options::join_timeout_ms},
    Setting{"transport", &warren_options::transport},
    Setting{"algorithm", &warren_options::algorithm},
    Setting{"chunk_bytes", &warren_options::chunk_bytes},
    Setting{"streams", &warren_options::streams},
    Setting{"checksums", Inverted{&warren_options::no_checksums}},
    Setting{"check_call_sites", Switch{&warren_options::check_call_sites}},
    Setting{"rewire", Inverted{&warren_options::no_rewire}},
    Setting{"deterministic", Inverted{&warren_options::nondeterministic}},
    Setting{"replicas", &warren_options::replicas},
    Setting{"log", &warren_options::log},
    Setting{"log_memory_bytes", &warren_options::log_memory_bytes},
    Setting{"data_dir", &warren_options::data_dir},
    Setting{"log_lag_ms", &warren_options::log_lag_ms},
    Setting{"log_lag_bytes", &warren_options::log_lag_bytes},
    Setting{"log_disk_bytes", &warren_options::log_disk_bytes},
    Setting{"log_full", &warren_options::log_full},
    Setting{"checkpoint_mirror", &warren_options::checkpoint_mirror},
    Setting{"replace_after_ms", &warren_options::replace_after_ms},
    Setting{"mode", &warren_options::mode},
    Setting{"min_workers", &warren_options::min_workers},
    Setting{"grace_ms", &warren_options::grace_ms},
    Setting{"on_rollback", &warren_options::on_rollback},
    Setting{"fusion_bytes", &warren_options::fusion_bytes},
    Setting{"timeline", &warren_options::timeline},
    Setting{"log_level", Level{}},
};

[[noreturn]] void unknown(std::string_view name) {
  // _errors.py words the hint: Python has a module that finds similar names.
  nb::list known;
  for (const Setting& setting : kSettings) known.append(nb::str(setting.name.data(), setting.name.size()));
  const nb::object text =
      nb::module_::import_("warren._errors").attr("unknown_option")(nb::str(name.data(), name.size()), known);
  throw nb::type_error(nb::cast<const char*>(text));
}

[[noreturn]] void wrong(std::string_view name, const char* wanted, nb::handle value) {
  throw nb::type_error((std::string(name) + " is " + nb::type_name(value.type()).c_str() + ", not " + wanted).c_str());
}

template <class T>
T number(std::string_view name, nb::handle value) {
  if (!PyLong_Check(value.ptr()) || PyBool_Check(value.ptr())) wrong(name, "int", value);
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || n < 0 || n > std::numeric_limits<T>::max()) {
    throw nb::value_error((std::string(name) + " is " + nb::str(value).c_str() + ", which is out of range").c_str());
  }
  return static_cast<T>(n);
}

bool truth(std::string_view name, nb::handle value) {
  if (!PyBool_Check(value.ptr())) wrong(name, "bool", value);
  return value.ptr() == Py_True;
}

std::int32_t level(nb::handle value) {
  constexpr std::array<std::string_view, 3> kLevels = {"info", "warning", "error"};
  if (!nb::isinstance<nb::str>(value)) wrong("log_level", "str", value);
  const std::string_view text = nb::cast<std::string_view>(value);
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    if (text == kLevels[i]) return static_cast<std::int32_t>(i);
  }
  throw nb::value_error("log_level is not 'info', 'warning' or 'error'");
}

}  // namespace

Options::Options(const nb::dict& given) {
  warren_options_init(&options_);
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string_view>(key);
    const Setting* found = nullptr;
    for (const Setting& setting : kSettings) {
      if (setting.name == name) found = &setting;
    }
    if (found == nullptr) unknown(name);
    if (value.is_none()) continue;
    const auto set = [&, value = value](auto field) {
      using F = decltype(field);
      if constexpr (std::is_same_v<F, const char * warren_options::*>) {
        // Paths too: what has os.fspath.
        const nb::object text = nb::steal(PyOS_FSPath(value.ptr()));
        if (!text.is_valid()) PyErr_Clear();
        if (!text.is_valid() || !nb::isinstance<nb::str>(text)) wrong(name, "str", value);
        texts_.emplace_back(nb::cast<const char*>(text));
        options_.*field = texts_.back().c_str();
      } else if constexpr (std::is_same_v<F, Switch>) {
        options_.*field.field = truth(name, value) ? 1 : 0;
      } else if constexpr (std::is_same_v<F, Inverted>) {
        options_.*field.field = truth(name, value) ? 0 : 1;
      } else if constexpr (std::is_same_v<F, Level>) {
        options_.log_level = level(value);
      } else if constexpr (std::is_same_v<F, std::int32_t warren_options::*>) {
        options_.*field = number<std::int32_t>(name, value);
      } else {
        options_.*field = number<std::int64_t>(name, value);
      }
    };
    std::visit(set, found->field);
  }
}

}  // namespace warren_python

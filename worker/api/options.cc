#include "worker/api/options.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "worker/api/handles.h"
#include "worker/settings/settings.h"
#include "worker/settings/table.h"

namespace warren::api {

warren_options all_defaults() {
  warren_options all{};
  // Where 0 is a value, below 0 says that none is given.
  for (const worker::Setting& setting : worker::settings_table()) {
    if (setting.option.given != worker::Option::Given::kFrom0) continue;
    if (const auto* i32 = std::get_if<std::int32_t warren_options::*>(&setting.option.member)) all.** i32 = -1;
    if (const auto* i64 = std::get_if<std::int64_t warren_options::*>(&setting.option.member)) all.** i64 = -1;
  }
  return all;
}

}  // namespace warren::api

using warren::Code;
using warren::Status;
using namespace warren::api;

extern "C" {

void warren_options_init_sized(warren_options* options, size_t size) {
  give_sized(options, all_defaults(), size);
}

warren_code warren_options_set(warren_options* options, const char* name, const char* value) {
  if (options == nullptr || name == nullptr || value == nullptr) {
    return report(Status(Code::kInvalidArgument, "options_set: a pointer is NULL"));
  }
  return report(caught([&]() -> Status {
    if (options->struct_size != sizeof *options || options->settings_count > WARREN_MOST_SETTINGS) {
      return {Code::kInvalidArgument,
              "options_set: the options were not filled by warren_options_init of this version, " WARREN_VERSION};
    }
    if (const Status known = warren::worker::check_setting_name(name); !known.ok()) return known;
    if (*value == 0) return {Code::kInvalidArgument, "options_set: " + std::string(name) + " has no value"};
    const std::span given(options->settings, options->settings_count);
    const auto same =
        std::ranges::find_if(given, [&](const warren_setting& s) { return std::string_view(s.name) == name; });
    if (same == given.end()) ++options->settings_count;  // there are fewer names than places
    *same = {name, value};
    return {};
  }));
}

void warren_call_options_init_sized(warren_call_options* options, size_t size) {
  give_sized(options, warren_call_options{}, size);
}

}  // extern "C"

// Flags that are settings of workers. Their names, values and help come from worker/settings/table.h.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/result.h"

namespace warren::cli {

// The settings that the command line has given, by their names. An empty value counts as not given.
[[nodiscard]] const std::map<std::string, std::string, std::less<>>& given_settings();
// The value that a flag gives to a setting, else `otherwise`.
[[nodiscard]] std::string given_setting(std::string_view name, std::string otherwise = {});
// Whether a switch is given, and on.
[[nodiscard]] bool is_given_on(std::string_view name);

// Switches are kept as 1 and 0. kInvalidArgument: a switch that is neither on nor off. Other values are checked when
// the settings are resolved.
[[nodiscard]] Status give_setting(std::string_view name, std::string value);

// The settings that `warren run` has flags for, in the table's order.
[[nodiscard]] std::vector<std::string_view> settings_of_run();

}  // namespace warren::cli

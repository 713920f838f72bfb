// Settings as the program, the variables, the file and the launcher give them: texts that nobody has judged yet.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "recovery/base/result.h"
#include "warren/c_api.h"
#include "worker/settings/launcher_variables.h"
#include "worker/settings/settings.h"

namespace warren::worker {

inline constexpr std::string_view kOptionsSource = "options";
inline constexpr std::string_view kDefaultSource = "default";

// One value that somebody has given.
struct Raw {
  std::string text;
  std::string source;  // as Resolved shows it
  std::string what;    // as an error calls it
};
// By the names of the settings.
using Layer = std::map<std::string, Raw, std::less<>>;

// kInvalidArgument: options of another version of the library, or a name that no setting has.
[[nodiscard]] Result<Layer> from_options(const warren_options* options);
[[nodiscard]] Layer from_variables(const Environment& env);
// The file that WARREN_CONFIG names, if it does.
[[nodiscard]] Result<Layer> from_file(const Environment& env);
[[nodiscard]] Result<Layer> from_launcher(const Environment& env);

}  // namespace warren::worker

// `warren settings`: what a worker that is started from here would be told.
#include "worker/settings/settings.h"

#include <cstdio>

#include "cli/table.h"

namespace warren::cli {
namespace {

int settings(const std::vector<std::string>&) {
  const auto resolved = worker::preview(worker::process_environment());
  std::fputs(describe_all(resolved.settings).c_str(), stdout);
  std::fflush(stdout);
  return resolved.wrong.ok() ? kExitOk
                             : failure("a worker that is started here ends at once: " + resolved.wrong.describe());
}

}  // namespace

const Command kSettingsCommand = {
    .name = "settings",
    .summary = "shows every setting of a worker that is started here, and where it comes from",
    .usage = "",
    .text =
        "One line a setting: its name, its value, and where that comes from: a WARREN_* variable, a line of the file "
        "named by WARREN_CONFIG, a launcher's variable, or the default. What a program gives as options of its own is "
        "not seen. `warren run [flags] -- warren settings` shows those of a launcher's workers. Nothing is started. "
        "Where something is missing or wrong, the exit code is "
        "1, and what is left is shown all the same.",
    .flags = {},
    .run = settings,
};

}  // namespace warren::cli

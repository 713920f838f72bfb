// The table of subcommands: one line here and one in table.cc adds another.
#pragma once

#include "cli/command.h"

namespace warren::cli {

extern const Command kRunCommand;
extern const Command kTrackerCommand;
extern const Command kStatusCommand;
extern const Command kDoctorCommand;
extern const Command kSettingsCommand;
extern const Command kKeygenCommand;
extern const Command kForgetCommand;
extern const Command kBenchCommand;
extern const Command kSimCommand;
extern const Command kChaosCommand;

}  // namespace warren::cli

#include "cli/table.h"

#include <array>

namespace warren::cli {

std::span<const Command* const> commands() {
  static constexpr std::array kAll = {
      &kRunCommand,      &kTrackerCommand, &kStatusCommand, &kForgetCommand, &kDoctorCommand,
      &kSettingsCommand, &kKeygenCommand,  &kBenchCommand,  &kSimCommand,    &kChaosCommand,
  };
  return kAll;
}

}  // namespace warren::cli

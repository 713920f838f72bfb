// The logs of a run's processes, which lie in its folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warren::chaos::process {

// The lines of a log that have this text, each cut to what can be printed. Empty: there is no such log.
[[nodiscard]] std::vector<std::string> lines_of(const std::string& log_file, const std::string& text);
// Prints the ends of the logs of the tracker and the hosts, for places where nobody can look into the folder.
void show_logs(const std::string& folder, std::uint32_t hosts);

}  // namespace warren::chaos::process

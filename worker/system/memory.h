// How much memory there is: of the machine, and in the control groups (containers, services) that this process is in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace warren::worker {

// The least of what control groups allow, by the text of /proc/self/cgroup and the folder where they are mounted
// (versions 1 and 2). Nothing: there is no limit, or none that can be seen.
[[nodiscard]] std::optional<std::uint64_t> control_group_memory(std::string_view groups, const std::string& mounted_at);
// The least of what they have left: what is allowed and not used, and what files have in memory, which goes when it is
// needed.
[[nodiscard]] std::optional<std::uint64_t> control_group_memory_left(std::string_view groups,
                                                                     const std::string& mounted_at);

// The same of this process. Reads /proc and /sys/fs/cgroup.
[[nodiscard]] std::optional<std::uint64_t> control_group_memory();
// What can be used now without that somebody is ended for it: of the machine, and in this process's control groups.
// Nothing: the system does not say.
[[nodiscard]] std::optional<std::uint64_t> memory_left();

}  // namespace warren::worker

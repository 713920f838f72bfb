#include "worker/system/memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace warren::worker {
namespace {

constexpr const char* kGroups = "/proc/self/cgroup";
constexpr const char* kMountedAt = "/sys/fs/cgroup";

// The number in a file such as memory.max, which says "max" where there is no limit.
std::optional<std::uint64_t> number_in(const std::string& file_path) {
  std::ifstream file(file_path);
  std::uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// That of the line which begins with this word.
std::optional<std::uint64_t> number_of(const std::string& file_path, std::string_view word) {
  std::ifstream file(file_path);
  std::string first;
  std::uint64_t value = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> first >> value && first == word) return value;
  }
  return std::nullopt;
}

std::string text_of(const char* file_path) {
  std::ifstream file(file_path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Of what `look` says of each group, by its folder and whether it is of version 1.
template <class Look>
std::optional<std::uint64_t> least_of(std::string_view groups, const std::string& mounted_at, Look look) {
  std::optional<std::uint64_t> least;
  std::istringstream lines{std::string(groups)};
  for (std::string line; std::getline(lines, line);) {  // "0::/a/b" (version 2) or "7:memory:/a/b"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool old = !controllers.empty();
    if (old && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::string root = mounted_at + (old ? "/memory" : "");
    // Each group up to the root limits those in it. Inside of a container the path may be that of the machine, which is
    // not here; then its own group is the root.
    std::string group = line.substr(second + 1);
    while (true) {
      while (group.ends_with('/')) group.pop_back();
      const std::optional<std::uint64_t> value = look(root + group, old);
      if (value && (!least || *value < *least)) least = value;
      if (group.empty()) break;
      const std::size_t slash = group.rfind('/');
      group.resize(slash == std::string::npos ? 0 : slash);
    }
  }
  return least;
}

std::optional<std::uint64_t> limit_of(const std::string& folder, bool old) {
  if (old) return number_in(folder + "/memory.limit_in_bytes");
  const auto most = number_in(folder + "/memory.max"), high = number_in(folder + "/memory.high");
  // Who is above the latter is not ended, but hardly runs.
  return most && high ? std::min(*most, *high) : most ? most : high;
}

}  // namespace

std::optional<std::uint64_t> control_group_memory(std::string_view groups, const std::string& mounted_at) {
  return least_of(groups, mounted_at, limit_of);
}

std::optional<std::uint64_t> control_group_memory_left(std::string_view groups, const std::string& mounted_at) {
  return least_of(groups, mounted_at, [](const std::string& folder, bool old) -> std::optional<std::uint64_t> {
    const auto limit = limit_of(folder, old);
    const auto used = number_in(folder + (old ? "/memory.usage_in_bytes" : "/memory.current"));
    if (!limit || !used) return std::nullopt;
    std::uint64_t files = 0;
    for (const char* word : {"inactive_file", "active_file"}) {
      files += number_of(folder + "/memory.stat", (old ? "total_" : "") + std::string(word)).value_or(0);
    }
    return *limit - std::min(*limit, *used - std::min(*used, files));
  });
}

std::optional<std::uint64_t> control_group_memory() {
  return control_group_memory(text_of(kGroups), kMountedAt);
}

std::optional<std::uint64_t> memory_left() {
  const auto machine_kib = number_of("/proc/meminfo", "MemAvailable:");
  const auto machine = machine_kib ? std::optional(*machine_kib * 1024) : std::nullopt;
  const auto groups = control_group_memory_left(text_of(kGroups), kMountedAt);
  if (!machine || !groups) return machine ? machine : groups;
  return std::min(*machine, *groups);
}

}  // namespace warren::worker

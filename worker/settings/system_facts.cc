#include "worker/settings/system_facts.h"

#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "worker/system/memory.h"

namespace warren::worker {
namespace {

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "mnt:[4026531841]" -> "4026531841"
std::string namespace_inode(const char* path) {
  std::array<char, 64> target{};
  const ssize_t n = readlink(path, target.data(), target.size());
  if (n <= 0) return {};
  std::string out;
  for (const char c : std::string_view(target.data(), static_cast<std::size_t>(n))) {
    if (c >= '0' && c <= '9') out += c;
  }
  return out;
}

}  // namespace

SystemFacts read_system_facts() {
  SystemFacts out;
  out.boot_id = first_line_of("/proc/sys/kernel/random/boot_id");
  out.mount_namespace = namespace_inode("/proc/self/ns/mnt");
  out.pid_namespace = namespace_inode("/proc/self/ns/pid");
  out.network_namespace = namespace_inode("/proc/self/ns/net");
  out.user = std::to_string(geteuid());
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) out.host_name = name.data();
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0) {
    out.memory_bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
  }
  const auto allowed = control_group_memory();
  if (allowed && (out.memory_bytes == 0 || *allowed < out.memory_bytes)) out.memory_bytes = *allowed;
  return out;
}

std::string domain_of(const SystemFacts& facts) {
  if (!facts.boot_id.empty()) return facts.boot_id;
  return facts.host_name.empty() ? "unknown" : facts.host_name;
}

std::string host_of(const SystemFacts& facts) {
  constexpr std::size_t kMostOfName = 64;
  std::string out;
  for (const char c : facts.host_name.substr(0, kMostOfName)) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || (!out.empty() && (c == '.' || c == '-' || c == '_'))) out += c;
  }
  const std::string unique = facts.boot_id + "/" + facts.mount_namespace + "/" + facts.pid_namespace + "/" +
                             facts.network_namespace + "/" + facts.user;
  std::array<char, 16> digits{};
  (void)std::snprintf(digits.data(), digits.size(), "%012llx",
                      static_cast<unsigned long long>(XXH3_64bits(unique.data(), unique.size()) >> 16));
  return (out.empty() ? "host" : out) + "-" + digits.data();
}

}  // namespace warren::worker

// How many descriptors a process may have open.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/result.h"

namespace warren {

// Raises this process's soft limit of descriptors as far as it goes, and returns the limits as they were; nothing: the
// system did not say. A connection takes a descriptor, and one to a worker's log four; the usual soft limit of 1,024 is
// meant for programs that call select().
inline std::optional<rlimit> allow_many_connections() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return std::nullopt;
  const rlimit before = files;
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
  return before;
}

// Whether this process may open so many files more. kUnavailable: it may not; the error says what to raise.
[[nodiscard]] inline Status has_room_for_files(std::size_t least) {
  std::vector<int> taken;
  while (taken.size() < least) {
    const int fd = ::open("/", O_PATH | O_CLOEXEC);
    if (fd < 0) break;
    taken.push_back(fd);
  }
  for (const int fd : taken) ::close(fd);
  if (taken.size() == least) return {};
  return {Code::kUnavailable, "only " + std::to_string(taken.size()) + " more files may be opened here, and at least " +
                                  std::to_string(least) + " are needed: raise the limit of this process (`ulimit -n`)"};
}

}  // namespace warren

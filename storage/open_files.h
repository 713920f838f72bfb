// How many descriptors a process may have open.
#pragma once

#include <sys/resource.h>

#include <optional>

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

}  // namespace warren

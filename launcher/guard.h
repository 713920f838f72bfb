// A process that outlives the launcher by a moment, to kill what it started.
#pragma once

#include <sys/types.h>

#include "recovery/base/result.h"

namespace warren::worker {

// When the launcher dies, however it dies, the guard kills every process group that it was told of and ends. A death
// signal alone (PR_SET_PDEATHSIG) reaches the workers but not what they started.
class Guard {
 public:
  // Forks. Safe in a process with threads. kInternal: the system refused.
  static Result<Guard> start();

  // The group exists from now on, or is about to be reaped: its number may belong to others then.
  void add(pid_t group) const { tell(group); }
  void remove(pid_t group) const { tell(-group); }

  Guard(Guard&& other) noexcept;
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  Guard& operator=(Guard&&) = delete;
  // The guard kills the groups that were not removed and ends; waits for that.
  ~Guard();

 private:
  Guard(int fd, pid_t pid) : fd_(fd), pid_(pid) {}
  void tell(pid_t message) const;

  int fd_;
  pid_t pid_;
};

}  // namespace warren::worker

// The mark of a process that is in a job as a worker, by which its descendants know that they are not that worker.
//
// A child process inherits the variables that make its parent a worker (WARREN_WORKER_ID, RANK, …). Without the mark, a
// child that joins would take its parent's place: to the tracker it looks like the worker's next life. The launcher's
// restarts, a program that replaces itself by exec, and a second process that is started by hand are no descendants of
// the process that they replace, and go on as ever.
//
// The mark is a descriptor of an empty memory file whose name holds the process id and a hash of tracker, job and
// worker id. The kernel closes it when the process ends or calls exec, and no other process can make one for it. A
// descendant looks at the descriptors of its ancestors in /proc. An environment variable would not do: setenv() races
// with the threads of the program, and interpreters start children with a copy of the environment that they took
// earlier.
//
// Not seen: an ancestor in another PID namespace or of another user, and one from which the process has cut itself off
// by ending the processes between them (a daemon).
#pragma once

#include "recovery/base/result.h"
#include "storage/segment_memory.h"
#include "worker/settings/settings.h"

namespace warren::worker {

class JoinedMark {
 public:
  // Marks this process, until the mark is gone. kInvalidArgument: an ancestor of this process is in the same job, at
  // the same tracker, under the same worker id. Where the system allows no more descriptors the process is in the job
  // without a mark.
  static Result<JoinedMark> make(const Settings& settings);

  JoinedMark() = default;  // marks nothing

 private:
  explicit JoinedMark(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

}  // namespace warren::worker

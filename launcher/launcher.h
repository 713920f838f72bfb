// Starts the workers of a job on this machine, looks after them, and leaves nothing behind.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/output.h"
#include "launcher/signals.h"
#include "recovery/base/limits.h"
#include "recovery/base/result.h"

namespace warren::worker {

struct LaunchOptions {
  std::vector<std::string> program;  // name (searched in PATH) and arguments; not empty
  std::uint32_t workers = 1;         // 1 … limits::kMaxWorldSize; 0: only spares are started here
  std::uint32_t first_worker = 0;    // their ids are first_worker … first_worker + workers − 1
  std::uint32_t world_size = 0;      // of the job, whose other workers are started elsewhere; 0: `workers`
  std::uint32_t spares = 0;          // beside them, with the ids world_size + first_worker …
  bool spares_elsewhere = false;     // the job may have spares that are not started here
  std::uint32_t min_workers = 0;     // mode shrink: the job goes on with so many; 0: it needs all
  std::uint32_t first_attempt = 0;   // how often this launcher has itself been started for these workers before
  // How often each worker is started again when it is lost (killed by a signal, hung, ended with kExitPreempted,
  // kExitFenced, kExitHung or kExitKillPoint, or could not be started again), and how often the job is rolled back (its
  // workers end with kExitRolledBack). The end of a worker that drained (life_sign.h) counts nowhere. Where there are
  // spares, and in mode shrink, neither does that of a worker that its job has given up after it had taken part in a
  // round, and ends while a worker waits count apart.
  std::uint32_t restarts = 0;
  // How often each worker is started again when it ends with another exit code than 0: the program's own failure, which
  // may well come again. So does, whatever the exit code or signal, what has ended its job for good (recurs() of
  // LifeView::cause()): ranks that disagree, a limit that is reached. A worker of which two lives in a row have ended
  // the job for good, in the same round, is not started again.
  std::uint32_t failure_restarts = 0;
  // For every worker, on top of this process' environment; no value: removed. WARREN_WORKER_ID, WARREN_WORLD_SIZE,
  // WARREN_LOCAL_WORLD_SIZE, WARREN_ATTEMPT and WARREN_LIFE_FD are the launcher's.
  std::map<std::string, std::optional<std::string>> variables;
  // A worker that has begun to show life (life_sign.h) and shows none for so long is killed, and counts as lost. 0:
  // none is watched.
  std::int64_t hung_after_ms = 0;
  std::string proc = "/proc";  // says which workers are dead, and dump core
  // Restarts of a worker are at once, the first few; then after a pause that doubles. A life that lasted
  // healthy_ms, or took part in computing a round, makes the next restart a first one again.
  std::uint32_t immediate_restarts = 3;
  std::int64_t first_backoff_ms = 100;
  std::int64_t max_backoff_ms = 10'000;
  std::int64_t healthy_ms = 10'000;
  // `restarts` counts what comes in quick succession: a life of so long before it is lost, or so long between two
  // rollbacks, begins the count anew. A program that runs for weeks on machines that are taken ends for none of them.
  // Lives that hung do not begin it anew.
  std::int64_t long_life_ms = 3'600'000;
  // From SIGTERM to this process until a worker that shows life has left.
  std::int64_t drain_ms = limits::kDefaultDrainMs;
  // From SIGTERM to SIGKILL when the job ends because a worker failed, and to SIGTERM from the first failure after
  // SIGINT or SIGHUP. As long what could not be written is kept for who reads it when a signal has ended all workers.
  std::int64_t grace_ms = 10'000;
  // Each worker runs on one of the cores that this process may use, no two on the same; run() fails where there are
  // fewer. For programs of one thread: a scheduler leaves two workers that wait for each other in turn on one core.
  bool bind_to_core = false;
  std::optional<rlimit> open_files;   // how many descriptors a worker may have open; nothing: as this process
  bool prefix = true;                 // "[3] " before each line of worker 3
  int output_fd = 1;                  // where the workers' stdout goes, and their stderr
  int error_fd = 2;                   // and the launcher's own notices
  OtherLines* other_lines = nullptr;  // go to error_fd too; not owned
};

// Runs the workers until all have ended, and returns the exit code for the launcher's process: 0 if all ended with 0,
// else that of the worker whose failure ended the job (128 + n if signal n killed it). If this process got SIGTERM,
// kExitPreempted stands for 128 + SIGTERM, and for how a worker was lost that would have been started again.
//
// Each worker leads a process group; the group is killed when its worker ends, and all are killed when this process
// dies, even by SIGKILL. A worker's standard input is empty. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on
// to the groups, but for those that this process was started to ignore; after one of the first three no worker is
// restarted, who is left grace_ms after the first of them has failed is ended likewise, and a second SIGINT kills. A
// worker that shows life does not get the first SIGTERM: it is told to drain (life_sign.h), and gets the signal only if
// it is still there a second after drain_ms. A second SIGTERM makes it leave at once. A SIGTERM that this process sends
// to itself with sigqueue() carries the time that is left, in milliseconds. A worker that fails with no restart left
// ends the job: the others get SIGTERM, and SIGKILL after grace_ms. But where there are spares, one that has no place,
// as far as is known (life_sign.h), is given up alone, as long as enough are left for all places of this launcher's; in
// mode shrink that goes for any that is lost, as long as min_workers may be left in the job, those elsewhere included.
// Its exit code is the launcher's only if all were given up so. What the launcher itself says is "warren: event: text";
// docs/events.md lists the events.
//
// kUnavailable: the program cannot be started for the first time (nothing runs then). kInternal: the system refused
// something. Call from the main thread; one launch at a time in a process.
[[nodiscard]] Result<int> launch(const LaunchOptions& options, const LauncherSignals& signals);

}  // namespace warren::worker

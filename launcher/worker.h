// One worker of the launcher: its process, how its lives ended, and how often it may be started again.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>

#include "launcher/last_lines.h"
#include "launcher/output.h"
#include "launcher/process.h"
#include "recovery/base/result.h"
#include "worker/launch/life_sign.h"

namespace warren::worker {

// One output stream of one worker.
struct WorkerStream {
  Fd pipe;
  LineSplitter lines{""};
  OutputQueue* queue = nullptr;
};

// How the output of a worker ends, and how much all workers had written by then.
struct Ending {
  LastLines lines{""};
  std::uint64_t written = 0;
};

struct LaunchedWorker {
  std::uint32_t id = 0;
  pid_t pid = 0;  // 0: not running
  Fd pidfd;
  cpu_set_t core{};                     // with bind_to_core
  std::array<WorkerStream, 2> streams;  // stdout, stderr
  Ending ending;                        // of this life
  LifeView life;
  LifeWatch watch;
  std::int64_t started_at_ms = 0;
  std::int64_t killed_at_ms = -1;     // because it hung; -1: it was not
  std::int64_t complained_at_ms = 0;  // of that
  std::int64_t dumps_since_ms = -1;   // its core; -1: it does not

  std::uint32_t attempt = 0;        // lives before this one, those of earlier launchers included
  std::uint32_t restarts = 0;       // of them, lost or failed
  std::uint32_t rollbacks = 0;      // of them, rolled back
  std::uint32_t short_lives = 0;    // in a row
  std::uint32_t waiting_lives = 0;  // of those before this one, lost or failed while it had no place
  bool has_place = false;           // in the job, as far as is known
  bool placed = false;              // the last life had it
  bool given_up = false;            // it is not started again, and the others go on
  bool worked = false;              // the last life took part in computing a round
  bool unfinished = false;          // it was in a job that had not finished
  Status cause;                     // what it said had ended its job
  std::string last_end;             // place_of() what has ended the job for good in the life before; empty: nothing has
  bool repeats = false;             // the last two lives have ended the job for good at the same place
  bool fenced = false;              // for which its program was not to blame
  bool drained = false;             // the last life left because it was told to
  bool lost = false;                // it ended otherwise than by the program's own failure, or with success
  int last_code = 0;                // how the last life ended
  std::int64_t restart_at_ms = -1;  // -1: no restart is due
};

}  // namespace warren::worker

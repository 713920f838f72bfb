// The storage of a life that outlives its process: its log on disk, and copies of its checkpoints in a mirror. Without
// a data directory and a mirror nothing is kept: then these functions do nothing, and nothing is found.
//
// Threads: under the session's lock, but for functions that say otherwise. Those that read or write files may take
// long.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "recovery/worker/worker_machine.h"
#include "storage/host_log.h"
#include "storage/segment_memory.h"
#include "worker/disk/disk_log.h"
#include "worker/disk/disk_trouble.h"
#include "worker/disk/mirror.h"
#include "worker/disk/sync_gate.h"
#include "worker/life/life_effect.h"
#include "worker/session/log.h"
#include "worker/settings/settings.h"

namespace warren::worker {

class LifeStorage {
 public:
  LifeStorage(const Settings& settings, const Log& log) : settings_(settings), log_(log) {}
  LifeStorage(const LifeStorage&) = delete;
  LifeStorage& operator=(const LifeStorage&) = delete;

  // Opens the disk, if there is to be one, for what this life logs in `segment`. `synced` is called from the disk's
  // thread. Errors as of DiskLog::open().
  [[nodiscard]] Status open_disk(Incarnation self, std::shared_ptr<SegmentMemory> segment,
                                 std::function<void()> synced);
  // There is a disk, until release().
  [[nodiscard]] bool has_disk() const { return disk_ != nullptr; }
  // Reads from memory first, then from the disk.
  [[nodiscard]] std::unique_ptr<HostLogReader> behind(std::unique_ptr<HostLogReader> memory);
  // The gate that results wait for in mode sync; null: another mode, or no disk. After open_disk(), once.
  [[nodiscard]] SyncGate* open_gate(std::function<TimeMs()> now);
  // Opens the mirror, if there is to be one. `may_be_away`: this life goes on without it, and the log says so.
  [[nodiscard]] Status open_mirror(std::unique_ptr<HostLogReader> reader, bool may_be_away);
  [[nodiscard]] bool has_mirror() const { return mirror_ != nullptr; }

  // For a join: what this host holds of the job. Without the lock. Errors say what cannot be used.
  [[nodiscard]] Result<std::optional<wire::Held>> held();
  // The same on a host that had no rank when it was called, for the interrupt of this generation.
  [[nodiscard]] Result<std::optional<wire::Held>> held_beside_stale(Generation called);

  // A plan is in force. Before anything of it is written. `before`: the plan until now; `known`: what the life knows.
  void install(const wire::Plan& before, const wire::Plan& plan, Rank self, const wire::Known& known);
  // Reads from here on, too, what lives of this host that are over have on disk.
  void refresh(const wire::Plan& plan);

  // Why the disk takes no results at present; empty: it does. From any thread.
  [[nodiscard]] std::string trouble() const { return trouble_.text(); }
  // Why the disk does not take checkpoints; success: it does.
  [[nodiscard]] Status takes_checkpoints();
  // The same of what was given to it.
  [[nodiscard]] Status health();
  // Frees memory of a full log, and waits for the disk meanwhile.
  [[nodiscard]] Result<std::vector<ExtentUse>> spill(TimeMs now);
  // All that spills together is over by then; nullopt: each has its own time.
  void spill_until(std::optional<TimeMs> until) { spill_until_ = until; }

  // `done` is called from the disk's thread once what this vote speaks of survives the loss of power.
  void make_durable(const WorkerMachine::Vote& vote, std::function<void(const Status&)> done);
  void note_commit(const life_effect::NoteCommit& commit);
  void copy_to_mirror(const life_effect::CopyToMirror& what, Rank self);
  // Asks the mirror for a state. Without the lock; has_mirror().
  [[nodiscard]] Result<std::optional<Mirror::State>> read_mirror(std::uint64_t run, Timeline timeline, Version version,
                                                                 Rank self) {
    return mirror_->read(run, timeline, version, self);
  }

  // The job is finished: nothing of it is to be found on this host's disk. Without the lock.
  void finish_disk();
  // The same of this run's mirror.
  void finish_mirror(std::uint64_t run);

  // Ends disk and mirror when it goes; without the lock.
  struct Released {
    std::unique_ptr<Mirror> mirror;
    std::unique_ptr<DiskLog> disk;
  };
  // This life ends, and keeps nothing from here on.
  [[nodiscard]] Released release() { return {std::move(mirror_), std::move(disk_)}; }

 private:
  // From any thread.
  void tell(const LogEvent& event);

  const Settings& settings_;
  const Log& log_;
  DiskTrouble trouble_;
  std::unique_ptr<DiskLog> disk_;
  std::optional<SyncGate> gate_;  // of disk_'s writer
  std::unique_ptr<Mirror> mirror_;
  std::optional<TimeMs> spill_until_;
};

}  // namespace warren::worker

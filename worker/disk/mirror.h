// Copies of committed checkpoints in a directory that outlives the machines (storage/checkpoint_mirror.h): written by a
// thread of its own after each commit, each rank its share; read when no log holds the checkpoint any more.
//
//   DIR/<job>/run-<16 hex digits>/   one run of the job, as CheckpointMirror makes it, with
//     NOTE-<generation>-<version>    what rank 0 knew of plan and commit, as in a life's place; 16 hex digits each:
//                                    the newest is the last by name, and a rank that is behind takes nothing away
//     FINISHED                       the job has finished: nothing starts from it
//
// The two newest notes stay. What cannot be written is an event, and the job goes on; the next commit is tried again.
//
// A version is complete when all ranks have written their shares of it, and each can write only what is the newest
// commit when it begins. Where commits come faster than shares are written, so, all must choose the same ones: a rank
// takes versions that are multiples of a power of two, the least that leaves it twice the time that it needs. Whatever
// powers the ranks have come to, multiples of the greatest are everybody's. A version that stays the newest for that
// time is taken too.
//
// Threads: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "storage/checkpoint_mirror.h"
#include "storage/host_log.h"
#include "storage/result_store.h"
#include "worker/settings/settings.h"

namespace warren::worker {

class Mirror {
 public:
  using Events = std::function<void(const LogEvent&)>;

  // settings.checkpoint_mirror is set. `reader`: of this host's log, for the thread alone. kUnavailable: the directory
  // cannot be made.
  static Result<std::unique_ptr<Mirror>> open(const Settings& settings, std::unique_ptr<HostLogReader> reader,
                                              Events events);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // What a job whose disks are lost can start from: the newest whole checkpoint of the run that was written last, if
  // that has not finished and its world size is the same. What is damaged or cannot be read is an event, and the one
  // before is taken. Of checkpoints of more than kMostCheckedBytes only the files' heads are read: a join must not take
  // long, and those who load see the rest. kRefused: another version of Warren has written what is there.
  static constexpr std::uint64_t kMostCheckedBytes = std::uint64_t{64} << 20;
  [[nodiscard]] Result<std::optional<wire::Held>> held() const;
  // This version is committed: the thread writes this rank's share. `generation` is that of the plan in force; `note`
  // says what is known in it, of the run that all this belongs to.
  void copy(Generation generation, Timeline timeline, Version version, Rank rank, storage::ResultStore::Note note);
  // The job is finished: nothing starts from what is there. Ends the thread.
  [[nodiscard]] Status finish(std::uint64_t run);

  // Nothing: it is not there. kCorrupt: it is damaged. Any other failure says nothing about what is there:
  // kUnavailable: it cannot be read; kExhausted: no memory for it; kRefused: another version of Warren has written it.
  // The text names the file and says what to do.
  struct State {
    std::vector<std::byte> global, local;  // no local state of a job of another size
    bool has_local = false;                // the checkpoint has
    std::uint32_t world_size = 0;          // when it was taken
  };
  [[nodiscard]] Result<std::optional<State>> read(std::uint64_t run, Timeline timeline, Version version,
                                                  Rank rank) const;

 private:
  struct Commit {
    Generation generation;
    Timeline timeline;
    Version version;
    Rank rank;
    storage::ResultStore::Note note;
  };
  using Checkpoint = storage::CheckpointMirror::Checkpoint;
  [[nodiscard]] static RecordKey global_key(const Commit& commit);
  Mirror(std::string directory, std::uint32_t world_size, std::unique_ptr<HostLogReader> reader, Events events)
      : directory_(std::move(directory)),
        world_size_(world_size),
        reader_(std::move(reader)),
        events_(std::move(events)) {}
  [[nodiscard]] Result<std::optional<wire::Held>> held_of(const std::string& run_name) const;
  [[nodiscard]] std::optional<Checkpoint> newest_whole(const storage::CheckpointMirror& files,
                                                       const std::vector<Checkpoint>& complete,
                                                       Timeline timeline) const;
  void tell(const Status& trouble) const;
  void run();
  void stop();
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] bool everybodys(const Commit& commit) const;
  [[nodiscard]] Status write_share(storage::CheckpointMirror& files, const Commit& commit, Checkpoint& checkpoint);
  [[nodiscard]] Status write(const Commit& commit, std::unique_lock<std::mutex>& lock);

  const std::string directory_;  // of the job
  const std::uint32_t world_size_;
  const std::unique_ptr<HostLogReader> reader_;
  const Events events_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<Commit> next_;
  std::uint64_t left_out_ = 0;  // in a row
  Clock::time_point last_commit_{};
  Clock::duration interval_ = Clock::duration::max();  // between the two newest commits
  Clock::duration writing_{};                          // how long the newest share took
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace warren::worker

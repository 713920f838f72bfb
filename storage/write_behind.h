// The thread that writes a life's own log segment to disk, behind the data path: publishing is not slowed by anything,
// the thread reads the segment as any other process of the host would (storage/segment.h). Mode `async` has it running,
// `sync` also asks for what it publishes, and waits for that before a call returns; `memory` has none.
//
// What a commit drops before it is due is never written. It is due when it was seen unwritten for `lag_ms`, or when
// full extents of the segment with more than `lag_bytes` are unwritten, oldest first; a checkpoint's states when
// make_durable() says so.
//
// A full memory log spills: spill() gives extents whose records are all on disk. Extents with states of checkpoints and
// with set-up rounds stay in memory: others count on them there.
//
// When the process exits, the thread ends with a last look: what was to be durable by then is written, if the disk
// takes it. Rounds go on in memory alone from there; a checkpoint cannot be made durable any more.
//
// A disk that is full, over budget or broken is an event, not a failure of the job: results stay in memory, the write
// is tried again every `retry_ms`, and the next success is an event too. What waits for durable bytes hears the reason.
//
// Threads: any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "storage/result_store.h"
#include "storage/segment.h"

namespace warren::storage {

class WriteBehind {
 public:
  struct Options {
    std::int64_t lag_ms = 5000;
    std::uint64_t lag_bytes = std::uint64_t{256} << 20;
    std::int64_t retry_ms = 1000;
    // How much is copied and written at once; at least one record, at most RecordBatch::kDefaultBytes.
    std::uint64_t batch_bytes = RecordBatch::kDefaultBytes;
    // The store's budget: half of it filled since the last commit is an event. 0: there is none.
    std::uint64_t budget_bytes = 0;
    // Called from the thread when synced() has risen; must not wait for whoever calls this object.
    std::function<void()> synced{};
  };
  // Called from the thread; must not call back.
  using Events = std::function<void(const LogEvent&)>;
  using Done = std::function<void(const Status&)>;

  // Writes what the life `self` publishes in `segment`. Fails as SegmentView::open() does.
  static Result<std::unique_ptr<WriteBehind>> start(Options options, std::unique_ptr<ResultStore> store,
                                                    Incarnation self, std::shared_ptr<SegmentMemory> segment,
                                                    Events events);
  // Ends the thread; what is not written stays so. Outstanding calls end with kClosed.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // Returns when everything is durable that this life had published before the call, or with the reason why it is not:
  // that of the store; kTimeout; kClosed after finish(). While the disk fails it returns the reason at once.
  [[nodiscard]] Status sync(std::int64_t timeout_ms);

  // The same without a wait: a number, which never falls; synced() reaches it when all is durable that this life had
  // published before the call, or when the disk has failed to take it, or with finish().
  std::uint64_t ask_sync();
  [[nodiscard]] std::uint64_t synced() const { return synced_.load(std::memory_order_acquire); }

  // At most `most` extents of the segment that are full and durable, and may leave memory, the oldest first; each is
  // given once. If there is none, has all written that is there, and waits for the first. Why there is none: the reason
  // of the store; kTimeout; kExhausted: what fills the segment has to stay.
  [[nodiscard]] Result<std::vector<ExtentUse>> spill(std::size_t most, std::int64_t timeout_ms);

  // Calls `done` from the thread once the states of this checkpoint that were published before this call are durable,
  // and those that the store asks for (ResultStore::worn) were put once more, as far as the disk takes them; tries
  // again as long as the disk fails. kClosed: dropped by a horizon first, or the thread ended. kCorrupt: the segment is
  // damaged where they lie, or set-up rounds: what stands behind is lost.
  void make_durable(Timeline timeline, Version version, Done done);
  // kUnavailable: the process exits, so that no further checkpoint can be made durable.
  [[nodiscard]] Status takes_checkpoints() const;

  // What the job has told this life: durable before anything that is put or dropped after this call.
  void note(ResultStore::Note note);

  // Forgets what is obsolete, on disk too. The memory log is the data path's to drop.
  void drop(const Horizon& horizon);

  // The job is finished: ends the thread, and removes what is on disk. Once.
  [[nodiscard]] Status finish();

  // Why nothing is written at present; success: all is well.
  [[nodiscard]] Status health() const;
  [[nodiscard]] std::uint64_t written_bytes() const;  // payload, by this life
  [[nodiscard]] ResultStore& store() { return *store_; }

 private:
  using Clock = std::chrono::steady_clock;

  // How far an extent is written: its states, and the rest.
  struct Cursor {
    std::uint64_t stamp = 1;
    SegmentClass cls;
    bool sealed = false;
    bool damaged = false;
    bool stays = false;    // in memory, whatever is on disk
    bool offered = false;  // in spillable_, or given away
    std::uint64_t states_at = 0, rest_at = 0;
    std::optional<Clock::time_point> pending_since;
  };
  struct Advance {
    std::uint32_t extent;
    std::uint64_t stamp, states_at, rest_at;
  };
  struct Ticket {
    bool done = false;
    Status status;
  };
  struct Checkpoint {
    Timeline timeline;
    Version version;
    Done done;
  };

  WriteBehind(Options options, std::unique_ptr<ResultStore> store, SegmentView view,
              std::shared_ptr<SegmentMemory> segment, Events events);
  void run();
  void stop();
  // At the end of the process.
  void begin_to_end();
  void await_end(Clock::time_point deadline);
  void look(Clock::time_point now);
  void offer_durable();
  void end_dropped_checkpoints();
  Status write(Clock::time_point now, bool all);
  Status write_checkpoints();
  Status write_due(Clock::time_point now);
  Status write_extent(std::uint32_t extent, bool states_only);
  Status flush_batch();
  void say_half_full();
  void write_worn(const Checkpoint& checkpoint);
  void note(const Status& status, Clock::time_point now);
  void end_checkpoints(std::vector<Checkpoint>& ended, const Status& status);
  [[nodiscard]] bool damaged(const Checkpoint& checkpoint) const;

  const Options options_;
  const std::unique_ptr<ResultStore> store_;
  const SegmentView view_;
  const std::shared_ptr<SegmentMemory> segment_;
  const Events events_;

  // The thread's.
  std::vector<Cursor> cursors_;
  RecordBatch batch_;
  std::vector<Advance> advances_;  // once batch_ is durable
  std::vector<Checkpoint> checkpoints_;
  std::optional<Horizon> to_drop_;
  std::optional<ResultStore::Note> to_note_;
  Clock::time_point next_attempt_{};
  std::uint64_t gathered_bytes_ = 0;  // written since the last drop, or the begin, which was:
  Clock::time_point gathers_since_ = Clock::now();
  bool said_half_full_ = false;  // once a life

  mutable std::mutex mutex_;
  std::condition_variable wake_, ticket_done_;  // the latter also when extents may be spilled
  bool stopping_ = false;
  bool process_exits_ = false;  // the thread looks once more, and stops
  std::vector<std::shared_ptr<Ticket>> tickets_;
  std::uint64_t asked_ = 0, started_ = 0;  // ask_sync(): the newest number, and that at the newest look
  std::vector<Checkpoint> new_checkpoints_;
  std::optional<Horizon> new_horizon_;
  std::optional<ResultStore::Note> new_note_;
  Status health_;
  std::uint64_t written_bytes_ = 0;
  std::deque<ExtentUse> spillable_;
  bool spilled_ = false;
  std::atomic<std::uint64_t> synced_{0};

  std::thread thread_;
  std::shared_ptr<void> at_exit_;
};

}  // namespace warren::storage

#include "storage/write_behind.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/start_thread.h"

namespace warren::storage {
namespace {

// How often the thread looks for what is due.
std::chrono::milliseconds tick(std::int64_t lag_ms) {
  return std::chrono::milliseconds(std::clamp<std::int64_t>(lag_ms / 8, 5, 1000));
}

// synced() of a thread that has ended.
constexpr std::uint64_t kEnded = UINT64_MAX;

bool is_state(const RecordKey& key) {
  return key.kind == RecordKind::kGlobal || key.kind == RecordKind::kLocal;
}

}  // namespace

Result<std::unique_ptr<WriteBehind>> WriteBehind::start(Options options, std::unique_ptr<ResultStore> store,
                                                        Incarnation self, std::shared_ptr<SegmentMemory> segment,
                                                        Events events) {
  auto view = SegmentView::open(segment->bytes(), self);
  if (!view.ok()) return view.status();
  std::unique_ptr<WriteBehind> out(
      new WriteBehind(std::move(options), std::move(store), view.value(), std::move(segment), std::move(events)));
  const Status started = start_thread(out->thread_, [w = out.get()] { w->run(); });
  if (!started.ok()) return started.because_of_this("cannot write the log to disk");
  WriteBehind* const behind = out.get();
  out->at_exit_ = out->store_->call_at_exit(
      {[behind] { behind->begin_to_end(); }, [behind](Clock::time_point deadline) { behind->await_end(deadline); }});
  return out;
}

WriteBehind::WriteBehind(Options options, std::unique_ptr<ResultStore> store, SegmentView view,
                         std::shared_ptr<SegmentMemory> segment, Events events)
    : options_(std::move(options)),
      store_(std::move(store)),
      view_(view),
      segment_(std::move(segment)),
      events_(std::move(events)),
      cursors_(view_.layout().extents),
      batch_(std::clamp<std::uint64_t>(options_.batch_bytes, limits::kMaxChunkBytes, RecordBatch::kDefaultBytes)) {}

WriteBehind::~WriteBehind() {
  at_exit_.reset();
  stop();
}

void WriteBehind::begin_to_end() {
  if (std::this_thread::get_id() == thread_.get_id()) return;  // a callback of the program's calls exit()
  {
    const std::lock_guard lock(mutex_);
    process_exits_ = true;
  }
  wake_.notify_one();
}

void WriteBehind::await_end(Clock::time_point deadline) {
  if (std::this_thread::get_id() == thread_.get_id()) return;
  std::unique_lock lock(mutex_);
  (void)ticket_done_.wait_until(lock, deadline, [this] { return synced() == kEnded; });
}

Status WriteBehind::takes_checkpoints() const {
  const std::lock_guard lock(mutex_);
  if (!process_exits_) return {};
  return {Code::kUnavailable,
          "the process exits, and its log on disk is closed: checkpoints are to be made before exit() is called"};
}

void WriteBehind::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status WriteBehind::finish() {
  stop();
  return store_->finish();
}

Status WriteBehind::sync(std::int64_t timeout_ms) {
  const auto ticket = std::make_shared<Ticket>();
  std::unique_lock lock(mutex_);
  if (stopping_) return {Code::kClosed, "the job's results are not written any more"};
  tickets_.push_back(ticket);
  wake_.notify_one();
  if (!ticket_done_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return ticket->done; })) {
    return {Code::kTimeout, "results were not durable within " + std::to_string(timeout_ms) + " ms"};
  }
  return ticket->status;
}

std::uint64_t WriteBehind::ask_sync() {
  const std::lock_guard lock(mutex_);
  // One that the thread has not begun with serves whoever comes before it does.
  if (asked_ == started_) {
    ++asked_;
    wake_.notify_one();
  }
  return asked_;
}

Result<std::vector<ExtentUse>> WriteBehind::spill(std::size_t most, std::int64_t timeout_ms) {
  std::vector<ExtentUse> out;
  std::unique_lock lock(mutex_);
  const auto take = [&] {
    // A commit may have freed some since they were offered.
    std::erase_if(spillable_, [this](const ExtentUse& use) { return !view_.is(use.extent, use.stamp); });
    const std::size_t n = std::min(most, spillable_.size());
    out.assign(spillable_.begin(), spillable_.begin() + static_cast<std::ptrdiff_t>(n));
    spillable_.erase(spillable_.begin(), spillable_.begin() + static_cast<std::ptrdiff_t>(n));
    return !out.empty();
  };
  if (!take()) {
    if (stopping_) return Status(Code::kClosed, "the job's results are not written any more");
    const auto ticket = std::make_shared<Ticket>();
    tickets_.push_back(ticket);
    wake_.notify_one();
    if (!ticket_done_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return take() || ticket->done; })) {
      return Status(Code::kTimeout, "nothing of it was durable within " + std::to_string(timeout_ms) + " ms");
    }
    if (out.empty()) {
      if (!ticket->status.ok()) return ticket->status;
      return Status(Code::kExhausted,
                    "all that fills it are checkpoints, set-up rounds, and extents that are still written to");
    }
  }
  if (!std::exchange(spilled_, true)) {
    lock.unlock();
    events_({Severity::kWarning,
             "log_spills",
             "the memory log is full: from here on its oldest results are on disk alone until the next checkpoint is "
             "committed; a checkpoint is overdue, or --log_memory_bytes is small",
             {}});
  }
  return out;
}

void WriteBehind::make_durable(Timeline timeline, Version version, Done done) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      new_checkpoints_.push_back({timeline, version, std::move(done)});
      wake_.notify_one();
      return;
    }
  }
  done({Code::kClosed, "the job's checkpoints are not written any more"});
}

void WriteBehind::note(ResultStore::Note note) {
  const std::lock_guard lock(mutex_);
  new_note_ = std::move(note);
  wake_.notify_one();
}

void WriteBehind::drop(const Horizon& horizon) {
  const std::lock_guard lock(mutex_);
  new_horizon_ = horizon;  // horizons only rise: the newest says all
  wake_.notify_one();
}

Status WriteBehind::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

std::uint64_t WriteBehind::written_bytes() const {
  const std::lock_guard lock(mutex_);
  return written_bytes_;
}

void WriteBehind::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, tick(options_.lag_ms), [this] {
      return stopping_ || process_exits_ || !tickets_.empty() || asked_ != started_ || !new_checkpoints_.empty() ||
             new_horizon_.has_value() || new_note_.has_value();
    });
    if (stopping_) break;
    stopping_ = process_exits_;
    const auto tickets = std::exchange(tickets_, {});
    const bool asked = started_ != asked_;
    const std::uint64_t newest = started_ = asked_;
    std::ranges::move(std::exchange(new_checkpoints_, {}), std::back_inserter(checkpoints_));
    if (new_horizon_) to_drop_ = std::exchange(new_horizon_, std::nullopt);
    if (new_note_) to_note_ = std::exchange(new_note_, std::nullopt);
    Status status = health_;
    lock.unlock();

    const auto now = Clock::now();
    end_dropped_checkpoints();
    look(now);
    if (now >= next_attempt_) {
      status = write(now, !tickets.empty() || asked);
      note(status, now);
    }
    for (std::string& text : store_->take_warnings()) {
      events_({Severity::kWarning, "results_damaged", std::move(text), {}});
    }
    if (asked) {
      synced_.store(newest, std::memory_order_release);
      if (options_.synced) options_.synced();
    }

    lock.lock();
    for (const auto& ticket : tickets) {
      ticket->status = status;
      ticket->done = true;
    }
    if (!tickets.empty()) ticket_done_.notify_all();
  }
  for (const auto& ticket : tickets_) {
    ticket->status = {Code::kClosed, "the job's results are not written any more"};
    ticket->done = true;
  }
  std::ranges::move(std::exchange(new_checkpoints_, {}), std::back_inserter(checkpoints_));
  synced_.store(kEnded, std::memory_order_release);  // nobody waits for what is not written any more
  ticket_done_.notify_all();
  lock.unlock();
  if (options_.synced) options_.synced();
  end_checkpoints(checkpoints_, {Code::kClosed, "the job's checkpoints are not written any more"});
}

// Ends checkpoints that the horizon makes obsolete before they are durable.
void WriteBehind::end_dropped_checkpoints() {
  if (!to_drop_) return;
  std::vector<Checkpoint> ended;
  const auto gone = std::stable_partition(checkpoints_.begin(), checkpoints_.end(), [this](const Checkpoint& c) {
    return !to_drop_->obsolete({RecordKind::kGlobal, {c.timeline, kWorldGroup, c.version, Sequence(0)}});
  });
  std::move(gone, checkpoints_.end(), std::back_inserter(ended));
  checkpoints_.erase(gone, checkpoints_.end());
  end_checkpoints(ended, {Code::kClosed, "a newer checkpoint was committed, or the job was rolled back"});
}

// Writes all that is to be on disk now: the note, the horizon, checkpoints, then results. `all`: results that are not
// due yet, too. Returns the first error, with which the rest stays unwritten.
Status WriteBehind::write(Clock::time_point now, bool all) {
  Status status;
  if (to_note_) {
    status = store_->note(*to_note_);
    if (status.ok()) to_note_.reset();
  }
  // Behind the note, also on a full disk: until that is durable the one before it counts, and what it names stays.
  if (status.ok() && to_drop_) {
    status = store_->drop(*to_drop_);
    if (status.ok()) {
      to_drop_.reset();
      gathered_bytes_ = 0;
      gathers_since_ = now;
    }
  }
  if (status.ok() && !checkpoints_.empty()) status = write_checkpoints();
  if (status.ok() && !all) status = write_due(now);
  if (all) {
    for (std::uint32_t e = 0; e < cursors_.size() && status.ok(); ++e) status = write_extent(e, false);
  }
  return status.ok() ? flush_batch() : status;
}

Status WriteBehind::write_checkpoints() {
  Status status;
  for (std::uint32_t e = 0; e < cursors_.size() && status.ok(); ++e) {
    const bool wanted = std::ranges::any_of(checkpoints_, [&](const Checkpoint& c) {
      return cursors_[e].cls == SegmentClass{false, c.timeline, c.version};
    });
    // A checkpoint may be made of set-up rounds: they must not be lost where it is kept.
    if (wanted || cursors_[e].cls.setup) status = write_extent(e, wanted);
  }
  if (status.ok()) status = flush_batch();
  if (!status.ok()) return status;
  for (const Checkpoint& c : checkpoints_) write_worn(c);
  for (Checkpoint& c : std::exchange(checkpoints_, {})) {
    c.done(damaged(c) ? Status(Code::kCorrupt, "the memory log is damaged where checkpoint " +
                                                   std::to_string(c.version.value - 1) +
                                                   " lies, or set-up rounds: it cannot be made durable")
                      : Status());
  }
  return {};
}

void WriteBehind::end_checkpoints(std::vector<Checkpoint>& ended, const Status& status) {
  for (const Checkpoint& c : ended) c.done(status);
  ended.clear();
}

// What may stand behind the damage is neither on disk nor found in memory by anybody.
bool WriteBehind::damaged(const Checkpoint& checkpoint) const {
  return std::ranges::any_of(cursors_, [&](const Cursor& c) {
    return c.damaged && (c.cls.setup || c.cls == SegmentClass{false, checkpoint.timeline, checkpoint.version});
  });
}

// Learns which extents are in use, and since when they hold something that is not written.
void WriteBehind::look(Clock::time_point now) {
  for (std::uint32_t e = 0; e < cursors_.size(); ++e) {
    Cursor& c = cursors_[e];
    const SegmentView::Extent extent = view_.extent(e);
    if (extent.stamp != c.stamp) {
      c = {};
      c.stamp = extent.stamp;
      c.cls = extent.cls;
    }
    if (!extent.in_use()) continue;
    c.sealed = extent.sealed;
    if (c.pending_since || c.damaged) continue;
    SegmentView::Record record;
    if (view_.record(e, c.stamp, c.rest_at, record) == SegmentView::Found::kRecord) c.pending_since = now;
  }
}

// What has come to be full and durable since the last look, the oldest class first.
void WriteBehind::offer_durable() {
  std::vector<std::uint32_t> fresh;
  for (std::uint32_t e = 0; e < cursors_.size(); ++e) {
    const Cursor& c = cursors_[e];
    if (c.stamp % 2 != 0 || !c.sealed || c.damaged || c.stays || c.offered || c.cls.setup) continue;
    SegmentView::Record record;
    const auto after = view_.record(e, c.stamp, c.rest_at, record);
    if (after != SegmentView::Found::kNoRoom && after != SegmentView::Found::kNothingYet) continue;
    fresh.push_back(e);
  }
  std::ranges::stable_sort(fresh, {}, [this](std::uint32_t e) { return cursors_[e].cls; });
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t e : fresh) {
    cursors_[e].offered = true;
    spillable_.push_back({e, cursors_[e].stamp});
  }
  if (!fresh.empty()) ticket_done_.notify_all();
}

Status WriteBehind::write_due(Clock::time_point now) {
  std::vector<std::uint32_t> sealed;
  for (std::uint32_t e = 0; e < cursors_.size(); ++e) {
    const Cursor& c = cursors_[e];
    if (!c.pending_since) continue;
    if (now - *c.pending_since >= std::chrono::milliseconds(options_.lag_ms)) {
      if (Status s = write_extent(e, false); !s.ok()) return s;
    } else if (c.sealed) {
      sealed.push_back(e);
    }
  }
  std::ranges::stable_sort(sealed, {}, [this](std::uint32_t e) { return *cursors_[e].pending_since; });
  const std::uint64_t extent_bytes = view_.layout().extent_bytes;
  std::uint64_t unwritten = sealed.size() * extent_bytes;
  for (const std::uint32_t e : sealed) {
    if (unwritten <= options_.lag_bytes) break;
    if (Status s = write_extent(e, false); !s.ok()) return s;
    unwritten -= extent_bytes;
  }
  return {};
}

// Puts what is published and not written into the batch; writes that whenever it is full.
Status WriteBehind::write_extent(std::uint32_t extent, bool states_only) {
  const Cursor& c = cursors_[extent];
  if (c.stamp % 2 != 0 || c.damaged) return {};
  const std::uint64_t stamp = c.stamp;
  const std::uint64_t states_at = c.states_at, rest_at = c.rest_at;
  std::uint64_t at = states_only ? states_at : rest_at;
  const auto reached = [&] {
    return states_only ? Advance{extent, stamp, at, rest_at} : Advance{extent, stamp, std::max(states_at, at), at};
  };
  SegmentView::Record record;
  while (true) {
    const SegmentView::Found found = view_.record(extent, stamp, at, record);
    if (found == SegmentView::Found::kDamaged) {
      cursors_[extent].damaged = true;
      events_({Severity::kError,
               "results_damaged",
               "the memory log is damaged: what lies behind in its extent is neither written nor served",
               {}});
    }
    if (found != SegmentView::Found::kRecord) break;
    if (is_state(record.key)) cursors_[extent].stays = true;
    const bool wanted = is_state(record.key) ? at >= states_at : !states_only;
    if (wanted) {
      if (!batch_.fits(record.payload_bytes)) {
        advances_.push_back(reached());
        if (Status s = flush_batch(); !s.ok()) return s;
      }
      const auto out = batch_.add(record.key, record.info, record.first_byte, record.payload_bytes);
      if (!view_.copy(extent, stamp, record.payload_at, out)) {
        batch_.take_back();  // dropped meanwhile
        break;
      }
    }
    at = record.next;
  }
  advances_.push_back(reached());
  return {};
}

Status WriteBehind::flush_batch() {
  Status status = store_->put(batch_);
  if (status.ok()) {
    for (const Advance& a : advances_) {
      Cursor& c = cursors_[a.extent];
      if (c.stamp != a.stamp) continue;
      c.states_at = a.states_at;
      if (c.rest_at != a.rest_at) c.pending_since.reset();
      c.rest_at = a.rest_at;
    }
    gathered_bytes_ += batch_.payload_bytes();
    const std::lock_guard lock(mutex_);
    written_bytes_ += batch_.payload_bytes();
  }
  if (status.ok()) say_half_full();
  advances_.clear();
  batch_.clear();
  if (status.ok()) offer_durable();
  return status;
}

void WriteBehind::say_half_full() {
  if (options_.budget_bytes == 0 || gathered_bytes_ < options_.budget_bytes / 2) return;
  if (std::exchange(said_half_full_, true)) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - gathers_since_).count();
  events_({Severity::kWarning,
           "disk_log_half_full",
           "the log on disk is half full after " + std::to_string(seconds) +
               " s without a checkpoint: in about as many more, its " + std::to_string(options_.budget_bytes) +
               " bytes (--log_disk_bytes) are full, and then the log in memory fills up; take checkpoints, or give it "
               "more room",
           {}});
}

// What the store had better not find in what it keeps of older ones. The checkpoint is durable as it is: where the disk
// does not take this, it keeps more, and the next write says why.
void WriteBehind::write_worn(const Checkpoint& checkpoint) {
  const std::vector<StatePiece> listed = store_->worn(checkpoint.timeline, checkpoint.version);
  if (listed.empty()) return;
  const std::set<StatePiece> worn(listed.begin(), listed.end());
  for (std::uint32_t e = 0; e < cursors_.size(); ++e) {
    const Cursor& c = cursors_[e];
    if (c.stamp % 2 != 0 || c.damaged || c.cls != SegmentClass{false, checkpoint.timeline, checkpoint.version}) {
      continue;
    }
    SegmentView::Record record;
    for (std::uint64_t at = 0; at < c.states_at; at = record.next) {
      if (view_.record(e, c.stamp, at, record) != SegmentView::Found::kRecord) break;
      const StatePiece piece{record.key.kind, record.key.round.sequence, record.first_byte, record.payload_bytes};
      if (!is_state(record.key) || !worn.contains(piece)) continue;
      if (!batch_.fits(record.payload_bytes) && !flush_batch().ok()) return;
      const auto out = batch_.add(record.key, record.info, record.first_byte, record.payload_bytes);
      if (!view_.copy(e, c.stamp, record.payload_at, out)) batch_.take_back();  // dropped meanwhile
    }
  }
  (void)flush_batch();
}

void WriteBehind::note(const Status& status, Clock::time_point now) {
  next_attempt_ = status.ok() ? Clock::time_point() : now + std::chrono::milliseconds(options_.retry_ms);
  Status before;
  {
    // First: whoever hears of the event finds health() of one mind with it.
    const std::lock_guard lock(mutex_);
    before = std::exchange(health_, status);
  }
  if (before.code() == status.code()) return;
  if (status.code() == Code::kClosed) return;  // the job is finished: nothing has to be written any more
  if (status.ok()) {
    events_({Severity::kInfo, "results_written", "the disk takes results again", {}});
  } else {
    events_({Severity::kError,
             "results_not_written",
             "what is not on disk yet stays in memory, until the disk takes it: " + status.describe(),
             {{"why", status.describe()}}});
  }
}

}  // namespace warren::storage

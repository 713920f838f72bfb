#include "worker/session/life_storage.h"

#include <algorithm>
#include <utility>

#include "worker/disk/past.h"

namespace warren::worker {
namespace {

// An eighth of the smallest logs, 64 MiB of the large ones.
constexpr std::size_t kSpilledExtents = 4;

}  // namespace

Status LifeStorage::open_disk(Incarnation self, std::shared_ptr<SegmentMemory> segment, std::function<void()> synced) {
  if (settings_.log == LogMode::kMemory || settings_.data_dir.empty()) return {};
  auto disk = DiskLog::open(
      settings_, self, std::move(segment), [this](const LogEvent& event) { tell(event); }, std::move(synced));
  if (!disk.ok()) return disk.status();
  disk_ = std::move(disk).value();
  return {};
}

void LifeStorage::tell(const LogEvent& event) {
  trouble_.take(event);
  log_(event.severity == Severity::kInfo ? WARREN_LOG_INFO : WARREN_LOG_WARNING, event.text);
}

std::unique_ptr<HostLogReader> LifeStorage::behind(std::unique_ptr<HostLogReader> memory) {
  return disk_ ? disk_->behind(std::move(memory)) : std::move(memory);
}

SyncGate* LifeStorage::open_gate(std::function<TimeMs()> now) {
  if (settings_.log != LogMode::kSync || !disk_) return nullptr;
  return &gate_.emplace(disk_->writer(), settings_.round_timeout_ms, std::move(now),
                        [this](const LogEvent& event) { tell(event); });
}

Status LifeStorage::open_mirror(std::unique_ptr<HostLogReader> reader, bool may_be_away) {
  if (settings_.checkpoint_mirror.empty()) return {};
  auto mirror = Mirror::open(settings_, std::move(reader),
                             [this](const LogEvent& event) { log_(WARREN_LOG_WARNING, event.text); });
  if (mirror.ok()) {
    mirror_ = std::move(mirror).value();
  } else if (!may_be_away) {
    return mirror.status();
  } else {
    // The mirror was there when the job began: the loss of a worker must not become the loss of the job.
    log_(WARREN_LOG_WARNING,
         "this life mirrors no checkpoint; give its directory back, and the worker's next life tries again: " +
             mirror.status().describe());
  }
  return {};
}

Result<std::optional<wire::Held>> LifeStorage::held() {
  std::optional<Past> past;
  if (disk_) past = past_on(disk_->writer().store());
  if (!mirror_ || (past && past->serves)) return with_mirror(std::move(past), std::nullopt);
  auto mirrored = mirror_->held();
  if (!mirrored.ok()) return mirrored.status().because_of_this("cannot use the mirror of checkpoints");
  return with_mirror(std::move(past), std::move(mirrored).value());
}

Result<std::optional<wire::Held>> LifeStorage::held_beside_stale(Generation called) {
  if (disk_) {
    // Before anybody counts on this host: after a kill its next life does not know that it was left.
    const Status status = leave_out_stale(disk_->writer().store(), settings_.host_id, called);
    if (!status.ok()) {
      return status.because_of_this("cannot leave out what lives have left in " + settings_.data_dir +
                                    " before the job went on without this host");
    }
  }
  return held();
}

void LifeStorage::install(const wire::Plan& before, const wire::Plan& plan, Rank self, const wire::Known& known) {
  if (!disk_) return;
  storage::ResultStore& store = disk_->writer().store();
  store.belong(plan.run());
  for (const std::string& where : store.set_others_aside()) {
    log_(WARREN_LOG_WARNING, "another run of job " + settings_.job + " has left results in " + settings_.data_dir +
                                 "; they are not used, and lie in " + where + " until you remove them");
  }
  disk_->writer().note(note_of(known));
  if (leaves_host(before, plan, self)) refresh(plan);
}

void LifeStorage::refresh(const wire::Plan& plan) {
  if (disk_) disk_->writer().store().refresh(lives_of(plan));
}

Status LifeStorage::takes_checkpoints() {
  return disk_ ? disk_->writer().takes_checkpoints() : Status();
}

Status LifeStorage::health() {
  return disk_ ? disk_->writer().health() : Status();
}

Result<std::vector<ExtentUse>> LifeStorage::spill(TimeMs now) {
  if (!disk_) return Status(Code::kClosed, "this life has ended");
  // Under the session's lock, which an interrupt waits for.
  std::int64_t timeout_ms = settings_.round_timeout_ms / 4;
  if (spill_until_) timeout_ms = std::clamp<std::int64_t>(*spill_until_ - now, 0, timeout_ms);
  return disk_->writer().spill(kSpilledExtents, timeout_ms);
}

void LifeStorage::make_durable(const WorkerMachine::Vote& vote, std::function<void(const Status&)> done) {
  if (disk_) disk_->writer().make_durable(vote.timeline, vote.version, std::move(done));
}

void LifeStorage::note_commit(const life_effect::NoteCommit& commit) {
  if (!disk_) return;
  disk_->writer().note(note_of(commit.known));
  disk_->writer().drop(commit.horizon);
}

void LifeStorage::copy_to_mirror(const life_effect::CopyToMirror& what, Rank self) {
  if (!mirror_) return;
  mirror_->copy(Generation(what.known.plan_generation()), what.timeline, what.version, self, note_of(what.known));
}

void LifeStorage::finish_disk() {
  if (!disk_) return;
  const Status status = disk_->writer().finish();
  if (!status.ok()) log_(WARREN_LOG_WARNING, "the log of the finished job stays on disk: " + status.describe());
}

void LifeStorage::finish_mirror(std::uint64_t run) {
  if (!mirror_) return;
  const Status status = mirror_->finish(run);
  if (!status.ok()) {
    log_(WARREN_LOG_WARNING, "the mirror does not know that the job is finished: " + status.describe());
  }
}

}  // namespace warren::worker

#include "worker/disk/mirror.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <utility>

#include "recovery/codec.h"
#include "recovery/shards.h"
#include "storage/files.h"
#include "storage/life_note.h"
#include "worker/checkpoints.h"

namespace warren::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kRunPrefix[] = "run-", kFinishedName[] = "/FINISHED";
// Where what others have written is seen late (NFS), rank 0 looks so often whether all is there.
constexpr int kLooks = 20;
constexpr std::chrono::milliseconds kBetweenLooks(500);

std::string name_of(Version version) {
  return "checkpoint " + std::to_string(version.value - 1);
}

std::string run_name(std::uint64_t run) {
  char text[sizeof kRunPrefix + 16];
  std::snprintf(text, sizeof text, "%s%016llx", kRunPrefix, static_cast<unsigned long long>(run));
  return text;
}

}  // namespace

Result<std::unique_ptr<Mirror>> Mirror::open(const Settings& settings, std::unique_ptr<HostLogReader> reader,
                                             Events events) {
  const std::string directory = settings.checkpoint_mirror + "/" + storage::file_name(settings.job);
  if (Status s = storage::make_directory(directory); !s.ok()) return s.because_of_this("cannot mirror checkpoints");
  std::unique_ptr<Mirror> mirror(new Mirror(directory, settings.world_size, std::move(reader), std::move(events)));
  mirror->thread_ = std::thread([m = mirror.get()] { m->run(); });
  return mirror;
}

Mirror::~Mirror() {
  stop();
}

void Mirror::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status Mirror::finish(std::uint64_t run) {
  stop();
  const std::string directory = directory_ + "/" + run_name(run);
  std::error_code error;
  if (!fs::exists(directory, error)) return {};  // nothing was committed
  // All ranks say so at once.
  std::random_device random;
  return storage::write_file(directory + kFinishedName, "", "." + std::to_string(random()));
}

std::optional<Mirror::Checkpoint> Mirror::newest(const storage::CheckpointMirror& files, Timeline timeline) const {
  for (const Checkpoint& c : files.list()) {
    if (c.world_size == world_size_ && c.timeline <= timeline) return c;
  }
  return std::nullopt;
}

std::optional<wire::Held> Mirror::held() const {
  std::optional<wire::Held> held;
  fs::file_time_type written;
  std::error_code error, ignored;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end; it.increment(error)) {
    const fs::path& run = it->path();
    const std::string name = run.filename();
    if (!name.starts_with(kRunPrefix) || fs::exists(run.string() + kFinishedName, ignored)) continue;
    const storage::NoteFile note = storage::read_note(run);
    const auto at = fs::last_write_time(run / storage::kNoteName, ignored);
    if (note.run == 0 || name != run_name(note.run) || (held && at <= written)) continue;
    wire::Known known;
    if (!known.ParseFromString(note.text) || !warren::validate(known).ok()) continue;
    // A plan that is too long to be told stays out of the note; with its journal the tracker does not need it.
    if (known.has_plan() && known.plan().run() != note.run) continue;
    const auto files = storage::CheckpointMirror::open(directory_, name);
    const Timeline timeline(known.has_plan() ? known.plan().timeline() : known.committed_timeline());
    const auto from = files.ok() ? newest(files.value(), timeline) : std::nullopt;
    if (!from) continue;
    known.set_committed(true);
    known.set_committed_version(from->version.value);
    known.set_committed_timeline(from->timeline.value);
    held.emplace();
    held->set_run(note.run);
    held->set_mirrored(true);
    *held->mutable_known() = std::move(known);
    written = at;
  }
  return held;
}

void Mirror::copy(Timeline timeline, Version version, Rank rank, storage::ResultStore::Note note) {
  const std::lock_guard lock(mutex_);
  next_ = Commit{timeline, version, rank, std::move(note)};
  wake_.notify_one();
}

void Mirror::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || next_.has_value(); });
    if (stopping_) return;
    const Commit commit = *std::exchange(next_, std::nullopt);
    const Status status = write(commit, lock);
    if (status.ok() || next_) continue;  // what a newer commit has dropped from the log is not missed
    lock.unlock();
    events_({Severity::kWarning,
             "checkpoint_not_mirrored",
             name_of(commit.version) + " is committed and not mirrored: " + status.describe(),
             {}});
    lock.lock();
  }
}

Status Mirror::write_share(storage::CheckpointMirror& files, const Commit& commit, Checkpoint& checkpoint) {
  const auto key_of = [&](RecordKind kind, Sequence sequence) {
    return RecordKey{kind, {commit.timeline, kWorldGroup, commit.version, sequence}};
  };
  const auto missing = [](const char* what) {
    return Status(Code::kUnavailable, std::string("the log does not hold its ") + what + " any more");
  };
  const auto rank = static_cast<std::uint32_t>(commit.rank.value);
  const RecordKey global = key_of(RecordKind::kGlobal, Sequence(0));
  const auto info = reader_->info(global);
  if (!info.ok()) return info.status();
  if (!info.value()) return missing("global state");
  checkpoint.global_bytes = info.value()->total_bytes;
  if (Checkpoints::has_local(*info.value())) checkpoint.locals = world_size_;
  const Interval mine = shard_of(rank, checkpoint.global_bytes, world_size_);
  if (mine.begin < mine.end) {
    if (Status s = files.write_global(checkpoint, *reader_, global, mine.begin, mine.end); !s.ok()) return s;
  }
  if (checkpoint.locals == 0) return {};
  const RecordKey local = key_of(RecordKind::kLocal, Sequence(rank));
  const auto local_info = reader_->info(local);
  if (!local_info.ok()) return local_info.status();
  if (!local_info.value()) return missing("local state");
  return files.write_local(checkpoint, commit.rank, *reader_, local, local_info.value()->total_bytes);
}

Status Mirror::write(const Commit& commit, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  Checkpoint checkpoint{commit.timeline, commit.version, world_size_, 0, 0};
  auto files = storage::CheckpointMirror::open(directory_, run_name(commit.note.run));
  Status status = files.status();
  // First, so that no checkpoint is complete of which the note does not know the timeline.
  if (status.ok() && commit.rank.value == 0) {
    status = storage::write_note(directory_ + "/" + run_name(commit.note.run), commit.note.run, commit.note.text);
  }
  if (status.ok()) status = write_share(files.value(), commit, checkpoint);
  lock.lock();
  for (int look = 0; status.ok() && !stopping_ && !next_ && look < kLooks; ++look) {
    lock.unlock();
    const auto complete = files.value().complete(checkpoint);
    lock.lock();
    if (!complete.ok()) status = complete.status();
    if (!complete.ok() || complete.value() || commit.rank.value != 0) break;
    wake_.wait_for(lock, kBetweenLooks, [this] { return stopping_ || next_.has_value(); });
  }
  return status;
}

Result<Mirror::State> Mirror::read(std::uint64_t run, Timeline timeline, Version version, Rank rank) const {
  const auto files = storage::CheckpointMirror::open(directory_, run_name(run));
  if (!files.ok()) return files.status();
  const auto all = files.value().list();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Checkpoint& c) {
    return c.timeline == timeline && c.version == version && c.world_size == world_size_;
  });
  if (found == all.end()) return Status(Code::kUnavailable, "the mirror does not hold " + name_of(version) + " either");
  State state;
  state.global.resize(found->global_bytes);
  const Status global = files.value().read_global(*found, [&](std::uint64_t at, std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), state.global.begin() + static_cast<std::ptrdiff_t>(at));
  });
  if (!global.ok()) return global;
  if (found->locals == 0) return state;
  state.has_local = true;
  const Status local = files.value().read_local(*found, rank, [&](std::uint64_t, std::span<const std::byte> bytes) {
    state.local.insert(state.local.end(), bytes.begin(), bytes.end());
  });
  if (!local.ok()) return local;
  return state;
}

}  // namespace warren::worker

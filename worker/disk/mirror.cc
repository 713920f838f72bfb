#include "worker/disk/mirror.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <new>
#include <random>
#include <utility>

#include "recovery/decide/shards.h"
#include "recovery/wire/codec.h"
#include "storage/files.h"
#include "storage/life_note.h"
#include "storage/start_thread.h"
#include "worker/life/checkpoints.h"

namespace warren::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kRunPrefix[] = "run-", kFinishedName[] = "FINISHED", kNotePrefix[] = "NOTE-";
constexpr std::size_t kNoteNameBytes = sizeof kNotePrefix - 1 + 16 + 1 + 16, kNotesKept = 2;
// Where what others have written is seen late (NFS), rank 0 looks so often whether all is there.
constexpr std::int64_t kMostStride = std::int64_t{1} << 20;
constexpr std::uint64_t kMostLeftOut = 8;
constexpr int kLooks = 20;
constexpr std::chrono::milliseconds kBetweenLooks(500);

std::string name_of(Version version) {
  return "checkpoint " + std::to_string(version.value - 1);
}

std::string name_of_run(std::uint64_t run) {
  char text[sizeof kRunPrefix + 16];
  std::snprintf(text, sizeof text, "%s%016llx", kRunPrefix, static_cast<unsigned long long>(run));
  return text;
}

std::string name_of_note(Generation generation, Version version) {
  char text[kNoteNameBytes + 1];
  std::snprintf(text, sizeof text, "%s%016llx-%016llx", kNotePrefix, static_cast<unsigned long long>(generation.value),
                static_cast<unsigned long long>(version.value));
  return text;
}

// Among the sorted names of what is in a run's folder: the newest first.
std::vector<std::string> notes_in(const std::vector<std::string>& names) {
  std::vector<std::string> notes;
  for (const std::string& name : names) {
    if (name.starts_with(kNotePrefix) && name.size() == kNoteNameBytes) notes.push_back(name);
  }
  std::ranges::reverse(notes);
  return notes;
}

// None that is newer goes: a rank 0 that was fenced, and does not know it yet, only fails to add to them.
Status add_note(const std::string& directory, Generation generation, Version version,
                const storage::ResultStore::Note& note) {
  if (Status s = storage::write_note(directory + "/" + name_of_note(generation, version), note); !s.ok()) return s;
  const auto names = storage::names_in(directory);
  if (!names.ok()) return names.status();
  const std::vector<std::string> notes = notes_in(names.value());
  if (notes.size() <= kNotesKept) return {};
  for (const std::string& name : names.value()) {
    if (!name.starts_with(kNotePrefix) || name >= notes[kNotesKept - 1]) continue;
    std::error_code error;
    fs::remove(fs::path(directory) / name, error);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Mirror>> Mirror::open(const Settings& settings, std::unique_ptr<HostLogReader> reader,
                                             Events events) {
  const std::string directory = settings.checkpoint_mirror + "/" + storage::file_name(settings.job);
  if (Status s = storage::make_directory(directory); !s.ok()) return s.because_of_this("cannot mirror checkpoints");
  std::unique_ptr<Mirror> mirror(new Mirror(directory, settings.world_size, std::move(reader), std::move(events)));
  const Status started = start_thread(mirror->thread_, [m = mirror.get()] { m->run(); });
  if (!started.ok()) return started.because_of_this("cannot mirror checkpoints");
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
  const std::string directory = directory_ + "/" + name_of_run(run);
  std::error_code error;
  if (!fs::exists(directory, error)) return {};  // nothing was committed
  // All ranks say so at once.
  std::random_device random;
  return storage::write_file(directory + "/" + kFinishedName, "", "." + std::to_string(random()));
}

void Mirror::tell(const Status& trouble) const {
  events_({Severity::kWarning,
           "mirror_unreadable",
           "the mirror of checkpoints is damaged, or cannot be read: " + trouble.describe(),
           {}});
}

// A checkpoint of a later timeline than the note knows would be of a plan that nobody was told.
std::optional<Mirror::Checkpoint> Mirror::newest_whole(const storage::CheckpointMirror& files,
                                                       const std::vector<Checkpoint>& complete,
                                                       Timeline timeline) const {
  for (const Checkpoint& c : complete) {
    if (c.timeline > timeline) continue;
    const Status whole = files.check(c, kMostCheckedBytes);
    if (whole.ok()) return c;
    tell(whole);
  }
  return std::nullopt;
}

Result<std::optional<wire::Held>> Mirror::held_of(const std::string& run_name) const {
  const std::string directory = directory_ + "/" + run_name;
  const auto names = storage::names_in(directory);
  if (!names.ok()) return names.status();
  const auto files = storage::CheckpointMirror::open(directory_, run_name);
  if (!files.ok()) return files.status();
  const auto listing = files.value().list();
  for (const Status& trouble : listing.left_out) {
    if (trouble.code() == Code::kRefused) return trouble;
    tell(trouble);
  }
  for (const std::string& name : notes_in(names.value())) {
    const auto note = storage::read_note(fs::path(directory) / name);
    if (note.status().code() == Code::kRefused) return note.status();
    wire::Known known;
    const bool valid = note.ok() && note.value() && run_name == name_of_run(note.value()->run) &&
                       known.ParseFromString(note.value()->text) && warren::validate(known).ok() &&
                       // A plan that is too long to be told stays out of the note; with its journal the tracker does
                       // not need it.
                       (!known.has_plan() || known.plan().run() == note.value()->run);
    if (!valid) {
      tell(note.ok() ? Status(Code::kCorrupt, (fs::path(directory) / name).string() + " is no note of this run")
                     : note.status());
      continue;
    }
    const Timeline timeline(known.has_plan() ? known.plan().timeline() : known.committed_timeline());
    const auto from = newest_whole(files.value(), listing.complete, timeline);
    if (!from) break;
    known.set_committed(true);
    known.set_committed_version(from->version.value);
    known.set_committed_timeline(from->timeline.value);
    wire::Held held;
    held.set_run(note.value()->run);
    held.set_mirrored(true);
    *held.mutable_known() = std::move(known);
    return std::optional(std::move(held));
  }
  return std::optional<wire::Held>();
}

Result<std::optional<wire::Held>> Mirror::held() const {
  const auto names = storage::names_in(directory_);
  if (!names.ok()) {
    tell(names.status());
    return std::optional<wire::Held>();
  }
  std::vector<std::pair<fs::file_time_type, std::string>> runs;  // that have not finished, by when they were written
  for (const std::string& name : names.value()) {
    if (!name.starts_with(kRunPrefix)) continue;
    const auto files = storage::names_in(fs::path(directory_) / name);
    if (!files.ok()) tell(files.status());
    if (!files.ok() || std::ranges::binary_search(files.value(), std::string(kFinishedName))) continue;
    const auto notes = notes_in(files.value());
    std::error_code error;
    const auto at = notes.empty() ? fs::file_time_type::min()
                                  : fs::last_write_time(fs::path(directory_) / name / notes.front(), error);
    runs.emplace_back(at, name);
  }
  std::ranges::sort(runs, std::greater());
  for (const auto& [at, name] : runs) {
    auto held = held_of(name);
    if (held.ok() ? held.value().has_value() : held.status().code() == Code::kRefused) return held;
    if (!held.ok()) tell(held.status());
  }
  return std::optional<wire::Held>();
}

void Mirror::copy(Generation generation, Timeline timeline, Version version, Rank rank,
                  storage::ResultStore::Note note) {
  const std::lock_guard lock(mutex_);
  next_ = Commit{generation, timeline, version, rank, std::move(note)};
  const auto now = Clock::now();
  interval_ = last_commit_ == Clock::time_point() ? Clock::duration::max() : now - last_commit_;
  last_commit_ = now;
  wake_.notify_one();
}

bool Mirror::everybodys(const Commit& commit) const {
  std::int64_t stride = 1;
  while (stride < kMostStride && stride * interval_ < 2 * writing_) stride *= 2;
  return commit.version.value % static_cast<std::uint64_t>(stride) == 0;
}

void Mirror::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || next_.has_value(); });
    if (stopping_) return;
    if (!everybodys(*next_)) {
      const auto commits = last_commit_;
      if (wake_.wait_for(lock, 2 * writing_, [&] { return stopping_ || last_commit_ != commits; })) continue;
    }
    const Commit commit = *std::exchange(next_, std::nullopt);
    const Status status = write(commit, lock);
    // What a newer commit has dropped from the log is not missed, unless that happens again and again.
    left_out_ = status.ok() ? 0 : left_out_ + 1;
    if (status.ok() || (next_ && left_out_ % kMostLeftOut != 0)) continue;
    lock.unlock();
    events_({Severity::kWarning,
             "checkpoint_not_mirrored",
             name_of(commit.version) + " is committed and not mirrored: " + status.describe(),
             {}});
    lock.lock();
  }
}

RecordKey Mirror::global_key(const Commit& commit) {
  return {RecordKind::kGlobal, {commit.timeline, kWorldGroup, commit.version, Sequence(0)}};
}

Status Mirror::write_share(storage::CheckpointMirror& files, const Commit& commit, Checkpoint& checkpoint) {
  const auto key_of = [&](RecordKind kind, Sequence sequence) {
    return RecordKey{kind, {commit.timeline, kWorldGroup, commit.version, sequence}};
  };
  const auto missing = [](const char* what) {
    return Status(Code::kUnavailable, std::string("the log does not hold its ") + what + " any more");
  };
  const auto rank = static_cast<std::uint32_t>(commit.rank.value);
  const RecordKey global = global_key(commit);
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
  const auto begun = Clock::now();
  // One of a world of another size is there already, in other shares than this world's ranks have.
  if (const auto info = reader_->info(global_key(commit));
      info.ok() && info.value() && Checkpoints::world_size(*info.value()) != world_size_) {
    lock.lock();
    return {};
  }
  Checkpoint checkpoint{commit.timeline, commit.version, world_size_, 0, 0};
  const std::string run = name_of_run(commit.note.run);
  auto files = storage::CheckpointMirror::open(directory_, run);
  Status status = files.status();
  // First, so that no checkpoint is complete of which the note does not know the timeline.
  if (status.ok() && commit.rank.value == 0) {
    status = add_note(directory_ + "/" + run, commit.generation, commit.version, commit.note);
  }
  if (status.ok()) status = write_share(files.value(), commit, checkpoint);
  lock.lock();
  writing_ = Clock::now() - begun;
  // At least once: whoever writes last finds all shares there.
  const auto due = [this] { return stopping_ || (next_ && everybodys(*next_)); };
  for (int look = 0; status.ok() && (look == 0 || !due()) && look < kLooks; ++look) {
    lock.unlock();
    const auto complete = files.value().complete(checkpoint);
    lock.lock();
    if (!complete.ok()) status = complete.status();
    if (!complete.ok() || complete.value() || commit.rank.value != 0) break;
    wake_.wait_for(lock, kBetweenLooks, due);
  }
  return status;
}

Result<std::optional<Mirror::State>> Mirror::read(std::uint64_t run, Timeline timeline, Version version,
                                                  Rank rank) const {
  const std::string name = name_of_run(run);
  const auto files = storage::CheckpointMirror::open(directory_, name);
  if (!files.ok()) return files.status();
  const auto listing = files.value().list();
  const auto found = std::ranges::find_if(
      listing.complete, [&](const Checkpoint& c) { return c.timeline == timeline && c.version == version; });
  if (found == listing.complete.end()) {
    // What cannot be looked at may be it.
    for (const Status& trouble : listing.left_out) {
      if (trouble.code() == Code::kCorrupt) continue;
      return trouble.because_of_this("cannot tell whether the mirror holds " + name_of(version));
    }
    if (listing.left_out.empty()) return std::optional<State>();
    return listing.left_out.front().because_of_this("the mirror does not hold " + name_of(version) + " either");
  }
  State state;
  state.world_size = found->world_size;
  state.has_local = found->locals != 0;
  // The files are as long as they should be: so much memory is needed.
  Status status = files.value().check(*found, 0);
  try {
    if (status.ok()) {
      state.global.resize(found->global_bytes);
      status = files.value().read_global(*found, [&](std::uint64_t at, std::span<const std::byte> bytes) {
        std::ranges::copy(bytes, state.global.begin() + static_cast<std::ptrdiff_t>(at));
      });
    }
    if (status.ok() && state.has_local && found->world_size == world_size_) {
      status = files.value().read_local(*found, rank, [&](std::uint64_t, std::span<const std::byte> bytes) {
        state.local.insert(state.local.end(), bytes.begin(), bytes.end());
      });
    }
  } catch (const std::bad_alloc&) {
    status = Status(Code::kExhausted, "no memory for its " + std::to_string(found->global_bytes) + " bytes");
  }
  if (status.ok()) return std::optional(std::move(state));
  if (status.code() != Code::kCorrupt) {
    return status.because_of_this(name_of(version) +
                                  " cannot be loaded from the mirror by this worker, and may be whole "
                                  "there: see to it that it can read " +
                                  files.value().place(*found) + ", and start it again");
  }
  return status.because_of_this(
      name_of(version) + " cannot be loaded from the mirror; mend it, or remove its folder " +
      files.value().place(*found) +
      " and what the workers' data directories hold of the job, and start the job again: it goes on from the "
      "checkpoint before");
}

}  // namespace warren::worker

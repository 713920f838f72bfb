#include "storage/earlier_lives.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "storage/files.h"
#include "storage/life_note.h"
#include "storage/rocks_process.h"
#include "storage/store_trial.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

// A process that looks whether a life is over has its lock for a moment, and seems to be that life to others that look.
constexpr int kLooks = 3;
constexpr std::chrono::milliseconds kBetweenLooks(10);

Result<std::optional<ResultStore::Note>> note_in(const std::string& place_directory) {
  return read_note(place_directory + "/" + kNoteName);
}

}  // namespace

Sources EarlierLives::sources() {
  const std::lock_guard guard(mutex_);
  if (!looked_) look();
  return {sources_.begin(), sources_.end()};
}

void EarlierLives::refresh(std::span<const Incarnation> living) {
  const std::lock_guard guard(mutex_);
  living_.emplace(living.begin(), living.end());
  sources_.clear();
  looked_ = false;
}

void EarlierLives::belong(std::uint64_t run) {
  const std::lock_guard guard(mutex_);
  if (run_ == run) return;
  run_ = run;
  sources_.clear();
  looked_ = false;
}

void EarlierLives::finish() {
  const std::lock_guard guard(mutex_);
  sources_.clear();
  looked_ = true;
}

void EarlierLives::count_bytes() {
  std::uint64_t bytes = 0;
  for (const fs::path& entry : entries_of(fs::path(own_.directory).parent_path())) {
    if (entry != fs::path(own_.directory)) bytes += size_of(entry);
  }
  bytes_ = bytes;
}

bool EarlierLives::of_other_run(const Result<std::optional<ResultStore::Note>>& note) const {
  return run_ != 0 && (!note.ok() || (note.value() && note.value()->run != run_));
}

// Opens the databases of lives that are over, and of those that are fenced and not yet aware of it: this worker's, and
// whatever is not among the living.
void EarlierLives::look() {
  looked_ = true;
  const RocksUse use;
  if (!use) return;
  std::vector<FoundLife> left = lives_in(own_.job_directory, own_.worker_file);
  for (int attempt = 0; !left.empty() && attempt < kLooks; ++attempt) {
    if (attempt != 0) std::this_thread::sleep_for(kBetweenLooks);
    std::erase_if(left, [this](const FoundLife& found) {
      // Without a LIFE it is not locked by who makes it, and must not be by others.
      if (found.life == own_.life || read_life(found.directory).format != kResultFormat) return true;
      if (of_other_run(note_in(found.directory)) || marked_stale(found.directory)) return true;
      if (living_ && std::ranges::find(*living_, found.life) != living_->end()) return true;
      if (!living_ && !found.of_this_worker && !LifeLock::take(found.directory)) return false;
      auto source = open(found, Opening::kRead);
      if (source.status().code() == Code::kCorrupt) set_damaged_aside(found, LifeLock::take(found.directory).get());
      if (source.ok() && source.value()) sources_.push_back(std::move(source).value());
      return true;
    });
  }
}

std::vector<ResultStore::Note> EarlierLives::notes() const {
  std::vector<ResultStore::Note> found_notes;
  for (const FoundLife& found : lives_in(own_.job_directory, own_.worker_file)) {
    // Without a LIFE it is not locked by who makes it, and must not be by others.
    if (found.life == own_.life || read_life(found.directory).format != kResultFormat) continue;
    if (marked_stale(found.directory)) continue;
    if (!found.of_this_worker && !LifeLock::take(found.directory)) continue;
    auto note = note_in(found.directory);
    if (!note.ok()) {
      warnings_->add("what lies in " + found.directory +
                     " is of no known run, and not used: " + note.status().describe());
    } else if (note.value()) {
      found_notes.push_back(std::move(*note.value()));
    }
  }
  return found_notes;
}

std::vector<std::string> EarlierLives::set_others_aside() {
  std::vector<std::string> aside;
  for (const FoundLife& found : lives_in(own_.job_directory, own_.worker_file)) {
    const auto note = note_in(found.directory);
    if (found.life == own_.life || !of_other_run(note)) continue;
    if (note.status().code() == Code::kUnavailable) continue;  // it may be of this run, and be read later
    const auto over = LifeLock::take(found.directory);
    if (!over) continue;
    (void)make_private(found.directory);  // its place below the job's directory was protected by that
    const std::string target = own_.job_directory + kOtherMark + life_name(found.life);
    std::error_code error;
    fs::rename(found.directory, target, error);
    aside.push_back(error ? found.directory : target);
  }
  if (!aside.empty()) count_bytes();
  return aside;
}

Status EarlierLives::leave_out(const ResultStore::Stale& stale) {
  for (const FoundLife& found : lives_in(own_.job_directory, own_.worker_file)) {
    if (found.life == own_.life || marked_stale(found.directory)) continue;
    const auto note = note_in(found.directory);
    // It may be stale, and be read and used later.
    if (note.status().code() == Code::kUnavailable) return note.status();
    // Beside a damaged note nothing is used.
    if (!note.ok() || !note.value() || !stale(found.life, *note.value())) continue;
    const Status s = mark_stale(found.directory);
    // It may go meanwhile, and another spare of this host may have come first.
    if (!s.ok() && there(found.directory) && !marked_stale(found.directory)) return s;
  }
  const std::lock_guard guard(mutex_);
  sources_.clear();
  looked_ = false;
  return {};
}

Result<std::shared_ptr<RocksSource>> EarlierLives::open(const FoundLife& found, Opening how) {
  const std::string what = "what an earlier life has left in " + found.directory + " cannot be read: ";
  const auto refused = [&](const std::string& why) {
    warnings_->add(what + why + "; it stays there until it can be, or the job is finished");
    return Status(Code::kUnavailable, what + why);
  };
  const auto names = names_in(found.directory);
  if (!names.ok()) return refused(names.status().describe());
  const auto tables = static_cast<std::size_t>(
      std::ranges::count_if(names.value(), [](const std::string& name) { return name.ends_with(".sst"); }));
  if (OpeningNote::any_died(found.directory) && kills_who_opens_it(found)) {
    return Status(Code::kCorrupt, what + "it ends the processes that open it");
  }
  OpenDatabase opened;
  rocksdb::Status s = rocksdb::Status::Corruption("it has tables and no CURRENT file");
  if (std::ranges::binary_search(names.value(), "CURRENT")) {
    const OpeningNote note(found.directory, own_.life);
    s = open_database(found.directory, how, opened);
    if (s.ok()) look_at_tables(opened);
    OpeningNote::forget_deaths(found.directory);
  } else if (tables == 0) {
    return std::shared_ptr<RocksSource>();
  }
  if (!s.ok()) {
    if (!is_damage(s)) return refused(s.ToString());
    warnings_->add(what + s.ToString());
    return std::shared_ptr<RocksSource>();
  }
  std::vector<rocksdb::LiveFileMetaData> listed;
  opened.db->GetLiveFilesMetaData(&listed);
  if (listed.size() < tables) {
    warnings_->add(std::to_string(tables - listed.size()) + " tables in " + found.directory +
                   " belong to no list: a write that was never confirmed has left them, or the list was cut");
  }
  auto source = std::make_shared<RocksSource>(found.life, found.directory, true, warnings_);
  source->set_bins(std::move(opened.bins));
  return source;
}

bool EarlierLives::kills_who_opens_it(const FoundLife& found) {
  const Trial trial = try_to_open(own_.trial_program, found.directory);
  if (trial == Trial::kUnknown) {
    warnings_->add(
        "lives have died while they opened " + found.directory +
        ", and warren_store_trial could not find out whether they have died of it: is that program installed "
        "beside libwarren_store.so? The place is opened all the same; if this process dies of it, move the "
        "place away");
  }
  return trial == Trial::kDies;
}

// The copies elsewhere serve.
void EarlierLives::set_damaged_aside(const FoundLife& found, const LifeLock* over) {
  const std::string target = own_.job_directory + kDamagedMark + life_name(found.life);
  std::error_code error;
  if (over != nullptr) fs::rename(found.directory, target, error);
  warnings_->add("what an earlier life has left in " + found.directory +
                 " is damaged: processes that opened it have died of it. It is not used" +
                 (over != nullptr && !error ? ", and lies in " + target + " until you remove it" : ""));
}

Result<std::shared_ptr<RocksSource>> EarlierLives::open_dead(const FoundLife& found, Opening how, const LifeLock& held,
                                                             bool& removed) {
  auto source = open(found, how);
  if (source.status().code() == Code::kCorrupt) {
    removed = true;
    set_damaged_aside(found, &held);
  }
  return source;
}

Status EarlierLives::drop(const Horizon& horizon, const TakeOver& take_over) {
  bool removed = false;
  Status status;
  for (const FoundLife& found : lives_in(own_.job_directory, own_.worker_file)) {
    const bool removed_before = under_removal(found.directory);
    if (found.life == own_.life || (!removed_before && read_life(found.directory).format != kResultFormat)) continue;
    if (of_other_run(note_in(found.directory))) continue;
    const auto held = LifeLock::take(found.directory);
    if (!held) continue;  // it lives
    if (removed_before || marked_stale(found.directory)) {
      remove_place(found.directory);
      removed = true;
      continue;
    }
    auto known = bins_of_dead_.find(found.directory);
    if (known == bins_of_dead_.end()) {
      const auto source = open_dead(found, Opening::kRead, *held, removed);
      if (!source.ok()) continue;
      known =
          bins_of_dead_.emplace(found.directory, source.value() ? source.value()->bins() : std::vector<Bin>()).first;
    }
    std::vector<Bin> left;
    std::ranges::copy_if(known->second, std::back_inserter(left), [&](const Bin& b) { return !obsolete(horizon, b); });
    if (!std::ranges::all_of(left, &Bin::lasting)) continue;
    if (!left.empty()) {
      const auto source = open_dead(found, Opening::kReadWhole, *held, removed);
      if (!source.ok()) continue;
      if (Status s = source.value() ? take_over(*source.value()) : Status(); !s.ok()) {
        status = s;
        continue;
      }
    }
    remove_place(found.directory);
    bins_of_dead_.erase(known);
    removed = true;
    const std::lock_guard guard(mutex_);
    std::erase_if(sources_, [&](const auto& source) { return source->directory() == found.directory; });
  }
  if (removed) count_bytes();
  return status;
}

}  // namespace warren::storage

#include "storage/rocks_result_store.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "storage/files.h"
#include "storage/life_note.h"
#include "storage/life_place.h"
#include "storage/result_format.h"
#include "storage/rocks_process.h"
#include "storage/rocks_source.h"
#include "storage/rocks_status.h"
#include "storage/store_trial.h"
#include "storage/unchanged_states.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

// What a record takes besides its payload, for the budget.
constexpr std::uint64_t kRecordOverheadBytes = kRecordKeyBytes + kRecordEntryBytes + 16;

constexpr char kIngestName[] = "ingest";
// Room for what RocksDB writes when a database is opened and families are dropped, so that a full disk can be relieved.
// Of each its own: a disk that stays full would leave nothing for the note, without which nothing may be dropped.
constexpr char kReserveName[] = "RESERVE", kReserveOfNoteName[] = "RESERVE-note";
constexpr off_t kReserveBytes = 1 << 20;

// Who looks whether a life is over has its lock for a moment, and seems to be that life to others that look.
constexpr int kLooks = 3;
constexpr std::chrono::milliseconds kBetweenLooks(10);

// Not what marks the place and its life.
bool is_of_database(const fs::path& file) {
  return !file.filename().string().starts_with("L") || file.filename() == "LOCK";
}

// What a checkpoint drops; states and what lasts are what it is made of.
bool counts_against_budget(const RecordBatch::Item& item) {
  const Bin bin = bin_of(item.key);
  return bin.kind == Bin::Kind::kRounds && !bin.lasting();
}

// Where the file system of this directory begins.
fs::path mount_point_of(const std::string& directory) {
  std::error_code unknown;
  fs::path at = fs::absolute(directory, unknown);
  struct stat here {};
  if (unknown || ::stat(at.c_str(), &here) != 0) return directory;
  while (at.has_relative_path()) {
    struct stat above {};
    if (::stat(at.parent_path().c_str(), &above) != 0 || above.st_dev != here.st_dev) break;
    at = at.parent_path();
  }
  return at;
}

// Names the disk, and what frees it.
Status with_remedy(Status status, const std::string& directory) {
  if (status.code() != Code::kExhausted) return status;
  struct statvfs disk {};
  std::string free;
  if (::statvfs(directory.c_str(), &disk) == 0) {
    free = " (" + std::to_string(disk.f_bavail * disk.f_frsize) + " of its " +
           std::to_string(disk.f_blocks * disk.f_frsize) + " bytes are free)";
  }
  return status.because_of_this("the disk mounted at " + mount_point_of(directory).string() + ", where " + directory +
                                " lies, is full, or its quota is used up" + free +
                                ": remove files there that are not Warren's; a checkpoint that is committed frees "
                                "what the log takes");
}

Status exits() {
  return {Code::kClosed, "the process exits, and its log on disk is closed"};
}

}  // namespace

class RocksResultStore::Impl {
 public:
  Place place;
  Options options;
  std::string job_file, worker_file, job_directory, directory;
  std::shared_ptr<Warnings> warnings = std::make_shared<Warnings>();
  std::shared_ptr<RocksSource> own;

  // The writing thread's.
  std::unique_ptr<LifeLock> lock;
  std::shared_ptr<rocksdb::DB> db;  // none: to be opened
  std::map<Bin, std::uint64_t> bytes_by_bin;
  UnchangedStates unchanged;
  std::uint64_t ingested = 0;
  bool direct_writes = true;
  std::map<std::string, std::vector<Bin>> bins_of_dead;  // by directory; they do not change any more

  std::atomic<std::uint64_t> own_bytes{0}, earlier_bytes{0};

  std::mutex others_mutex;
  std::vector<std::shared_ptr<RocksSource>> others;
  bool looked = false;
  std::optional<std::vector<Incarnation>> living;  // none: nobody has said so
  std::atomic<std::uint64_t> run{0};               // 0: of whatever run

  ~Impl() { close(); }

  void close() {
    own->set_bins({});
    db.reset();
    lock.reset();
  }

  Sources sources() {
    const std::lock_guard guard(others_mutex);
    if (!looked) look();
    Sources all{own};
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }

  [[nodiscard]] Status within_budget(const RecordBatch& batch) const;
  Status put(const RecordBatch& batch);
  Status drop(const Horizon& horizon);
  Status need_open();
  Status make_place();
  [[nodiscard]] Status gone(const std::string& what) const;
  // The failure, with its cause where that is known.
  [[nodiscard]] Status told(Status status) const {
    // The directory may go at any moment.
    if (!status.ok() && lock && !there(directory)) return gone("cannot write to");
    return with_remedy(std::move(status), place.data_dir);
  }
  std::vector<Note> notes() const;
  std::vector<std::string> set_others_aside();
  Status leave_out(const Stale& stale);

 private:
  struct Keyed {
    KeyBytes key;
    const RecordBatch::Item* item;
    // Of a state that is kept track of; `lies_in`: where it lies already.
    std::optional<UnchangedStates::Place> state{};
    Hash128 hash{};
    std::optional<Bin> lies_in{};

    [[nodiscard]] bool written_apart() const { return item->payload_bytes > kMostInlineBytes && !lies_in; }
    [[nodiscard]] std::uint64_t bytes() const {
      return kRecordOverheadBytes + (lies_in ? 0 : std::uint64_t{item->payload_bytes});
    }
  };
  static bool any_apart(const std::vector<Keyed>& records) {
    return std::ranges::any_of(records, &Keyed::written_apart);
  }
  void find_unchanged(const RecordBatch& batch, const Bin& bin, std::vector<Keyed>& records);

  void look();
  // nullptr: it holds nothing. kUnavailable: it may hold something, and does not open now. Both are told. kCorrupt: a
  // process that opens it dies of that; set_damaged_aside() is for the caller, and tells.
  Result<std::shared_ptr<RocksSource>> open_other(const FoundLife& found, Opening how);
  [[nodiscard]] bool kills_who_opens_it(const FoundLife& found);
  // `over`: the lock of its place; nullptr: somebody else has the lock, and the place stays.
  void set_damaged_aside(const FoundLife& found, const LifeLock* over);
  static Result<std::optional<Note>> note_in(const std::string& place_directory) {
    return read_note(place_directory + "/" + kNoteName);
  }
  // Also what is of no known run.
  [[nodiscard]] bool of_other_run(const Result<std::optional<Note>>& note) const {
    return run != 0 && (!note.ok() || (note.value() && note.value()->run != run));
  }
  void learn_references();
  void keep_reserve();
  Status need_bins(const std::map<Bin, std::vector<Keyed>>& wanted);
  Status failed(const rocksdb::Status& status, const std::string& what);
  // What this worker's other lives take.
  [[nodiscard]] std::uint64_t size_of_earlier() const {
    std::uint64_t bytes = 0;
    for (const fs::path& entry : entries_of(fs::path(directory).parent_path())) {
      if (entry != fs::path(directory)) bytes += size_of(entry);
    }
    return bytes;
  }
  static void entry_of(const RecordBatch& batch, const Keyed& k, std::string& out);
  rocksdb::Status put_logged(const RecordBatch& batch, const std::map<Bin, std::vector<Keyed>>& sorted);
  Status put_tables(const RecordBatch& batch, const std::map<Bin, std::vector<Keyed>>& sorted);
  rocksdb::Status write_table(const RecordBatch& batch, const std::vector<Keyed>& records, const Family& family,
                              bool index, const std::string& file);
  Status drop_own(const Horizon& horizon);
  Status drop_dead(const Horizon& horizon);
  Status take_over(RocksSource& source, const Horizon& horizon);
  void count(Bin bin, std::uint64_t bytes) {
    bytes_by_bin[bin] += bytes;
    own_bytes += bytes;
  }
};

// Opens the databases of lives that are over, and of those that are fenced and not yet aware of it: this worker's, and
// whatever is not among the living.
void RocksResultStore::Impl::look() {
  looked = true;
  const RocksUse use;
  if (!use) return;
  std::vector<FoundLife> left = lives_in(job_directory, worker_file);
  for (int attempt = 0; !left.empty() && attempt < kLooks; ++attempt) {
    if (attempt != 0) std::this_thread::sleep_for(kBetweenLooks);
    std::erase_if(left, [this](const FoundLife& found) {
      // Without a LIFE it is not locked by who makes it, and must not be by others.
      if (found.life == place.life || read_life(found.directory).format != kResultFormat) return true;
      if (of_other_run(note_in(found.directory)) || marked_stale(found.directory)) return true;
      if (living && std::ranges::find(*living, found.life) != living->end()) return true;
      if (!living && !found.of_this_worker && !LifeLock::take(found.directory)) return false;
      auto source = open_other(found, Opening::kRead);
      if (source.status().code() == Code::kCorrupt) set_damaged_aside(found, LifeLock::take(found.directory).get());
      if (source.ok() && source.value()) others.push_back(std::move(source).value());
      return true;
    });
  }
}

std::vector<ResultStore::Note> RocksResultStore::Impl::notes() const {
  std::vector<Note> found_notes;
  for (const FoundLife& found : lives_in(job_directory, worker_file)) {
    // Without a LIFE it is not locked by who makes it, and must not be by others.
    if (found.life == place.life || read_life(found.directory).format != kResultFormat) continue;
    if (marked_stale(found.directory)) continue;
    if (!found.of_this_worker && !LifeLock::take(found.directory)) continue;
    auto note = note_in(found.directory);
    if (!note.ok()) {
      warnings->add("what lies in " + found.directory +
                    " is of no known run, and not used: " + note.status().describe());
    } else if (note.value()) {
      found_notes.push_back(std::move(*note.value()));
    }
  }
  return found_notes;
}

std::vector<std::string> RocksResultStore::Impl::set_others_aside() {
  std::vector<std::string> aside;
  for (const FoundLife& found : lives_in(job_directory, worker_file)) {
    const auto note = note_in(found.directory);
    if (found.life == place.life || !of_other_run(note)) continue;
    if (note.status().code() == Code::kUnavailable) continue;  // it may be of this run, and be read later
    const auto over = LifeLock::take(found.directory);
    if (!over) continue;
    (void)make_private(found.directory);  // its place below the job's directory was protected by that
    const std::string target = job_directory + kOtherMark + life_name(found.life);
    std::error_code error;
    fs::rename(found.directory, target, error);
    aside.push_back(error ? found.directory : target);
  }
  if (!aside.empty()) earlier_bytes = size_of_earlier();
  return aside;
}

Status RocksResultStore::Impl::leave_out(const Stale& stale) {
  for (const FoundLife& found : lives_in(job_directory, worker_file)) {
    if (found.life == place.life || marked_stale(found.directory)) continue;
    const auto note = note_in(found.directory);
    // It may be stale, and be read and used later.
    if (note.status().code() == Code::kUnavailable) return note.status();
    // Beside a damaged note nothing is used.
    if (!note.ok() || !note.value() || !stale(found.life, *note.value())) continue;
    const Status s = mark_stale(found.directory);
    // It may go meanwhile, and another spare of this host may have come first.
    if (!s.ok() && there(found.directory) && !marked_stale(found.directory)) return s;
  }
  const std::lock_guard guard(others_mutex);
  others.clear();
  looked = false;
  return {};
}

Result<std::shared_ptr<RocksSource>> RocksResultStore::Impl::open_other(const FoundLife& found, Opening how) {
  const std::string what = "what an earlier life has left in " + found.directory + " cannot be read: ";
  const auto refused = [&](const std::string& why) {
    warnings->add(what + why + "; it stays there until it can be, or the job is finished");
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
    const OpeningNote note(found.directory, place.life);
    s = open_database(found.directory, how, opened);
    if (s.ok()) look_at_tables(opened);
    OpeningNote::forget_deaths(found.directory);
  } else if (tables == 0) {
    return std::shared_ptr<RocksSource>();
  }
  if (!s.ok()) {
    if (!is_damage(s)) return refused(s.ToString());
    warnings->add(what + s.ToString());
    return std::shared_ptr<RocksSource>();
  }
  std::vector<rocksdb::LiveFileMetaData> listed;
  opened.db->GetLiveFilesMetaData(&listed);
  if (listed.size() < tables) {
    warnings->add(std::to_string(tables - listed.size()) + " tables in " + found.directory +
                  " belong to no list: a write that was never confirmed has left them, or the list was cut");
  }
  auto source = std::make_shared<RocksSource>(found.life, found.directory, true, warnings);
  source->set_bins(std::move(opened.bins));
  return source;
}

// Another worker of the job that is faster to finish renames the directory of the job. What lies in this life's place
// stays until this life lets go of its lock.
Status RocksResultStore::Impl::gone(const std::string& what) const {
  for (const fs::path& entry : entries_of(place.data_dir)) {
    if (!entry.filename().string().starts_with(job_file + kFinishedMark)) continue;
    if (there(entry / worker_file / life_name(place.life))) {
      return {Code::kClosed, what + " " + directory + ": the job is finished"};
    }
  }
  return {Code::kUnavailable, what + " " + directory +
                                  ": somebody has removed or renamed it while the job runs. Put it back, or end this "
                                  "worker: its next life begins with an empty log on disk"};
}

bool RocksResultStore::Impl::kills_who_opens_it(const FoundLife& found) {
  const Trial trial = try_to_open(options.trial_program, found.directory);
  if (trial == Trial::kUnknown) {
    warnings->add("lives have died while they opened " + found.directory +
                  ", and warren_store_trial could not find out whether they have died of it: is that program installed "
                  "beside libwarren_store.so? The place is opened all the same; if this process dies of it, move the "
                  "place away");
  }
  return trial == Trial::kDies;
}

// The copies elsewhere serve.
void RocksResultStore::Impl::set_damaged_aside(const FoundLife& found, const LifeLock* over) {
  const std::string target = job_directory + kDamagedMark + life_name(found.life);
  std::error_code error;
  if (over != nullptr) fs::rename(found.directory, target, error);
  warnings->add("what an earlier life has left in " + found.directory +
                " is damaged: processes that opened it have died of it. It is not used" +
                (over != nullptr && !error ? ", and lies in " + target + " until you remove it" : ""));
}

Status RocksResultStore::Impl::make_place() {
  if (lock) return {};
  if (Status s = make_directory(directory); !s.ok()) return s;
  lock = LifeLock::take(directory);
  if (!lock) {
    const std::string process = read_life(directory).process;
    return {Code::kUnavailable, "another process" + (process.empty() ? "" : " (" + process + ")") + " has " +
                                    directory + " open: no two lives may have one name"};
  }
  if (Status s = write_life(directory, place.job, place.worker_id); !s.ok()) {
    lock.reset();
    return s;
  }
  earlier_bytes = size_of_earlier();
  return {};
}

// A database that failed to write takes no further writes: it is opened again here.
Status RocksResultStore::Impl::need_open() {
  if (db) return {};
  if (lock && !there(directory)) return gone("cannot write to");
  if (Status s = make_place(); !s.ok()) return s.because_of_this("cannot make a place for results");
  std::error_code error;
  fs::remove_all(directory + "/" + kIngestName, error);
  OpenDatabase opened;
  const std::vector<fs::path> before = entries_of(directory);
  rocksdb::Status s = open_database(directory, Opening::kWrite, opened);
  if (is_no_space(s)) {
    // What it had begun to write takes the room that is left.
    for (const fs::path& entry : entries_of(directory)) {
      if (entry.extension() == ".sst" && !std::ranges::binary_search(before, entry)) fs::remove(entry, error);
    }
    fs::remove(directory + "/" + kReserveName, error);
    s = open_database(directory, Opening::kWriteTight, opened);
  }
  if (!s.ok()) return from_rocks(s, "cannot open the results in " + directory);
  fs::create_directory(directory + "/" + kIngestName, error);
  db = std::move(opened.db);
  std::erase_if(bytes_by_bin, [&](const auto& entry) {
    const bool dropped = !opened.bins.contains(entry.first);
    if (dropped) own_bytes -= entry.second;
    return dropped;
  });
  own->set_bins(std::move(opened.bins));
  if (unchanged.empty()) learn_references();
  return {};
}

// Of what this life has put by another store, before: it stays until it is obsolete.
void RocksResultStore::Impl::learn_references() {
  for (const Bin& bin : own->bins()) {
    if (bin.kind != Bin::Kind::kStates) continue;
    own->scan({RecordKind::kGlobal, {bin.timeline, GroupId(0), bin.version, Sequence(0)}}, 0,
              [&](const StoredRecord& r) {
                const auto piece = UnchangedStates::place_of(r.key, r.first_byte, r.payload_bytes);
                if (piece) unchanged.refer(bin, *piece, r.lies_in.value_or(bin));
                if (!piece && !r.inlined()) unchanged.wrote_apart(bin, r.payload_bytes);
                return true;
              });
  }
}

// Again, once there is room.
void RocksResultStore::Impl::keep_reserve() {
  for (const char* name : {kReserveOfNoteName, kReserveName}) {
    const std::string reserve = directory + "/" + name;
    if (there(reserve)) continue;
    const int fd = ::open(reserve.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    const bool kept = ::posix_fallocate(fd, 0, kReserveBytes) == 0;
    ::close(fd);
    std::error_code error;
    if (!kept) fs::remove(reserve, error);
  }
}

Status RocksResultStore::Impl::failed(const rocksdb::Status& status, const std::string& what) {
  // It is closed, and what it holds can be read, also where the disk takes nothing for long.
  OpenDatabase opened;
  (void)open_database(directory, Opening::kRead, opened);
  own->set_bins(std::move(opened.bins));
  db.reset();
  if (!there(directory)) return gone(what);
  return from_rocks(status, what + " " + directory);
}

// A family costs two writes to the manifest, each with a sync: states of 256 bytes and less take only one.
Status RocksResultStore::Impl::need_bins(const std::map<Bin, std::vector<Keyed>>& wanted) {
  Bins bins = *own->bins_now();
  std::vector<rocksdb::ColumnFamilyDescriptor> missing;
  for (const auto& [bin, records] : wanted) {
    const auto found = bins.find(bin);
    const BinFamilies families = found == bins.end() ? BinFamilies() : found->second;
    if (!families.index) missing.emplace_back(to_string(bin) + kIndexSuffix, family_options(true));
    if (!families.data && any_apart(records)) {
      missing.emplace_back(to_string(bin) + kDataSuffix, family_options(false));
    }
  }
  if (missing.empty()) return {};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  const rocksdb::Status s = db->CreateColumnFamilies(missing, &handles);
  add_families(db, handles, bins);
  if (!s.ok()) return failed(s, "cannot write to");
  own->set_bins(std::move(bins));
  return {};
}

Status RocksResultStore::Impl::within_budget(const RecordBatch& batch) const {
  const std::uint64_t bytes = batch.payload_bytes() + batch.items().size() * kRecordOverheadBytes;
  const std::uint64_t used = own_bytes + earlier_bytes;
  if (options.disk_bytes == 0 || used + bytes <= options.disk_bytes ||
      std::ranges::none_of(batch.items(), counts_against_budget)) {
    return {};
  }
  return {Code::kExhausted, "the results on disk take " + std::to_string(used) + " bytes, " + std::to_string(bytes) +
                                " more are over the budget of " + std::to_string(options.disk_bytes) + " (" +
                                options.budget_flag + "): a checkpoint is overdue"};
}

Status RocksResultStore::Impl::put(const RecordBatch& batch) {
  if (batch.empty()) return {};
  if (Status s = need_open(); !s.ok()) return s;

  std::map<Bin, std::vector<Keyed>> sorted;
  std::vector<Keyed>* last = nullptr;
  Bin last_bin;
  for (const RecordBatch::Item& item : batch.items()) {
    const Bin bin = bin_of(item.key);
    if (last == nullptr || bin != last_bin) {
      last = &sorted[bin];
      last_bin = bin;
    }
    last->push_back({encode_key(item.key, item.first_byte, item.payload_bytes), &item});
  }
  for (auto& [bin, records] : sorted) {
    const auto less = [](const Keyed& a, const Keyed& b) {
      return std::memcmp(a.key.data(), b.key.data(), kRecordKeyBytes) < 0;
    };
    if (!std::ranges::is_sorted(records, less)) std::ranges::sort(records, less);
    // Published twice, by an attempt that was interrupted and by the one after it: the same bytes.
    const auto same = [](const Keyed& a, const Keyed& b) { return a.key == b.key; };
    records.erase(std::unique(records.begin(), records.end(), same), records.end());
    if (bin.kind == Bin::Kind::kStates) find_unchanged(batch, bin, records);
  }
  if (Status s = need_bins(sorted); !s.ok()) return s;
  std::uint64_t written = 0;
  for (const auto& [bin, records] : sorted) {
    for (const Keyed& k : records) {
      written += k.bytes();
      if (k.state) unchanged.refer(bin, *k.state, k.lies_in.value_or(bin));
    }
  }
  if (written <= kMostLoggedBytes) {
    if (const rocksdb::Status s = put_logged(batch, sorted); !s.ok()) return failed(s, "cannot write to");
  } else if (Status s = put_tables(batch, sorted); !s.ok()) {
    return s;
  }
  keep_reserve();
  for (const auto& [bin, records] : sorted) {
    std::uint64_t added = 0;
    for (const Keyed& k : records) {
      added += k.bytes();
      if (bin.kind == Bin::Kind::kStates && k.written_apart() && !k.state)
        unchanged.wrote_apart(bin, k.item->payload_bytes);
      if (k.state) unchanged.wrote(bin, *k.state, k.hash, k.lies_in.value_or(bin));
    }
    count(bin, added);
  }
  return {};
}

void RocksResultStore::Impl::find_unchanged(const RecordBatch& batch, const Bin& bin, std::vector<Keyed>& records) {
  const auto bins = own->bins_now();
  for (Keyed& k : records) {
    k.state = UnchangedStates::place_of(k.item->key, k.item->first_byte, k.item->payload_bytes);
    if (!k.state) continue;
    k.hash = xxh3_128(batch.payload(*k.item));
    const auto there = unchanged.find(*k.state, k.hash);
    if (!there || *there == bin) continue;
    const auto found = bins->find(*there);
    // What was read and found damaged is made good.
    if (found != bins->end() && found->second.data && !own->is_damaged(*there)) k.lies_in = there;
  }
}

// The entry of a record, with the payload if it lies in it.
void RocksResultStore::Impl::entry_of(const RecordBatch& batch, const Keyed& k, std::string& out) {
  const std::span<const std::byte> payload = batch.payload(*k.item);
  StoredRecord record{k.item->key, k.item->info, k.item->first_byte, k.item->payload_bytes, checksum_of(payload)};
  record.lies_in = k.lies_in;
  const EntryBytes entry = encode_entry(view(k.key), record);
  out.assign(entry.data(), entry.size());
  if (record.inlined()) out.append(reinterpret_cast<const char*>(payload.data()), payload.size());
}

rocksdb::Status RocksResultStore::Impl::put_logged(const RecordBatch& batch,
                                                   const std::map<Bin, std::vector<Keyed>>& sorted) {
  const auto bins = own->bins_now();
  rocksdb::WriteBatch writes;
  std::string entry;
  for (const auto& [bin, records] : sorted) {
    const BinFamilies& families = bins->at(bin);
    for (const Keyed& k : records) {
      entry_of(batch, k, entry);
      rocksdb::Status s = writes.Put(families.index->handle(), slice(k.key), entry);
      if (s.ok() && k.written_apart()) {
        s = writes.Put(families.data->handle(), slice(k.key), slice(batch.payload(*k.item)));
      }
      if (!s.ok()) return s;
    }
  }
  rocksdb::WriteOptions write_options;
  write_options.sync = true;
  return db->Write(write_options, &writes);
}

rocksdb::Status RocksResultStore::Impl::write_table(const RecordBatch& batch, const std::vector<Keyed>& records,
                                                    const Family& family, bool index, const std::string& file) {
  const auto writer_of = [&](bool direct) {
    rocksdb::EnvOptions environment;
    environment.bytes_per_sync = kBytesPerSync;
    environment.use_direct_writes = direct;
    return std::make_unique<rocksdb::SstFileWriter>(environment, rocksdb::Options(db_options(), family_options(index)),
                                                    family.handle(), /*invalidate_page_cache=*/false);
  };
  // Past the page cache: a quarter of the processor time, and memory is the program's. Not every file system can.
  auto writer = writer_of(direct_writes && !index);
  rocksdb::Status s = writer->Open(file);
  if (!s.ok() && direct_writes && !index) {
    writer = writer_of(false);
    s = writer->Open(file);
    if (s.ok()) direct_writes = false;
  }
  std::string entry;
  for (auto k = records.begin(); k != records.end() && s.ok(); ++k) {
    if (index) {
      entry_of(batch, *k, entry);
      s = writer->Put(slice(k->key), entry);
    } else if (k->written_apart()) {
      s = writer->Put(slice(k->key), slice(batch.payload(*k->item)));
    }
  }
  return s.ok() ? writer->Finish() : s;  // synced
}

Status RocksResultStore::Impl::put_tables(const RecordBatch& batch, const std::map<Bin, std::vector<Keyed>>& sorted) {
  const auto bins = own->bins_now();
  std::vector<std::string> files;
  std::vector<rocksdb::IngestExternalFileArg> tables;
  rocksdb::Status s;
  for (const auto& [bin, records] : sorted) {
    const BinFamilies& families = bins->at(bin);
    for (const bool index : {true, false}) {
      if (!index && !any_apart(records)) continue;
      const Family& family = index ? *families.index : *families.data;
      const std::string file = directory + "/" + kIngestName + "/" + std::to_string(ingested++) + ".sst";
      files.push_back(file);
      s = write_table(batch, records, family, index, file);
      if (!s.ok()) break;
      rocksdb::IngestExternalFileArg table;
      table.column_family = family.handle();
      table.external_files = {file};
      table.options.move_files = true;
      table.options.snapshot_consistency = false;
      table.options.write_global_seqno = false;
      tables.push_back(std::move(table));
    }
    if (!s.ok()) break;
  }
  const bool written = s.ok();
  if (written) s = db->IngestExternalFiles(tables);
  std::error_code error;
  for (const std::string& file : files) fs::remove(file, error);
  if (s.ok()) return {};
  // A table that could not be written has not harmed the database.
  return written || !there(directory) ? failed(s, "cannot write to") : from_rocks(s, "cannot write to " + directory);
}

Status RocksResultStore::Impl::drop(const Horizon& horizon) {
  Status own_dropped = drop_own(horizon);
  Status dead_dropped = drop_dead(horizon);
  return own_dropped.ok() ? dead_dropped : own_dropped;
}

Status RocksResultStore::Impl::drop_own(const Horizon& horizon) {
  if (!lock) return {};  // there is no place yet
  Status opened = need_open();
  const auto all = std::ranges::all_of(bytes_by_bin, [&](const auto& entry) { return obsolete(horizon, entry.first); });
  if (opened.code() == Code::kExhausted && all) {
    // A full disk, and nothing in the way that is needed: this place begins anew.
    own->set_bins({});
    unchanged = {};
    std::error_code error;
    for (const fs::path& entry : entries_of(directory)) {
      if (is_of_database(entry)) fs::remove_all(entry, error);
    }
    opened = need_open();
  }
  if (!opened.ok()) return opened;
  Bins bins = *own->bins_now();
  const auto is_obsolete = [&](const Bin& bin) { return obsolete(horizon, bin); };
  if (std::ranges::none_of(bins, [&](const auto& entry) { return is_obsolete(entry.first); })) return {};
  // What this fails to drop the next one does.
  UnchangedStates left = unchanged;
  left.drop(is_obsolete);
  std::vector<std::shared_ptr<Family>> dropped;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  const auto drops = [&](std::shared_ptr<Family>& family) {
    if (!family) return;
    handles.push_back(family->handle());
    dropped.push_back(std::exchange(family, nullptr));
  };
  for (auto& [bin, families] : bins) {
    if (!is_obsolete(bin)) continue;
    drops(families.index);
    if (!left.referred_to(bin)) drops(families.data);
  }
  if (!handles.empty()) {
    const rocksdb::Status s = db->DropColumnFamilies(handles);
    if (!s.ok()) return failed(s, "cannot drop what is obsolete in");
  }
  std::erase_if(bins, [](const auto& entry) { return !entry.second.index && !entry.second.data; });
  unchanged = std::move(left);
  for (auto it = bytes_by_bin.begin(); it != bytes_by_bin.end();) {
    const std::uint64_t stays = !is_obsolete(it->first)    ? it->second
                                : bins.contains(it->first) ? std::min(it->second, unchanged.bytes_in(it->first))
                                                           : 0;
    own_bytes -= it->second - stays;
    it->second = stays;
    it = stays == 0 ? bytes_by_bin.erase(it) : std::next(it);
  }
  own->set_bins(std::move(bins));
  return {};
}

Status RocksResultStore::Impl::drop_dead(const Horizon& horizon) {
  bool removed = false;
  Status status;
  for (const FoundLife& found : lives_in(job_directory, worker_file)) {
    const bool removed_before = under_removal(found.directory);
    if (found.life == place.life || (!removed_before && read_life(found.directory).format != kResultFormat)) continue;
    if (of_other_run(note_in(found.directory))) continue;
    const auto held = LifeLock::take(found.directory);
    if (!held) continue;  // it lives
    if (removed_before || marked_stale(found.directory)) {
      remove_place(found.directory);
      removed = true;
      continue;
    }
    auto known = bins_of_dead.find(found.directory);
    if (known == bins_of_dead.end()) {
      const auto source = open_other(found, Opening::kRead);
      removed = removed || source.status().code() == Code::kCorrupt;
      if (source.status().code() == Code::kCorrupt) set_damaged_aside(found, held.get());
      if (!source.ok()) continue;
      known = bins_of_dead.emplace(found.directory, source.value() ? source.value()->bins() : std::vector<Bin>()).first;
    }
    std::vector<Bin> left;
    std::ranges::copy_if(known->second, std::back_inserter(left), [&](const Bin& b) { return !obsolete(horizon, b); });
    if (!std::ranges::all_of(left, &Bin::lasting)) continue;
    if (!left.empty()) {
      const auto source = open_other(found, Opening::kReadWhole);
      removed = removed || source.status().code() == Code::kCorrupt;
      if (source.status().code() == Code::kCorrupt) set_damaged_aside(found, held.get());
      if (!source.ok()) continue;
      if (Status s = source.value() ? take_over(*source.value(), horizon) : Status(); !s.ok()) {
        status = s;
        continue;
      }
    }
    remove_place(found.directory);
    bins_of_dead.erase(known);
    removed = true;
    const std::lock_guard guard(others_mutex);
    std::erase_if(others, [&](const auto& source) { return source->directory() == found.directory; });
  }
  if (removed) earlier_bytes = size_of_earlier();
  return status;
}

// Copies what lasts.
Status RocksResultStore::Impl::take_over(RocksSource& source, const Horizon& horizon) {
  RecordBatch batch;
  Status status;
  const auto write = [&] {
    status = put(batch);
    batch.clear();
    return status.ok();
  };
  for (const Bin& bin : source.bins()) {
    if (obsolete(horizon, bin)) continue;
    const auto copy = [&](const StoredRecord& r) {
      if (horizon.obsolete(r.key)) return true;
      if (!batch.fits(r.payload_bytes) && !write()) return false;
      if (!source.read(r, r.first_byte, batch.add(r.key, r.info, r.first_byte, r.payload_bytes))) batch.take_back();
      return true;
    };
    const RecordKind first = bin.kind == Bin::Kind::kSetup ? RecordKind::kSetup : RecordKind::kRound;
    source.scan({first, {bin.timeline, GroupId(0), bin.version, Sequence(0)}}, 0, copy);
    if (!status.ok()) return status;
  }
  write();
  return status.ok() ? status : status.because_of_this("cannot take over what lasts of " + source.directory());
}

RocksResultStore::RocksResultStore(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

RocksResultStore::~RocksResultStore() {
  impl_->close();
}

Result<std::unique_ptr<RocksResultStore>> RocksResultStore::open(Place place, Options options) {
  limit_rocks_memory(options.memory_bytes);
  auto impl = std::make_shared<Impl>();
  impl->place = std::move(place);
  impl->options = std::move(options);
  const Place& p = impl->place;
  impl->job_file = file_name(p.job);
  impl->worker_file = file_name(p.worker_id);
  impl->job_directory = p.data_dir + "/" + impl->job_file;
  impl->directory = impl->job_directory + "/" + impl->worker_file + "/" + life_name(p.life);
  impl->own = std::make_shared<RocksSource>(p.life, impl->directory, false, impl->warnings);

  if (Status s = prepare_rocks(); !s.ok()) return s;
  // What is wrong with the directory is said now, not when something is to be written.
  if (Status s = make_directory(p.data_dir); !s.ok()) return s;
  if (::access(p.data_dir.c_str(), R_OK | W_OK | X_OK) != 0) {
    return Status(Code::kUnavailable, "cannot write to the data directory " + p.data_dir + ": " + std::strerror(errno));
  }
  sweep_finished(p.data_dir, impl->job_file);
  // The job's directory protects all that is in it. The data directory itself may be one for many users.
  if (const std::string text = make_private(impl->job_directory); !text.empty()) impl->warnings->add(text);
  for (const fs::path& entry : entries_of(p.data_dir)) {
    const std::string name = entry.filename();
    if (!name.starts_with(impl->job_file + kOtherMark) && !name.starts_with(impl->job_file + kDamagedMark)) continue;
    if (const std::string text = make_private(entry); !text.empty()) impl->warnings->add(text);
  }
  for (const FoundLife& found : lives_in(impl->job_directory, impl->worker_file)) {
    const std::string format = read_life(found.directory).format;
    if (!format.empty() && format != kResultFormat) {
      return of_another_version(found.directory, format, kResultFormat, impl->job_directory);
    }
    const auto note = read_note(found.directory + "/" + kNoteName);
    if (note.status().code() == Code::kRefused) return note.status();
  }
  return std::unique_ptr<RocksResultStore>(new RocksResultStore(std::move(impl)));
}

Status RocksResultStore::prepare() {
  const RocksUse use;
  return use ? impl_->need_open() : exits();
}

Status RocksResultStore::put(const RecordBatch& batch) {
  const RocksUse use;
  if (!use) return exits();
  if (Status s = impl_->within_budget(batch); !s.ok()) return s;
  return impl_->told(impl_->put(batch));
}

std::vector<StatePiece> RocksResultStore::worn(Timeline timeline, Version version) {
  Impl& i = *impl_;
  const std::vector<StatePiece> again = i.unchanged.worn({Bin::Kind::kStates, timeline, version});
  std::uint64_t bytes = i.own_bytes + i.earlier_bytes;
  for (const StatePiece& piece : again) bytes += piece.payload_bytes + kRecordOverheadBytes;
  // The next version does without what is worn.
  if (i.options.disk_bytes != 0 && bytes > i.options.disk_bytes) return {};
  return again;
}

Status RocksResultStore::drop(const Horizon& horizon) {
  const RocksUse use;
  return use ? impl_->told(impl_->drop(horizon)) : exits();
}

Status RocksResultStore::finish() {
  Impl& i = *impl_;
  // It may be another job's by now, if another worker of this one was faster.
  const bool ours = i.lock ? there(i.directory)
                           : std::ranges::all_of(lives_in(i.job_directory, i.worker_file), [](const FoundLife& found) {
                               return LifeLock::take(found.directory) != nullptr;
                             });
  i.close();
  {
    const std::lock_guard guard(i.others_mutex);
    i.others.clear();
    i.looked = true;
  }
  // One rename says durably, for all of the job's workers here, that nothing of it is ever to be read again.
  std::error_code error;
  const std::string finished = i.job_directory + kFinishedMark + life_name(i.place.life);
  if (ours) fs::rename(i.job_directory, finished, error);
  Status synced = sync_directory(i.place.data_dir);
  sweep_finished(i.place.data_dir, i.job_file);
  if (error && there(i.job_directory)) {
    return {Code::kUnavailable, "cannot rename " + i.job_directory + ": " + error.message()};
  }
  return synced;
}

std::uint64_t RocksResultStore::bytes_on_disk() const {
  return impl_->own_bytes + impl_->earlier_bytes;
}

std::unique_ptr<HostLogReader> RocksResultStore::reader() {
  return source_reader([impl = impl_] { return impl->sources(); }, impl_->place.life);
}

void RocksResultStore::refresh(std::span<const Incarnation> living) {
  const std::lock_guard guard(impl_->others_mutex);
  impl_->living.emplace(living.begin(), living.end());
  impl_->others.clear();
  impl_->looked = false;
}

Status RocksResultStore::note(const Note& note) {
  Impl& i = *impl_;
  if (i.lock && !there(i.directory)) return i.gone("cannot write to");
  if (Status s = i.make_place(); !s.ok()) return s.because_of_this("cannot make a place for results");
  const std::string path = i.directory + "/" + kNoteName;
  Status s = write_note(path, note);
  // What is dropped makes room, and may be only once the note is there.
  std::error_code error;
  if (s.code() == Code::kExhausted && fs::remove(i.directory + "/" + kReserveOfNoteName, error)) {
    s = write_note(path, note);
  }
  return i.told(std::move(s));
}

std::vector<ResultStore::Note> RocksResultStore::notes() {
  return impl_->notes();
}

void RocksResultStore::belong(std::uint64_t run) {
  const std::lock_guard guard(impl_->others_mutex);
  if (impl_->run == run) return;
  impl_->run = run;
  impl_->others.clear();
  impl_->looked = false;
}

std::vector<std::string> RocksResultStore::set_others_aside() {
  return impl_->set_others_aside();
}

Status RocksResultStore::leave_out(const Stale& stale) {
  return impl_->leave_out(stale);
}

HeldReport RocksResultStore::report(bool verify) {
  return report_of(impl_->sources(), verify);
}

std::shared_ptr<void> RocksResultStore::call_at_exit(const AtExit& calls) {
  return std::make_shared<CallAtExit>(calls);
}

std::vector<std::string> RocksResultStore::take_warnings() {
  return impl_->warnings->take();
}

std::string RocksResultStore::directory() const {
  return impl_->directory;
}

}  // namespace warren::storage

#include "storage/rocks_result_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "storage/files.h"
#include "storage/result_format.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr char kFormat[] = "warren-results-1";
constexpr char kLockName[] = "LOCK-life";
constexpr char kLifeName[] = "LIFE";
constexpr char kRemovedName[] = "LIFE-removed";
constexpr char kIngestName[] = "ingest";
constexpr char kLifePrefix[] = "life-";
constexpr char kFinished[] = "%finished-";
constexpr std::size_t kMostWarnings = 100;
// What a record takes besides its payload, for the budget.
constexpr std::uint64_t kRecordOverheadBytes = kRecordKeyBytes + kRecordEntryBytes + 16;
// Written to the disk while a table is made, so that the sync at its end has little left to wait for.
constexpr std::uint64_t kBytesPerSync = std::uint64_t{8} << 20;

std::string life_name(Incarnation life) {
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(life.value));
  return kLifePrefix + std::string(hex);
}

std::optional<Incarnation> parse_life(const std::string& name) {
  if (!name.starts_with(kLifePrefix)) return std::nullopt;
  const Incarnation life(std::strtoull(name.c_str() + std::strlen(kLifePrefix), nullptr, 16));
  return life_name(life) == name ? std::optional(life) : std::nullopt;
}

rocksdb::Slice slice(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
rocksdb::Slice slice(const KeyBytes& key) {
  return view(key);
}

Status from_rocks(const rocksdb::Status& status, std::string message) {
  Code code = Code::kUnavailable;
  if (status.IsNoSpace()) code = Code::kExhausted;
  if (status.IsCorruption()) code = Code::kCorrupt;
  return Status(code, status.ToString()).because_of_this(std::move(message));
}

rocksdb::ColumnFamilyOptions family_options(bool index) {
  static const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(std::size_t{8} << 20);
  rocksdb::ColumnFamilyOptions options;
  options.compression = rocksdb::kNoCompression;
  options.disable_auto_compactions = true;
  options.write_buffer_size = std::size_t{16} << 20;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.block_size = index ? 16 << 10 : 4 << 10;
  table.block_cache = cache;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// RocksDB's own log of a database that is only read: nowhere, least of all in a directory that is not ours.
class NoLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::DBOptions db_options() {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.max_open_files = 256;
  options.max_file_opening_threads = 1;
  options.max_background_jobs = 2;
  options.max_total_wal_size = std::uint64_t{64} << 20;
  options.db_write_buffer_size = std::size_t{32} << 20;
  options.bytes_per_sync = kBytesPerSync;
  options.keep_log_file_num = 1;
  options.max_log_file_size = std::size_t{1} << 20;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

rocksdb::DBOptions reading_options() {
  rocksdb::DBOptions options = db_options();
  options.create_if_missing = false;
  // What is damaged is to cost only itself.
  options.paranoid_checks = false;
  options.skip_checking_sst_file_sizes_on_db_open = true;
  options.info_log = std::make_shared<NoLogger>();
  return options;
}

// A column family of an open database.
class Family {
 public:
  Family(std::shared_ptr<rocksdb::DB> db, rocksdb::ColumnFamilyHandle* handle) : db_(std::move(db)), handle_(handle) {}
  ~Family() { (void)db_->DestroyColumnFamilyHandle(handle_); }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;
  [[nodiscard]] rocksdb::DB& db() const { return *db_; }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* handle() const { return handle_; }

 private:
  std::shared_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* handle_;
};

struct BinFamilies {
  std::shared_ptr<Family> index, data;
};
using Bins = std::map<Bin, BinFamilies>;

constexpr char kIndexSuffix[] = "-index", kDataSuffix[] = "-data";

// Families that are not ours are left out, and so is one whose twin is missing.
Bins bins_of(const std::shared_ptr<rocksdb::DB>& db, const std::vector<rocksdb::ColumnFamilyHandle*>& handles) {
  Bins bins;
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    auto family = std::make_shared<Family>(db, handle);
    const std::string name = handle->GetName();
    for (const bool index : {true, false}) {
      const std::string suffix = index ? kIndexSuffix : kDataSuffix;
      if (!name.ends_with(suffix)) continue;
      const auto bin = parse_bin(std::string_view(name).substr(0, name.size() - suffix.size()));
      if (!bin) continue;
      (index ? bins[*bin].index : bins[*bin].data) = family;
    }
  }
  std::erase_if(bins, [](const auto& entry) { return !entry.second.index || !entry.second.data; });
  return bins;
}

struct OpenDatabase {
  std::shared_ptr<rocksdb::DB> db;
  Bins bins;
};

rocksdb::Status open_database(const std::string& directory, bool read_only, OpenDatabase& out) {
  const rocksdb::DBOptions options = read_only ? reading_options() : db_options();
  std::vector<std::string> names;
  if (fs::exists(directory + "/CURRENT")) {
    const rocksdb::Status s = rocksdb::DB::ListColumnFamilies(options, directory, &names);
    if (!s.ok()) return s;
  }
  if (names.empty()) names.push_back(rocksdb::kDefaultColumnFamilyName);
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  families.reserve(names.size());
  for (const std::string& name : names) families.emplace_back(name, family_options(name.ends_with(kIndexSuffix)));
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status s = read_only ? rocksdb::DB::OpenForReadOnly(options, directory, families, &handles, &opened)
                                      : rocksdb::DB::Open(options, directory, families, &handles, &opened);
  if (!s.ok()) return s;
  out.db.reset(opened);
  out.bins = bins_of(out.db, handles);
  return s;
}

// What was found damaged, for people.
class Warnings {
 public:
  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMostWarnings || told_.size() >= 10 * kMostWarnings || !told_.insert(text).second) return;
    waiting_.push_back(std::move(text));
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(waiting_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> waiting_;
  std::set<std::string> told_;
};

// Moves 2^exponent places on in the order of a bin; it holds one timeline and version, so what counts is (kind, group,
// sequence). False: nothing can be there.
bool jump(RecordKey& key, unsigned exponent) {
  std::uint64_t &sequence = key.round.sequence.value, &group = key.round.group.value;
  const std::uint64_t step = std::uint64_t{1} << (exponent % 64);
  bool over = exponent >= 128;
  if (exponent < 64) {
    sequence += step;
    over = sequence < step && ++group == 0;
  } else if (!over) {
    sequence = 0;
    group += step;
    over = group < step;
  }
  if (!over) return true;
  sequence = group = 0;
  if (key.kind == RecordKind::kMessage) return false;
  key.kind = static_cast<RecordKind>(static_cast<int>(key.kind) + 1);
  return true;
}

// The records of one life's database.
class RocksSource final : public RecordSource {
 public:
  RocksSource(Incarnation life, std::string directory, std::shared_ptr<Warnings> warnings)
      : life_(life), directory_(std::move(directory)), warnings_(std::move(warnings)) {}

  [[nodiscard]] const std::string& directory() const { return directory_; }

  void set_bins(Bins bins) {
    auto shared = std::make_shared<const Bins>(std::move(bins));
    const std::lock_guard lock(mutex_);
    bins_ = std::move(shared);
  }
  [[nodiscard]] std::shared_ptr<const Bins> bins_now() const {
    const std::lock_guard lock(mutex_);
    return bins_;
  }

  Incarnation life() const override { return life_; }

  std::vector<Bin> bins() override {
    std::vector<Bin> bins;
    for (const auto& [bin, families] : *bins_now()) bins.push_back(bin);
    return bins;
  }

  void scan(const RecordKey& from, std::uint64_t first_byte, const Visit& visit) override {
    const auto bins = bins_now();
    const auto found = bins->find(bin_of(from));
    if (found == bins->end()) return;
    const Family& family = *found->second.index;
    RecordKey target = from;
    unsigned exponent = 0;
    do {
      const std::unique_ptr<rocksdb::Iterator> it(family.db().NewIterator({}, family.handle()));
      const KeyBytes start = encode_key(target, first_byte, 0);
      for (it->Seek(slice(start)); it->Valid(); it->Next()) {
        const auto record = decode_record(it->key().ToStringView(), it->value().ToStringView());
        if (!record) {
          warnings_->add(directory_ + " has a damaged entry among " + to_string(found->first));
          continue;
        }
        target = record->key;
        exponent = 0;
        if (is_bad(it->key().ToStringView())) continue;
        if (!visit(*record)) return;
      }
      if (it->status().ok()) return;
      warnings_->add(directory_ + " is damaged among " + to_string(found->first) + ": " + it->status().ToString());
      first_byte = 0;
    } while (jump(target, exponent++));  // over what cannot be read, further each time
  }

  bool read(const StoredRecord& record, std::uint64_t begin, std::span<std::byte> out) override {
    const KeyBytes key = encode_key(record.key, record.first_byte, record.payload_bytes);
    const auto bins = bins_now();
    const auto found = bins->find(bin_of(record.key));
    rocksdb::PinnableSlice value;
    std::string why = "it is gone";
    if (found != bins->end()) {
      const Family& family = record.inlined() ? *found->second.index : *found->second.data;
      rocksdb::ReadOptions options;
      options.fill_cache = record.inlined();
      options.verify_checksums = record.inlined();  // ours covers payloads that lie apart
      const rocksdb::Status s = family.db().Get(options, family.handle(), slice(key), &value);
      const std::size_t head = record.inlined() ? kRecordEntryBytes : 0;
      const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(value.data()), value.size()};
      if (!s.ok()) {
        why = s.ToString();
      } else if (bytes.size() != head + record.payload_bytes || checksum_of(bytes.subspan(head)) != record.checksum) {
        why = "its checksum does not hold";
      } else {
        const std::size_t at = head + (begin - record.first_byte);
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), out.size(), out.begin());
        return true;
      }
    }
    warnings_->add("bytes " + std::to_string(record.first_byte) + " to " + std::to_string(record.end()) + " of " +
                   warren::to_string(record.key.round) + " in " + directory_ + " cannot be read: " + why);
    const std::lock_guard lock(mutex_);
    bad_.emplace(view(key));
    any_bad_.store(true, std::memory_order_relaxed);
    return false;
  }

 private:
  [[nodiscard]] bool is_bad(std::string_view key) const {
    if (!any_bad_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard lock(mutex_);
    return bad_.contains(key);
  }

  Incarnation life_;
  std::string directory_;
  std::shared_ptr<Warnings> warnings_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Bins> bins_ = std::make_shared<const Bins>();
  std::set<std::string, std::less<>> bad_;  // keys
  std::atomic<bool> any_bad_{false};
};

// The lock of a life's place, held until this object goes. RocksDB's way of locking also excludes this process itself.
class LifeLock {
 public:
  // nullptr: somebody else has it, or it cannot be locked.
  static std::unique_ptr<LifeLock> take(const std::string& directory) {
    rocksdb::FileLock* lock = nullptr;
    if (!rocksdb::Env::Default()->LockFile(directory + "/" + kLockName, &lock).ok()) return nullptr;
    return std::unique_ptr<LifeLock>(new LifeLock(lock));
  }
  ~LifeLock() { (void)rocksdb::Env::Default()->UnlockFile(lock_); }
  LifeLock(const LifeLock&) = delete;
  LifeLock& operator=(const LifeLock&) = delete;

 private:
  explicit LifeLock(rocksdb::FileLock* lock) : lock_(lock) {}
  rocksdb::FileLock* lock_;
};

// The first line of a LIFE file and the last, which is the process; empty without a file.
std::pair<std::string, std::string> read_life(const std::string& directory) {
  std::ifstream in(directory + "/" + kLifeName);
  std::string format, line, last;
  std::getline(in, format);
  while (std::getline(in, line)) last = line;
  return {format.substr(0, 64), last.substr(0, 64)};
}

struct FoundLife {
  Incarnation life;
  std::string directory;
  bool of_this_worker = false;
};

std::vector<FoundLife> lives_in(const fs::path& job_directory, const std::string& worker_file) {
  std::vector<FoundLife> lives;
  std::error_code error;
  for (const auto& worker : fs::directory_iterator(job_directory, error)) {
    for (const auto& entry : fs::directory_iterator(worker.path(), error)) {
      if (const auto life = parse_life(entry.path().filename())) {
        lives.push_back({*life, entry.path(), worker.path().filename() == worker_file});
      }
    }
  }
  std::ranges::sort(lives, {}, &FoundLife::directory);
  return lives;
}

std::uint64_t size_of(const fs::path& directory) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(directory, error)) {
    const std::uint64_t size = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    if (!error) bytes += size;
  }
  return bytes;
}

std::size_t tables_in(const fs::path& directory) {
  std::error_code error;
  const fs::directory_iterator files(directory, error);
  return static_cast<std::size_t>(
      std::count_if(begin(files), end(files), [](const auto& file) { return file.path().extension() == ".sst"; }));
}

// What is left after a crash in between is a place under removal, or one that looks as if it were being made.
void remove_place(const fs::path& directory) {
  std::error_code error;
  fs::rename(directory / kLifeName, directory / kRemovedName, error);
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const auto name = entry.path().filename();
    if (name != kRemovedName && name != kLockName) fs::remove_all(entry.path(), error);
  }
  fs::remove(directory / kRemovedName, error);
  fs::remove(directory / kLockName, error);
  fs::remove(directory, error);
}

// Removes what finished jobs of this name have left, but for lives that are not over.
void sweep_finished(const fs::path& data_dir, const std::string& job_file) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(data_dir, error)) {
    if (!entry.path().filename().string().starts_with(job_file + kFinished)) continue;
    for (const FoundLife& found : lives_in(entry.path(), "")) {
      if (const auto lock = LifeLock::take(found.directory)) remove_place(found.directory);
      fs::remove(fs::path(found.directory).parent_path(), error);  // fails as long as something is in it
    }
    fs::remove(entry.path(), error);
  }
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
  std::uint64_t ingested = 0;
  std::map<std::string, std::vector<Bin>> bins_of_dead;  // by directory; they do not change any more

  std::atomic<std::uint64_t> own_bytes{0}, earlier_bytes{0};

  std::mutex others_mutex;
  std::vector<std::shared_ptr<RocksSource>> others;
  bool looked = false;

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

  Status put(const RecordBatch& batch);
  Status drop(const Horizon& horizon);
  Status need_open();

 private:
  struct Keyed {
    KeyBytes key;
    const RecordBatch::Item* item;
  };

  void look();
  std::shared_ptr<RocksSource> open_other(const FoundLife& found);
  Status make_place();
  Status need_bins(const std::vector<Bin>& wanted);
  Status failed(const rocksdb::Status& status, const std::string& what);
  [[nodiscard]] Status gone(const std::string& what) const {
    return {Code::kClosed, what + " " + directory + ": it is gone, so the job is finished"};
  }
  // What this worker's other lives take.
  [[nodiscard]] std::uint64_t size_of_earlier() const {
    std::uint64_t bytes = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::path(directory).parent_path(), error)) {
      if (entry.path() != fs::path(directory)) bytes += size_of(entry.path());
    }
    return bytes;
  }
  rocksdb::Status put_logged(const RecordBatch& batch, const std::map<Bin, std::vector<Keyed>>& sorted);
  rocksdb::Status put_tables(const RecordBatch& batch, const std::map<Bin, std::vector<Keyed>>& sorted);
  Status drop_own(const Horizon& horizon);
  Status drop_dead(const Horizon& horizon);
  Status take_over(RocksSource& source, const Horizon& horizon);
  void count(Bin bin, std::uint64_t bytes) {
    bytes_by_bin[bin] += bytes;
    own_bytes += bytes;
  }
};

// Opens the databases of lives that are over, and of this worker's that are not (fenced, and not yet aware of it).
void RocksResultStore::Impl::look() {
  looked = true;
  for (const FoundLife& found : lives_in(job_directory, worker_file)) {
    // Without a LIFE it is not locked by who makes it, and must not be by others.
    if (found.life == place.life || read_life(found.directory).first != kFormat) continue;
    if (!found.of_this_worker && !LifeLock::take(found.directory)) continue;
    if (auto source = open_other(found)) others.push_back(std::move(source));
  }
}

std::shared_ptr<RocksSource> RocksResultStore::Impl::open_other(const FoundLife& found) {
  const std::size_t tables = tables_in(found.directory);
  OpenDatabase opened;
  rocksdb::Status s = rocksdb::Status::Corruption("it has tables and no CURRENT file");
  if (fs::exists(found.directory + "/CURRENT")) {
    s = open_database(found.directory, true, opened);
  } else if (tables == 0) {
    return nullptr;
  }
  if (!s.ok()) {
    warnings->add("what an earlier life has left in " + found.directory + " cannot be read: " + s.ToString());
    return nullptr;
  }
  std::vector<rocksdb::LiveFileMetaData> listed;
  opened.db->GetLiveFilesMetaData(&listed);
  if (listed.size() < tables) {
    warnings->add(std::to_string(tables - listed.size()) + " tables in " + found.directory +
                  " belong to no list: a write that was never confirmed has left them, or the list was cut");
  }
  auto source = std::make_shared<RocksSource>(found.life, found.directory, warnings);
  source->set_bins(std::move(opened.bins));
  return source;
}

Status RocksResultStore::Impl::make_place() {
  if (lock) return {};
  if (Status s = make_directory(directory); !s.ok()) return s;
  lock = LifeLock::take(directory);
  if (!lock) {
    const std::string process = read_life(directory).second;
    return {Code::kUnavailable, "another process" + (process.empty() ? "" : " (" + process + ")") + " has " +
                                    directory + " open: no two lives may have one name"};
  }
  const std::string text = std::string(kFormat) + "\njob " + place.job + "\nworker " + place.worker_id + "\nprocess " +
                           std::to_string(::getpid()) + "\n";
  if (Status s = write_file(directory + "/" + kLifeName, text); !s.ok()) {
    lock.reset();
    return s;
  }
  earlier_bytes = size_of_earlier();
  return {};
}

// A database that failed to write takes no further writes: it is closed, and opened again here.
Status RocksResultStore::Impl::need_open() {
  if (db) return {};
  if (lock && !fs::exists(directory)) return gone("cannot write to");
  if (Status s = make_place(); !s.ok()) return s.because_of_this("cannot make a place for results");
  own->set_bins({});
  OpenDatabase opened;
  const rocksdb::Status s = open_database(directory, false, opened);
  if (!s.ok()) return from_rocks(s, "cannot open the results in " + directory);
  std::error_code error;
  fs::remove_all(directory + "/" + kIngestName, error);
  fs::create_directory(directory + "/" + kIngestName, error);
  db = std::move(opened.db);
  own->set_bins(std::move(opened.bins));
  return {};
}

Status RocksResultStore::Impl::failed(const rocksdb::Status& status, const std::string& what) {
  db.reset();
  if (!fs::exists(directory)) return gone(what);
  return from_rocks(status, what + " " + directory);
}

Status RocksResultStore::Impl::need_bins(const std::vector<Bin>& wanted) {
  Bins bins = *own->bins_now();
  std::vector<rocksdb::ColumnFamilyDescriptor> missing;
  for (const Bin& bin : wanted) {
    if (bins.contains(bin)) continue;
    missing.emplace_back(to_string(bin) + kIndexSuffix, family_options(true));
    missing.emplace_back(to_string(bin) + kDataSuffix, family_options(false));
  }
  if (missing.empty()) return {};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  const rocksdb::Status s = db->CreateColumnFamilies(missing, &handles);
  bins.merge(bins_of(db, handles));
  if (!s.ok()) return failed(s, "cannot write to");
  own->set_bins(std::move(bins));
  return {};
}

Status RocksResultStore::Impl::put(const RecordBatch& batch) {
  if (batch.empty()) return {};
  const std::uint64_t bytes = batch.payload_bytes() + batch.items().size() * kRecordOverheadBytes;
  const std::uint64_t used = own_bytes + earlier_bytes;
  if (options.disk_bytes != 0 && used + bytes > options.disk_bytes) {
    return {Code::kExhausted, "the results on disk take " + std::to_string(used) + " bytes, " + std::to_string(bytes) +
                                  " more are over the budget of " + std::to_string(options.disk_bytes) + " (" +
                                  options.budget_flag + "): a checkpoint is overdue"};
  }
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
  std::vector<Bin> bins;
  for (auto& [bin, records] : sorted) {
    const auto less = [](const Keyed& a, const Keyed& b) {
      return std::memcmp(a.key.data(), b.key.data(), kRecordKeyBytes) < 0;
    };
    if (!std::ranges::is_sorted(records, less)) std::ranges::sort(records, less);
    // Published twice, by an attempt that was interrupted and by the one after it: the same bytes.
    const auto same = std::ranges::unique(records, {}, &Keyed::key);
    records.erase(same.begin(), same.end());
    bins.push_back(bin);
  }
  if (Status s = need_bins(bins); !s.ok()) return s;
  const rocksdb::Status s = bytes <= kMostLoggedBytes ? put_logged(batch, sorted) : put_tables(batch, sorted);
  if (!s.ok()) return failed(s, "cannot write to");
  for (const auto& [bin, records] : sorted) {
    std::uint64_t added = 0;
    for (const Keyed& k : records) added += k.item->payload_bytes + kRecordOverheadBytes;
    count(bin, added);
  }
  return {};
}

namespace {

// The entry of a record, with the payload if it lies in it.
void entry_of(const RecordBatch& batch, const RecordBatch::Item& item, const KeyBytes& key, std::string& out) {
  const std::span<const std::byte> payload = batch.payload(item);
  const StoredRecord record{item.key, item.info, item.first_byte, item.payload_bytes, checksum_of(payload)};
  const EntryBytes entry = encode_entry(view(key), record);
  out.assign(entry.data(), entry.size());
  if (record.inlined()) out.append(reinterpret_cast<const char*>(payload.data()), payload.size());
}

bool lies_apart(const RecordBatch::Item& item) {
  return item.payload_bytes > kMostInlineBytes;
}

}  // namespace

rocksdb::Status RocksResultStore::Impl::put_logged(const RecordBatch& batch,
                                                   const std::map<Bin, std::vector<Keyed>>& sorted) {
  const auto bins = own->bins_now();
  rocksdb::WriteBatch writes;
  std::string entry;
  for (const auto& [bin, records] : sorted) {
    const BinFamilies& families = bins->at(bin);
    for (const Keyed& k : records) {
      entry_of(batch, *k.item, k.key, entry);
      rocksdb::Status s = writes.Put(families.index->handle(), slice(k.key), entry);
      if (s.ok() && lies_apart(*k.item)) {
        s = writes.Put(families.data->handle(), slice(k.key), slice(batch.payload(*k.item)));
      }
      if (!s.ok()) return s;
    }
  }
  rocksdb::WriteOptions write_options;
  write_options.sync = true;
  return db->Write(write_options, &writes);
}

rocksdb::Status RocksResultStore::Impl::put_tables(const RecordBatch& batch,
                                                   const std::map<Bin, std::vector<Keyed>>& sorted) {
  const auto bins = own->bins_now();
  std::vector<std::string> files;
  std::vector<rocksdb::IngestExternalFileArg> tables;
  std::string entry;
  rocksdb::Status s;
  for (const auto& [bin, records] : sorted) {
    const BinFamilies& families = bins->at(bin);
    for (const bool index : {true, false}) {
      if (!index && std::ranges::none_of(records, [](const Keyed& k) { return lies_apart(*k.item); })) continue;
      const Family& family = index ? *families.index : *families.data;
      const std::string file = directory + "/" + kIngestName + "/" + std::to_string(ingested++) + ".sst";
      files.push_back(file);
      rocksdb::EnvOptions environment;
      environment.bytes_per_sync = kBytesPerSync;
      rocksdb::SstFileWriter writer(environment, rocksdb::Options(db_options(), family_options(index)), family.handle(),
                                    /*invalidate_page_cache=*/false);
      s = writer.Open(file);
      for (auto k = records.begin(); k != records.end() && s.ok(); ++k) {
        if (index) {
          entry_of(batch, *k->item, k->key, entry);
          s = writer.Put(slice(k->key), entry);
        } else if (lies_apart(*k->item)) {
          s = writer.Put(slice(k->key), slice(batch.payload(*k->item)));
        }
      }
      if (s.ok()) s = writer.Finish();  // synced
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
  if (s.ok()) s = db->IngestExternalFiles(tables);
  std::error_code error;
  for (const std::string& file : files) fs::remove(file, error);
  return s;
}

Status RocksResultStore::Impl::drop(const Horizon& horizon) {
  Status own_dropped = drop_own(horizon);
  Status dead_dropped = drop_dead(horizon);
  return own_dropped.ok() ? dead_dropped : own_dropped;
}

Status RocksResultStore::Impl::drop_own(const Horizon& horizon) {
  Bins bins = *own->bins_now();
  std::vector<std::shared_ptr<Family>> dropped;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  for (auto it = bins.begin(); it != bins.end();) {
    if (!obsolete(horizon, it->first)) {
      ++it;
      continue;
    }
    for (auto& family : {it->second.index, it->second.data}) {
      dropped.push_back(family);
      handles.push_back(family->handle());
    }
    it = bins.erase(it);
  }
  if (handles.empty()) return {};
  if (Status s = need_open(); !s.ok()) return s;
  const rocksdb::Status s = db->DropColumnFamilies(handles);
  if (!s.ok()) return failed(s, "cannot drop what is obsolete in");
  own->set_bins(std::move(bins));
  for (auto it = bytes_by_bin.begin(); it != bytes_by_bin.end();) {
    if (obsolete(horizon, it->first)) {
      own_bytes -= it->second;
      it = bytes_by_bin.erase(it);
    } else {
      ++it;
    }
  }
  return {};
}

Status RocksResultStore::Impl::drop_dead(const Horizon& horizon) {
  bool removed = false;
  Status status;
  for (const FoundLife& found : lives_in(job_directory, worker_file)) {
    const bool under_removal = fs::exists(found.directory + "/" + kRemovedName);
    if (found.life == place.life || (!under_removal && read_life(found.directory).first != kFormat)) continue;
    const auto held = LifeLock::take(found.directory);
    if (!held) continue;  // it lives
    if (under_removal) {
      remove_place(found.directory);
      continue;
    }
    auto known = bins_of_dead.find(found.directory);
    if (known == bins_of_dead.end()) {
      const auto source = open_other(found);
      known = bins_of_dead.emplace(found.directory, source ? source->bins() : std::vector<Bin>()).first;
    }
    std::vector<Bin> left;
    std::ranges::copy_if(known->second, std::back_inserter(left), [&](const Bin& b) { return !obsolete(horizon, b); });
    if (!std::ranges::all_of(left, &Bin::lasting)) continue;
    if (!left.empty()) {
      const auto source = open_other(found);
      if (Status s = source ? take_over(*source, horizon) : Status(); !s.ok()) {
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
  auto impl = std::make_shared<Impl>();
  impl->place = std::move(place);
  impl->options = std::move(options);
  const Place& p = impl->place;
  impl->job_file = file_name(p.job);
  impl->worker_file = file_name(p.worker_id);
  impl->job_directory = p.data_dir + "/" + impl->job_file;
  impl->directory = impl->job_directory + "/" + impl->worker_file + "/" + life_name(p.life);
  impl->own = std::make_shared<RocksSource>(p.life, impl->directory, impl->warnings);

  // What is wrong with the directory is said now, not when something is to be written.
  if (Status s = make_directory(p.data_dir); !s.ok()) return s;
  if (::access(p.data_dir.c_str(), R_OK | W_OK | X_OK) != 0) {
    return Status(Code::kUnavailable, "cannot write to the data directory " + p.data_dir + ": " + std::strerror(errno));
  }
  sweep_finished(p.data_dir, impl->job_file);
  for (const FoundLife& found : lives_in(impl->job_directory, impl->worker_file)) {
    const std::string format = read_life(found.directory).first;
    if (format.empty() || format == kFormat) continue;
    return Status(Code::kCorrupt, found.directory + " has the format \"" + format + "\" and this build knows \"" +
                                      kFormat + "\" only: run the version of Warren that wrote it, or remove " +
                                      impl->job_directory + " to begin the job anew");
  }
  return std::unique_ptr<RocksResultStore>(new RocksResultStore(std::move(impl)));
}

Status RocksResultStore::prepare() {
  return impl_->need_open();
}

Status RocksResultStore::put(const RecordBatch& batch) {
  return impl_->put(batch);
}

Status RocksResultStore::drop(const Horizon& horizon) {
  return impl_->drop(horizon);
}

Status RocksResultStore::finish() {
  Impl& i = *impl_;
  // It may be another job's by now, if another worker of this one was faster.
  const bool ours = i.lock ? fs::exists(i.directory)
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
  const std::string finished = i.job_directory + kFinished + life_name(i.place.life).substr(std::strlen(kLifePrefix));
  if (ours) fs::rename(i.job_directory, finished, error);
  Status synced = sync_directory(i.place.data_dir);
  sweep_finished(i.place.data_dir, i.job_file);
  if (error && fs::exists(i.job_directory)) {
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

void RocksResultStore::refresh() {
  const std::lock_guard guard(impl_->others_mutex);
  impl_->others.clear();
  impl_->looked = false;
}

HeldReport RocksResultStore::report(bool verify) {
  return report_of(impl_->sources(), verify);
}

std::vector<std::string> RocksResultStore::take_warnings() {
  return impl_->warnings->take();
}

std::string RocksResultStore::directory() const {
  return impl_->directory;
}

}  // namespace warren::storage

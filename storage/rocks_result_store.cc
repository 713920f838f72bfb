#include "storage/rocks_result_store.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "storage/earlier_lives.h"
#include "storage/files.h"
#include "storage/full_disk.h"
#include "storage/life_note.h"
#include "storage/life_place.h"
#include "storage/record_writer.h"
#include "storage/result_format.h"
#include "storage/rocks_process.h"
#include "storage/rocks_source.h"
#include "storage/rocks_status.h"
#include "storage/unchanged_states.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr char kIngestName[] = "ingest";
// Not what marks the place and its life.
bool is_of_database(const fs::path& file) {
  return !file.filename().string().starts_with("L") || file.filename() == "LOCK";
}

// What a checkpoint drops; states and what lasts are what it is made of.
bool counts_against_budget(const RecordBatch::Item& item) {
  const Bin bin = bin_of(item.key);
  return bin.kind == Bin::Kind::kRounds && !bin.lasting();
}

Status exits() {
  return {Code::kClosed, "the process exits, and its log on disk is closed"};
}

}  // namespace

class RocksResultStore::Impl {
 public:
  Impl(Place place_of_life, Options given)
      : place(std::move(place_of_life)),
        options(std::move(given)),
        job_file(file_name(place.job)),
        worker_file(file_name(place.worker_id)),
        job_directory(place.data_dir + "/" + job_file),
        directory(job_directory + "/" + worker_file + "/" + life_name(place.life)),
        own(std::make_shared<RocksSource>(place.life, directory, false, warnings)),
        earlier({place.life, worker_file, job_directory, directory, options.trial_program}, warnings) {}

  const Place place;
  const Options options;
  const std::string job_file, worker_file, job_directory, directory;
  const std::shared_ptr<Warnings> warnings = std::make_shared<Warnings>();
  const std::shared_ptr<RocksSource> own;
  EarlierLives earlier;

  // The writing thread's.
  std::unique_ptr<LifeLock> lock;
  std::shared_ptr<rocksdb::DB> db;  // none: to be opened
  std::map<Bin, std::uint64_t> bytes_by_bin;
  UnchangedStates unchanged;
  RecordWriter writer;

  std::atomic<std::uint64_t> own_bytes{0};

  ~Impl() { close(); }

  void close() {
    own->set_bins({});
    db.reset();
    lock.reset();
  }

  Sources sources() {
    Sources all{own};
    const Sources others = earlier.sources();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }
  [[nodiscard]] std::uint64_t bytes() const { return own_bytes + earlier.bytes(); }

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

 private:
  void find_unchanged(const RecordBatch& batch, const Bin& bin, std::vector<KeyedRecord>& records);
  void learn_references();
  Status need_bins(const SortedRecords& wanted);
  Status failed(const rocksdb::Status& status, const std::string& what);
  Status put_tables(const RecordBatch& batch, const SortedRecords& sorted);
  Status drop_own(const Horizon& horizon);
  Status take_over(RocksSource& source, const Horizon& horizon);
  void count(Bin bin, std::uint64_t bytes) {
    bytes_by_bin[bin] += bytes;
    own_bytes += bytes;
  }
};

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
  earlier.count_bytes();
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
Status RocksResultStore::Impl::need_bins(const SortedRecords& wanted) {
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
  const std::uint64_t used = this->bytes();
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

  SortedRecords sorted = sort_records(batch);
  for (auto& [bin, records] : sorted) {
    if (bin.kind == Bin::Kind::kStates) find_unchanged(batch, bin, records);
  }
  if (Status s = need_bins(sorted); !s.ok()) return s;
  std::uint64_t written = 0;
  for (const auto& [bin, records] : sorted) {
    for (const KeyedRecord& k : records) {
      written += k.bytes();
      if (k.state) unchanged.refer(bin, *k.state, k.lies_in.value_or(bin));
    }
  }
  if (written <= kMostLoggedBytes) {
    if (const rocksdb::Status s = RecordWriter::write_logged(*db, *own->bins_now(), batch, sorted); !s.ok())
      return failed(s, "cannot write to");
  } else if (Status s = put_tables(batch, sorted); !s.ok()) {
    return s;
  }
  keep_reserves(directory);
  for (const auto& [bin, records] : sorted) {
    std::uint64_t added = 0;
    for (const KeyedRecord& k : records) {
      added += k.bytes();
      if (bin.kind == Bin::Kind::kStates && k.written_apart() && !k.state)
        unchanged.wrote_apart(bin, k.item->payload_bytes);
      if (k.state) unchanged.wrote(bin, *k.state, k.hash, k.lies_in.value_or(bin));
    }
    count(bin, added);
  }
  return {};
}

void RocksResultStore::Impl::find_unchanged(const RecordBatch& batch, const Bin& bin,
                                            std::vector<KeyedRecord>& records) {
  const auto bins = own->bins_now();
  for (KeyedRecord& k : records) {
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

Status RocksResultStore::Impl::put_tables(const RecordBatch& batch, const SortedRecords& sorted) {
  bool wrote_all = false;
  const rocksdb::Status s =
      writer.write_tables(*db, *own->bins_now(), batch, sorted, directory + "/" + kIngestName, wrote_all);
  if (s.ok()) return {};
  // A table that could not be written has not harmed the database.
  return wrote_all || !there(directory) ? failed(s, "cannot write to") : from_rocks(s, "cannot write to " + directory);
}

Status RocksResultStore::Impl::drop(const Horizon& horizon) {
  Status own_dropped = drop_own(horizon);
  Status dead_dropped = earlier.drop(horizon, [&](RocksSource& source) { return take_over(source, horizon); });
  return own_dropped.ok() ? dead_dropped : own_dropped;
}

Status RocksResultStore::Impl::drop_own(const Horizon& horizon) {
  if (!lock) return {};  // there is no place yet
  Status opened = need_open();
  // Without an entry nobody knows yet what is here.
  const bool all = !bytes_by_bin.empty() &&
                   std::ranges::all_of(bytes_by_bin, [&](const auto& entry) { return obsolete(horizon, entry.first); });
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
  const auto impl = std::make_shared<Impl>(std::move(place), std::move(options));
  const Place& p = impl->place;
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
  return std::unique_ptr<RocksResultStore>(new RocksResultStore(impl));
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
  std::uint64_t bytes = i.bytes();
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
  i.earlier.finish();
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
  return impl_->bytes();
}

std::unique_ptr<HostLogReader> RocksResultStore::reader() {
  return source_reader([impl = impl_] { return impl->sources(); }, impl_->place.life);
}

void RocksResultStore::refresh(std::span<const Incarnation> living) {
  impl_->earlier.refresh(living);
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
  return impl_->earlier.notes();
}

void RocksResultStore::belong(std::uint64_t run) {
  impl_->earlier.belong(run);
}

std::vector<std::string> RocksResultStore::set_others_aside() {
  return impl_->earlier.set_others_aside();
}

Status RocksResultStore::leave_out(const Stale& stale) {
  return impl_->earlier.leave_out(stale);
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

#include "storage/rocks_source.h"

#include <rocksdb/table.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "storage/life_place.h"
#include "storage/no_rocks_log.h"

namespace warren::storage {
namespace {

rocksdb::DBOptions reading_options() {
  rocksdb::DBOptions options = db_options();
  options.create_if_missing = false;
  // What is damaged is to cost only itself.
  options.paranoid_checks = false;
  options.skip_checking_sst_file_sizes_on_db_open = true;
  // As few as RocksDB takes: there is one such database for each life that is over. In one shard, or each keeps one.
  options.max_open_files = 20;
  options.table_cache_numshardbits = 0;
  return options;
}

// Only keys of the right length are followed by what is compared with them.
void set_key(KeyBytes& out, const rocksdb::Slice& key) {
  if (key.size() == out.size()) std::memcpy(out.data(), key.data(), out.size());
}

// Moves 2^exponent places on in the order of a bin, and further the next time; a bin holds one timeline and version, so
// what counts is (kind, group, sequence). False: nothing can be there.
bool jump(RecordKey& key, unsigned& exponent) {
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
  ++exponent;
  if (!over) return true;
  if (key.kind == RecordKind::kMessage) return false;
  key.kind = static_cast<RecordKind>(static_cast<int>(key.kind) + 1);
  sequence = group = 0;
  exponent = 0;
  return true;
}

}  // namespace

rocksdb::ColumnFamilyOptions family_options(bool index) {
  rocksdb::ColumnFamilyOptions options;
  options.compression = rocksdb::kNoCompression;
  options.disable_auto_compactions = true;
  options.write_buffer_size = 4 * most_rocks_log_bytes();  // flushed because the log is long, not because they are full
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.block_size = index ? 16 << 10 : 4 << 10;
  table.block_cache = rocks_cache();
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::DBOptions db_options() {
  rocksdb::DBOptions options;
  options.env = rocks_env();
  options.fail_if_options_file_error = false;  // a RocksDB that has no such option must not be built with that
  options.create_if_missing = true;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.max_open_files = 256;
  options.max_file_opening_threads = 1;
  options.max_background_jobs = 2;
  options.max_total_wal_size = most_rocks_log_bytes();
  options.bytes_per_sync = kBytesPerSync;
  options.advise_random_on_open = false;  // replays read in order
  options.info_log = std::make_shared<NoRocksLog>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

void add_families(const std::shared_ptr<rocksdb::DB>& db, const std::vector<rocksdb::ColumnFamilyHandle*>& handles,
                  Bins& bins, std::map<std::string, std::vector<std::string>> first_keys) {
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    const std::string name = handle->GetName();
    auto family = std::make_shared<Family>(db, handle, std::move(first_keys[name]));
    for (const bool index : {true, false}) {
      const std::string suffix = index ? kIndexSuffix : kDataSuffix;
      if (!name.ends_with(suffix)) continue;
      const auto bin = parse_bin(std::string_view(name).substr(0, name.size() - suffix.size()));
      if (!bin) continue;
      (index ? bins[*bin].index : bins[*bin].data) = family;
    }
  }
  std::erase_if(bins, [](const auto& entry) { return !entry.second.index && entry.first.kind != Bin::Kind::kStates; });
}

rocksdb::Status open_database(const std::string& directory, Opening how, OpenDatabase& out) {
  const bool read_only = how == Opening::kRead || how == Opening::kReadWhole;
  rocksdb::DBOptions options = read_only ? reading_options() : db_options();
  if (how == Opening::kReadWhole) {
    options.paranoid_checks = true;
    options.max_open_files = -1;
  }
  options.avoid_flush_during_recovery = how == Opening::kWriteTight;
  std::vector<std::string> names;
  if (read_only || there(directory + "/CURRENT")) {
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
  if (how == Opening::kReadWhole && is_damage(s)) return open_database(directory, Opening::kRead, out);
  if (!s.ok()) return s;
  out.db = own_database(opened, !read_only);
  std::map<std::string, std::vector<std::string>> first_keys;
  if (read_only) {
    std::vector<rocksdb::LiveFileMetaData> tables;
    out.db->GetLiveFilesMetaData(&tables);
    for (auto& table : tables) first_keys[table.column_family_name].push_back(std::move(table.smallestkey));
    for (auto& [name, keys] : first_keys) std::ranges::sort(keys);
  }
  add_families(out.db, handles, out.bins, std::move(first_keys));
  return s;
}

void look_at_tables(const OpenDatabase& database) {
  rocksdb::TablePropertiesCollection of_no_bin;  // a journal's
  (void)database.db->GetPropertiesOfAllTables(&of_no_bin);
  for (const auto& [bin, families] : database.bins) {
    for (const std::shared_ptr<Family>& family : {families.index, families.data}) {
      rocksdb::TablePropertiesCollection properties;
      // Results that cannot be read are reported when they are needed.
      if (family) (void)family->db().GetPropertiesOfAllTables(family->handle(), &properties);
    }
  }
}

bool is_damage(const rocksdb::Status& status) {
  return status.IsCorruption() || status.IsNotFound() || status.IsPathNotFound();
}

void RocksSource::set_bins(Bins bins) {
  auto shared = std::make_shared<const Bins>(std::move(bins));
  const std::lock_guard lock(mutex_);
  bins_ = std::move(shared);
}

std::shared_ptr<const Bins> RocksSource::bins_now() const {
  const std::lock_guard lock(mutex_);
  return bins_;
}

std::vector<Bin> RocksSource::bins() {
  std::vector<Bin> bins;
  for (const auto& [bin, families] : *bins_now()) {
    if (families.index) bins.push_back(bin);
  }
  return bins;
}

// At the first key from `start` on. Who reads one record after the other finds the iterator of the last scan there, or
// just before.
RocksSource::Cursor RocksSource::cursor_at(const std::shared_ptr<Family>& family, const KeyBytes& start) {
  Cursor cursor;
  if (settled_) {
    const std::lock_guard lock(mutex_);
    if (idle_.family == family) std::swap(cursor, idle_);
  }
  if (cursor.it) {
    for (int steps = 0;
         steps < 2 && cursor.it->Valid() && cursor.it->key().compare(slice(start)) < 0 && !has_passed_table(cursor);
         ++steps) {
      set_key(cursor.before, cursor.it->key());
      cursor.it->Next();
    }
    if (cursor.it->Valid() && cursor.before < start && cursor.it->key().compare(slice(start)) >= 0 &&
        !has_passed_table(cursor)) {
      return cursor;
    }
  } else {
    cursor.family = family;
    cursor.it.reset(family->db().NewIterator({}, family->handle()));
  }
  cursor.it->Seek(slice(start));
  cursor.before = start;
  const auto& first_keys = family->first_keys();
  cursor.table =
      static_cast<std::size_t>(std::ranges::upper_bound(first_keys, view(start), std::less<>()) - first_keys.begin());
  return cursor;
}

void RocksSource::keep(Cursor cursor) {
  if (!settled_) return;
  const std::lock_guard lock(mutex_);
  std::swap(idle_, cursor);
}

// At a table that they cannot open RocksDB's iterators end, or go on behind it, without a word (7.8; only seeking there
// tells): its first key is not come upon then.
bool RocksSource::has_passed_table(Cursor& cursor) {
  const auto& first_keys = cursor.family->first_keys();
  while (cursor.table < first_keys.size() && first_keys[cursor.table] <= view(cursor.before)) ++cursor.table;
  return cursor.table < first_keys.size() &&
         (!cursor.it->Valid() || cursor.it->key().compare(first_keys[cursor.table]) > 0);
}

// From where the cursor stands on. True: `visit` has had enough, or there is nothing more. False: something cannot be
// read.
bool RocksSource::walk(Cursor& cursor, const Bin& bin, const Visit& visit, RecordKey& last, bool& moved) {
  rocksdb::Iterator& it = *cursor.it;
  for (; it.Valid() && !has_passed_table(cursor); set_key(cursor.before, it.key()), it.Next()) {
    const auto record = decode_record(it.key().ToStringView(), it.value().ToStringView());
    if (!record) {
      warnings_->add(directory_ + " has a damaged entry among " + to_string(bin));
      continue;
    }
    last = record->key;
    moved = true;
    if (is_bad(it.key().ToStringView())) continue;
    if (!visit(*record)) return true;
  }
  const bool passed = it.status().ok() && has_passed_table(cursor);
  if (it.status().ok() && !passed) return true;
  warnings_->add(directory_ + " is damaged among " + to_string(bin) + ": " +
                 (passed ? "a table does not open" : it.status().ToString()));
  return false;
}

void RocksSource::scan(const RecordKey& from, std::uint64_t first_byte, const Visit& visit) {
  const RocksUse use;
  if (!use) return;
  const auto bins = bins_now();
  const auto found = bins->find(bin_of(from));
  if (found == bins->end() || !found->second.index) return;
  RecordKey target = from;
  unsigned exponent = 0;
  do {
    Cursor cursor = cursor_at(found->second.index, encode_key(target, first_byte, 0));
    bool moved = false;
    if (walk(cursor, found->first, visit, target, moved)) return keep(std::move(cursor));
    if (moved) exponent = 0;
    first_byte = 0;
  } while (jump(target, exponent));
}

bool RocksSource::read(const StoredRecord& record, std::uint64_t begin, std::span<std::byte> out) {
  const RocksUse use;
  if (!use) return false;
  const std::uint64_t at = begin - record.first_byte;
  if (record.inlined()) {
    std::copy_n(record.inlined_payload.data() + at, out.size(), out.data());
    return true;
  }
  const KeyBytes key = encode_key(record.key, record.first_byte, record.payload_bytes);
  const Bin bin = record.lies_in.value_or(bin_of(record.key));
  RecordKey written = record.key;
  if (record.lies_in) {
    written.round.timeline = bin.timeline;
    written.round.version = bin.version;
  }
  const auto bins = bins_now();
  const auto found = bins->find(bin);
  std::string why = "it is gone";
  if (found != bins->end() && found->second.data) {
    const Family& family = *found->second.data;
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    rocksdb::PinnableSlice value;
    const rocksdb::Status s = family.db().Get(
        options, family.handle(), slice(encode_key(written, record.first_byte, record.payload_bytes)), &value);
    const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(value.data()), value.size()};
    if (!s.ok()) {
      why = (s.IsCorruption() ? "its checksum does not hold: " : "") + s.ToString();
    } else if (bytes.size() != record.payload_bytes || checksum_of(bytes) != record.checksum) {
      why = "its checksum does not hold";
    } else {
      std::copy_n(bytes.data() + at, out.size(), out.data());
      return true;
    }
  }
  warnings_->add("bytes " + std::to_string(record.first_byte) + " to " + std::to_string(record.end()) + " of " +
                 warren::to_string(record.key.round) + " in " + directory_ + " cannot be read: " + why);
  const std::lock_guard lock(mutex_);
  bad_.emplace(view(key));
  damaged_.insert(bin);
  any_bad_.store(true, std::memory_order_relaxed);
  return false;
}

bool RocksSource::is_damaged(const Bin& bin) const {
  const std::lock_guard lock(mutex_);
  return damaged_.contains(bin);
}

bool RocksSource::is_bad(std::string_view key) const {
  if (!any_bad_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  return bad_.contains(key);
}

}  // namespace warren::storage

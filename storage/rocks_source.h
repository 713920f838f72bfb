// A life's records in RocksDB: the column families, and reading them. Inside storage/.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "storage/result_format.h"
#include "storage/rocks_process.h"

namespace warren::storage {

// Written to the disk while a table is made, so that the sync at its end has little left to wait for.
inline constexpr std::uint64_t kBytesPerSync = std::uint64_t{8} << 20;

[[nodiscard]] inline rocksdb::Slice slice(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
[[nodiscard]] inline rocksdb::Slice slice(const KeyBytes& key) {
  return view(key);
}

[[nodiscard]] rocksdb::DBOptions db_options();
[[nodiscard]] rocksdb::ColumnFamilyOptions family_options(bool index);
inline constexpr char kIndexSuffix[] = "-index", kDataSuffix[] = "-data";

// A column family of an open database.
class Family {
 public:
  // `first_keys`: of its tables, in order, if they do not change any more.
  Family(std::shared_ptr<rocksdb::DB> db, rocksdb::ColumnFamilyHandle* handle, std::vector<std::string> first_keys)
      : db_(std::move(db)), handle_(handle), first_keys_(std::move(first_keys)) {}
  ~Family() {
    destroy_rocks(made_in_, handle_, [this] { (void)db_->DestroyColumnFamilyHandle(handle_); });
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;
  [[nodiscard]] rocksdb::DB& db() const { return *db_; }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* handle() const { return handle_; }
  [[nodiscard]] const std::vector<std::string>& first_keys() const { return first_keys_; }

 private:
  std::shared_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* handle_;
  const unsigned made_in_ = rocks_process();
  const std::vector<std::string> first_keys_;
};

struct BinFamilies {
  std::shared_ptr<Family> index;  // none: it is dropped, but states of later versions lie among its data
  std::shared_ptr<Family> data;   // none: nothing of it lies apart
};
using Bins = std::map<Bin, BinFamilies>;

// Takes over the handles. Families that are not ours are left out, and so is one of data without its index, but for
// those of states.
// `first_keys`: Family's, by name.
void add_families(const std::shared_ptr<rocksdb::DB>& db, const std::vector<rocksdb::ColumnFamilyHandle*>& handles,
                  Bins& bins, std::map<std::string, std::vector<std::string>> first_keys = {});

struct OpenDatabase {
  std::shared_ptr<rocksdb::DB> db;
  Bins bins;
};
enum class Opening {
  kRead,        // nothing in the directory changes, and what cannot be read costs only itself
  kReadWhole,   // the same, with all files open from here on; fails where one cannot be, and is not damaged
  kWrite,       // made if it is missing; the write-ahead log becomes tables, and goes
  kWriteTight,  // the same on a full disk: the log stays
};
[[nodiscard]] rocksdb::Status open_database(const std::string& directory, Opening how, OpenDatabase& out);
// Reads what RocksDB reads of each table when it first comes to it, so that where that ends the process it is now.
void look_at_tables(const OpenDatabase& database);
// What cannot be read for this reason never can be: bytes are wrong or missing. Any other may pass: no descriptors or
// memory left, a disk that is away, another RocksDB.
[[nodiscard]] bool is_damage(const rocksdb::Status& status);

// What was found damaged, for people.
class Warnings {
 public:
  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMost || told_.size() >= kMostEver || !told_.insert(text).second) return;
    waiting_.push_back(std::move(text));
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(waiting_, {});
  }

 private:
  static constexpr std::size_t kMost = 100, kMostEver = 1000;

  std::mutex mutex_;
  std::vector<std::string> waiting_;
  std::set<std::string> told_;
};

// The records of one life's database. Any thread.
class RocksSource final : public RecordSource {
 public:
  // `settled`: the database does not change any more, so that iterators may be kept.
  RocksSource(Incarnation life, std::string directory, bool settled, std::shared_ptr<Warnings> warnings)
      : life_(life), directory_(std::move(directory)), settled_(settled), warnings_(std::move(warnings)) {}

  [[nodiscard]] const std::string& directory() const { return directory_; }
  void set_bins(Bins bins);
  [[nodiscard]] std::shared_ptr<const Bins> bins_now() const;
  // Whether a payload that lies among this bin's data could not be read.
  [[nodiscard]] bool is_damaged(const Bin& bin) const;

  Incarnation life() const override { return life_; }
  std::vector<Bin> bins() override;
  void scan(const RecordKey& from, std::uint64_t first_byte, const Visit& visit) override;
  bool read(const StoredRecord& record, std::uint64_t begin, std::span<std::byte> out) override;

 private:
  struct Cursor {
    std::shared_ptr<Family> family;  // outlives the iterator
    std::unique_ptr<rocksdb::Iterator, DestroyIterator> it;
    KeyBytes before{};      // no key lies between this one and where `it` stands
    std::size_t table = 0;  // the first whose first key lies behind `before`
  };
  Cursor cursor_at(const std::shared_ptr<Family>& family, const KeyBytes& start);
  void keep(Cursor cursor);
  static bool has_passed_table(Cursor& cursor);
  bool walk(Cursor& cursor, const Bin& bin, const Visit& visit, RecordKey& last, bool& moved);
  [[nodiscard]] bool is_bad(std::string_view key) const;

  const Incarnation life_;
  const std::string directory_;
  const bool settled_;
  const std::shared_ptr<Warnings> warnings_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Bins> bins_ = std::make_shared<const Bins>();
  Cursor idle_;                             // where the last scan has ended
  std::set<std::string, std::less<>> bad_;  // keys
  std::set<Bin> damaged_;                   // where those lie
  std::atomic<bool> any_bad_{false};
};

}  // namespace warren::storage

// Writes the records of a batch into a database: through its log, or as tables. Inside storage/.
#pragma once

#include <rocksdb/db.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/result.h"
#include "storage/result_format.h"
#include "storage/result_store.h"
#include "storage/rocks_source.h"
#include "storage/unchanged_states.h"

namespace warren::storage {

// The bytes of a record besides its payload, for the budget.
inline constexpr std::uint64_t kRecordOverheadBytes = kRecordKeyBytes + kRecordEntryBytes + 16;

// A record of a batch, under its key.
struct KeyedRecord {
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
// By bin; in each, in order of the keys, each of which stands once.
using SortedRecords = std::map<Bin, std::vector<KeyedRecord>>;
[[nodiscard]] SortedRecords sort_records(const RecordBatch& batch);
[[nodiscard]] bool any_apart(const std::vector<KeyedRecord>& records);

class RecordWriter {
 public:
  // One write through the database's log, synced.
  [[nodiscard]] static rocksdb::Status write_logged(rocksdb::DB& db, const Bins& bins, const RecordBatch& batch,
                                                    const SortedRecords& sorted);
  // Tables in `directory`, which the database takes up all at once. `wrote_all`: false if one of them could not be
  // written, which has not harmed the database.
  [[nodiscard]] rocksdb::Status write_tables(rocksdb::DB& db, const Bins& bins, const RecordBatch& batch,
                                             const SortedRecords& sorted, const std::string& directory,
                                             bool& wrote_all);

 private:
  rocksdb::Status write_table(const RecordBatch& batch, const std::vector<KeyedRecord>& records, const Family& family,
                              bool index, const std::string& file);

  std::uint64_t tables_ = 0;
  bool direct_writes_ = true;
};

}  // namespace warren::storage

#include "storage/record_writer.h"

#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

namespace warren::storage {
namespace {

// The entry of a record, with the payload if it lies in it.
void entry_of(const RecordBatch& batch, const KeyedRecord& k, std::string& out) {
  const std::span<const std::byte> payload = batch.payload(*k.item);
  StoredRecord record{k.item->key, k.item->info, k.item->first_byte, k.item->payload_bytes, checksum_of(payload)};
  record.lies_in = k.lies_in;
  const EntryBytes entry = encode_entry(view(k.key), record);
  out.assign(entry.data(), entry.size());
  if (record.inlined()) out.append(reinterpret_cast<const char*>(payload.data()), payload.size());
}

}  // namespace

SortedRecords sort_records(const RecordBatch& batch) {
  SortedRecords sorted;
  std::vector<KeyedRecord>* last = nullptr;
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
    const auto less = [](const KeyedRecord& a, const KeyedRecord& b) {
      return std::memcmp(a.key.data(), b.key.data(), kRecordKeyBytes) < 0;
    };
    if (!std::ranges::is_sorted(records, less)) std::ranges::sort(records, less);
    // Published twice, by an attempt that was interrupted and by the one after it: the same bytes.
    const auto same = [](const KeyedRecord& a, const KeyedRecord& b) { return a.key == b.key; };
    records.erase(std::unique(records.begin(), records.end(), same), records.end());
  }
  return sorted;
}

bool any_apart(const std::vector<KeyedRecord>& records) {
  return std::ranges::any_of(records, &KeyedRecord::written_apart);
}

rocksdb::Status RecordWriter::write_logged(rocksdb::DB& db, const Bins& bins, const RecordBatch& batch,
                                           const SortedRecords& sorted) {
  rocksdb::WriteBatch writes;
  std::string entry;
  for (const auto& [bin, records] : sorted) {
    const BinFamilies& families = bins.at(bin);
    for (const KeyedRecord& k : records) {
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
  return db.Write(write_options, &writes);
}

rocksdb::Status RecordWriter::write_table(const RecordBatch& batch, const std::vector<KeyedRecord>& records,
                                          const Family& family, bool index, const std::string& file) {
  const auto writer_of = [&](bool direct) {
    rocksdb::EnvOptions environment;
    environment.bytes_per_sync = kBytesPerSync;
    environment.use_direct_writes = direct;
    return std::make_unique<rocksdb::SstFileWriter>(environment, rocksdb::Options(db_options(), family_options(index)),
                                                    family.handle(), /*invalidate_page_cache=*/false);
  };
  // Past the page cache: a quarter of the processor time, and memory is the program's. Not every file system can.
  auto writer = writer_of(direct_writes_ && !index);
  rocksdb::Status s = writer->Open(file);
  if (!s.ok() && direct_writes_ && !index) {
    writer = writer_of(false);
    s = writer->Open(file);
    if (s.ok()) direct_writes_ = false;
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

rocksdb::Status RecordWriter::write_tables(rocksdb::DB& db, const Bins& bins, const RecordBatch& batch,
                                           const SortedRecords& sorted, const std::string& directory, bool& wrote_all) {
  std::vector<std::string> files;
  std::vector<rocksdb::IngestExternalFileArg> tables;
  rocksdb::Status s;
  for (const auto& [bin, records] : sorted) {
    const BinFamilies& families = bins.at(bin);
    for (const bool index : {true, false}) {
      if (!index && !any_apart(records)) continue;
      const Family& family = index ? *families.index : *families.data;
      const std::string file = directory + "/" + std::to_string(tables_++) + ".sst";
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
  wrote_all = s.ok();
  if (wrote_all) s = db.IngestExternalFiles(tables);
  std::error_code error;
  for (const std::string& file : files) std::filesystem::remove(file, error);
  return s;
}

}  // namespace warren::storage

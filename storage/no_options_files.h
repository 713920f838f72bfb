// RocksDB's OPTIONS files, which it would write, read again and sync whenever families of columns are made or dropped,
// as with each checkpoint here, are not written: that was 2 to 3 ms of processor time a checkpoint and worker, and
// nobody reads them (options are given whenever a database is opened). It goes on without
// (DBOptions::fail_if_options_file_error).
#pragma once

#include <rocksdb/file_system.h>

#include <memory>
#include <string>
#include <string_view>

namespace warren::storage {

class NoOptionsFiles final : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "NoOptionsFiles"; }

  rocksdb::IOStatus NewWritableFile(const std::string& file, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* out,
                                    rocksdb::IODebugContext* debug) override {
    const std::size_t name = file.rfind('/') + 1;
    if (file.compare(name, kPrefix.size(), kPrefix) == 0)
      return rocksdb::IOStatus::NotSupported("nobody reads " + file);
    return FileSystemWrapper::NewWritableFile(file, options, out, debug);
  }

 private:
  static constexpr std::string_view kPrefix = "OPTIONS-";
};

}  // namespace warren::storage

// RocksDB's own log file, which it would keep in the directory of each database, goes nowhere: on a full disk writing
// to it ends the process (an assertion that Debian's build keeps), and in a directory that is only read nothing is
// written.
#pragma once

#include <rocksdb/env.h>

#include <cstdarg>
#include <memory>

namespace warren::storage {

class NoRocksLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

}  // namespace warren::storage

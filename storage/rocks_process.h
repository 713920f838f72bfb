// RocksDB in a process that exits or forks. Inside storage/.
//
// exit() destroys RocksDB's static objects before the program's older ones, and before functions that the program gave
// to atexit() earlier. A communicator may be used until then. A child of a fork has none of RocksDB's threads, and its
// exit() would wait for them for ever. So:
//  - RocksDB is used inside a RocksUse alone. None begins once the process exits; exit() waits for those that run, and
//    ends the process itself where a disk does not answer;
//  - what is left of RocksDB's objects then is not destroyed. A database that is not closed loses nothing;
//  - RocksDB's work in the background runs on a thread that each process makes for itself (rocks_env());
//  - the objects of the parent are neither used nor destroyed in a child. Where the parent had a database open for
//    writing at the fork, RocksDB's timer ran in it. The child's exit() then ends when it comes to RocksDB: output is
//    flushed, and functions that were given to atexit() before the first use of RocksDB are not called.
//
// Threads: any.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/iterator.h>

#include <functional>
#include <list>
#include <memory>

#include "recovery/base/result.h"
#include "storage/result_store.h"

namespace warren::storage {

// Before the first use of RocksDB in a process, and in each child that uses it. kUnavailable: no thread can be started.
[[nodiscard]] Status prepare_rocks();

// The environment of all databases. It stays.
[[nodiscard]] rocksdb::Env* rocks_env();

class RocksUse {
 public:
  RocksUse();
  ~RocksUse();
  RocksUse(const RocksUse&) = delete;
  RocksUse& operator=(const RocksUse&) = delete;
  // False: the process exits, and RocksDB must not be used.
  explicit operator bool() const { return begun_; }

 private:
  bool begun_;
};

// A number for this process; its children have others.
[[nodiscard]] unsigned rocks_process();

// Makes these calls once when the process exits, as long as RocksDB can still be used, unless this object has gone. Not
// in children of the process that has made it.
class CallAtExit {
 public:
  explicit CallAtExit(ResultStore::AtExit calls);
  ~CallAtExit();
  CallAtExit(const CallAtExit&) = delete;
  CallAtExit& operator=(const CallAtExit&) = delete;

 private:
  const unsigned process_;
  std::list<ResultStore::AtExit>::iterator place_;
};

// Calls `destroy`, which destroys an object of RocksDB's, where that may be done. `made_in`: the rocks_process() that
// has made the object.
void destroy_rocks(unsigned made_in, const void* object, const std::function<void()>& destroy);
struct DestroyIterator {
  unsigned made_in = rocks_process();
  void operator()(rocksdb::Iterator* iterator) const {
    destroy_rocks(made_in, iterator, [iterator] { delete iterator; });
  }
};
// `writes`: it was opened for writing.
[[nodiscard]] std::shared_ptr<rocksdb::DB> own_database(rocksdb::DB* db, bool writes);
// Of blocks of tables, for all databases of this process.
[[nodiscard]] std::shared_ptr<rocksdb::Cache> rocks_cache();

// For how much memory databases are opened from here on: a part of it is the cache's, another what each database that
// is written keeps until it becomes tables. The least that is said in this process counts. 0: says nothing.
void limit_rocks_memory(std::uint64_t bytes);
// What is in a write-ahead log before it becomes tables; as much is in memory, and read when the database is opened.
[[nodiscard]] std::uint64_t most_rocks_log_bytes();

}  // namespace warren::storage

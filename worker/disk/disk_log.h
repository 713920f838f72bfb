// The log of one life on disk: RocksDB behind memory (storage/write_behind.h), in a library of its own that is loaded
// when a data directory is set, so that workers without one start without RocksDB.
//
// Threads: any, as WriteBehind.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "storage/host_log.h"
#include "storage/result_store.h"
#include "storage/write_behind.h"
#include "worker/settings/settings.h"

namespace warren::worker {

class DiskLog {
 public:
  // Opens the place of `self` under settings.data_dir and begins to write what it publishes in `segment`. kUnavailable:
  // the library or the directory is missing or does not let us. `events` and `synced` (WriteBehind::Options) are called
  // from the writer's thread.
  static Result<std::unique_ptr<DiskLog>> open(const Settings& settings, Incarnation self,
                                               std::shared_ptr<SegmentMemory> segment,
                                               std::function<void(const LogEvent&)> events,
                                               std::function<void()> synced);

  // Memory first, then what this life and others under the same data directory have on disk.
  [[nodiscard]] std::unique_ptr<HostLogReader> behind(std::unique_ptr<HostLogReader> memory);
  [[nodiscard]] storage::WriteBehind& writer() { return *writer_; }

 private:
  DiskLog() = default;
  std::shared_ptr<void> library_;  // closed last
  std::unique_ptr<storage::WriteBehind> writer_;
};

}  // namespace warren::worker

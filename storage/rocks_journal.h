// The journal in RocksDB.
//
// A directory of its own, made when it is missing:
//   LOCK-warren            locked (flock) while a tracker has it open; holds that process's id, for people
//   CURRENT, *.log, *.sst  RocksDB's
// The directory has mode 0700 whatever the umask, so that no other user reaches the files, which RocksDB makes as the
// umask says: a lock on one of them would keep trackers out. open() corrects a directory and files that have others.
// Keys: "format" → "warren-journal-4", and "job/" + name → record. Every write goes through the write-ahead log with a
// sync.
//
// Legal states of the directory after a crash, and what open() makes of them:
//  - missing or empty: a new journal;
//  - LOCK-warren alone, or with a RocksDB that has no key at all (died while making it): a new journal, made again;
//  - "format" and records: the journal. A write-ahead log whose last entry is cut short lost only a write that was
//  never
//    confirmed; damage anywhere else is kCorrupt, also that of which RocksDB ends the process: a process of its own
//    opens the journal first (storage/store_trial.h).
// Anything else is not ours: files without LOCK-warren, keys without "format", another format. It is refused and left
// alone.
#pragma once

#include <memory>
#include <string>

#include "storage/journal.h"

namespace warren::storage {

class RocksJournal final : public Journal {
 public:
  // kUnavailable: another process has it open (named), or the directory cannot be made or written. kCorrupt: damaged.
  // kRefused: written by another version of Warren. kInvalidArgument: the directory holds something else.
  static Result<std::unique_ptr<RocksJournal>> open(const std::string& directory);

  ~RocksJournal() override;
  // Permissions that open() has changed, as text for people; empty: none. Only the owner may read a journal.
  [[nodiscard]] const std::string& made_private() const;
  Result<std::map<std::string, std::string>> load() override;
  Result<std::optional<std::string>> get(std::string_view job) override;
  Status put(std::string_view job, std::string_view bytes) override;
  Status erase(std::string_view job) override;

 private:
  class Impl;
  explicit RocksJournal(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warren::storage

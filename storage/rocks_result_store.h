// The result store in RocksDB.
//
//   DATA_DIR/<job>/<worker>/life-<16 hex digits>/   one life's place; names as file_name() makes them
//     LOCK-life       locked (fcntl) as long as that life has its store open
//     LIFE-stale      nothing of it is to be read: it goes when that life is over
//     LIFE-note       its run, and what it was told of the job; replaced as a whole
//     LIFE            text: "warren-results-5", then job, worker, process id and the XXH3 of all that, a line each
//     LIFE-opening-life-<16 hex digits>  locked (fcntl) by another life while that opens the database to read it
//     ingest/         what put() has not finished
//     RESERVE         a megabyte, given up when the disk is full so that RocksDB can be opened and relieved
//     RESERVE-note    likewise, so that a note can be written
//     CURRENT, …      RocksDB's
//   DATA_DIR/<job>%finished-life-<16 hex digits>/   a finished job's, under removal
//   DATA_DIR/<job>%other-life-<16 hex digits>/      of another run of the job, put aside; people remove it
//   DATA_DIR/<job>%damaged-life-<16 hex digits>/    what ends processes that open it, put aside; people remove it
//
// A place is made by the first note() or put(). Directories are made with mode 0700 whatever the umask, so that what
// lies in them is the owner's alone. open() corrects the job's directory; the data directory stays as it is.
//
// Column families: each bin (storage/result_format.h) has two, "<bin>-index" with the entries and "<bin>-data" with the
// payloads that do not lie in them. Dropping a bin drops both, whatever it holds; but the data of states stay as long
// as a later version refers to some of them that have not changed since (storage/unchanged_states.h).
//
// Two ways to the disk, both durable when put() returns:
//  - batches of up to kMostLoggedBytes: one write through RocksDB's write-ahead log, synced, of both families at once;
//  - larger ones: a sorted table a family, written and synced apart, then taken up by the database all at once.
// Nothing is compressed or compacted. Tables have XXH3 checksums; ours are looked at too.
//
// Legal states of a place after a crash, and what becomes of them:
//  - no LIFE: it was being made. It holds nothing, and goes when the job is finished;
//  - LIFE-removed instead: it was being removed. It holds nothing, and the next drop() goes on;
//  - LIFE and no database, or one without families: it holds nothing;
//  - a log whose last entry is cut short: a write that was not confirmed is lost;
//  - an index without data, or with an empty family of data: families are made one by one, and of data only where a
//    record lies apart;
//  - data of states without an index: later states lie among them, or did;
//  - files in ingest/, tables that no manifest names: a put that was not confirmed; RocksDB removes the latter.
//  - LIFE-opening-…, not locked: that life died while it opened the database. It was killed just then, or RocksDB has
//    ended it because a file is damaged. Which one is found out by a process that opens the database (store_trial.h).
//    If that process dies of SIGABRT, SIGSEGV or SIGBUS, the place is put aside; it is never removed for that. If the
//    process cannot tell, that is told, and the place is opened like any other.
// A damaged database, or a damaged part of one, is told as a warning and holds nothing. One that does not open for
// another reason is told, too, and stays: a drop() that can open it decides. What lies beside a damaged LIFE-note is of
// no known run, and not used. A LIFE or LIFE-note of an unknown format is refused by open(), and its place is left
// alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "storage/result_store.h"

namespace warren::storage {

class RocksResultStore final : public ResultStore {
 public:
  static constexpr std::size_t kMostLoggedBytes = std::size_t{256} << 10;

  struct Place {
    std::string data_dir;
    std::string job;
    std::string worker_id;
    Incarnation life;
  };
  struct Options {
    std::uint64_t disk_bytes = 0;    // budget; 0: none
    std::uint64_t memory_bytes = 0;  // for caches and buffers of all databases of this process; 0: as much as they like
    std::string budget_flag = "log_disk_bytes";
    std::string trial_program;  // storage/store_trial.h; empty: warren_store_trial beside this code
  };

  // Looks at the data directory; makes nothing but what cleans up after a finished job. kUnavailable: it cannot be read
  // or written. kRefused: a life of this job was written by another version of Warren.
  static Result<std::unique_ptr<RocksResultStore>> open(Place place, Options options);
  ~RocksResultStore() override;

  // Opens this life's place, which put() does by itself. kUnavailable: another process has it open (named).
  [[nodiscard]] Status prepare();

  Status put(const RecordBatch& batch) override;
  std::vector<StatePiece> worn(Timeline timeline, Version version) override;
  Status note(const Note& note) override;
  std::vector<Note> notes() override;
  void belong(std::uint64_t run) override;
  std::vector<std::string> set_others_aside() override;
  Status leave_out(const Stale& stale) override;
  Status drop(const Horizon& horizon) override;
  Status finish() override;
  std::uint64_t bytes_on_disk() const override;
  std::unique_ptr<HostLogReader> reader() override;
  void refresh(std::span<const Incarnation> living) override;
  HeldReport report(bool verify) override;
  std::shared_ptr<void> call_at_exit(const AtExit& calls) override;
  std::vector<std::string> take_warnings() override;

  // This life's place, whether it is there or not.
  [[nodiscard]] std::string directory() const;

 private:
  class Impl;
  explicit RocksResultStore(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace warren::storage

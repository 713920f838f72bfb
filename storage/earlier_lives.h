// The places of other lives on the disk, of this worker's and of those that nobody runs any more. They hold results,
// and go when these are obsolete. Inside storage/.
//
// Threads: drop() is for the writing thread. All else may come from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/result.h"
#include "storage/life_place.h"
#include "storage/result_store.h"
#include "storage/rocks_source.h"

namespace warren::storage {

class EarlierLives {
 public:
  // Where the own life's place is, or will be.
  struct Own {
    Incarnation life;
    std::string worker_file, job_directory, directory;
    std::string trial_program;  // storage/store_trial.h
  };
  EarlierLives(Own own, std::shared_ptr<Warnings> warnings) : own_(std::move(own)), warnings_(std::move(warnings)) {}

  // The databases that can be read.
  [[nodiscard]] Sources sources();
  // These lives run; what others have left is looked for again.
  void refresh(std::span<const Incarnation> living);
  // The own run: what is of another is left alone.
  void belong(std::uint64_t run);
  // The job is finished: nothing is read any more.
  void finish();

  [[nodiscard]] std::vector<ResultStore::Note> notes() const;
  [[nodiscard]] std::vector<std::string> set_others_aside();
  [[nodiscard]] Status leave_out(const ResultStore::Stale& stale);
  // Removes the places of dead lives that hold nothing any more but what lasts, which `take_over` copies first.
  using TakeOver = std::function<Status(RocksSource&)>;
  [[nodiscard]] Status drop(const Horizon& horizon, const TakeOver& take_over);

  // The bytes that this worker's other lives take; counted anew by count_bytes().
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  void count_bytes();

 private:
  void look();
  // nullptr: it holds nothing. kUnavailable: it may hold something, and does not open now. Both are told. kCorrupt: a
  // process that opens it dies of that; set_damaged_aside() is for the caller, and tells.
  [[nodiscard]] Result<std::shared_ptr<RocksSource>> open(const FoundLife& found, Opening how);
  [[nodiscard]] bool kills_who_opens_it(const FoundLife& found);
  // `over`: the lock of its place; nullptr: somebody else has the lock, and the place stays.
  void set_damaged_aside(const FoundLife& found, const LifeLock* over);
  // Also a place of no known run.
  [[nodiscard]] bool of_other_run(const Result<std::optional<ResultStore::Note>>& note) const;
  // Opens the place of a dead life, whose lock is held; one that is damaged is set aside, which counts as `removed`.
  [[nodiscard]] Result<std::shared_ptr<RocksSource>> open_dead(const FoundLife& found, Opening how,
                                                               const LifeLock& held, bool& removed);

  const Own own_;
  const std::shared_ptr<Warnings> warnings_;
  std::map<std::string, std::vector<Bin>> bins_of_dead_;  // by directory; they do not change any more
  std::atomic<std::uint64_t> bytes_{0};

  std::mutex mutex_;
  std::vector<std::shared_ptr<RocksSource>> sources_;
  bool looked_ = false;
  std::optional<std::vector<Incarnation>> living_;  // none: nobody has said so
  std::atomic<std::uint64_t> run_{0};               // 0: of whatever run
};

}  // namespace warren::storage

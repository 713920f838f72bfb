// A result store whose disk hangs until it is let go.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/result_store.h"

namespace warren::worker {

class HangingDisk {
 public:
  // From now on; it does so at first.
  void hang() {
    const std::lock_guard lock(mutex_);
    hangs_ = true;
    released_ = puts_;
  }
  // Writes succeed from now on.
  void let_go() {
    const std::lock_guard lock(mutex_);
    hangs_ = false;
    changed_.notify_all();
  }
  // The writes that hang succeed, and the next one hangs.
  void hang_again() {
    const std::lock_guard lock(mutex_);
    released_ = puts_;
    changed_.notify_all();
  }
  // Until a write hangs.
  void await_put() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return puts_ > released_; });
  }

  void put() {
    std::unique_lock lock(mutex_);
    const std::uint64_t number = ++puts_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !hangs_ || released_ >= number; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hangs_ = true;
  std::uint64_t puts_ = 0, released_ = 0;
};

class HangingStore final : public storage::ResultStore {
 public:
  explicit HangingStore(std::shared_ptr<HangingDisk> disk) : disk_(std::move(disk)) {}
  Status put(const storage::RecordBatch& batch) override {
    if (!batch.empty()) disk_->put();
    return {};
  }
  Status note(const Note&) override { return {}; }
  std::vector<Note> notes() override { return {}; }
  void belong(std::uint64_t) override {}
  std::vector<std::string> set_others_aside() override { return {}; }
  Status leave_out(const Stale&) override { return {}; }
  Status drop(const storage::Horizon&) override { return {}; }
  Status finish() override { return {}; }
  std::uint64_t bytes_on_disk() const override { return 0; }
  std::unique_ptr<HostLogReader> reader() override { return std::make_unique<Nothing>(); }
  void refresh(std::span<const Incarnation>) override {}
  HeldReport report(bool) override { return {}; }
  std::vector<std::string> take_warnings() override { return {}; }

 private:
  // What is on it is in memory too.
  class Nothing final : public HostLogReader {
   public:
    Result<std::optional<RecordInfo>> info(const RecordKey&) override { return std::optional<RecordInfo>(); }
    Ranges held(const RecordKey&) override { return {}; }
    Ranges held_by(const RecordKey&, std::span<const Incarnation>) override { return {}; }
    bool recorded_by(const RecordKey&, std::span<const Incarnation>) override { return false; }
    bool read(const RecordKey&, std::uint64_t, std::span<std::byte>) override { return false; }
    std::vector<RecordKey> list(RecordKind, Timeline, GroupId, Version, Sequence, Sequence, std::size_t) override {
      return {};
    }
    std::vector<RecordKey> newest_rounds() override { return {}; }
    std::vector<RecordKey> setup_rounds(std::size_t) override { return {}; }
  };

  const std::shared_ptr<HangingDisk> disk_;
};

}  // namespace warren::worker

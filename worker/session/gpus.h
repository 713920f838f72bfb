// The GPUs of a session (docs/gpu.md). They stage the buffers of its calls, combine inputs that ranks of this host
// lend, and exchange bytes by NCCL. A session whose worker has no GPU has this object too; it does nothing then.
//
// A GPU wakes no thread. A thread that drives the engine moves the GPU's work on, without the session's lock. One
// thread at a time does so for each kind of work.
//
// Threads: functions that take the lock are called under it and let go of it meanwhile. Other threads may call the
// functions that say so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "worker/device/device_library.h"
#include "worker/device/staging.h"
#include "worker/life/life.h"
#include "worker/rounds/call.h"
#include "worker/schedule/schedule.h"
#include "worker/settings/settings.h"

namespace warren::worker {

class Gpus {
 public:
  explicit Gpus(const Settings& settings) : settings_(settings) {}
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  // Serves calls whose buffers lie on GPUs from here on, and carries out the engine's work there. Before the first
  // call, once.
  void serve(const warren_device_table& table, Engine& engine);
  // NCCL moves what GPUs exchange from here on. Returns its version. After serve(), which is not called where this
  // worker has no GPU. kUnavailable: no GPU, or no NCCL. kInvalidArgument: NCCL is set to block.
  [[nodiscard]] Result<std::uint32_t> use_nccl(const DeviceLibrary& device, DeviceExchange::Tell tell, Engine& engine);
  // Null: no GPU is served. From any thread.
  [[nodiscard]] Staging* staging() const { return staging_.get(); }

  // Stages a validated call (Staging::stage()). Without the lock, from any thread.
  [[nodiscard]] Status stage(Call& call, const GroupShape& shape) {
    return staging_ == nullptr ? Status() : staging_->stage(call, shape);
  }
  // News of memory of GPUs that staging has made or mapped; once. Without the lock, from any thread.
  [[nodiscard]] std::optional<DeviceShares::News> take_news() {
    return staging_ == nullptr ? std::nullopt : staging_->shares().take_news();
  }
  // A rank of this host offers memory of its GPU. False: nothing is mapped here, and the rank is to hear it.
  [[nodiscard]] bool offer(Incarnation life, std::uint32_t memory, OwnedFd fd, std::uint64_t bytes) {
    return staging_ != nullptr && staging_->shares().offer(life, memory, std::move(fd), bytes);
  }
  // A plan has these lives. `mates`: how many of its ranks are on this host.
  void install(std::span<const Incarnation> lives, std::ptrdiff_t mates);

  // A GPU has mapped memory of lives that are over.
  [[nodiscard]] bool has_gone_shares() const { return staging_ != nullptr && staging_->shares().has_gone(); }
  // Lets go of that memory.
  void release_gone(std::unique_lock<std::mutex>& lock);
  // Moves what GPUs combine as far as it goes; true if some of it is done. An error ends this life.
  [[nodiscard]] bool move_combines(std::unique_lock<std::mutex>& lock, Life& life);
  // Moves what GPUs exchange as far as it goes; true if some of it is done. An error ends this life.
  [[nodiscard]] bool move_exchanged(std::unique_lock<std::mutex>& lock, Life& life);

  // A thread is inside NCCL, and may never come back. From any thread.
  [[nodiscard]] bool may_hang() const { return exchanging_; }
  struct Overdue {
    Status why;
    std::int64_t for_ms = 0;  // since the first look that has found it
  };
  // A thread should have come back from NCCL: a generation's communicator does not end. Under the lock.
  [[nodiscard]] std::optional<Overdue> overdue(TimeMs now);

  // Nobody wants results any more: waits for GPUs end.
  void end() {
    if (staging_) staging_->end();
  }
  // Waits until GPUs combine nothing more.
  void settle() {
    if (staging_) staging_->combines().settle();
  }

 private:
  const Settings& settings_;
  std::unique_ptr<Staging> staging_;
  bool combining_ = false;                // a thread is in move_combines(), without the lock
  std::atomic<bool> exchanging_ = false;  // a thread is in move_exchanged(), without the lock; changes under it
  std::optional<TimeMs> overdue_since_;
};

}  // namespace warren::worker

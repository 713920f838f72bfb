// The states of the pending checkpoint that lie on a GPU, until the log has them (worker/device/snapshot.h). The thread
// that drives the engine moves them on piece by piece, so that rounds go on in between.
//
// Where the log has no room for a piece, the states stay as they are, and the program's next call says so.
//
// Threads: all functions are called under the session's lock.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "recovery/base/result.h"
#include "worker/device/snapshot.h"
#include "worker/life/life.h"
#include "worker/session/log.h"

namespace warren::worker {

class StatesUnderWay {
 public:
  StatesUnderWay(Life& life, const Log& log) : life_(life), log_(log) {}
  StatesUnderWay(const StatesUnderWay&) = delete;
  StatesUnderWay& operator=(const StatesUnderWay&) = delete;

  // These states are to be logged. There are no others.
  void begin(std::unique_ptr<Snapshot> snapshot) { coming_.emplace(std::move(snapshot)); }
  // States are on their way to the log.
  [[nodiscard]] bool any() const { return coming_ && coming_->failure.ok(); }
  // The log has had no room for them.
  [[nodiscard]] bool failed() const { return coming_ && !coming_->failure.ok(); }
  // Says why. The states try again from here on.
  [[nodiscard]] Status take_failure() { return std::exchange(coming_->failure, Status()); }
  // Brings states from the GPU, with the lock released, and logs what has come; true if something has. Of a generation
  // that is over they come no more. An error of the GPU ends this life.
  [[nodiscard]] bool move(std::unique_lock<std::mutex>& lock);
  // Waits until nothing is under way on the GPU, and lets go of it.
  void settle();

 private:
  struct Coming {
    explicit Coming(std::unique_ptr<Snapshot> taken) : snapshot(std::move(taken)) {}
    std::unique_ptr<Snapshot> snapshot;
    bool moves = false;  // a thread is at it, without the lock
    Status failure;      // that the log has no room for them
  };

  Life& life_;
  const Log& log_;
  std::optional<Coming> coming_;
};

}  // namespace warren::worker

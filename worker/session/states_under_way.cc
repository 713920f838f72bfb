#include "worker/session/states_under_way.h"

#include <utility>

namespace warren::worker {

bool StatesUnderWay::move(std::unique_lock<std::mutex>& lock) {
  if (!any() || coming_->moves) return false;
  Snapshot& snapshot = *coming_->snapshot;
  coming_->moves = true;
  const bool wanted = !life_.engine().stopped();
  lock.unlock();
  Result<bool> moved = false;
  if (wanted) {
    moved = snapshot.move();
  } else {
    snapshot.settle();
  }
  lock.lock();
  coming_->moves = false;
  if (!wanted) {
    coming_.reset();
    return false;
  }
  if (!moved.ok()) {
    life_.end(moved.status().because_of_this("cannot read the state for a checkpoint"), Blame::kNobody);
  }
  // The thread that comes next sees to the end of them.
  if (life_.engine().stopped()) return true;
  const auto piece = snapshot.front();
  if (piece) {
    coming_->failure = life_.checkpoints().give_part(*piece);
    if (coming_->failure.ok()) {
      snapshot.pop();
    } else {
      log_(WARREN_LOG_WARNING, coming_->failure.describe());
    }
    if (snapshot.done()) {
      coming_.reset();
      life_.look_at_checkpoints();
    }
  }
  return piece || moved.value();
}

void StatesUnderWay::settle() {
  if (coming_) coming_->snapshot->settle();
  coming_.reset();
}

}  // namespace warren::worker

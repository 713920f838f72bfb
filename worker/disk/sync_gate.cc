#include "worker/disk/sync_gate.h"

#include <string>
#include <utility>

namespace warren::worker {

std::uint64_t SyncGate::ask() {
  const std::uint64_t number = writer_.ask_sync();
  if (number > newest_) {
    newest_ = number;
    asked_.push_back({number, clock_() + timeout_ms_});
  }
  return number;
}

std::uint64_t SyncGate::reached() {
  const std::uint64_t synced = writer_.synced();
  bool some = false;
  for (; !asked_.empty() && asked_.front().number <= synced; asked_.pop_front()) some = true;
  if (some && std::exchange(late_, false)) {
    // It has woken: what it comes to now has not been late yet.
    for (Asked& a : asked_) a.deadline = clock_() + timeout_ms_;
  }
  if (!late_ && !asked_.empty() && asked_.front().deadline <= clock_()) {
    late_ = true;
    events_({Severity::kWarning,
             "sync_late",
             "the disk has not taken results for " + std::to_string(timeout_ms_) +
                 " ms: rounds go on, with results in memory only, until it has",
             {}});
  }
  return late_ ? newest_ : synced;
}

std::optional<TimeMs> SyncGate::next_deadline() const {
  if (late_ || asked_.empty()) return std::nullopt;
  return asked_.front().deadline;
}

}  // namespace warren::worker

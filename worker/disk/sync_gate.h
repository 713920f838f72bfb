// Mode `sync`: what is published may be seen once it is on disk, and nobody holds a lock meanwhile. A disk that fails
// is not waited for (storage/write_behind.h); nor is one that has not answered for the round timeout, until it does:
// the job must not stand still for it, and its rank must not be taken for dead. Both are events.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "recovery/base/machine.h"
#include "storage/write_behind.h"
#include "worker/rounds/recall.h"

namespace warren::worker {

class SyncGate final : public Durable {
 public:
  using Clock = std::function<TimeMs()>;
  using Events = std::function<void(const LogEvent&)>;
  // Whoever waits is woken by the writer's own word (WriteBehind::Options::synced).
  SyncGate(storage::WriteBehind& writer, std::int64_t timeout_ms, Clock clock, Events events)
      : writer_(writer), timeout_ms_(timeout_ms), clock_(std::move(clock)), events_(std::move(events)) {}

  std::uint64_t ask() override;
  [[nodiscard]] std::uint64_t reached() override;
  [[nodiscard]] std::optional<TimeMs> next_deadline() const override;

 private:
  struct Asked {
    std::uint64_t number;
    TimeMs deadline;
  };
  storage::WriteBehind& writer_;
  const std::int64_t timeout_ms_;
  const Clock clock_;
  const Events events_;
  std::deque<Asked> asked_;   // two at most: one that the writer is at, one that it will begin with
  std::uint64_t newest_ = 0;  // asked for
  bool late_ = false;         // the oldest of them has not come in time
};

}  // namespace warren::worker

// What the tracker's and the worker's machines have in common: time, timers, log events, counted transitions.
//
// A machine takes an event and the time and appends effects to a list. Its shell carries the effects out in their
// order, each before the next: "persist, then send" is a property of the list. Machines have no clock, thread, socket,
// disk, log or randomness; equal inputs give equal effects.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"

namespace warren {

// Milliseconds on a monotonic clock that the shell chooses.
struct TimeMs {
  std::int64_t value = 0;
  friend constexpr auto operator<=>(const TimeMs&, const TimeMs&) = default;
  friend constexpr TimeMs operator+(TimeMs t, std::int64_t ms) { return {t.value + ms}; }
  friend constexpr std::int64_t operator-(TimeMs a, TimeMs b) { return a.value - b.value; }
};

// From what only a look at one job in detail needs to what somebody has to act on.
enum class Severity { kDebug, kInfo, kWarning, kError };

// How often a worker says something (a heartbeat, or its unanswered join or leave again), so that a live one is heard
// several times within the round timeout after which it counts as lost.
[[nodiscard]] constexpr std::int64_t heartbeat_interval_ms(std::int64_t round_timeout_ms) {
  return std::clamp<std::int64_t>(round_timeout_ms / limits::kHeartbeatsPerRoundTimeout, 1,
                                  limits::kMaxHeartbeatIntervalMs);
}
// How often a worker looks at what its data path does.
[[nodiscard]] constexpr std::int64_t sample_interval_ms(std::int64_t round_timeout_ms) {
  return std::max(limits::kMinSampleIntervalMs, heartbeat_interval_ms(round_timeout_ms) / limits::kSamplesPerHeartbeat);
}
// A wait that goes on is logged again after this time.
inline constexpr std::int64_t kWaitLogIntervalMs = 10'000;

// One line for people, and the same as fields for machines. `name` is stable (docs/events.md lists them).
struct LogEvent {
  Severity severity = Severity::kInfo;
  std::string name;                                         // "worker_joined"
  std::string text;                                         // the sentence for people
  std::vector<std::pair<std::string, std::string>> fields;  // rank, generation, version, sequence, worker, … as known
};

}  // namespace warren

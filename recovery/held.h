// What the disks of hosts hold of a job that is started again after everything died: which rounds, and which bytes of
// each. A host reports it; put together, it says how far the logs serve: up to the first gap. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "recovery/ids.h"
#include "recovery/ranges.h"

namespace warren {

// Rounds [first, first + count), each `total_bytes` long, of each the same bytes.
struct HeldRun {
  std::uint64_t first = 0, count = 0;
  std::uint64_t total_bytes = 0;  // of the whole result; 0: it is complete
  std::uint64_t call = 0;         // of the fingerprint, what ranks must agree on without their call sites: call_hash()
  Ranges held;
  friend bool operator==(const HeldRun&, const HeldRun&) = default;

  [[nodiscard]] std::uint64_t end() const { return first + count; }
  [[nodiscard]] bool complete() const { return held.covers(0, total_bytes); }
};

// The rounds of one group in one version, or the messages of one pair of ranks.
struct HeldRounds {
  bool messages = false;
  Timeline timeline;
  GroupId group;
  Version version;
  std::vector<HeldRun> runs;  // by `first`, disjoint
  friend bool operator==(const HeldRounds&, const HeldRounds&) = default;
};

// A checkpoint's state: the global one, or the local one of a rank.
struct HeldState {
  Timeline timeline;
  Version version;
  std::optional<Rank> local;
  std::uint64_t total_bytes = 0;
  Ranges held;
  friend bool operator==(const HeldState&, const HeldState&) = default;
};

struct HeldReport {
  // More runs than these of one (group, version) are left out, and so count as not held.
  static constexpr std::size_t kMaxRuns = 65536;

  std::vector<HeldRounds> rounds;  // by (messages, timeline, group, version)
  std::vector<HeldState> states;   // by (timeline, version, local)
  friend bool operator==(const HeldReport&, const HeldReport&) = default;
};

// How far the logs serve in one (group, version): rounds 0 … rounds − 1 are held whole; of the next one, `final`.
struct HeldPosition {
  bool messages = false;
  Timeline timeline;
  GroupId group;
  Version version;
  std::uint64_t rounds = 0;
  Ranges final;
  friend bool operator==(const HeldPosition&, const HeldPosition&) = default;
};

// Adds round `sequence` to the end of `runs`; it must follow what is there.
void append_held(std::vector<HeldRun>& runs, std::uint64_t sequence, std::uint64_t total_bytes, std::uint64_t call,
                 Ranges held);

// Both together. Where two reports contradict each other about a round (length or call), nobody knows which is right:
// none of it counts as held.
[[nodiscard]] HeldReport unite(const HeldReport& a, const HeldReport& b);

// By (messages, timeline, group, version).
[[nodiscard]] std::vector<HeldPosition> first_gaps(const HeldReport& united);

}  // namespace warren

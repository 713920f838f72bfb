// What the disks of hosts hold of a job that is started again after everything died: which rounds, and which bytes of
// each. A host reports it; put together, it says how far the logs serve: up to the first gap. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "recovery/wire/messages.pb.h"

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

// Adds round `sequence` to the end of `runs`; it must follow what is there.
void append_held(std::vector<HeldRun>& runs, std::uint64_t sequence, std::uint64_t total_bytes, std::uint64_t call,
                 Ranges held);

// Both together. Where two reports contradict each other about a round (length or call), nobody knows which is right:
// none of it counts as held.
[[nodiscard]] HeldReport unite(const HeldReport& a, const HeldReport& b);

// Rounds `from` … (the result) − 1 are held whole; the next one is not.
[[nodiscard]] std::uint64_t held_until(const HeldReport& united, Timeline timeline, GroupId group, Version version,
                                       std::uint64_t from);

// The rounds of a report as a message carries them: not those of versions before `from`, but for the preamble; as many
// as it may hold (recovery/base/limits.h), in the order of the report. Messages and states stay out.
[[nodiscard]] wire::Held to_wire(const HeldReport& report, Version from);
// `held` is valid (recovery/wire/codec.h).
[[nodiscard]] HeldReport from_wire(const wire::Held& held);

// What of the rounds of a job goes on after a moment in which no life of it survived (docs/decisions/0006): those of
// the preamble and of the version that all lives start from, up to the first that the disks do not hold whole. By
// (group, version, rounds).
//
// `before`: as in the plan that was in force, whose timeline was `timeline`. More than limits::kMaxKept: none.
[[nodiscard]] std::vector<wire::Kept> keep_rounds(const HeldReport& disks, std::span<const wire::Kept* const> before,
                                                  Timeline timeline, std::optional<Version> committed);

}  // namespace warren

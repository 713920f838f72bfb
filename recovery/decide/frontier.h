// How far a job is: what the survivors of an interrupt report, put together (docs/decisions/0006-recovery.md). A pure
// function.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

// In which order commits are newer: with the fall back to a mirror a timeline begins in which versions are lower than
// some that were undone.
[[nodiscard]] inline std::pair<std::uint32_t, std::uint64_t> commit_order(const wire::Known& known) {
  return {known.committed_timeline(), known.committed_version()};
}

struct RankPositions {
  Rank rank;
  const wire::Report* report;  // valid (recovery/wire/codec.h)
  bool finals = true;          // false: what it calls final is of rounds that have other names now
};

// For each (group, version) that matters, in that order: the greatest number of completed rounds; of the round with
// that number, the union of what is final on the hosts of those who are in it, and of how many bytes it is, if anybody
// knows; closed if one of its ranks has gone on
// to a later version. The preamble always matters, and what is not older than `committed`.
//
// `logged` is what hosts hold of rounds that lives have seen who are dead now, in the same timeline: it counts as if
// those reported it, but contradicts nobody.
//
// `served` is what lives have said that have left, and serve no more than what is completed (docs/decisions/0012):
// their finals count where with those of the others they are all of a round, which is completed then: somebody who is
// lost may have returned it. That holds also where the others have all of it themselves. It contradicts nobody, either.
//
// `before` is the frontier of the plan that was interrupted, in the same timeline: what it calls completed stays so,
// whoever is left to report it. What it calls final does not: that counts only as far as a survivor's host holds it.
//
// kDesync: two ranks contradict each other, one has closed a version in which the other did more rounds; names both and
// their counts. kUnavailable: more rounds or ranges than a plan may hold (recovery/base/limits.h).
[[nodiscard]] Result<std::vector<wire::Position>> merge_frontier(std::span<const RankPositions> reports,
                                                                 std::span<const wire::Position* const> before,
                                                                 std::span<const wire::Position* const> logged,
                                                                 std::span<const wire::Position* const> served,
                                                                 std::optional<Version> committed,
                                                                 const std::function<std::string(Rank)>& name);

// Set-up rounds, by (group, name): done if any of the lists says so, else with the union of what is final. Their
// `lists` are what survivors or votes tell, and what was known to be done before; `served` as above. What is of a later
// timeline than `newest` is nobody's.
//
// kDesync: one was begun in two timelines. kExhausted: more than a job may have, or ranges than a plan may hold.
[[nodiscard]] Result<std::vector<wire::Setup>> merge_setups(
    std::span<const google::protobuf::RepeatedPtrField<wire::Setup>* const> lists,
    std::span<const google::protobuf::RepeatedPtrField<wire::Setup>* const> served, Timeline newest);

}  // namespace warren

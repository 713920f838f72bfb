// Where the next plan starts: how far each group of ranks is, and which rounds keep the names of older timelines. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

struct PlanStart {
  std::vector<wire::Position> frontier;
  std::vector<wire::Kept> kept;  // by (group, version, rounds)
  std::vector<wire::Setup> setups;
  bool goes_on = false;        // from where lives, or what they have logged, are
  bool ends_timeline = false;  // goes_on, with other ranks: rounds get the names of a new timeline

  // Rounds that disks gave to the plan, where no life goes on.
  [[nodiscard]] std::uint64_t rounds_from_disks() const;
};

// Attempts at rounds that were in flight when a timeline ended.
struct EndedAttempts {
  std::size_t finished = 0;  // survivors hold all of the result
  std::size_t dropped = 0;   // they do not: the round is computed again from whole inputs
};
// Ends `timeline`, in which `start` has got that far: the job goes on with other ranks. The rounds so far keep their
// names, and so do the ranks whose inputs are in them. A round in flight is finished if survivors hold all of its
// result, because a lost rank may have returned it. Otherwise no rank has: it is computed again under a new name, so
// that nothing of the two attempts can meet (I2, I6).
EndedAttempts end_timeline(PlanStart& start, Timeline timeline);

// Drops kept rounds that the frontier does not reach. Returns whether there were any. They exist only after a gap in
// the log, when survivors alone count.
bool drop_forgotten(PlanStart& start);

// Only logged rounds on disks are left, which are `kept`. Empty: their groups are too many for a plan.
[[nodiscard]] PlanStart start_from(std::vector<wire::Kept> kept);

// How many absences a plan has to name that starts so, follows `before`, and has `missing` places empty.
[[nodiscard]] std::size_t absences_of(const PlanStart& start, const wire::Plan& before, std::size_t missing);

}  // namespace warren

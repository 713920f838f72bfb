// A step of a schedule: which of the input it reads, and whether it writes finals.
#pragma once

#include <cstdint>
#include <span>

#include "recovery/base/check.h"
#include "worker/schedule/schedule.h"

namespace warren::worker {

// The step is carried out here and now, without a peer.
[[nodiscard]] inline bool is_local(schedule::StepKind kind) {
  return kind != schedule::StepKind::kSend && kind != schedule::StepKind::kRecv;
}

// The step leaves final values in the output.
[[nodiscard]] inline bool writes_final(const schedule::Step& step) {
  using schedule::StepKind;
  const bool writes = step.kind == StepKind::kReduce || step.kind == StepKind::kCombine || step.kind == StepKind::kCopy;
  return writes && step.dst.space == schedule::Space::kOutput && step.count != 0;
}

// The step copies a part of the input to the output, as it is.
[[nodiscard]] inline bool copies_input(const schedule::Step& step) {
  return step.kind == schedule::StepKind::kCopy && !step.finish && step.count != 0 &&
         step.a.space == schedule::Space::kInput && step.dst.space == schedule::Space::kOutput;
}

// Where the input stands: the root of a broadcast has it in its one buffer, the output. No other schedule reads the
// output before it has written there.
[[nodiscard]] inline schedule::Space input_space(const schedule::Schedule& schedule) {
  for (const schedule::Step& step : schedule.steps) {
    if (writes_final(step)) return schedule::Space::kInput;
  }
  return schedule::Space::kOutput;
}

// Calls visit(at, count) for each range of the input that the step reads. `space`: input_space() of the schedule, or
// kInput.
template <class Visit>
void each_input(const schedule::Schedule& s, schedule::Space space, const schedule::Step& step, Visit visit) {
  using schedule::StepKind;
  const auto read = [&](const schedule::Place& place) {
    if ((place.space == schedule::Space::kInput || place.space == space) && step.count != 0)
      visit(place.at, step.count);
  };
  switch (step.kind) {
    case StepKind::kRecv: return;
    case StepKind::kReduce: read(step.a); return read(step.b);
    case StepKind::kCombine:
      for (const schedule::Place& operand : std::span(s.operands).subspan(step.first_operand, step.operands))
        read(operand);
      return;
    case StepKind::kSend:
    case StepKind::kCopy:
    case StepKind::kPublish: return read(step.a);
  }
  WARREN_UNREACHABLE("a step is of one of these kinds");
}

}  // namespace warren::worker

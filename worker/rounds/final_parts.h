// The final parts of one call's result while its round is not over. One is in the log, as the plan says. One stands in
// the output. All ranges are bytes of the whole result.
//
// The output may be where the input was. So what stands in it is never computed again: the log gets it too, or the
// round cannot go on.
#pragma once

#include <utility>

#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "worker/rounds/call.h"
#include "worker/rounds/group_schedules.h"
#include "worker/rounds/recall.h"

namespace warren::worker {

class FinalParts {
 public:
  // `recall` null: nothing is logged. `schedules` are the group's.
  FinalParts(Recall* recall, const GroupSchedules& schedules) : recall_(recall), schedules_(schedules) {}

  // Another call, or another attempt at its round: nothing is final.
  void begin();
  // These whole pieces are in the log. All ranks compute the rest.
  void know(Ranges in_log) { in_log_ = std::move(in_log); }
  [[nodiscard]] const Ranges& in_log() const { return in_log_; }
  // The log has a part of the round, and the rest is computed when that has come.
  [[nodiscard]] bool resumed() const { return !in_log_.empty(); }
  // These bytes have come to the output.
  void add(const Ranges& fresh) { in_output_.add(fresh); }
  [[nodiscard]] const Ranges& in_output() const { return in_output_; }
  // The input is filled again, over what stands in the output.
  void lose_output() { in_output_ = {}; }
  // A part that stands in the output is not in the log. A round that is to be computed fails with this status.
  [[nodiscard]] Status known_here_alone(const Call& call) const;

  // The bytes that this rank lacks and the log has: all of the result, or the part of a round that is resumed.
  [[nodiscard]] Replayer::Want want(const Call& call) const;
  // Publishes these bytes, as far as they stand in the output.
  [[nodiscard]] Status log(const Call& call, const Ranges& bytes) const;
  // Publishes what the log has of a resumed round and this host does not hold. It has come to the output.
  [[nodiscard]] Status log_what_came(const Call& call) const;
  // The generation is over: publishes what stands in the output and this host does not hold. known_here_alone() says
  // why that failed, should it matter.
  void log_output(const Call& call);

 private:
  Recall* const recall_;
  const GroupSchedules& schedules_;
  Ranges in_log_, in_output_;
  Status unlogged_;  // why some of the output could not be logged
};

}  // namespace warren::worker

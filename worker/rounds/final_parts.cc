#include "worker/rounds/final_parts.h"

#include <algorithm>
#include <utility>

#include "worker/schedule/copies.h"

namespace warren::worker {

void FinalParts::begin() {
  in_log_ = in_output_ = {};
  unlogged_ = {};
}

Status FinalParts::known_here_alone(const Call& call) const {
  if (in_output_.minus(in_log_).empty()) return {};
  const Status why = unlogged_.ok() ? Status(Code::kInternal, "the plan does not name it") : unlogged_;
  return why.because_of_this("part of the result of " + name_of(call) + " is known here alone");
}

Replayer::Want FinalParts::want(const Call& call) const {
  const std::uint64_t width = std::max<std::uint64_t>(1, element_bytes(call.spec));
  const ResultShape shape = schedules_.result_of(call.spec);
  Replayer::Want want;
  want.key = result_key(call.round);
  want.fingerprint = call.fingerprint;
  want.total_bytes = shape.total * width;
  want.bytes = Ranges(shape.begin * width, (shape.begin + shape.count) * width);
  if (resumed()) {
    // Bytes that were final stay. The rest of the log's part comes from there.
    want.bytes = want.bytes.intersect(in_log_).minus(in_output_);
  }
  want.base = static_cast<std::byte*>(call.spec.output);
  want.base_at = shape.begin * width;
  // Where results differ by rank, this host kept copies of other ranks' too. A schedule that resumes copies them anew.
  want.refill =
      !resumed() && schedule::results_differ(call.spec.collective) && recall_->replayer().refills(schedules_.members());
  return want;
}

Status FinalParts::log(const Call& call, const Ranges& bytes) const {
  if (bytes.empty()) return {};
  const std::uint64_t width = element_bytes(call.spec);
  const ResultShape shape = schedules_.result_of(call.spec);
  const RecordKey key = result_key(call.round);
  const RecordInfo info{call.fingerprint, shape.total * width};
  const Ranges mine = bytes.intersect(shape.begin * width, (shape.begin + shape.count) * width);
  for (const Interval& i : mine.intervals()) {
    const auto* from = static_cast<const std::byte*>(call.spec.output) + (i.begin - shape.begin * width);
    const Status status = recall_->publish(key, info, i.begin, {from, i.end - i.begin});
    if (!status.ok()) return status.because_of_this("cannot log " + name_of(call));
  }
  return {};
}

Status FinalParts::log_what_came(const Call& call) const {
  // Every host has the whole round before any of its ranks returns (docs/invariants.md, "Copies"). Results that dead
  // lives of this host have logged will do: their segments stay while they alone have them (dead_segments.h). A log
  // that took it anew at each interruption would fill up.
  return log(call, in_log_.minus(recall_->reader().held(result_key(call.round))));
}

void FinalParts::log_output(const Call& call) {
  // In memory that outlives this process, whoever goes next. No plan will know of bytes that cannot be logged.
  const Status logged = log(call, in_output_.minus(recall_->reader().held(result_key(call.round))));
  if (!logged.ok() && unlogged_.ok()) unlogged_ = logged;
}

}  // namespace warren::worker

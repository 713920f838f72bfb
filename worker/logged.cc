#include "worker/logged.h"

#include <algorithm>
#include <vector>

#include "recovery/limits.h"

namespace warren::worker {

wire::Logged logged_on(HostLogReader& reader) {
  wire::Logged logged;
  const std::vector<RecordKey> newest = reader.newest_rounds(limits::kMaxPositions);
  if (newest.empty()) return logged;
  // Ascending: the newest timeline stands last.
  const Timeline timeline = newest.back().round.timeline;
  logged.set_timeline(timeline.value);
  std::size_t ranges = 0;
  for (const RecordKey& key : newest) {
    if (key.round.timeline != timeline) continue;
    const Ranges held = reader.held(key);
    ranges += held.intervals().size();
    if (ranges > limits::kMaxRangesPerReport) break;
    wire::Position& p = *logged.add_positions();
    p.set_group(key.round.group.value);
    p.set_version(key.round.version.value);
    p.set_rounds(key.round.sequence.value);
    for (const Interval& i : held.intervals()) {
      wire::ByteRange& range = *p.add_final();
      range.set_begin(i.begin);
      range.set_end(i.end);
    }
  }
  return logged;
}

}  // namespace warren::worker

#include "worker/logged.h"

#include <algorithm>
#include <vector>

namespace warren::worker {
namespace {

// So much that a join has room for it beside what its disk holds.
constexpr int kMostPositions = 1024;
constexpr std::size_t kMostRanges = 4096;

}  // namespace

wire::Logged logged_on(HostLogReader& reader) {
  wire::Logged logged;
  const std::vector<RecordKey> newest = reader.newest_rounds();
  if (newest.empty()) return logged;
  // Ascending: the newest timeline stands last.
  const Timeline timeline = newest.back().round.timeline;
  logged.set_timeline(timeline.value);
  std::size_t ranges = 0;
  for (const RecordKey& key : newest) {
    if (key.round.timeline != timeline || logged.positions_size() == kMostPositions) continue;
    Ranges held = reader.held(key);
    if (ranges + held.intervals().size() > kMostRanges) held = Ranges();
    ranges += held.intervals().size();
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

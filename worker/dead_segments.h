// What this host's dead lives have left in their log segments, and when such a segment may go: once nothing that is
// needed lies in it alone. Whoever replays logs again what only dead lives hold; what no replay covers (parts of
// results that were kept for other ranks, rounds in flight) a living rank takes over when too many segments have
// gathered, so that their number has a bound however often lives end, with checkpoints or without.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "recovery/ids.h"
#include "recovery/result.h"
#include "storage/host_log.h"
#include "storage/segment.h"

namespace warren::worker {

class DeadSegments {
 public:
  // So many stay as they are at the first rank of a host; others, who look at the same time and would only take over
  // the same, let twice as many be. It costs a scan and a copy of each.
  static constexpr std::size_t kMostLeft = 4;

  // What is not obsolete.
  struct Horizon {
    Timeline timeline;  // the oldest that is in use
    std::optional<Version> committed;
    Timeline committed_timeline;
    SetupsInUse setups{};
    bool only_setups = false;
    [[nodiscard]] bool needs(const RecordKey& key) const;
  };
  struct Gone {
    Incarnation life;
    bool over = true;  // false: it may be one that has joined and has not been planned for yet
  };
  struct Looked {
    std::vector<Gone> gone;  // their segments may be closed
    Status taken_over;       // why some of it could not be: the log is full
  };

  // HostLog::attach() has taken it.
  void attached(Incarnation life, std::span<const std::byte> segment, std::shared_ptr<const void> keeper);
  // To be called when the segments of all `host_lives`, the living of this host's in the newest plan, are attached, and
  // after commits. `first`: this life is the first of them.
  [[nodiscard]] Looked look(const Horizon& horizon, std::span<const Incarnation> host_lives, bool first, HostLog& log,
                            HostLogReader& reader);
  // Takes over the set-up rounds in use, by the newest look, that lie in dead lives' segments alone: what a checkpoint
  // may be made of is to be durable with it, and nobody writes those segments to a disk.
  [[nodiscard]] Status take_over_setups(std::span<const Incarnation> host_lives, HostLog& log, HostLogReader& reader);

 private:
  struct Segment {
    SegmentView view;
    std::shared_ptr<const void> keeper;
    bool was_member = false;
  };
  template <class Take>
  bool each_only_in(const Segment& segment, const Horizon& horizon, std::span<const Incarnation> living,
                    HostLogReader& reader, Take take) const;
  [[nodiscard]] Status take_over(const Segment& segment, const Horizon& horizon, std::span<const Incarnation> living,
                                 HostLog& log, HostLogReader& reader);

  std::map<Incarnation, Segment> segments_;
  SetupsInUse setups_;         // by the newest look
  std::set<RecordKey> empty_;  // records without bytes that were taken over: ranges do not show that somebody has them
};

}  // namespace warren::worker

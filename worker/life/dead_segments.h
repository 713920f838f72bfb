// What this host's dead lives have left in their log segments, and when such a segment may go: once nothing that is
// needed lies in it alone. Whoever replays logs again what only dead lives hold; what no replay covers (parts of
// results that were kept for other ranks, rounds in flight) a living rank takes over when too many segments have
// gathered, so that their number has a bound however often lives end, with checkpoints or without.
//
// A host's ranks may all die at once and leave full logs. What their next lives replay, those log anew, each its part:
// a rank that took it all over first would have no room left for its own. So only what is left when rounds are computed
// again counts, it is taken over a slice at a time, and no more than half of a log that cannot spill is used for it.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/host_log.h"
#include "storage/segment.h"

namespace warren::worker {

// Whether its life has published anything, dropped since or not.
[[nodiscard]] bool ever_written(const SegmentView& view);

class DeadSegments {
 public:
  // So many stay as they are at the first rank of a host; others, who look at the same time and would only take over
  // the same, let twice as many be. It costs a scan and a copy of each.
  static constexpr std::size_t kMostLeft = 4;
  // Those that a replay may still make superfluous: about half of what a launcher keeps (segments/keeper.h). More are
  // there only if the host's ranks have died several times over before one of them computed a round.
  [[nodiscard]] static constexpr std::size_t most_waiting(std::size_t host_lives) { return 32 + 2 * host_lives; }

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
    Status taken_over;       // why some of it could not be: kExhausted, the log has no room for it
    bool more = false;       // the slice was used up: look again soon
  };

  // HostLog::attach() has taken it.
  void attached(Incarnation life, std::span<const std::byte> segment, std::shared_ptr<const void> keeper);
  // To be called when the segments of all `host_lives`, the living of this host's in the newest plan, are attached, and
  // after commits. `first`: this life is the first of them. `rounds_computed`: by this life, with others; once that has
  // risen since a look, the replays of who was dead by then are taken to be over (a round needs all ranks).
  [[nodiscard]] Looked look(const Horizon& horizon, std::span<const Incarnation> host_lives, bool first,
                            std::uint64_t rounds_computed, HostLog& log, HostLogReader& reader);
  // Takes over the set-up rounds in use, by the newest look, that lie in dead lives' segments alone: what a checkpoint
  // may be made of is to be durable with it, and nobody writes those segments to a disk.
  [[nodiscard]] Status take_over_setups(std::span<const Incarnation> host_lives, HostLog& log, HostLogReader& reader);

 private:
  struct Segment {
    SegmentView view;
    std::shared_ptr<const void> keeper;
    bool was_member = false;
    std::optional<std::uint64_t> dead_since{};  // rounds computed here when it was first seen dead
  };
  // How much may be taken over.
  struct Room {
    std::uint64_t bytes = UINT64_MAX;  // counts down; the last record may go beyond
    std::uint64_t held = UINT64_MAX;   // as long as the own log holds no more than this
  };
  template <class Take>
  bool each_only_in(const Segment& segment, const Horizon& horizon, std::span<const Incarnation> living,
                    HostLogReader& reader, Take take) const;
  // True: all of it. False: why not is in `status`; success there: `room.bytes` is used up.
  [[nodiscard]] bool take_over(const Segment& segment, const Horizon& horizon, std::span<const Incarnation> living,
                               HostLog& log, HostLogReader& reader, Room& room, Status& status);

  std::map<Incarnation, Segment> segments_;
  SetupsInUse setups_;  // by the newest look
};

}  // namespace warren::worker

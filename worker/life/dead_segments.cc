#include "worker/life/dead_segments.h"

#include <algorithm>
#include <string>
#include <utility>

namespace warren::worker {
namespace {

// Copied at a time: some ten milliseconds. The owner of the data path waits for it, and so does everybody else.
constexpr std::uint64_t kSliceBytes = std::uint64_t{16} << 20;
// Of which one without bytes counts for so many: as its header has.
constexpr std::uint64_t kBytesOfARecord = 96;

}  // namespace

bool ever_written(const SegmentView& view) {
  for (std::uint32_t e = 0; e < view.layout().extents; ++e) {
    if (view.extent(e).stamp != SegmentView::Extent().stamp) return true;
  }
  return false;
}

bool DeadSegments::Horizon::needs(const RecordKey& key) const {
  const RoundId& r = key.round;
  if (key.kind == RecordKind::kSetup) return setups.has(r);
  if (only_setups) return false;
  switch (key.kind) {
    case RecordKind::kRound:
    case RecordKind::kMessage:
      return r.timeline >= timeline && (r.version == kPreamble || !committed || r.version >= *committed);
    case RecordKind::kSetup: break;
    case RecordKind::kGlobal:
    case RecordKind::kLocal:
      // Who has not been told yet what is committed must keep them all: one is loaded.
      if (!committed) return true;
      return r.version == *committed ? r.timeline == committed_timeline
                                     : r.timeline >= timeline && r.version > *committed;
  }
  return true;
}

void DeadSegments::attached(Incarnation life, std::span<const std::byte> segment, std::shared_ptr<const void> keeper) {
  auto view = SegmentView::open(segment, life);
  if (view.ok()) segments_.try_emplace(life, Segment{view.value(), std::move(keeper)});
}

// Calls `take` with each needed record that lies in this segment and, in part, in none of the living's, and with the
// part; until one returns false. Whether all did.
template <class Take>
bool DeadSegments::each_only_in(const Segment& segment, const Horizon& horizon, std::span<const Incarnation> living,
                                HostLogReader& reader, Take take) const {
  return segment.view.for_each_record([&](std::uint32_t extent, std::uint64_t stamp,
                                          const SegmentView::Record& record) {
    if (!horizon.needs(record.key)) return true;
    if (record.info.total_bytes == 0) {
      return reader.recorded_by(record.key, living) || take(extent, stamp, record, Ranges());
    }
    const Ranges only =
        Ranges(record.first_byte, record.first_byte + record.payload_bytes).minus(reader.held_by(record.key, living));
    return only.empty() || take(extent, stamp, record, only);
  });
}

bool DeadSegments::take_over(const Segment& segment, const Horizon& horizon, std::span<const Incarnation> living,
                             HostLog& log, HostLogReader& reader, Room& room, Status& status) {
  std::vector<std::byte> bytes;
  return each_only_in(
      segment, horizon, living, reader,
      [&](std::uint32_t extent, std::uint64_t stamp, const SegmentView::Record& record, const Ranges& only) {
        if (room.bytes == 0) return false;
        if (log.bytes_held() > room.held) {
          status = Status(Code::kExhausted, "more than " + std::to_string(room.held) + " of the memory log's " +
                                                std::to_string(log.budget_bytes()) + " bytes are in use");
          return false;
        }
        if (record.info.total_bytes == 0) {
          status = log.publish(record.key, record.info, 0, {});
          room.bytes -= std::min<std::uint64_t>(room.bytes, kBytesOfARecord);
        }
        for (const Interval& i : only.intervals()) {
          bytes.resize(i.end - i.begin);
          // Dropped by a writer that lives on against all odds: then it is obsolete.
          if (!segment.view.copy(extent, stamp, record.payload_at + (i.begin - record.first_byte), bytes)) {
            break;
          }
          status = log.publish(record.key, record.info, i.begin, bytes);
          if (!status.ok()) break;
          room.bytes -= std::min<std::uint64_t>(room.bytes, bytes.size());
        }
        return status.ok();
      });
}

Status DeadSegments::take_over_setups(std::span<const Incarnation> host_lives, HostLog& log, HostLogReader& reader) {
  Horizon horizon;
  horizon.setups = setups_;
  horizon.only_setups = true;
  Room room;
  Status status;
  for (const auto& [life, segment] : segments_) {
    if (std::ranges::find(host_lives, life) != host_lives.end()) continue;
    if (!take_over(segment, horizon, host_lives, log, reader, room, status)) return status;
  }
  return {};
}

DeadSegments::Looked DeadSegments::look(const Horizon& horizon, std::span<const Incarnation> host_lives, bool first,
                                        std::uint64_t rounds_computed, HostLog& log, HostLogReader& reader) {
  Looked looked;
  setups_ = horizon.setups;
  std::vector<Incarnation> left, replayed;
  for (auto& [life, segment] : segments_) {
    if (std::ranges::find(host_lives, life) != host_lives.end()) {
      segment.was_member = true;
      segment.dead_since.reset();
      continue;
    }
    if (!segment.dead_since) segment.dead_since = rounds_computed;
    // What another run of the job has left is not read, and not needed.
    const bool serves = (segment.view.run() == 0 || segment.view.run() == log.run()) &&
                        !each_only_in(segment, horizon, host_lives, reader, [](const auto&...) { return false; });
    if (serves) {
      left.push_back(life);
      if (*segment.dead_since < rounds_computed) replayed.push_back(life);
    } else {
      looked.gone.push_back({life, segment.was_member || ever_written(segment.view)});
    }
  }
  const auto& too_many = left.size() > most_waiting(host_lives.size()) ? left : replayed;
  if (too_many.size() > (first ? kMostLeft : 2 * kMostLeft)) {
    Room room;
    room.bytes = std::min(kSliceBytes, log.budget_bytes() / 8);
    if (!log.spills()) room.held = log.budget_bytes() / 2;
    for (const Incarnation life : too_many) {
      if (!take_over(segments_.at(life), horizon, host_lives, log, reader, room, looked.taken_over)) {
        looked.more = looked.taken_over.ok();
        break;
      }
      looked.gone.push_back({life, true});
    }
  }
  for (const Gone& gone : looked.gone) segments_.erase(gone.life);
  return looked;
}

}  // namespace warren::worker

#include "worker/dead_segments.h"

#include <algorithm>
#include <utility>

namespace warren::worker {
namespace {

bool ever_written(const SegmentView& view) {
  for (std::uint32_t e = 0; e < view.layout().extents; ++e) {
    if (view.extent(e).generation != SegmentView::Extent().generation) return true;
  }
  return false;
}

}  // namespace

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
  return segment.view.for_each_record([&](std::uint32_t extent, std::uint64_t generation,
                                          const SegmentView::Record& record) {
    if (!horizon.needs(record.key)) return true;
    if (record.info.total_bytes == 0) {
      // Of a round without bytes nothing is taken from the log.
      return record.key.kind == RecordKind::kRound || empty_.contains(record.key) ||
             take(extent, generation, record, Ranges());
    }
    const Ranges only =
        Ranges(record.first_byte, record.first_byte + record.payload_bytes).minus(reader.held_by(record.key, living));
    return only.empty() || take(extent, generation, record, only);
  });
}

Status DeadSegments::take_over(const Segment& segment, const Horizon& horizon, std::span<const Incarnation> living,
                               HostLog& log, HostLogReader& reader) {
  Status status;
  std::vector<std::byte> bytes;
  (void)each_only_in(
      segment, horizon, living, reader,
      [&](std::uint32_t extent, std::uint64_t generation, const SegmentView::Record& record, const Ranges& only) {
        if (record.info.total_bytes == 0) {
          status = log.publish(record.key, record.info, 0, {});
          if (status.ok()) empty_.insert(record.key);
        }
        for (const Interval& i : only.intervals()) {
          bytes.resize(i.end - i.begin);
          // Dropped by a writer that lives on against all odds: then it is obsolete.
          if (!segment.view.copy(extent, generation, record.payload_at + (i.begin - record.first_byte), bytes)) {
            break;
          }
          status = log.publish(record.key, record.info, i.begin, bytes);
          if (!status.ok()) break;
        }
        return status.ok();
      });
  return status;
}

Status DeadSegments::take_over_setups(std::span<const Incarnation> host_lives, HostLog& log, HostLogReader& reader) {
  Horizon horizon;
  horizon.setups = setups_;
  horizon.only_setups = true;
  for (const auto& [life, segment] : segments_) {
    if (std::ranges::find(host_lives, life) != host_lives.end()) continue;
    if (Status s = take_over(segment, horizon, host_lives, log, reader); !s.ok()) return s;
  }
  return {};
}

DeadSegments::Looked DeadSegments::look(const Horizon& horizon, std::span<const Incarnation> host_lives, bool first,
                                        HostLog& log, HostLogReader& reader) {
  Looked looked;
  setups_ = horizon.setups;
  std::vector<Incarnation> left;
  std::erase_if(empty_, [&](const RecordKey& key) { return !horizon.needs(key); });
  for (auto& [life, segment] : segments_) {
    if (std::ranges::find(host_lives, life) != host_lives.end()) {
      segment.was_member = true;
      continue;
    }
    const bool serves = !each_only_in(segment, horizon, host_lives, reader, [](const auto&...) { return false; });
    if (serves) {
      left.push_back(life);
    } else {
      looked.gone.push_back({life, segment.was_member || ever_written(segment.view)});
    }
  }
  if (left.size() > (first ? kMostLeft : 2 * kMostLeft)) {
    for (const Incarnation life : left) {
      looked.taken_over = take_over(segments_.at(life), horizon, host_lives, log, reader);
      if (!looked.taken_over.ok()) break;
      looked.gone.push_back({life, true});
    }
  }
  for (const Gone& gone : looked.gone) segments_.erase(gone.life);
  return looked;
}

}  // namespace warren::worker

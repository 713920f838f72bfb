// The format of a memory segment: one life's share of its host's log. One writer, the life that formatted it; any
// number of readers in any process, before and after the writer's death. Everything is native: segments never leave
// their host.
//
//   superblock   64 bytes, written once; then `changes`, the run that the life belongs to (0: none yet), and which
//                results the life has given up
//   extent table 64 bytes for each extent
//   extents      of equal size, from a page boundary on; each holds records of one class, back to back
//
// A *class* is what is dropped as a whole: the records of one (timeline, version), or all set-up rounds. So dropping is
// a store for each extent and never touches a record.
//
// *Stamp* of an extent: odd while it is free or being made ready, even while it is in use; it only counts up. What
// was copied out of an extent counts if the stamp is even and the same before and after.
//
// *Record*: a header of 96 bytes at a multiple of 64, then the payload. Its flag is the extent's stamp once it is
// published, so a record that an earlier use of the extent has left is none. The header carries a checksum over itself,
// the writer's incarnation, its place and the stamp: rubbish is never followed.
//
// The order in which the writer stores is what makes every state legal that a process leaves that is killed at any
// instruction:
//
//   format:  everything, magic number last. Killed before: not a segment; nobody has been given it yet.
//   publish: header and payload; flag of the place after it := 0; flag := stamp (release). Killed before the last
//            store: the record does not exist. All records before it stand.
//   leave:   `sealed` := 1 (release), changes++. Killed before: readers look for one more record there for ever.
//   drop:    stamp := odd for each extent, changes++. Killed between: some are dropped, others are not; both are
//            readable. A reader that copied meanwhile sees the odd number and discards what it has.
//   open:    class, sealed := 0, first flag := 0, stamp := even (release), changes++. Killed before the
//   stamp:
//            the extent is free. Before `changes`: it is in use and empty, and who does not look at it misses nothing.
//   give up: the class of what goes, then as for drop. Killed between: more is said to be given up than is.
//
// `changes` tells readers when to look at the table again; nothing else relies on it.
//
// Copies from and to extents race by design, as in every sequence lock; what a lost race leaves is discarded. They are
// plain copies, except under ThreadSanitizer, where they are relaxed atomic ones (the same to the hardware).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/host_log.h"

namespace warren {

// Below this a segment is refused.
inline constexpr std::size_t kMinSegmentBytes = std::size_t{64} << 10;
inline constexpr std::uint32_t kSegmentFormat = 2;
inline constexpr std::uint64_t kRecordHeaderBytes = 96;
inline constexpr std::uint64_t kRecordChecksumAt = 8;  // 4 bytes

// What is dropped together.
struct SegmentClass {
  bool setup = false;  // then the rest is 0
  Timeline timeline;
  Version version;
  friend constexpr auto operator<=>(const SegmentClass&, const SegmentClass&) = default;
};
[[nodiscard]] SegmentClass class_of(const RecordKey& key);

// Where everything is: a function of the segment's size alone. Extents are a 32nd of it, 4 KiB … 16 MiB.
struct SegmentLayout {
  std::uint64_t bytes = 0, extent_bytes = 0, data_at = 0;
  std::uint32_t extents = 0;
  friend bool operator==(const SegmentLayout&, const SegmentLayout&) = default;
};
// kInvalidArgument: smaller than kMinSegmentBytes.
[[nodiscard]] Result<SegmentLayout> segment_layout(std::uint64_t bytes);

// What the header of a record must carry at kRecordChecksumAt; `at` is its place, from the segment's begin.
[[nodiscard]] std::uint32_t record_checksum(std::span<const std::byte, kRecordHeaderBytes> header, Incarnation life,
                                            std::uint64_t at, std::uint64_t stamp);

// The writing side. One thread. It never reads back what it has written: its own books are in private memory.
class SegmentWriter {
 public:
  // Formats the memory. kInvalidArgument: too small, or not aligned to 64 bytes.
  static Result<SegmentWriter> format(Incarnation self, std::shared_ptr<SegmentMemory> memory);

  // Names the run of the job: before the first publish().
  void belong(std::uint64_t run);

  struct Published {
    bool all = false;         // false: no room for all of it; what was published stays
    std::uint64_t bytes = 0;  // of the payload
    LogPlace place;           // of all of it, if it is one record and no extent is freed soon to make room
  };
  // `read_soon`: by ranks of the host, who then find it in a cache.
  [[nodiscard]] Published publish(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                                  std::span<const std::byte> payload, bool read_soon = true);

  // Where the payload of the next record of this key's class will lie, for whoever computes it there: `bytes` in one
  // piece, the caller's to write until anything else of the writer is called. Empty: publish() it instead, which cuts
  // it, or says that the segment is full.
  [[nodiscard]] std::span<std::byte> room(const RecordKey& key, std::size_t bytes);
  // Publishes what was written to room(), of the same key and as many bytes. The place is as publish() gives it.
  [[nodiscard]] LogPlace publish_room(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                                      std::size_t bytes);

  // Frees the extents of each class for which `gone` holds.
  template <class Predicate>
  void drop(Predicate gone) {
    bool any = false;
    for (std::uint32_t i = 0; i < own_.size(); ++i) {
      if (own_[i].in_use() && gone(own_[i].cls)) {
        free_extent(i);
        any = true;
      }
    }
    if (any) after_drop();
  }

  // Frees those of these extents that are still in that use and take no more records. How many.
  std::size_t drop_extents(std::span<const ExtentUse> extents);

  // Extents of results that take no more records, in the order in which they may be given up: the oldest first, those
  // of the preamble last, as all lives to come need it. None with states of checkpoints or with set-up rounds.
  struct Spent {
    ExtentUse use;
    SegmentClass cls;
  };
  [[nodiscard]] std::vector<Spent> spent() const;
  // As drop_extents(), of results that are lost with them: the segment says so.
  std::size_t give_up(std::span<const Spent> extents);

  [[nodiscard]] const SegmentLayout& layout() const { return layout_; }
  [[nodiscard]] std::uint32_t extents_in_use() const { return in_use_; }

 private:
  struct Own {
    std::uint64_t stamp = 1;
    SegmentClass cls;
    std::uint64_t opened = 0;  // rises from one use of an extent to the next
    bool has_state = false;
    [[nodiscard]] bool in_use() const { return stamp % 2 == 0; }
  };
  struct Open {
    SegmentClass cls;
    std::uint32_t extent = 0;
    std::uint64_t at = 0;  // where the next record goes, from the segment's begin
    std::uint64_t end = 0;
  };

  SegmentWriter() = default;
  Open* open_for(const SegmentClass& cls);
  bool next_extent(Open& open);
  // `payload` null: it lies there already.
  void put(Open& open, const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte, const std::byte* payload,
           std::size_t bytes, bool read_soon = true);
  // Of a record that begins at open.at: unknown where extents may soon be used again.
  [[nodiscard]] LogPlace place_of_next(const Open& open) const;
  void free_extent(std::uint32_t extent);
  void after_drop();

  Incarnation self_;
  std::shared_ptr<SegmentMemory> memory_;
  std::byte* base_ = nullptr;
  SegmentLayout layout_;
  std::vector<Own> own_;
  std::vector<Open> open_;           // one for each class that has an extent with room
  std::size_t newest_open_ = 0;      // in open_: the last one used
  std::vector<std::uint32_t> warm_;  // free, with pages; the one freed last is taken first
  std::vector<std::uint32_t> cold_;  // free, without pages
  std::uint32_t in_use_ = 0;
  std::uint64_t openings_ = 0;
  // Most extents in use at once since the last drop, and between the two before: so many keep their pages.
  std::uint32_t peak_ = 0, peak_before_ = 0;
};

// The reading side. Trusts nothing but the layout that it computes itself. Any thread; copyable.
class SegmentView {
 public:
  struct Extent {
    std::uint64_t stamp = 1;
    bool sealed = false;  // no record is added any more
    SegmentClass cls;
    [[nodiscard]] bool in_use() const { return stamp % 2 == 0; }
  };
  struct Record {
    RecordKey key;
    RecordInfo info;
    std::uint64_t first_byte = 0;
    std::uint32_t payload_bytes = 0;
    std::uint64_t payload_at = 0;  // from the segment's begin
    std::uint64_t next = 0;        // the place after it, from the extent's begin
  };
  enum class Found {
    kRecord,
    kNothingYet,
    kNoRoom,   // the extent is full
    kGone,     // the extent was dropped
    kDamaged,  // published, and the header is rubbish: what follows cannot be found
  };

  // kCorrupt: not a segment, damaged, or not of that life. kRefused: a format that this build does not know.
  static Result<SegmentView> open(std::span<const std::byte> bytes, Incarnation life);

  [[nodiscard]] Incarnation life() const { return life_; }
  [[nodiscard]] const SegmentLayout& layout() const { return layout_; }
  [[nodiscard]] std::uint64_t changes() const;
  [[nodiscard]] std::uint64_t run() const;
  // The newest results that its life has given up.
  [[nodiscard]] std::optional<GivenUp> given_up() const;
  [[nodiscard]] Extent extent(std::uint32_t index) const;
  [[nodiscard]] bool is(std::uint32_t extent, std::uint64_t stamp) const;
  // The record at `at` (from the extent's begin) of an extent that had this stamp.
  [[nodiscard]] Found record(std::uint32_t extent, std::uint64_t stamp, std::uint64_t at, Record& out) const;
  // Calls `visit(extent, stamp, record)` with all records that are there, those of an extent in their order, until
  // it returns false. Whether it has always returned true.
  template <class Visit>
  bool for_each_record(Visit visit) const {
    for (std::uint32_t e = 0; e < layout_.extents; ++e) {
      const Extent x = extent(e);
      if (!x.in_use()) continue;
      Record r;
      for (std::uint64_t at = 0; record(e, x.stamp, at, r) == Found::kRecord; at = r.next) {
        if (!visit(e, x.stamp, std::as_const(r))) return false;
      }
    }
    return true;
  }
  // Copies payload; false, and rubbish in `out`, if the extent has another stamp by now. [at, at + out.size())
  // must lie in a payload that record() has found.
  [[nodiscard]] bool copy(std::uint32_t extent, std::uint64_t stamp, std::uint64_t at, std::span<std::byte> out) const;

  // A payload to be read where it lies. What was read counts if `stamp`, read afterwards (acquire fence, then a
  // load), is still that of the place.
  struct Window {
    const std::byte* payload = nullptr;
    const std::uint64_t* stamp = nullptr;
  };
  // What the segment's writer has said of a record of this round: nullopt if there is none with just these bytes, or no
  // longer. `place` may be anything.
  [[nodiscard]] std::optional<Window> window(const LogPlace& place, const RoundId& round, std::size_t bytes) const;

 private:
  SegmentView() = default;

  Incarnation life_;
  const std::byte* base_ = nullptr;
  SegmentLayout layout_;
};

}  // namespace warren

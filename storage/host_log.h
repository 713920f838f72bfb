// What one host keeps in memory of the job's results: the segment that this life writes, and those of the other lives
// on this host, alive or dead, mapped read-only (docs/invariants.md, "Copies").
//
// A record is one piece of one result: a key, the fingerprint of the call, which bytes of the whole result they are,
// and the bytes. It is visible to everyone who maps the segment, and outlives the process, from the moment that its
// publish flag is stored (bytes, then a release store). Whole results are put together from the records of several
// lives.
//
// Threads: publish() and drop…() from one thread at a time, the owner of the data path (no lock on this way); attach(),
// detach() and the rest from any; reading through a Reader, of which every thread has its own.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "recovery/decide/given_up.h"
#include "recovery/wire/frame.h"

namespace warren {

enum class RecordKind : std::uint8_t {
  kRound = 1,
  kSetup = 2,    // a set-up round (is_setup): one class whatever its timeline
  kGlobal = 3,   // global state at the beginning of `version`; sequence 0
  kLocal = 4,    // local state likewise; `sequence` is the rank
  kMessage = 5,  // point to point; `sequence` is its number among those of the pair of ranks that `group` names
};

struct RecordKey {
  RecordKind kind = RecordKind::kRound;
  RoundId round;
  friend constexpr auto operator<=>(const RecordKey&, const RecordKey&) = default;
};
// Where the result of a collective is logged.
[[nodiscard]] constexpr RecordKey result_key(const RoundId& round) {
  return {is_setup(round) ? RecordKind::kSetup : RecordKind::kRound, round};
}

// The set-up rounds that may still be called: those begun in `timeline`, the job's, and of earlier ones those that its
// plan knows. What else earlier timelines have left was undone with them, and begun again under another name.
struct SetupsInUse {
  Timeline timeline{};
  std::vector<RoundId> earlier{};  // sorted
  [[nodiscard]] bool has(const RoundId& round) const {
    return round.timeline >= timeline || std::ranges::binary_search(earlier, round);
  }
};

// What all records of a key have in common.
struct RecordInfo {
  Fingerprint fingerprint;
  std::uint64_t total_bytes = 0;  // of the whole result, over all ranks; 0 is allowed (a barrier)
  friend bool operator==(const RecordInfo&, const RecordInfo&) = default;
};

// Memory that other processes can map. The segment's format is laid down in it; nothing is outside.
class SegmentMemory {
 public:
  virtual ~SegmentMemory() = default;
  // All of it, as large as the budget; pages that were never touched cost nothing.
  [[nodiscard]] virtual std::span<std::byte> bytes() = 0;
  // The pages of [at, at + size) may go; they read as anything afterwards.
  virtual void release(std::size_t at, std::size_t size) = 0;
};

class HostLogReader;
class SegmentView;

// Where the payload of a record lies in its life's segment: what ranks of the host can be told instead of the bytes.
struct LogPlace {
  std::uint32_t extent = 0;
  std::uint64_t stamp = 0;  // of the extent; 0: no place
  std::uint64_t at = 0;     // from the segment's begin
  // The extent's stamp as it is now, in the writer's own memory; null: another life has told the place.
  const std::uint64_t* now = nullptr;
  [[nodiscard]] bool known() const { return stamp != 0; }
  // Of the writer's own, in the thread that publishes: nothing has been freed there.
  [[nodiscard]] bool stands() const { return known() && (now == nullptr || *now == stamp); }
};

// One use of an extent of a segment (storage/segment.h).
struct ExtentUse {
  std::uint32_t extent = 0;
  std::uint64_t stamp = 0;
};

class HostLog {
 public:
  // Formats `own` (storage/segment.h). kInvalidArgument: under 64 KiB, or not aligned to 64 bytes.
  static Result<std::unique_ptr<HostLog>> create(Incarnation self, std::shared_ptr<SegmentMemory> own);
  ~HostLog();
  HostLog(const HostLog&) = delete;
  HostLog& operator=(const HostLog&) = delete;

  // Writes a record of [first_byte, first_byte + payload.size()) into the own segment and publishes it. Returns with
  // the publish flag stored. An empty payload says that the round is complete as far as it has bytes. At most
  // limits::kMaxChunkBytes a record, less in a segment under 256 MiB; longer pieces are cut here, each published by
  // itself; those of states at multiples of a 64th of an extent, wherever they come to lie.
  // Over the budget it spills to disk, if there is one, or gives up its oldest results, if it may (give_up_but());
  // kExhausted: neither makes room; the message names the flag --log_memory_bytes and says that a checkpoint is
  // overdue; what was published of the piece before stays. Some 100 ns beside the copy of the bytes.
  //
  // `place`, if given: where all of the payload lies, for ranks of the host that will soon read it there. None where it
  // was cut, or where the log is so full that it may go to disk before they have. Without it, who publishes is not
  // slowed down by what its cache has to fetch and throw out for a record that nobody reads soon.
  [[nodiscard]] Status publish(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                               std::span<const std::byte> payload, LogPlace* place = nullptr);

  // For whoever computes a payload where it will lie, instead of copying it there: room() for one record of `bytes`, to
  // be written until the log is used otherwise, and publish_room(), once it was. Empty: there is none in one piece, and
  // publish() is the way.
  [[nodiscard]] std::span<std::byte> room(const RecordKey& key, std::size_t bytes);
  void publish_room(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte, std::size_t bytes,
                    LogPlace* place = nullptr);

  // Makes room: gives full extents of the own segment whose records are all durable elsewhere and may leave memory, the
  // oldest first, at least one; or says why there is none. Called by publish(), in its thread; may wait for a disk.
  using Spill = std::function<Result<std::vector<ExtentUse>>()>;
  void spill_by(Spill spill);
  [[nodiscard]] bool spills() const;

  // From here on a log that is full, and cannot spill, gives up its oldest results, half of the budget at once: a new
  // life needs all results since a checkpoint, so the rest of them is of no use to it. Whole extents go, but none with
  // states of checkpoints, with set-up rounds, or with a record for which `needed` holds. `needed` is called by
  // publish(), in its thread, and must not call back.
  using Needed = std::function<bool(const RecordKey&)>;
  void give_up_but(Needed needed);
  // What this life has given up and drop_below() has not made obsolete since. Any thread.
  [[nodiscard]] std::optional<GivenUp> gives_up() const;
  // The newest of what any life of this host whose segment is attached has given up; of this run.
  [[nodiscard]] std::optional<GivenUp> given_up() const;

  // Of what happens in publish(): called there, in its thread, and must not call back.
  struct Watch {
    std::function<void()> half_full;  // the first time since the log has been less than half full
    std::function<void()> gives_up;   // results: each time
  };
  void watch(Watch watch);

  // Another life of this host: its segment is read from now on, if it is not already. `keeper` holds the mapping.
  // kCorrupt: not a segment of that life. kRefused: of a format that this build does not know.
  [[nodiscard]] Status attach(Incarnation life, std::span<const std::byte> segment, std::shared_ptr<const void> keeper);
  void detach(Incarnation life);
  [[nodiscard]] std::vector<Incarnation> attached() const;
  // The segment of an attached life, mapped for as long as the pointer lives; null: it is not attached.
  [[nodiscard]] std::shared_ptr<const SegmentView> segment_of(Incarnation life) const;

  // The plan names the run of the job (not 0): before the first publish(), and the same for good. Segments of other
  // runs are not read: their rounds have the same names.
  void belong(std::uint64_t run);
  [[nodiscard]] std::uint64_t run() const;  // 0: not known yet
  // Before belong(): the run of what is attached; 0: its lives have not known one, and logged nothing. nullopt: of
  // several.
  [[nodiscard]] std::optional<std::uint64_t> attached_run() const;

  // Forgets records of this life's segment: rounds, messages and states of versions below `version`, except the
  // preamble and set-up rounds. For rounds of `version` − 1 … the caller decides when (after the commit). Segments of
  // others are not written; what they still hold of dropped versions is not shown any more.
  void drop_below(Version version);

  // Of the own segment; whole extents, of which each version has its own: the log is full when this reaches the budget.
  [[nodiscard]] std::uint64_t bytes_held() const;
  [[nodiscard]] std::uint64_t budget_bytes() const;

  // Reads what is published now and later, own segment and attached ones. Any number; each for one thread. It must not
  // outlive the log.
  [[nodiscard]] std::unique_ptr<HostLogReader> reader() const;

 private:
  struct Impl;
  explicit HostLog(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class HostLogReader {
 public:
  virtual ~HostLogReader() = default;

  // What any segment of the host says of this key; nullopt: none has a record. Records that contradict each other
  // (another fingerprint or total) are kDesync.
  [[nodiscard]] virtual Result<std::optional<RecordInfo>> info(const RecordKey& key) = 0;
  // The bytes of the whole result that this host holds. A key with total 0 that has a record is complete.
  [[nodiscard]] virtual Ranges held(const RecordKey& key) = 0;
  // The same of bytes [begin, end) alone: who reads a large state piece by piece would look at all of it each time.
  [[nodiscard]] virtual Ranges held_within(const RecordKey& key, std::uint64_t begin, std::uint64_t end) {
    return held(key).intersect(begin, end);
  }
  // As far as live segments hold it: what would be lost if the dead lives' segments went. `live` lists them.
  [[nodiscard]] virtual Ranges held_by(const RecordKey& key, std::span<const Incarnation> live) = 0;
  // Whether one of them has a record of it, if only one without bytes.
  [[nodiscard]] virtual bool recorded_by(const RecordKey& key, std::span<const Incarnation> live) = 0;
  // Whether a life that is none of them has a record of it. As a disk tells: of bytes that they do not hold, or where
  // none of them has a record.
  [[nodiscard]] virtual bool recorded_by_others(const RecordKey& key, std::span<const Incarnation> live) {
    if (!held(key).minus(held_by(key, live)).empty()) return true;
    const auto known = info(key);
    return (!known.ok() || known.value()) && !recorded_by(key, live);
  }
  // Copies [begin, begin + out.size()) of the whole result; false (and rubbish in `out`) if the host does not hold all
  // of it, or it was dropped meanwhile.
  [[nodiscard]] virtual bool read(const RecordKey& key, std::uint64_t begin, std::span<std::byte> out) = 0;
  // Keys of this kind, timeline, group and version with first ≤ sequence < end, ascending, at most `limit`.
  [[nodiscard]] virtual std::vector<RecordKey> list(RecordKind kind, Timeline timeline, GroupId group, Version version,
                                                    Sequence first, Sequence end, std::size_t limit) = 0;
  // Of each (timeline, group, version) the round with the greatest number that memory has a record of, ascending.
  [[nodiscard]] virtual std::vector<RecordKey> newest_rounds() = 0;
  // Set-up rounds that memory has a record of, ascending, at most `limit` of each timeline.
  [[nodiscard]] virtual std::vector<RecordKey> setup_rounds(std::size_t limit) = 0;
};

// Segments in plain memory, for the simulator and tests. Others: storage/segment_memory.h.
[[nodiscard]] std::shared_ptr<SegmentMemory> heap_segment(std::size_t bytes);

}  // namespace warren

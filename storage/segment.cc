#include "storage/segment.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "storage/stream_copy.h"

#if defined(__SANITIZE_THREAD__)
#define WARREN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WARREN_TSAN 1
#endif
#endif

namespace warren {
namespace {

// Smaller payloads stay in the cache beside everything else.
constexpr std::size_t kStreamedBytes = std::size_t{16} << 10;
constexpr std::uint64_t kMagic = 0x3147455352524157;  // "WARRSEG1"
constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kMinExtentBytes = 4096, kMaxExtentBytes = std::uint64_t{16} << 20;
// A piece is cut to fill what is left of an extent if at least so much of it goes there.
constexpr std::uint64_t kMinCutBytes = std::uint64_t{64} << 10;

struct Superblock {
  std::uint64_t magic;
  std::uint32_t format;
  std::uint32_t extents;
  std::uint64_t incarnation;
  std::uint64_t bytes;
  std::uint64_t extent_bytes;
  std::uint64_t data_at;
  std::uint64_t reserved;
  std::uint64_t checksum;  // of what is before it
  std::uint64_t changes;   // in another cache line
  std::uint64_t run;
  std::uint64_t given_up_timeline;
  std::uint64_t given_up_version;  // and one more, for the preamble the greatest; 0: nothing was given up
};
constexpr std::size_t kSuperblockSumAt = offsetof(Superblock, checksum);
static_assert(offsetof(Superblock, changes) == 64 && sizeof(Superblock) <= 128);
constexpr std::uint64_t kTableAt = 128;
constexpr std::uint64_t kPreambleGivenUp = UINT64_MAX;

struct TableEntry {
  std::uint64_t stamp;
  std::uint64_t sealed;
  std::uint64_t setup;
  std::uint64_t timeline;
  std::uint64_t version;
  std::uint64_t reserved[3];
};
static_assert(sizeof(TableEntry) == 64);

struct RecordHeader {
  std::uint64_t flag;
  std::uint32_t checksum;  // of what follows, and of where it is
  std::uint32_t timeline;
  std::uint64_t group, version, sequence;
  std::uint64_t count, shape, site;
  std::uint64_t total_bytes, first_byte;
  std::uint32_t payload_bytes;
  std::int32_t root;
  std::uint8_t kind, collective, type, op, algorithm;
  std::uint8_t reserved[3];
};
constexpr std::size_t kSummedAt = offsetof(RecordHeader, timeline);
static_assert(sizeof(RecordHeader) == kRecordHeaderBytes && kSummedAt == 12);
static_assert(offsetof(RecordHeader, checksum) == kRecordChecksumAt);

std::span<const std::byte, kRecordHeaderBytes> as_bytes(const RecordHeader& h) {
  return std::as_bytes(std::span<const RecordHeader, 1>(&h, 1));
}

constexpr std::uint64_t aligned(std::uint64_t n, std::uint64_t to) {
  return (n + to - 1) / to * to;
}

// A word of the segment. const_cast: C++20 has no atomic_ref of const; only loads are made through it where the memory
// is read-only.
std::atomic_ref<std::uint64_t> word(const std::byte* at) {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(at)));
}

#ifdef WARREN_TSAN
// By words where the shared side is aligned to them.
template <class Move>
void copy_relaxed(std::byte* shared, std::size_t n, Move move) {
  for (std::size_t i = 0; i < n;) {
    if (reinterpret_cast<std::uintptr_t>(shared + i) % 8 == 0 && n - i >= 8) {
      move(word(shared + i), i);
      i += 8;
    } else {
      move(std::atomic_ref(shared[i]), i);
      ++i;
    }
  }
}
#endif

void copy_in(std::byte* shared, const std::byte* from, std::size_t n) {
#ifdef WARREN_TSAN
  const auto store = [from](auto to, std::size_t i) {
    typename decltype(to)::value_type value;
    std::memcpy(&value, from + i, sizeof value);
    to.store(value, std::memory_order_relaxed);
  };
  copy_relaxed(shared, n, store);
#else
  if (n != 0) std::memcpy(shared, from, n);
#endif
}

// Past the caches.
void stream_in(std::byte* shared, const std::byte* from, std::size_t n) {
#ifdef WARREN_TSAN
  copy_in(shared, from, n);
#else
  stream_copy(shared, from, n);
#endif
}

void copy_out(std::byte* to, const std::byte* shared, std::size_t n) {
#ifdef WARREN_TSAN
  const auto load = [to](auto from, std::size_t i) {
    const auto value = from.load(std::memory_order_relaxed);
    std::memcpy(to + i, &value, sizeof value);
  };
  copy_relaxed(const_cast<std::byte*>(shared), n, load);
#else
  if (n != 0) std::memcpy(to, shared, n);
#endif
}

std::uint64_t entry_at(std::uint32_t extent) {
  return kTableAt + extent * sizeof(TableEntry);
}
std::uint64_t extent_at(const SegmentLayout& layout, std::uint32_t extent) {
  return layout.data_at + extent * layout.extent_bytes;
}

}  // namespace

std::uint32_t record_checksum(std::span<const std::byte, kRecordHeaderBytes> header, Incarnation life, std::uint64_t at,
                              std::uint64_t stamp) {
  const std::uint64_t seed = life.value + at * 0x9e3779b97f4a7c15 + (stamp << 40);
  return static_cast<std::uint32_t>(XXH3_64bits_withSeed(header.data() + kSummedAt, header.size() - kSummedAt, seed));
}

SegmentClass class_of(const RecordKey& key) {
  if (key.kind == RecordKind::kSetup) return {true, Timeline(0), Version(0)};
  return {false, key.round.timeline, key.round.version};
}

Result<SegmentLayout> segment_layout(std::uint64_t bytes) {
  if (bytes < kMinSegmentBytes) {
    return Status(Code::kInvalidArgument, "a log segment of " + std::to_string(bytes) + " bytes: at least " +
                                              std::to_string(kMinSegmentBytes) + " are needed");
  }
  SegmentLayout l;
  l.bytes = bytes;
  l.extent_bytes = std::clamp(std::bit_floor(bytes / 32), kMinExtentBytes, kMaxExtentBytes);
  l.data_at = aligned(kTableAt + bytes / l.extent_bytes * sizeof(TableEntry), kPageBytes);
  const std::uint64_t extents = (bytes - l.data_at) / l.extent_bytes;
  if (extents > UINT32_MAX)
    return Status(Code::kInvalidArgument, "a log segment of " + std::to_string(bytes) + " bytes");
  l.extents = static_cast<std::uint32_t>(extents);
  return l;
}

Result<SegmentWriter> SegmentWriter::format(Incarnation self, std::shared_ptr<SegmentMemory> memory) {
  const std::span<std::byte> bytes = memory->bytes();
  auto layout = segment_layout(bytes.size());
  if (!layout.ok()) return layout.status();
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlign != 0) {
    return Status(Code::kInvalidArgument, "a log segment's memory must be aligned to 64 bytes");
  }
  SegmentWriter w;
  w.self_ = self;
  w.memory_ = std::move(memory);
  w.base_ = bytes.data();
  w.layout_ = layout.value();
  w.own_.resize(w.layout_.extents);
  word(w.base_).store(0, std::memory_order_relaxed);
  for (std::uint32_t i = w.layout_.extents; i-- > 0;) {
    TableEntry entry{};
    entry.stamp = w.own_[i].stamp;
    std::memcpy(w.base_ + entry_at(i), &entry, sizeof entry);
    w.cold_.push_back(i);
  }
  // Room for the worst case, so that publishing never allocates.
  w.open_.reserve(w.layout_.extents);
  w.warm_.reserve(w.layout_.extents);

  Superblock block{};
  block.magic = kMagic;
  block.format = kSegmentFormat;
  block.extents = w.layout_.extents;
  block.incarnation = self.value;
  block.bytes = w.layout_.bytes;
  block.extent_bytes = w.layout_.extent_bytes;
  block.data_at = w.layout_.data_at;
  block.checksum = XXH3_64bits(&block, kSuperblockSumAt);
  std::memcpy(w.base_ + sizeof kMagic, reinterpret_cast<const std::byte*>(&block) + sizeof kMagic,
              sizeof block - sizeof kMagic);
  word(w.base_).store(kMagic, std::memory_order_release);
  return w;
}

void SegmentWriter::belong(std::uint64_t run) {
  word(base_ + offsetof(Superblock, run)).store(run, std::memory_order_release);
}

namespace {

bool is_state(RecordKind kind) {
  return kind == RecordKind::kGlobal || kind == RecordKind::kLocal;
}

// Pieces of states begin and end at multiples of this, wherever they come to lie, so that those of two versions can be
// compared (storage/unchanged_states.h): what an extent has left for less than one stays free, because of the header a
// 64th of extents of 4 MiB and more, a 16th of those of 1 MiB. 0: it is too small.
std::uint64_t state_piece_bytes(const SegmentLayout& layout) {
  constexpr std::uint64_t kLeast = std::uint64_t{64} << 10;
  if (layout.extent_bytes < 16 * kLeast) return 0;
  return std::clamp<std::uint64_t>(std::bit_floor(layout.extent_bytes / 64), kLeast, limits::kMaxChunkBytes);
}

}  // namespace

SegmentWriter::Published SegmentWriter::publish(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                                                std::span<const std::byte> payload, bool read_soon) {
  WARREN_CHECK(first_byte <= info.total_bytes && payload.size() <= info.total_bytes - first_byte,
               "a record is a piece of its result");
  Published published;
  Open* open = open_for(class_of(key));
  if (open == nullptr) return published;
  const std::uint64_t grid = is_state(key.kind) ? state_piece_bytes(layout_) : 0;
  do {
    const std::uint64_t room = open->end - open->at;
    std::uint64_t n = std::min<std::uint64_t>(payload.size(), limits::kMaxChunkBytes);
    if (grid != 0) n = std::min(n, grid - (first_byte + published.bytes) % grid);
    if (room < kRecordHeaderBytes + n) {
      const bool whole_extent = room == layout_.extent_bytes;
      if (!whole_extent && (grid != 0 || room < kRecordHeaderBytes + kMinCutBytes)) {
        if (!next_extent(*open)) return published;
        continue;
      }
      n = room - kRecordHeaderBytes;
    }
    if (published.bytes == 0 && n == payload.size()) published.place = place_of_next(*open);
    put(*open, key, info, first_byte + published.bytes, payload.data(), n, read_soon);
    published.bytes += n;
    payload = payload.subspan(n);
    published.all = payload.empty();
  } while (!published.all);
  return published;
}

LogPlace SegmentWriter::place_of_next(const Open& open) const {
  // Extents are freed early only when there are no others: far from that, a reader that is told the place is done long
  // before.
  const bool stays = in_use_ <= layout_.extents - layout_.extents / 4;
  if (!stays) return {};
  return {open.extent, own_[open.extent].stamp, open.at + kRecordHeaderBytes, &own_[open.extent].stamp};
}

std::span<std::byte> SegmentWriter::room(const RecordKey& key, std::size_t bytes) {
#ifdef WARREN_TSAN
  // What is computed there would be stored plainly, beside readers of the extent's earlier use.
  (void)key, (void)bytes;
  return {};
#else
  const std::uint64_t needed = kRecordHeaderBytes + bytes;
  // What is left of an extent that has too little room is lost: of large ones alone.
  if (bytes > limits::kMaxChunkBytes || needed > layout_.extent_bytes / 8) return {};
  Open* open = open_for(class_of(key));
  if (open == nullptr || (open->end - open->at < needed && !next_extent(*open))) return {};
  return {base_ + open->at + kRecordHeaderBytes, bytes};
#endif
}

LogPlace SegmentWriter::publish_room(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                                     std::size_t bytes) {
  WARREN_CHECK(first_byte <= info.total_bytes && bytes <= info.total_bytes - first_byte,
               "a record is a piece of its result");
  Open* open = open_for(class_of(key));
  WARREN_CHECK(open != nullptr && open->end - open->at >= kRecordHeaderBytes + bytes, "room() was asked for before");
  const LogPlace place = place_of_next(*open);
  put(*open, key, info, first_byte, nullptr, bytes);
  return place;
}

std::size_t SegmentWriter::drop_extents(std::span<const ExtentUse> extents) {
  std::size_t freed = 0;
  for (const ExtentUse& use : extents) {
    if (use.extent >= own_.size() || !own_[use.extent].in_use() || own_[use.extent].stamp != use.stamp ||
        std::ranges::find(open_, use.extent, &Open::extent) != open_.end()) {
      continue;
    }
    free_extent(use.extent);
    ++freed;
  }
  if (freed != 0) after_drop();
  return freed;
}

std::vector<SegmentWriter::Spent> SegmentWriter::spent() const {
  std::vector<Spent> spent;
  for (std::uint32_t e = 0; e < own_.size(); ++e) {
    const Own& own = own_[e];
    if (!own.in_use() || own.cls.setup || own.has_state || std::ranges::find(open_, e, &Open::extent) != open_.end()) {
      continue;
    }
    spent.push_back({{e, own.stamp}, own.cls});
  }
  std::ranges::sort(spent, {}, [this](const Spent& s) {
    return std::tuple(s.cls.version == kPreamble, s.cls.timeline, s.cls.version, own_[s.use.extent].opened);
  });
  return spent;
}

std::size_t SegmentWriter::give_up(std::span<const Spent> extents) {
  std::vector<ExtentUse> uses;
  for (const Spent& s : extents) {
    uses.push_back(s.use);
    const auto said_timeline = word(base_ + offsetof(Superblock, given_up_timeline));
    const auto said_version = word(base_ + offsetof(Superblock, given_up_version));
    const std::uint64_t version = s.cls.version == kPreamble ? kPreambleGivenUp : s.cls.version.value + 1;
    const std::pair newest(std::uint64_t{s.cls.timeline.value}, version);
    const std::pair said(said_timeline.load(std::memory_order_relaxed), said_version.load(std::memory_order_relaxed));
    if (newest <= said) continue;
    said_timeline.store(newest.first, std::memory_order_relaxed);
    said_version.store(newest.second, std::memory_order_release);
  }
  return drop_extents(uses);
}

SegmentWriter::Open* SegmentWriter::open_for(const SegmentClass& cls) {
  if (newest_open_ < open_.size() && open_[newest_open_].cls == cls) return &open_[newest_open_];
  const auto found = std::ranges::find(open_, cls, &Open::cls);
  if (found != open_.end()) {
    newest_open_ = static_cast<std::size_t>(found - open_.begin());
    return &*found;
  }
  Open fresh;
  fresh.cls = cls;
  if (!next_extent(fresh)) return nullptr;
  newest_open_ = open_.size();
  open_.push_back(fresh);
  return &open_.back();
}

// Leaves the extent that `open` has, if any, for a free one.
bool SegmentWriter::next_extent(Open& open) {
  auto& pool = warm_.empty() ? cold_ : warm_;
  if (pool.empty()) return false;
  if (open.end != 0)
    word(base_ + entry_at(open.extent) + offsetof(TableEntry, sealed)).store(1, std::memory_order_release);
  open.extent = pool.back();
  pool.pop_back();
  open.at = extent_at(layout_, open.extent);
  open.end = open.at + layout_.extent_bytes;
  Own& own = own_[open.extent];
  own.cls = open.cls;
  own.opened = ++openings_;
  own.has_state = false;
  own.stamp++;
  std::byte* entry = base_ + entry_at(open.extent);
  const auto set = [entry](std::size_t at, std::uint64_t value) {
    word(entry + at).store(value, std::memory_order_relaxed);
  };
  set(offsetof(TableEntry, sealed), 0);
  set(offsetof(TableEntry, setup), open.cls.setup ? 1 : 0);
  set(offsetof(TableEntry, timeline), open.cls.timeline.value);
  set(offsetof(TableEntry, version), open.cls.version.value);
  word(base_ + open.at).store(0, std::memory_order_relaxed);
  word(entry).store(own.stamp, std::memory_order_release);
  const auto changes = word(base_ + offsetof(Superblock, changes));
  changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  ++in_use_;
  peak_ = std::max(peak_, in_use_);
  return true;
}

void SegmentWriter::put(Open& open, const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                        const std::byte* payload, std::size_t bytes, bool read_soon) {
  if (is_state(key.kind)) own_[open.extent].has_state = true;
  const std::uint64_t stamp = own_[open.extent].stamp;
  const Fingerprint& f = info.fingerprint;
  RecordHeader h;
  h.timeline = key.round.timeline.value;
  h.group = key.round.group.value;
  h.version = key.round.version.value;
  h.sequence = key.round.sequence.value;
  h.count = f.count;
  h.shape = f.shape;
  h.site = f.site;
  h.total_bytes = info.total_bytes;
  h.first_byte = first_byte;
  h.payload_bytes = static_cast<std::uint32_t>(bytes);
  h.root = f.root;
  h.kind = static_cast<std::uint8_t>(key.kind);
  h.collective = static_cast<std::uint8_t>(f.collective);
  h.type = static_cast<std::uint8_t>(f.type);
  h.op = static_cast<std::uint8_t>(f.op);
  h.algorithm = f.algorithm;
  std::memset(h.reserved, 0, sizeof h.reserved);
  h.checksum = record_checksum(as_bytes(h), self_, open.at, stamp);

  std::byte* at = base_ + open.at;
  const auto* from = reinterpret_cast<const std::byte*>(&h) + sizeof h.flag;
  copy_in(at + sizeof h.flag, from, sizeof h - sizeof h.flag);
  if (payload != nullptr) {
    if (read_soon || bytes < kStreamedBytes) {
      copy_in(at + sizeof h, payload, bytes);
    } else {
      stream_in(at + sizeof h, payload, bytes);
    }
  }
  open.at = std::min(open.at + aligned(sizeof h + bytes, kAlign), open.end);
  if (open.end - open.at >= sizeof h) word(base_ + open.at).store(0, std::memory_order_relaxed);
  word(at).store(stamp, std::memory_order_release);
}

void SegmentWriter::free_extent(std::uint32_t extent) {
  Own& own = own_[extent];
  own.stamp++;
  word(base_ + entry_at(extent)).store(own.stamp, std::memory_order_relaxed);
  std::erase_if(open_, [extent](const Open& o) { return o.extent == extent; });
  warm_.push_back(extent);
  --in_use_;
}

void SegmentWriter::after_drop() {
  // Before anything that is written into the freed extents from here on.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto changes = word(base_ + offsetof(Superblock, changes));
  changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  // Pages that the next version will need again stay.
  const std::uint32_t keep = std::max(peak_, peak_before_);
  peak_before_ = std::exchange(peak_, in_use_);
  const std::size_t most_warm = keep - in_use_;
  if (warm_.size() <= most_warm) return;
  const auto end = warm_.begin() + static_cast<std::ptrdiff_t>(warm_.size() - most_warm);
  for (auto i = warm_.begin(); i != end; ++i) {
    memory_->release(extent_at(layout_, *i), layout_.extent_bytes);
    cold_.push_back(*i);
  }
  warm_.erase(warm_.begin(), end);
}

Result<SegmentView> SegmentView::open(std::span<const std::byte> bytes, Incarnation life) {
  const auto corrupt = [life](const std::string& what) {
    return Status(Code::kCorrupt, "the log segment of life " + std::to_string(life.value) + " is unusable: " + what);
  };
  auto layout = segment_layout(bytes.size());
  if (!layout.ok()) return corrupt(std::string(layout.status().message()));
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlign != 0) return corrupt("it is not aligned to 64 bytes");
  if (word(bytes.data()).load(std::memory_order_acquire) != kMagic) return corrupt("wrong magic number");
  Superblock block{};
  std::memcpy(&block, bytes.data(), offsetof(Superblock, changes));
  if (block.format != kSegmentFormat) {
    return Status(Code::kRefused, "the log segment of life " + std::to_string(life.value) + " has format " +
                                      std::to_string(block.format) + ", this build knows " +
                                      std::to_string(kSegmentFormat) + ": run the same version everywhere");
  }
  if (block.checksum != XXH3_64bits(&block, kSuperblockSumAt)) return corrupt("its superblock is damaged");
  if (block.incarnation != life.value) return corrupt("it is of life " + std::to_string(block.incarnation));
  const SegmentLayout& l = layout.value();
  if (block.bytes != l.bytes || block.extent_bytes != l.extent_bytes || block.data_at != l.data_at ||
      block.extents != l.extents) {
    return corrupt("it was laid out for " + std::to_string(block.bytes) + " bytes and has " + std::to_string(l.bytes));
  }
  SegmentView v;
  v.life_ = life;
  v.base_ = bytes.data();
  v.layout_ = l;
  return v;
}

std::uint64_t SegmentView::changes() const {
  return word(base_ + offsetof(Superblock, changes)).load(std::memory_order_acquire);
}

std::uint64_t SegmentView::run() const {
  return word(base_ + offsetof(Superblock, run)).load(std::memory_order_acquire);
}

std::optional<GivenUp> SegmentView::given_up() const {
  const std::uint64_t version = word(base_ + offsetof(Superblock, given_up_version)).load(std::memory_order_acquire);
  if (version == 0) return std::nullopt;
  const std::uint64_t timeline = word(base_ + offsetof(Superblock, given_up_timeline)).load(std::memory_order_acquire);
  return GivenUp{Timeline(static_cast<std::uint32_t>(timeline)),
                 version == kPreambleGivenUp ? kPreamble : Version(version - 1)};
}

SegmentView::Extent SegmentView::extent(std::uint32_t index) const {
  WARREN_CHECK(index < layout_.extents, "an extent of this segment");
  const std::byte* entry = base_ + entry_at(index);
  const auto get = [entry](std::size_t at) { return word(entry + at).load(std::memory_order_acquire); };
  Extent e;
  e.stamp = get(offsetof(TableEntry, stamp));
  e.sealed = get(offsetof(TableEntry, sealed)) != 0;
  e.cls.setup = get(offsetof(TableEntry, setup)) != 0;
  e.cls.timeline = Timeline(static_cast<std::uint32_t>(get(offsetof(TableEntry, timeline))));
  e.cls.version = Version(get(offsetof(TableEntry, version)));
  // Another use began meanwhile: free, as far as this look goes. `changes` will tell again.
  if (!is(index, e.stamp)) e.stamp |= 1;
  return e;
}

bool SegmentView::is(std::uint32_t extent, std::uint64_t stamp) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return word(base_ + entry_at(extent)).load(std::memory_order_relaxed) == stamp;
}

SegmentView::Found SegmentView::record(std::uint32_t extent, std::uint64_t stamp, std::uint64_t at, Record& out) const {
  WARREN_CHECK(extent < layout_.extents && stamp % 2 == 0 && at % kAlign == 0, "a place for a record");
  if (at > layout_.extent_bytes || layout_.extent_bytes - at < kRecordHeaderBytes) return Found::kNoRoom;
  const std::uint64_t header_at = extent_at(layout_, extent) + at;
  const std::byte* place = base_ + header_at;
  if (word(place).load(std::memory_order_acquire) != stamp) {
    return is(extent, stamp) ? Found::kNothingYet : Found::kGone;
  }
  RecordHeader h;
  copy_out(reinterpret_cast<std::byte*>(&h), place, sizeof h);
  if (!is(extent, stamp)) return Found::kGone;
  const std::uint64_t room = layout_.extent_bytes - at - sizeof h;
  if (h.checksum != record_checksum(as_bytes(h), life_, header_at, stamp) || h.payload_bytes > room ||
      h.first_byte > h.total_bytes || h.payload_bytes > h.total_bytes - h.first_byte ||
      h.kind < static_cast<std::uint8_t>(RecordKind::kRound) ||
      h.kind > static_cast<std::uint8_t>(RecordKind::kMessage)) {
    return Found::kDamaged;
  }
  out.key.kind = static_cast<RecordKind>(h.kind);
  out.key.round.timeline = Timeline(h.timeline);
  out.key.round.group = GroupId(h.group);
  out.key.round.version = Version(h.version);
  out.key.round.sequence = Sequence(h.sequence);
  Fingerprint& f = out.info.fingerprint;
  f.collective = static_cast<Collective>(h.collective);
  f.type = static_cast<DataType>(h.type);
  f.op = static_cast<ReduceOp>(h.op);
  f.algorithm = h.algorithm;
  f.root = h.root;
  f.count = h.count;
  f.shape = h.shape;
  f.site = h.site;
  out.info.total_bytes = h.total_bytes;
  out.first_byte = h.first_byte;
  out.payload_bytes = h.payload_bytes;
  out.payload_at = header_at + sizeof h;
  out.next = std::min(at + aligned(sizeof h + h.payload_bytes, kAlign), layout_.extent_bytes);
  return Found::kRecord;
}

bool SegmentView::copy(std::uint32_t extent, std::uint64_t stamp, std::uint64_t at, std::span<std::byte> out) const {
  const std::uint64_t begin = extent_at(layout_, extent), end = begin + layout_.extent_bytes;
  WARREN_CHECK(at >= begin && at <= end && out.size() <= end - at, "a payload lies in its extent");
  if (!is(extent, stamp)) return false;
  copy_out(out.data(), base_ + at, out.size());
  return is(extent, stamp);
}

std::optional<SegmentView::Window> SegmentView::window(const LogPlace& place, const RoundId& round,
                                                       std::size_t bytes) const {
  if (place.extent >= layout_.extents || !place.known() || place.stamp % 2 != 0) return std::nullopt;
  const std::uint64_t begin = extent_at(layout_, place.extent);
  if (place.at < begin + kRecordHeaderBytes || place.at > begin + layout_.extent_bytes) return std::nullopt;
  const std::uint64_t header_at = place.at - kRecordHeaderBytes - begin;
  Record r;
  if (header_at % kAlign != 0 || record(place.extent, place.stamp, header_at, r) != Found::kRecord ||
      r.key != result_key(round) || r.payload_bytes != bytes) {
    return std::nullopt;
  }
  return Window{base_ + r.payload_at, reinterpret_cast<const std::uint64_t*>(base_ + entry_at(place.extent))};
}

}  // namespace warren

#include "storage/host_log.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "recovery/base/check.h"
#include "storage/segment.h"

namespace warren {
namespace {

struct Attached {
  SegmentView view;
  std::shared_ptr<const void> keeper;
};
using AttachedPtr = std::shared_ptr<const Attached>;

// What is not shown any more, whoever still holds it.
struct Floors {
  Version version;
  [[nodiscard]] bool hide(const SegmentClass& cls) const {
    return !cls.setup && cls.version != kPreamble && cls.version < version;
  }
  friend bool operator==(const Floors&, const Floors&) = default;
};

// What readers need of the log. Writers are the log's thread alone.
struct Shared {
  [[nodiscard]] Floors floors() const { return {Version(version_floor.load(std::memory_order_acquire))}; }

  std::atomic<std::uint64_t> version_floor{0};

  std::mutex mutex;
  std::vector<AttachedPtr> segments;  // under the mutex; the own one first
  std::atomic<std::uint64_t> segments_changes{1};
};

// An index of all records of all segments, kept up by scanning what was appended since the last look. It takes some 200
// bytes a record.
class IndexedReader final : public HostLogReader {
 public:
  explicit IndexedReader(Shared& log) : log_(log) {}

  Result<std::optional<RecordInfo>> info(const RecordKey& key) override {
    const Look look(*this);
    const Entry* entry = find(key);
    if (entry == nullptr) return std::optional<RecordInfo>();
    if (entry->contradiction) {
      return Status(Code::kDesync, to_string(key.round) + " is logged as " + describe(entry->info) + " and as " +
                                       describe(*entry->contradiction) + " on this host");
    }
    return std::optional(entry->info);
  }

  Ranges held(const RecordKey& key) override {
    return ranges_of(key, [](Incarnation) { return true; });
  }

  Ranges held_within(const RecordKey& key, std::uint64_t begin, std::uint64_t end) override {
    const Look look(*this);
    Ranges ranges;
    const Entry* entry = find(key);
    if (entry == nullptr) return ranges;
    for (auto p = first_reaching(*entry, begin); p != entry->pieces.end() && p->first_byte < end; ++p) {
      if (stands(*p)) ranges.add(p->first_byte, p->first_byte + p->bytes);
    }
    return ranges.intersect(begin, end);
  }

  Ranges held_by(const RecordKey& key, std::span<const Incarnation> live) override {
    return ranges_of(key, [live](Incarnation life) { return std::ranges::find(live, life) != live.end(); });
  }

  bool recorded_by(const RecordKey& key, std::span<const Incarnation> live) override {
    const Look look(*this);
    const Entry* entry = find(key);
    return entry != nullptr && std::ranges::any_of(entry->pieces, [&](const Piece& p) {
             return stands(p) && std::ranges::find(live, sources_.at(p.source).segment->view.life()) != live.end();
           });
  }

  bool recorded_by_others(const RecordKey& key, std::span<const Incarnation> live) override {
    const Look look(*this);
    const Entry* entry = find(key);
    return entry != nullptr && std::ranges::any_of(entry->pieces, [&](const Piece& p) {
             return stands(p) && std::ranges::find(live, sources_.at(p.source).segment->view.life()) == live.end();
           });
  }

  bool read(const RecordKey& key, std::uint64_t begin, std::span<std::byte> out) override {
    const Look look(*this);
    const Entry* entry = find(key);
    if (entry == nullptr || begin > entry->info.total_bytes || out.size() > entry->info.total_bytes - begin) {
      return false;
    }
    std::uint64_t at = begin;
    const std::uint64_t end = begin + out.size();
    const auto& pieces = entry->pieces;
    // In order of their first byte: a piece that does not reach beyond `at` now never will be needed.
    for (auto p = first_reaching(*entry, begin); p != pieces.end() && at < end && p->first_byte <= at; ++p) {
      const std::uint64_t piece_end = p->first_byte + p->bytes;
      if (piece_end <= at) continue;
      const std::uint64_t n = std::min(piece_end, end) - at;
      if (copy(*p, at - p->first_byte, out.subspan(at - begin, n))) at += n;
    }
    return at == end;
  }

  std::vector<RecordKey> list(RecordKind kind, Timeline timeline, GroupId group, Version version, Sequence first,
                              Sequence end, std::size_t limit) override {
    const Look look(*this);
    std::vector<RecordKey> keys;
    if (floors_.hide(class_of({kind, {timeline, group, version, first}}))) return keys;
    auto i = index_.lower_bound({kind, {timeline, group, version, first}});
    const auto stop = index_.lower_bound({kind, {timeline, group, version, end}});
    for (; first < end && i != stop && keys.size() < limit; ++i) {
      if (std::ranges::any_of(i->second.pieces, [this](const Piece& p) { return stands(p); })) keys.push_back(i->first);
    }
    return keys;
  }

  std::vector<RecordKey> newest_rounds() override {
    const Look look(*this);
    std::vector<RecordKey> keys;
    auto i = index_.lower_bound({RecordKind::kRound, {}});
    while (i != index_.end() && i->first.kind == RecordKind::kRound) {
      RecordKey last = i->first;
      last.round.sequence = Sequence(UINT64_MAX);
      const auto next = index_.upper_bound(last);
      for (auto k = next; k != i;) {
        --k;
        if (find(k->first) == nullptr) continue;
        keys.push_back(k->first);
        break;
      }
      i = next;
    }
    return keys;
  }

  std::vector<RecordKey> setup_rounds(std::size_t limit) override {
    const Look look(*this);
    std::vector<RecordKey> keys;
    std::size_t of_timeline = 0;
    for (auto i = index_.lower_bound({RecordKind::kSetup, {}});
         i != index_.end() && i->first.kind == RecordKind::kSetup; ++i) {
      if (keys.empty() || keys.back().round.timeline != i->first.round.timeline) of_timeline = 0;
      if (of_timeline == limit || find(i->first) == nullptr) continue;
      keys.push_back(i->first);
      ++of_timeline;
    }
    return keys;
  }

 private:
  // One extent at its stamp: where the scan is, and what it has found.
  struct ScannedExtent;
  struct Piece {
    std::uint64_t first_byte = 0;
    std::uint64_t payload_at = 0;  // in the segment
    std::uint32_t bytes = 0;
    std::uint32_t source = 0;  // number of the source, which is never used again
    std::uint32_t extent = 0;
  };
  struct Entry {
    RecordInfo info;
    std::unique_ptr<RecordInfo> contradiction;
    std::uint64_t longest = 0;  // piece, ever
    std::uint64_t purge = 0;    // the purge that has looked at this entry last
    std::vector<Piece> pieces;  // by first byte
  };
  using Index = std::map<RecordKey, Entry>;
  struct ScannedExtent {
    std::uint64_t stamp = 1;
    std::uint64_t at = 0;  // of the next record
    bool sealed = false, open = false;
    std::vector<Index::iterator> records;
  };
  struct Source {
    std::weak_ptr<const Attached> attached;
    AttachedPtr segment;  // during a look
    std::uint64_t changes = 0;
    bool looked = false;
    std::vector<ScannedExtent> extents;
    std::vector<std::uint32_t> open;  // extents that may get more records
  };

  // The index is up to date, and what is attached stays mapped while one exists. Between two, a reader keeps nothing
  // from being unmapped, however rarely it looks.
  class Look {
   public:
    explicit Look(IndexedReader& reader) : reader_(reader) { reader_.refresh(); }
    ~Look() {
      for (auto& [number, source] : reader_.sources_) source.segment.reset();
    }
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;

   private:
    IndexedReader& reader_;
  };

  static std::string describe(const RecordInfo& info) {
    return to_string(info.fingerprint) + ", " + std::to_string(info.total_bytes) + " bytes in all";
  }

  const Entry* find(const RecordKey& key) const {
    if (floors_.hide(class_of(key))) return nullptr;
    const auto i = index_.find(key);
    if (i == index_.end()) return nullptr;
    // Something may have been dropped since it was indexed.
    const auto stands = [this](const Piece& p) { return this->stands(p); };
    return std::ranges::any_of(i->second.pieces, stands) ? &i->second : nullptr;
  }

  [[nodiscard]] bool stands(const Piece& p) const {
    const Source& s = sources_.at(p.source);
    return s.segment && s.segment->view.is(p.extent, s.extents[p.extent].stamp);
  }

  bool copy(const Piece& p, std::uint64_t from, std::span<std::byte> out) const {
    const Source& s = sources_.at(p.source);
    return s.segment && s.segment->view.copy(p.extent, s.extents[p.extent].stamp, p.payload_at + from, out);
  }

  // No piece before it reaches beyond `begin`.
  static std::vector<Piece>::const_iterator first_reaching(const Entry& entry, std::uint64_t begin) {
    return std::ranges::lower_bound(entry.pieces, begin - std::min<std::uint64_t>(begin, entry.longest), {},
                                    &Piece::first_byte);
  }

  template <class Counts>
  Ranges ranges_of(const RecordKey& key, Counts counts) {
    const Look look(*this);
    Ranges ranges;
    const Entry* entry = find(key);
    if (entry == nullptr) return ranges;
    for (const Piece& p : entry->pieces) {
      if (stands(p) && counts(sources_.at(p.source).segment->view.life())) {
        ranges.add(p.first_byte, p.first_byte + p.bytes);
      }
    }
    return ranges;
  }

  // Brings the index up to what is published.
  void refresh() {
    const std::uint64_t changes = log_.segments_changes.load(std::memory_order_acquire);
    if (changes != segments_changes_) {
      segments_changes_ = changes;
      take_segments();
    }
    if (const Floors floors = log_.floors(); floors != floors_) {
      floors_ = floors;
      for (auto& [number, source] : sources_) source.looked = false;
    }
    for (auto& [number, source] : sources_) {
      source.segment = source.attached.lock();
      if (!source.segment) continue;  // detached since: the next look takes it out
      const std::uint64_t now = source.segment->view.changes();
      if (!source.looked || now != source.changes) {
        source.changes = now;
        source.looked = true;
        look_at_table(number, source);
      }
      scan(number, source);
    }
  }

  void take_segments() {
    std::vector<AttachedPtr> now;
    {
      const std::lock_guard lock(log_.mutex);
      now = log_.segments;
    }
    for (auto s = sources_.begin(); s != sources_.end();) {
      const auto same = std::ranges::find(now, s->second.attached.lock());
      if (same != now.end()) {
        now.erase(same);
        ++s;
        continue;
      }
      for (std::uint32_t e = 0; e < s->second.extents.size(); ++e) purge(s->first, s->second, e);
      s = sources_.erase(s);
    }
    for (const AttachedPtr& segment : now) {
      Source& fresh = sources_[next_source_++];
      fresh.extents.resize(segment->view.layout().extents);
      fresh.attached = segment;
    }
  }

  void look_at_table(std::uint32_t number, Source& source) {
    for (std::uint32_t e = 0; e < source.extents.size(); ++e) {
      const SegmentView::Extent now = source.segment->view.extent(e);
      ScannedExtent& mine = source.extents[e];
      const bool shown = now.in_use() && !floors_.hide(now.cls);
      if (mine.stamp != now.stamp || !shown) {
        purge(number, source, e);
        mine.stamp = now.stamp;
        mine.at = 0;
        if (mine.open != shown) {
          mine.open = shown;
          if (shown) {
            source.open.push_back(e);
          } else {
            std::erase(source.open, e);
          }
        }
      }
      mine.sealed = now.sealed;
    }
  }

  void scan(std::uint32_t number, Source& source) {
    for (std::size_t i = 0; i < source.open.size();) {
      const std::uint32_t e = source.open[i];
      ScannedExtent& extent = source.extents[e];
      SegmentView::Record record;
      SegmentView::Found found{};
      while ((found = source.segment->view.record(e, extent.stamp, extent.at, record)) == SegmentView::Found::kRecord) {
        // Most often the round after the one before.
        const auto next = extent.records.empty() ? index_.end() : std::next(extent.records.back());
        extent.records.push_back(add(next, number, e, record));
        extent.at = record.next;
      }
      // What is gone or damaged stays out until the table says that it is something else.
      if (found == SegmentView::Found::kNothingYet && !extent.sealed) {
        ++i;
        continue;
      }
      extent.open = false;
      source.open[i] = source.open.back();
      source.open.pop_back();
    }
  }

  Index::iterator add(Index::iterator hint, std::uint32_t number, std::uint32_t extent,
                      const SegmentView::Record& record) {
    const auto i = index_.try_emplace(hint, record.key);
    Entry& entry = i->second;
    if (entry.pieces.empty()) {
      entry.info = record.info;
    } else if (!entry.contradiction && (entry.info.total_bytes != record.info.total_bytes ||
                                        !agree(entry.info.fingerprint, record.info.fingerprint))) {
      entry.contradiction = std::make_unique<RecordInfo>(record.info);
    }
    entry.longest = std::max<std::uint64_t>(entry.longest, record.payload_bytes);
    Piece piece;
    piece.first_byte = record.first_byte;
    piece.payload_at = record.payload_at;
    piece.bytes = record.payload_bytes;
    piece.source = number;
    piece.extent = extent;
    entry.pieces.insert(std::ranges::upper_bound(entry.pieces, piece.first_byte, {}, &Piece::first_byte), piece);
    return i;
  }

  // Takes everything that was found in the extent out of the index.
  void purge(std::uint32_t number, Source& source, std::uint32_t e) {
    auto& records = source.extents[e].records;
    if (records.empty()) return;
    ++purges_;
    std::vector<Index::iterator> empty;
    for (const Index::iterator& i : records) {
      Entry& entry = i->second;
      if (std::exchange(entry.purge, purges_) == purges_) continue;
      std::erase_if(entry.pieces, [&](const Piece& p) { return p.source == number && p.extent == e; });
      if (entry.pieces.empty()) empty.push_back(i);
    }
    for (const Index::iterator& i : empty) index_.erase(i);
    records = {};
  }

  Shared& log_;
  Index index_;
  std::map<std::uint32_t, Source> sources_;  // by number
  std::uint32_t next_source_ = 0;
  std::uint64_t segments_changes_ = 0;
  std::uint64_t purges_ = 0;
  Floors floors_;
};

class HeapSegment final : public SegmentMemory {
 public:
  // Mapped, not allocated, so that pages that are never touched cost nothing.
  explicit HeapSegment(std::size_t bytes)
      : bytes_(bytes),
        at_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    WARREN_CHECK(at_ != MAP_FAILED, "there is address space for a segment");
  }
  ~HeapSegment() override { ::munmap(at_, bytes_); }
  HeapSegment(const HeapSegment&) = delete;
  HeapSegment& operator=(const HeapSegment&) = delete;

  std::span<std::byte> bytes() override { return {static_cast<std::byte*>(at_), bytes_}; }
  void release(std::size_t at, std::size_t size) override {
    (void)::madvise(static_cast<std::byte*>(at_) + at, size, MADV_DONTNEED);
  }

 private:
  std::size_t bytes_;
  void* at_;
};

// A life that has not known a run has logged nothing that could be wrong.
bool of_other_run(std::uint64_t run, const SegmentView& view) {
  const std::uint64_t its = view.run();
  return run != 0 && its != 0 && its != run;
}

}  // namespace

struct HostLog::Impl {
  Impl(Incarnation life, SegmentWriter w) : self(life), writer(std::move(w)) { count_held(); }

  template <class Predicate>
  void drop(Predicate gone) {
    writer.drop(gone);
    count_held();
  }
  void count_held() {
    const SegmentLayout& l = writer.layout();
    held.store(l.data_at + writer.extents_in_use() * l.extent_bytes, std::memory_order_relaxed);
    const bool half = 2 * writer.extents_in_use() >= l.extents;
    if (half && !std::exchange(half_full, half) && watch.half_full) watch.half_full();
    half_full = half;
  }
  Status make_room(const RecordKey& key);
  [[nodiscard]] bool needs(const SegmentWriter::Spent& extent) const;
  std::size_t give_up();

  const Incarnation self;
  SegmentWriter writer;
  std::atomic<std::uint64_t> held{0};
  std::uint64_t run = 0;
  Spill spill;
  Needed needed;
  AttachedPtr own;
  Watch watch;
  bool half_full = false;
  // What was given up last, as in the segment, for gives_up(): whether, under the greatest number of its kind.
  std::atomic<std::uint64_t> given_up_timeline{0}, given_up_version{0};
  std::atomic<bool> gave_up{false};
  Shared shared;
};

Result<std::unique_ptr<HostLog>> HostLog::create(Incarnation self, std::shared_ptr<SegmentMemory> own) {
  auto writer = SegmentWriter::format(self, own);
  if (!writer.ok()) return writer.status().because_of_this("cannot make the memory log (--log_memory_bytes)");
  auto view = SegmentView::open(own->bytes(), self);
  if (!view.ok()) return view.status();
  auto impl = std::make_unique<Impl>(self, std::move(writer).value());
  impl->own = std::make_shared<const Attached>(Attached{std::move(view).value(), std::move(own)});
  impl->shared.segments.push_back(impl->own);
  return std::unique_ptr<HostLog>(new HostLog(std::move(impl)));
}

HostLog::HostLog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HostLog::~HostLog() = default;

Status HostLog::publish(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                        std::span<const std::byte> payload, LogPlace* place) {
  const std::size_t wanted = payload.size();
  while (true) {
    const std::uint32_t before = impl_->writer.extents_in_use();
    const SegmentWriter::Published published = impl_->writer.publish(key, info, first_byte, payload, place != nullptr);
    if (impl_->writer.extents_in_use() != before) impl_->count_held();
    if (published.all) [[likely]] {
      if (place != nullptr) *place = payload.size() == wanted ? published.place : LogPlace{};
      return {};
    }
    first_byte += published.bytes;
    payload = payload.subspan(published.bytes);
    if (Status s = impl_->make_room(key); !s.ok()) return s;
  }
}

Status HostLog::Impl::make_room(const RecordKey& key) {
  Status why;
  if (spill) {
    const auto spilled = spill();
    const std::size_t freed = spilled.ok() ? writer.drop_extents(spilled.value()) : 0;
    count_held();
    if (freed != 0) return {};
    why = spilled.status();
  }
  if (needed && give_up() != 0) return {};
  const std::string full =
      "the memory log's " + std::to_string(writer.layout().bytes) + " bytes are full at " + to_string(key.round) +
      ": a checkpoint is overdue, or --log_memory_bytes is too small for " +
      (needed ? "the calls that are under way, and the checkpoints and set-up rounds that stay in it"
              : "what lies between two; --data_dir names a disk to which it spills, and a program that takes none runs "
                "with --replicas=0, or with --log_full=suspend");
  return why.ok() ? Status(Code::kExhausted, full) : why.because_of_this(Code::kExhausted, full);
}

bool HostLog::Impl::needs(const SegmentWriter::Spent& extent) const {
  const SegmentView& view = own->view;
  SegmentView::Record r;
  for (std::uint64_t at = 0; view.record(extent.use.extent, extent.use.stamp, at, r) == SegmentView::Found::kRecord;
       at = r.next) {
    if (needed(r.key)) return true;
  }
  return false;
}

std::size_t HostLog::Impl::give_up() {
  std::vector<SegmentWriter::Spent> oldest;
  const std::size_t most = std::max<std::size_t>(1, writer.layout().extents / 2);
  for (const SegmentWriter::Spent& extent : writer.spent()) {
    if (oldest.size() == most) break;
    if (!needs(extent)) oldest.push_back(extent);
  }
  if (oldest.empty()) return 0;
  const std::size_t freed = writer.give_up(oldest);
  count_held();
  const GivenUp said = own->view.given_up().value();
  given_up_timeline.store(said.timeline.value, std::memory_order_relaxed);
  given_up_version.store(said.version.value, std::memory_order_relaxed);
  gave_up.store(true, std::memory_order_release);
  if (watch.gives_up) watch.gives_up();
  return freed;
}

void HostLog::give_up_but(Needed needed) {
  impl_->needed = std::move(needed);
}

void HostLog::watch(Watch watch) {
  impl_->watch = std::move(watch);
}

std::optional<GivenUp> HostLog::gives_up() const {
  if (!impl_->gave_up.load(std::memory_order_acquire)) return std::nullopt;
  return GivenUp{Timeline(static_cast<std::uint32_t>(impl_->given_up_timeline.load(std::memory_order_relaxed))),
                 Version(impl_->given_up_version.load(std::memory_order_relaxed))};
}

std::optional<GivenUp> HostLog::given_up() const {
  std::optional<GivenUp> newest;
  const std::lock_guard lock(impl_->shared.mutex);
  for (const auto& s : impl_->shared.segments) {
    const auto its = s->view.given_up();
    if (its && (!newest || newest->order() < its->order())) newest = its;
  }
  return newest;
}

std::span<std::byte> HostLog::room(const RecordKey& key, std::size_t bytes) {
  const std::uint32_t before = impl_->writer.extents_in_use();
  const std::span<std::byte> room = impl_->writer.room(key, bytes);
  if (impl_->writer.extents_in_use() != before) impl_->count_held();
  return room;
}

void HostLog::publish_room(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte, std::size_t bytes,
                           LogPlace* place) {
  const LogPlace published = impl_->writer.publish_room(key, info, first_byte, bytes);
  if (place != nullptr) *place = published;
}

void HostLog::spill_by(Spill spill) {
  impl_->spill = std::move(spill);
}
bool HostLog::spills() const {
  return impl_->spill != nullptr;
}

Status HostLog::attach(Incarnation life, std::span<const std::byte> segment, std::shared_ptr<const void> keeper) {
  if (life == impl_->self) return {Code::kInvalidArgument, "a life's own log segment is not attached"};
  auto view = SegmentView::open(segment, life);
  if (!view.ok()) return view.status();
  if (of_other_run(impl_->run, view.value())) return {};
  const std::lock_guard lock(impl_->shared.mutex);
  const bool known =
      std::ranges::any_of(impl_->shared.segments, [life](const auto& s) { return s->view.life() == life; });
  if (known) return {};
  impl_->shared.segments.push_back(
      std::make_shared<const Attached>(Attached{std::move(view).value(), std::move(keeper)}));
  impl_->shared.segments_changes.fetch_add(1, std::memory_order_release);
  return {};
}

void HostLog::detach(Incarnation life) {
  const std::lock_guard lock(impl_->shared.mutex);
  std::erase_if(impl_->shared.segments, [&](const auto& s) { return s->view.life() == life && life != impl_->self; });
  impl_->shared.segments_changes.fetch_add(1, std::memory_order_release);
}

std::vector<Incarnation> HostLog::attached() const {
  std::vector<Incarnation> lives;
  const std::lock_guard lock(impl_->shared.mutex);
  for (const auto& s : impl_->shared.segments) {
    if (s->view.life() != impl_->self) lives.push_back(s->view.life());
  }
  return lives;
}

std::shared_ptr<const SegmentView> HostLog::segment_of(Incarnation life) const {
  const std::lock_guard lock(impl_->shared.mutex);
  for (const AttachedPtr& s : impl_->shared.segments) {
    if (s->view.life() == life) return {s, &s->view};
  }
  return nullptr;
}

void HostLog::belong(std::uint64_t run) {
  if (run == impl_->run) return;
  WARREN_CHECK(impl_->run == 0, "a life belongs to one run of its job");
  impl_->run = run;
  impl_->writer.belong(run);
  const std::lock_guard lock(impl_->shared.mutex);
  std::erase_if(impl_->shared.segments, [run](const auto& s) { return of_other_run(run, s->view); });
  impl_->shared.segments_changes.fetch_add(1, std::memory_order_release);
}

std::uint64_t HostLog::run() const {
  return impl_->run;
}

std::optional<std::uint64_t> HostLog::attached_run() const {
  std::uint64_t run = 0;
  const std::lock_guard lock(impl_->shared.mutex);
  for (const auto& s : impl_->shared.segments) {
    const std::uint64_t its = s->view.run();
    if (its == 0 || its == run) continue;
    if (run != 0) return std::nullopt;
    run = its;
  }
  return run;
}

void HostLog::drop_below(Version version) {
  // Readers stop showing it before it goes.
  if (version.value > impl_->shared.version_floor.load(std::memory_order_relaxed)) {
    impl_->shared.version_floor.store(version.value, std::memory_order_release);
  }
  if (const auto mine = gives_up(); mine && mine->obsolete(version)) {
    impl_->gave_up.store(false, std::memory_order_release);
  }
  const Floors floors{version};
  impl_->drop([&](const SegmentClass& cls) { return floors.hide(cls); });
}

std::uint64_t HostLog::bytes_held() const {
  return impl_->held.load(std::memory_order_relaxed);
}
std::uint64_t HostLog::budget_bytes() const {
  return impl_->writer.layout().bytes;
}

std::unique_ptr<HostLogReader> HostLog::reader() const {
  return std::make_unique<IndexedReader>(impl_->shared);
}

std::shared_ptr<SegmentMemory> heap_segment(std::size_t bytes) {
  return std::make_shared<HeapSegment>(bytes);
}

}  // namespace warren

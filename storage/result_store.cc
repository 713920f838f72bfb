#include "storage/result_store.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "storage/result_format.h"
#include "storage/xxh3.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace warren::storage {
namespace {

static_assert(std::endian::native == std::endian::little, "entries are copied as they lie in memory");

template <class Int>
unsigned char* put_big(unsigned char* at, Int value) {
  for (std::size_t i = sizeof value; i-- > 0;) *at++ = static_cast<unsigned char>(value >> (8 * i));
  return at;
}
template <class Int>
const char* get_big(const char* at, Int& value) {
  value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value = static_cast<Int>((static_cast<std::uint64_t>(value) << 8) | static_cast<unsigned char>(*at++));
  }
  return at;
}
template <class T>
char* put_little(char* at, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(at, &value, sizeof value);
  return at + sizeof value;
}
template <class T>
const char* get_little(const char* at, T& value) {
  std::memcpy(&value, at, sizeof value);
  return at + sizeof value;
}

constexpr std::size_t kEntrySumAt = kRecordEntryBytes - 8;

std::uint64_t entry_sum(std::string_view key, const char* entry) {
  return XXH3_64bits_withSeed(entry, kEntrySumAt, XXH3_64bits(key.data(), key.size()));
}

RecordKey with_sequence(RecordKey key, std::uint64_t sequence) {
  key.round.sequence = Sequence(sequence);
  return key;
}

// Reads from several sources as if they were one.
class SourceReader final : public HostLogReader {
 public:
  SourceReader(std::function<Sources()> sources, Incarnation own) : sources_(std::move(sources)), own_(own) {}

  Result<std::optional<RecordInfo>> info(const RecordKey& key) override {
    std::optional<RecordInfo> found;
    bool contradicted = false;
    for (const auto& source : sources_()) {
      source->scan(key, 0, [&](const StoredRecord& r) {
        if (r.key != key) return false;
        if (!found) {
          found = r.info;
        } else if (found->total_bytes != r.info.total_bytes || !agree(found->fingerprint, r.info.fingerprint)) {
          contradicted = true;
        }
        return false;
      });
    }
    if (contradicted) {
      return Status(Code::kDesync, "what the disk holds of " + warren::to_string(key.round) +
                                       " is of different calls: " + warren::to_string(found->fingerprint) +
                                       " and another: the data directory was used by different programs");
    }
    return found;
  }

  Ranges held(const RecordKey& key) override { return held_in(sources_(), key, 0, UINT64_MAX); }

  Ranges held_within(const RecordKey& key, std::uint64_t begin, std::uint64_t end) override {
    return held_in(sources_(), key, begin, end).intersect(begin, end);
  }

  Ranges held_by(const RecordKey& key, std::span<const Incarnation> live) override {
    return held_in(own_among(live), key, 0, UINT64_MAX);
  }

  bool recorded_by(const RecordKey& key, std::span<const Incarnation> live) override {
    bool found = false;
    for (const auto& source : own_among(live)) {
      source->scan(key, 0, [&](const StoredRecord& r) {
        found = found || r.key == key;
        return false;
      });
    }
    return found;
  }

  bool read(const RecordKey& key, std::uint64_t begin, std::span<std::byte> out) override {
    const std::uint64_t end = begin + out.size();
    if (out.empty()) return true;
    Ranges missing(begin, end);
    for (const auto& source : sources_()) {
      bool intact = true;
      const auto look = [&](const StoredRecord& r) {
        if (r.key != key || r.first_byte >= end) return false;
        const Ranges wanted = missing.intersect(r.first_byte, r.end());
        for (const Interval& i : wanted.intervals()) {
          if (source->read(r, i.begin, out.subspan(i.begin - begin, i.end - i.begin))) {
            missing = missing.minus(Ranges(i.begin, i.end));
          } else {
            intact = false;
            return false;
          }
        }
        return !missing.empty();
      };
      // What a look finds damaged the next one does not meet again, and other records may cover the same bytes.
      do {
        intact = true;
        source->scan(key, reaching(begin), look);
      } while (!intact);
      if (missing.empty()) return true;
    }
    return false;
  }

  std::vector<RecordKey> list(RecordKind kind, Timeline timeline, GroupId group, Version version, Sequence first,
                              Sequence end, std::size_t limit) override {
    if (limit == 0) return {};
    std::set<std::uint64_t> found;
    const RecordKey base{kind, {timeline, group, version, first}};
    for (const auto& source : sources_()) {
      std::size_t count = 0;
      std::optional<std::uint64_t> last;
      source->scan(base, 0, [&](const StoredRecord& r) {
        if (with_sequence(r.key, first.value) != base || r.key.round.sequence >= end) return false;
        if (last == r.key.round.sequence.value) return true;
        if (++count > limit) return false;
        found.insert(*(last = r.key.round.sequence.value));
        return true;
      });
    }
    std::vector<RecordKey> keys;
    for (const std::uint64_t sequence : found) {
      if (keys.size() == limit) break;
      keys.push_back(with_sequence(base, sequence));
    }
    return keys;
  }

  std::vector<RecordKey> newest_rounds() override { return {}; }
  std::vector<RecordKey> setup_rounds(std::size_t) override { return {}; }

 private:
  // Of this life, if it is one of these.
  Sources own_among(std::span<const Incarnation> live) {
    if (std::ranges::find(live, own_) == live.end()) return {};
    Sources own = sources_();
    std::erase_if(own, [this](const auto& source) { return source->life() != own_; });
    return own;
  }
  // A record that reaches into a range begins at most one chunk before it.
  static std::uint64_t reaching(std::uint64_t begin) {
    return begin - std::min<std::uint64_t>(begin, limits::kMaxChunkBytes);
  }
  static Ranges held_in(const Sources& sources, const RecordKey& key, std::uint64_t begin, std::uint64_t end) {
    Ranges held;
    for (const auto& source : sources) {
      source->scan(key, reaching(begin), [&](const StoredRecord& r) {
        if (r.key != key || r.first_byte >= end) return false;
        held.add(r.first_byte, r.end());
        return true;
      });
    }
    return held;
  }

  std::function<Sources()> sources_;
  Incarnation own_;
};

class CombinedReader final : public HostLogReader {
 public:
  CombinedReader(std::unique_ptr<HostLogReader> memory, std::unique_ptr<HostLogReader> disk)
      : memory_(std::move(memory)), disk_(std::move(disk)) {}

  Result<std::optional<RecordInfo>> info(const RecordKey& key) override {
    auto found = memory_->info(key);
    return !found.ok() || found.value() ? std::move(found) : disk_->info(key);
  }
  Ranges held(const RecordKey& key) override {
    Ranges held = memory_->held(key);
    if (!all_of(key, held)) held.add(disk_->held(key));
    return held;
  }
  Ranges held_within(const RecordKey& key, std::uint64_t begin, std::uint64_t end) override {
    Ranges held = memory_->held_within(key, begin, end);
    if (!held.covers(begin, end)) held.add(disk_->held_within(key, begin, end));
    return held;
  }
  Ranges held_by(const RecordKey& key, std::span<const Incarnation> live) override {
    Ranges held = memory_->held_by(key, live);
    if (!all_of(key, held)) held.add(disk_->held_by(key, live));
    return held;
  }
  bool recorded_by(const RecordKey& key, std::span<const Incarnation> live) override {
    return memory_->recorded_by(key, live) || disk_->recorded_by(key, live);
  }
  bool recorded_by_others(const RecordKey& key, std::span<const Incarnation> live) override {
    return memory_->recorded_by_others(key, live) || disk_->recorded_by_others(key, live);
  }
  bool read(const RecordKey& key, std::uint64_t begin, std::span<std::byte> out) override {
    if (memory_->read(key, begin, out)) return true;
    const std::uint64_t end = begin + out.size();
    Ranges rest(begin, end);
    const Ranges in_memory = memory_->held_within(key, begin, end);
    for (const Interval& i : in_memory.intervals()) {
      if (memory_->read(key, i.begin, out.subspan(i.begin - begin, i.end - i.begin))) {
        rest = rest.minus(Ranges(i.begin, i.end));
      }
    }
    return std::ranges::all_of(rest.intervals(), [&](const Interval& i) {
      return disk_->read(key, i.begin, out.subspan(i.begin - begin, i.end - i.begin));
    });
  }
  std::vector<RecordKey> list(RecordKind kind, Timeline timeline, GroupId group, Version version, Sequence first,
                              Sequence end, std::size_t limit) override {
    const auto a = memory_->list(kind, timeline, group, version, first, end, limit);
    const auto b = disk_->list(kind, timeline, group, version, first, end, limit);
    std::vector<RecordKey> both;
    std::ranges::set_union(a, b, std::back_inserter(both));
    if (both.size() > limit) both.resize(limit);
    return both;
  }

  std::vector<RecordKey> newest_rounds() override { return memory_->newest_rounds(); }
  std::vector<RecordKey> setup_rounds(std::size_t limit) override { return memory_->setup_rounds(limit); }

 private:
  bool all_of(const RecordKey& key, const Ranges& held) {
    if (held.empty()) return false;
    const auto known = memory_->info(key);
    return known.ok() && known.value() && held.covers(0, known.value()->total_bytes);
  }

  std::unique_ptr<HostLogReader> memory_, disk_;
};

}  // namespace

RecordBatch::RecordBatch(std::size_t bytes)
    : bytes_(std::max<std::size_t>(bytes, limits::kMaxChunkBytes)),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(bytes_)) {}

std::span<std::byte> RecordBatch::add(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                                      std::uint32_t payload_bytes) {
  WARREN_CHECK(fits(payload_bytes), "a record that does not fit goes into the next batch");
  items_.push_back({key, info, first_byte, payload_bytes, end_});
  used_ += cost(payload_bytes);
  end_ += payload_bytes;
  return {buffer_.get() + items_.back().at, payload_bytes};
}

void RecordBatch::take_back() {
  WARREN_CHECK(!items_.empty(), "there is a last record");
  used_ -= cost(items_.back().payload_bytes);
  end_ = items_.back().at;
  items_.pop_back();
}

void RecordBatch::clear() {
  items_.clear();
  used_ = end_ = 0;
}

bool Horizon::obsolete(const RecordKey& key) const {
  if (key.kind == RecordKind::kSetup) return !setups.has(key.round);
  return storage::obsolete(*this, bin_of(key));
}

bool obsolete(const Horizon& horizon, const Bin& bin) {
  switch (bin.kind) {
    case Bin::Kind::kSetup: return false;  // it holds what is in use, too
    case Bin::Kind::kStates:
      if (!horizon.committed) return bin.timeline < horizon.timeline;
      if (Horizon::Checkpoint{bin.timeline, bin.version} == *horizon.committed) return false;
      return bin.version < horizon.committed->version || bin.timeline < horizon.timeline;
    case Bin::Kind::kRounds:
      return bin.timeline < horizon.timeline || (bin.version != kPreamble && bin.version < horizon.rounds_from);
  }
  return false;
}

Bin bin_of(const RecordKey& key) {
  switch (key.kind) {
    case RecordKind::kSetup: return {Bin::Kind::kSetup, Timeline(0), Version(0)};
    case RecordKind::kGlobal:
    case RecordKind::kLocal: return {Bin::Kind::kStates, key.round.timeline, key.round.version};
    case RecordKind::kRound:
    case RecordKind::kMessage: break;
  }
  return {Bin::Kind::kRounds, key.round.timeline, key.round.version};
}

std::string to_string(const Bin& bin) {
  static constexpr const char* kNames[] = {"setup", "states", "rounds"};
  return std::string(kNames[static_cast<int>(bin.kind)]) + "-" + std::to_string(bin.timeline.value) + "-" +
         std::to_string(bin.version.value);
}

std::optional<Bin> parse_bin(std::string_view name) {
  for (const Bin::Kind kind : {Bin::Kind::kSetup, Bin::Kind::kStates, Bin::Kind::kRounds}) {
    Bin bin;
    bin.kind = kind;
    const std::size_t dash = name.find('-');
    if (dash == std::string_view::npos) return std::nullopt;
    const std::size_t second = name.find('-', dash + 1);
    if (second == std::string_view::npos) return std::nullopt;
    std::from_chars(name.data() + dash + 1, name.data() + second, bin.timeline.value);
    std::from_chars(name.data() + second + 1, name.data() + name.size(), bin.version.value);
    if (to_string(bin) == name) return bin;
  }
  return std::nullopt;
}

KeyBytes encode_key(const RecordKey& key, std::uint64_t first_byte, std::uint32_t payload_bytes) {
  KeyBytes out;
  unsigned char* at = put_big(out.data(), static_cast<std::uint8_t>(key.kind));
  at = put_big(at, key.round.timeline.value);
  at = put_big(at, key.round.group.value);
  at = put_big(at, key.round.version.value);
  at = put_big(at, key.round.sequence.value);
  at = put_big(at, first_byte);
  put_big(at, payload_bytes);
  return out;
}

EntryBytes encode_entry(std::string_view key, const StoredRecord& record) {
  EntryBytes out;
  const Fingerprint& f = record.info.fingerprint;
  char* at = put_little(out.data(), static_cast<std::uint8_t>(f.collective));
  at = put_little(at, static_cast<std::uint8_t>(f.type));
  at = put_little(at, static_cast<std::uint8_t>(f.op));
  at = put_little(at, f.algorithm);
  at = put_little(at, f.root);
  at = put_little(at, f.count);
  at = put_little(at, f.shape);
  at = put_little(at, f.site);
  at = put_little(at, record.info.total_bytes);
  const Bin lies_in = record.lies_in.value_or(Bin{});
  at = put_little(at, lies_in.timeline.value);
  at = put_little(at, lies_in.version.value);
  at = put_little(at, record.checksum);
  put_little(at, entry_sum(key, out.data()));
  return out;
}

std::optional<StoredRecord> decode_record(std::string_view key, std::string_view entry) {
  if (key.size() != kRecordKeyBytes || entry.size() < kRecordEntryBytes) return std::nullopt;
  std::uint64_t sum = 0;
  get_little(entry.data() + kEntrySumAt, sum);
  if (sum != entry_sum(key, entry.data())) return std::nullopt;

  StoredRecord r;
  std::uint8_t kind = 0;
  const char* at = get_big(key.data(), kind);
  if (kind < static_cast<std::uint8_t>(RecordKind::kRound) || kind > static_cast<std::uint8_t>(RecordKind::kMessage)) {
    return std::nullopt;
  }
  r.key.kind = static_cast<RecordKind>(kind);
  at = get_big(at, r.key.round.timeline.value);
  at = get_big(at, r.key.round.group.value);
  at = get_big(at, r.key.round.version.value);
  at = get_big(at, r.key.round.sequence.value);
  at = get_big(at, r.first_byte);
  get_big(at, r.payload_bytes);

  Fingerprint& f = r.info.fingerprint;
  std::uint8_t collective = 0, type = 0, op = 0;
  at = get_little(entry.data(), collective);
  at = get_little(at, type);
  at = get_little(at, op);
  at = get_little(at, f.algorithm);
  at = get_little(at, f.root);
  at = get_little(at, f.count);
  at = get_little(at, f.shape);
  at = get_little(at, f.site);
  at = get_little(at, r.info.total_bytes);
  Bin lies_in{Bin::Kind::kStates, {}, {}};
  at = get_little(at, lies_in.timeline.value);
  at = get_little(at, lies_in.version.value);
  get_little(at, r.checksum);
  f.collective = static_cast<Collective>(collective);
  f.type = static_cast<DataType>(type);
  f.op = static_cast<ReduceOp>(op);

  if (r.payload_bytes > limits::kMaxChunkBytes || r.first_byte > r.info.total_bytes ||
      r.payload_bytes > r.info.total_bytes - r.first_byte) {
    return std::nullopt;
  }
  if (entry.size() != kRecordEntryBytes + (r.inlined() ? r.payload_bytes : 0)) return std::nullopt;
  if (r.inlined()) {
    r.inlined_payload = {reinterpret_cast<const std::byte*>(entry.data()) + kRecordEntryBytes, r.payload_bytes};
    if (checksum_of(r.inlined_payload) != r.checksum) return std::nullopt;
  }
  if (lies_in.version != Version(0) || lies_in.timeline != Timeline(0)) {
    if (r.inlined() || bin_of(r.key).kind != Bin::Kind::kStates) return std::nullopt;
    r.lies_in = lies_in;
  }
  return r;
}

std::uint64_t checksum_of(std::span<const std::byte> payload) {
  return xxh3(payload);
}

std::uint64_t call_hash(const Fingerprint& f) {
  const std::uint64_t words[] = {static_cast<std::uint64_t>(f.collective),
                                 static_cast<std::uint64_t>(f.type),
                                 static_cast<std::uint64_t>(f.op),
                                 f.algorithm,
                                 static_cast<std::uint32_t>(f.root),
                                 f.count,
                                 f.shape};
  return XXH3_64bits(words, sizeof words);
}

std::unique_ptr<HostLogReader> source_reader(std::function<Sources()> sources, Incarnation own) {
  return std::make_unique<SourceReader>(std::move(sources), own);
}

std::unique_ptr<HostLogReader> combined_reader(std::unique_ptr<HostLogReader> memory,
                                               std::unique_ptr<HostLogReader> disk) {
  return std::make_unique<CombinedReader>(std::move(memory), std::move(disk));
}

namespace {

// One source's records, in the order of a scan, as a report.
class ReportBuilder {
 public:
  void add(const StoredRecord& r) {
    if (current_ && current_->key != r.key) flush();
    if (!current_) {
      current_ = r;
      held_ = {};
    } else if (current_->info.total_bytes != r.info.total_bytes) {
      return;
    }
    held_.add(r.first_byte, r.end());
  }

  HeldReport finish() {
    flush();
    for (auto& [order, rounds] : rounds_) report_.rounds.push_back(std::move(rounds));
    for (auto& [order, state] : states_) report_.states.push_back(std::move(state));
    return std::move(report_);
  }

 private:
  void flush() {
    if (!current_) return;
    const RecordKey& key = current_->key;
    const RoundId& id = key.round;
    const std::uint64_t total = current_->info.total_bytes;
    if (key.kind == RecordKind::kRound || key.kind == RecordKind::kMessage) {
      const bool message = key.kind == RecordKind::kMessage;
      HeldRounds& rounds = rounds_[{message, id.timeline, id.group, id.version}];
      rounds.messages = message;
      rounds.timeline = id.timeline;
      rounds.group = id.group;
      rounds.version = id.version;
      append_held(rounds.runs, id.sequence.value, total, call_hash(current_->info.fingerprint), std::move(held_));
    } else if (key.kind != RecordKind::kSetup) {
      std::optional<Rank> local;
      if (key.kind == RecordKind::kLocal) local = Rank(static_cast<std::int32_t>(id.sequence.value));
      states_[{id.timeline, id.version, local}] = {id.timeline, id.version, local, total, std::move(held_)};
    }
    current_.reset();
  }

  HeldReport report_;
  std::map<std::tuple<bool, Timeline, GroupId, Version>, HeldRounds> rounds_;
  std::map<std::tuple<Timeline, Version, std::optional<Rank>>, HeldState> states_;
  std::optional<StoredRecord> current_;
  Ranges held_;
};

}  // namespace

HeldReport report_of(const Sources& sources, bool verify) {
  HeldReport report;
  std::vector<std::byte> payload;
  for (const auto& source : sources) {
    ReportBuilder builder;
    for (const Bin& bin : source->bins()) {
      if (bin.kind == Bin::Kind::kSetup) continue;
      const auto add = [&](const StoredRecord& r) {
        if (verify && !r.inlined()) {
          payload.resize(r.payload_bytes);
          if (!source->read(r, r.first_byte, payload)) return true;
        }
        builder.add(r);
        return true;
      };
      const RecordKind first = bin.kind == Bin::Kind::kStates ? RecordKind::kGlobal : RecordKind::kRound;
      source->scan({first, {bin.timeline, GroupId(0), bin.version, Sequence(0)}}, 0, add);
    }
    report = unite(report, builder.finish());
  }
  return report;
}

}  // namespace warren::storage

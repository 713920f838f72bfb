#include "worker/replay/replayer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/fetch_codec.h"
#include "storage/xxh3.h"

namespace warren::worker {
namespace {

static_assert(static_cast<std::uint32_t>(RecordKind::kMessage) == kMaxRecordKind);
static_assert(static_cast<std::uint32_t>(RecordKind::kGlobal) == kGlobalRecord);

// One request: so many bytes at most, in so many pieces; one piece comes from one holder.
constexpr std::uint64_t kRequestBytes = std::uint64_t{2} << 20;
constexpr std::size_t kRequestPieces = 1024;
constexpr std::uint64_t kPieceBytes = std::uint64_t{512} << 10;
static_assert(kRequestBytes + kPieceBytes <= limits::kMaxFetchPayloadBytes);
static_assert(kRequestPieces <= limits::kMaxFetchPieces && kRequestPieces <= limits::kMaxFetchEntries);
// What choosing among holders takes a piece for, beside its bytes.
constexpr std::uint64_t kPieceCostBytes = 256;
constexpr std::size_t kRequestsPerHolder = 4;
constexpr std::uint64_t kBytesInFlight = std::uint64_t{64} << 20;
// What is fetched ahead of the wanted round.
constexpr std::uint64_t kCacheBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kCachePieceOverhead = 128;
constexpr std::uint64_t kWindowRounds = 4096;
// Results that do not go to all ranks in whole are fetched ahead up to this size.
constexpr std::uint64_t kSmallResultBytes = std::uint64_t{64} << 10;
// Of listings, over all hosts.
constexpr std::uint64_t kListedRounds = std::uint64_t{1} << 17;
constexpr std::uint64_t kListedRanges = std::uint64_t{1} << 20;
constexpr std::size_t kIdleStreams = 64;
// So many wants for others make a stream one that nobody comes back to.
constexpr std::uint64_t kForgotten = 1000;
// A gap is believed when it has been seen so often, and each rank of each host was asked.
constexpr std::uint32_t kAsks = 4;
// Who waits until somebody has a local state asks its rank's host alone for this part of the timeout.
constexpr std::int64_t kOneHostPart = 7;
// Who waits asks more and more seldom.
constexpr std::uint32_t kMaxAsks = 20;
constexpr std::int64_t kMaxPauseMs = 2000;
// Requests of one rank that may get lost while it answers others, before it counts as one that does not answer.
constexpr int kLostRequests = 8;
// Pieces whose holders are busy that are passed over for later ones, in one go.
constexpr std::size_t kMaxSkipped = 256;
constexpr std::size_t kMaxWarnings = 32;
constexpr std::size_t kMaxRangesInText = 8;
// The own host's bytes go to the program in blocks of this size, by way of a buffer: what turns out to be dropped while
// it is read must not be in the program's.
constexpr std::size_t kBounceBytes = std::size_t{256} << 10;

constexpr std::size_t kNone = SIZE_MAX;

// Rounds and messages come one after the other; other records have no neighbours.
bool windowed(RecordKind kind) {
  return kind == RecordKind::kRound || kind == RecordKind::kMessage;
}

RecordKey stream_key(const RecordKey& key) {
  RecordKey out = key;
  if (windowed(key.kind)) out.round.sequence = Sequence(0);
  return out;
}

bool all_ranks_receive_all(Collective collective) {
  switch (collective) {
    case Collective::kAllreduce:
    case Collective::kBroadcast:
    case Collective::kBarrier:
    case Collective::kAllgather:
    case Collective::kAllgatherv:
    case Collective::kPoint: return true;
    case Collective::kReduce:
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
    case Collective::kAllToAllv: return false;
  }
  return false;
}

std::string name_of(const RecordKey& key) {
  const auto version = [&] {
    return key.round.version == kPreamble ? std::string("the preamble")
                                          : "version " + std::to_string(key.round.version.value - 1);
  };
  switch (key.kind) {
    case RecordKind::kRound:
    case RecordKind::kSetup: return to_string(key.round);
    case RecordKind::kGlobal: return "the global state of " + version();
    case RecordKind::kLocal:
      return "rank " + std::to_string(key.round.sequence.value) + "'s local state of " + version();
    case RecordKind::kMessage: return "message " + to_string(key.round);
  }
  return "a record";
}

std::string ranks_text(const std::set<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t n = 0;
  for (const std::int32_t rank : ranks) {
    if (n == kMaxRangesInText) return text + " and " + std::to_string(ranks.size() - n) + " more";
    text += (n++ == 0 ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

std::string ranges_text(const Ranges& ranges) {
  std::string text = "bytes ";
  std::size_t n = 0;
  for (const Interval& i : ranges.intervals()) {
    if (n == kMaxRangesInText) {
      return text + " and " + std::to_string(ranges.intervals().size() - n) + " ranges more";
    }
    text += (n++ == 0 ? "" : ", ") + std::to_string(i.begin) + "-" + std::to_string(i.end);
  }
  return text;
}

// The interval that holds byte `at`, or the first after it; null: none.
const Interval* interval_from(const Ranges& ranges, std::uint64_t at) {
  const auto& all = ranges.intervals();
  const auto i =
      std::lower_bound(all.begin(), all.end(), at, [](const Interval& v, std::uint64_t b) { return v.end <= b; });
  return i == all.end() ? nullptr : &*i;
}

}  // namespace

struct Replayer::State {
  struct Piece {
    std::uint64_t sequence, begin, end;
    friend auto operator<=>(const Piece&, const Piece&) = default;
  };

  // Another host, and the ranks that can be asked for what it holds.
  struct Host {
    std::string id, domain;
    bool own = false;          // this one: its other ranks may have on their disks what nobody else can read
    bool server = false;       // has no rank: a life that has left serves what lies there
    std::vector<Rank> ranks;   // those that answer, in the order in which they are asked
    std::vector<Rank> silent;  // the others
    std::set<Rank> unheard;    // have not answered since they were silent
    std::size_t requests = 0;  // with data, in flight
    std::uint64_t load = 0;    // bytes that these ask for
    [[nodiscard]] bool gone() const { return ranks.empty(); }
    // A host's ranks are all silent at times, and are asked again later.
    [[nodiscard]] Rank first() const { return gone() ? silent.front() : ranks.front(); }
    [[nodiscard]] Rank after(Rank rank) const {
      const auto i = std::ranges::find(ranks, rank);
      return i == ranks.end() || std::next(i) == ranks.end() ? first() : *std::next(i);
    }
  };

  // How far a host's listing of a stream is known, and which of its ranks makes it. That rank is asked for the bytes
  // too: they may lie on its disk, which no other rank reads. Streams go through the ranks of a host each by itself:
  // two that shared a turn would each meet every second rank alone.
  struct Listing {
    Rank asked;
    std::uint64_t sequence = 0, begin = 0;
    std::uint64_t request = 0;  // in flight; 0: none
  };

  struct Holder {
    std::size_t host;
    Ranges held;
  };

  struct Round {
    std::optional<RecordInfo> info;  // from listings and data
    std::string info_from;
    Status conflict;  // what holders say contradicts itself
    std::vector<Holder> holders;
    Ranges requested;
    std::vector<std::uint64_t> wants;
    std::map<std::uint64_t, std::vector<std::byte>> cache;  // by first byte; disjoint
    Ranges cached;
    std::uint32_t damaged = 0;  // times that bytes of it arrived damaged, since others of it were of use
    bool was_damaged = false;   // ever
    bool served = false;        // a want for it has ended: nobody will want it again
  };

  struct Stream {
    std::map<std::uint64_t, Round> rounds;              // by sequence
    std::multimap<std::uint64_t, std::uint64_t> wants;  // sequence → id
    std::set<std::uint64_t> open;   // sequences whose wants may have bytes that nobody was asked for
    std::vector<Listing> listings;  // by host
    std::uint64_t base = 0;         // nothing below is of interest
    std::uint64_t ahead = 0;        // rounds below were looked at for fetching ahead
    std::uint64_t edition = 0;      // of its listings; no other stream has the same
    std::optional<TimeMs> relist_at;
    std::uint64_t used = 0;  // when a want last came: the least is forgotten first
    bool asleep = true;      // nothing was needed from others since the plan: they are not asked
    bool look = false;       // all wants are to be looked at
    bool gap = false;        // one was seen: the own host's other ranks are asked too
    // Which hosts are asked; all, if it is not known where what is wanted appears first.
    bool all = true;
    std::set<std::size_t> first;
  };

  struct Wanted {
    Want want;
    Ranges missing;
    Ranges written;
    bool sized = false;  // the length is known
    std::optional<RecordInfo> info;
    std::vector<std::byte> bytes;
    bool extended = false;  // what was wanted is here; `missing` are others' parts, within `extra`
    Ranges extra;
    std::map<std::uint64_t, std::vector<std::byte>> extra_bytes;  // by first byte: one for each interval of `extra`
    std::uint32_t asks = 0;                                       // gaps that were seen
    std::uint64_t asked_edition = 0;                              // of the newest of them
    std::uint64_t stale_edition = 0;                              // listings up to this one are older than the want
    TimeMs since;                                                 // it is wanted of the newest plan's ranks
  };

  struct Pending {
    Rank rank;
    std::size_t host = 0;
    RecordKey stream;
    std::uint64_t edition = 0;
    std::vector<Piece> pieces;  // none: a listing
    std::uint64_t first_sequence = 0, end_sequence = 0, begin = 0;
    std::uint64_t load = 0;      // what it counts for at its host
    std::uint64_t reserved = 0;  // in the cache
    TimeMs sent;
  };

  // What came from a rank in this generation.
  struct Heard {
    TimeMs at;
    std::uint64_t id = 0;  // of the newest request that it has answered
    int lost = 0;          // requests that it has passed over
  };

  // Pieces that are to be asked for at one host.
  struct Batch {
    std::vector<Piece> pieces;
    std::uint64_t bytes = 0, load = 0, reserved = 0;
  };

  explicit State(HostLogReader& reader) : own(reader) {}

  HostLogReader& own;
  bool installed = false;
  bool follows = false;
  Generation generation;
  Rank self;
  Incarnation life;
  std::string own_domain;
  std::vector<Incarnation> own_lives;
  std::map<Rank, Incarnation> lives;
  std::map<Rank, std::size_t> host_of;
  std::size_t need_domains = 1;
  std::vector<Rank> newest_here;  // ranks of this host, those with the newest lives first
  std::int64_t timeout_ms = 1;
  std::vector<Host> hosts;
  std::map<Rank, Heard> heard;
  std::map<RecordKey, Stream> streams;
  std::map<std::uint64_t, Wanted> wants;
  std::map<std::uint64_t, Pending> pending;               // by id, which rises with time
  std::vector<std::pair<RecordKey, std::uint64_t>> look;  // wants to be looked at
  std::vector<Done> done;
  std::vector<std::string> warnings;
  std::size_t warnings_left_out = 0;
  std::uint64_t last_want = 0, last_request = 0, clock = 0;
  std::uint64_t cache_bytes = 0, reserved_bytes = 0, bytes_in_flight = 0;
  std::vector<std::byte> bounce;

  // --- what bounds what ---

  [[nodiscard]] std::uint64_t window() const {
    return std::clamp<std::uint64_t>(kListedRounds / std::max<std::size_t>(hosts.size(), 1), 64, kWindowRounds);
  }
  [[nodiscard]] std::uint64_t ranges_a_listing() const {
    return std::clamp<std::uint64_t>(kListedRanges / std::max<std::size_t>(hosts.size(), 1), 1024,
                                     limits::kMaxFetchRanges);
  }
  [[nodiscard]] std::uint64_t end_of_window(const RecordKey& key, const Stream& s) const {
    if (!windowed(key.kind)) return s.base + 1;
    return s.base + std::min(window(), UINT64_MAX - s.base);
  }

  // Who answers under this name, for people.
  [[nodiscard]] std::string answerer(Rank rank) const {
    const auto at = host_of.find(rank);
    if (at != host_of.end() && hosts[at->second].server) return "who has left host " + hosts[at->second].id;
    return "rank " + std::to_string(rank.value);
  }
  [[nodiscard]] std::string answerers(const std::set<std::int32_t>& all) const {
    std::set<std::int32_t> ranks;
    std::string text;
    for (const std::int32_t rank : all) {
      const auto at = host_of.find(Rank(rank));
      if (at == host_of.end() || !hosts[at->second].server) {
        ranks.insert(rank);
      } else {
        text += (text.empty() ? "" : ", ") + answerer(Rank(rank));
      }
    }
    if (ranks.empty()) return text;
    return ranks_text(ranks) + (text.empty() ? "" : ", ") + text;
  }
  void warn(std::string text) {
    if (follows) return;  // nobody waits for it
    if (warnings.size() < kMaxWarnings) {
      warnings.push_back(std::move(text));
    } else {
      ++warnings_left_out;
    }
  }

  // --- wants ---

  void finish(std::uint64_t id, Status status, Ranges again = {}) {
    Done& d = done.emplace_back();
    Wanted& w = wants.at(id);
    d.id = id;
    d.generation = generation;
    d.status = std::move(status);
    d.info = w.info;
    d.written = std::move(w.written);
    if (d.status.ok()) d.bytes = std::move(w.bytes);
    const Ranges fetched = w.extra.minus(w.missing);
    for (const Interval& i : fetched.intervals()) {
      auto in = w.extra_bytes.upper_bound(i.begin);
      --in;
      const auto piece = std::span(in->second).subspan(i.begin - in->first, i.end - i.begin);
      d.refill.push_back({i.begin, {piece.begin(), piece.end()}});
    }
    d.log_again = std::move(again);
    forget(id);
  }

  // Takes a want out of everything.
  void forget(std::uint64_t id) {
    const auto w = wants.find(id);
    const RecordKey& key = w->second.want.key;
    const std::uint64_t sequence = key.round.sequence.value;
    if (const auto s = streams.find(stream_key(key)); s != streams.end()) {
      Stream& stream = s->second;
      const auto [first, last] = stream.wants.equal_range(sequence);
      for (auto i = first; i != last; ++i) {
        if (i->second == id) {
          stream.wants.erase(i);
          break;
        }
      }
      Round& round = stream.rounds[sequence];
      std::erase(round.wants, id);
      if (round.wants.empty()) {
        round.served = true;
        drop_cache(round);
        stream.open.erase(sequence);
      }
      if (stream.wants.empty()) {
        stream.relist_at.reset();
        stream.base = std::max(stream.base, sequence + 1);
        if (!windowed(key.kind)) streams.erase(s);
      }
    }
    wants.erase(w);
  }

  void drop_cache(Round& round) {
    for (const auto& [at, bytes] : round.cache) cache_bytes -= bytes.size() + kCachePieceOverhead;
    round.cache.clear();
    round.cached = {};
  }

  // Compares with what a record says. False: the want has ended.
  bool take_info(std::uint64_t id, Wanted& w, const RecordInfo& info, const std::string& where) {
    std::string trouble;
    const Want& want = w.want;
    if (want.fingerprint && !agree(*want.fingerprint, info.fingerprint)) {
      trouble = "here " + to_string(*want.fingerprint) + ", in the log of " + where + " " + to_string(info.fingerprint);
    } else if (want.total_bytes && *want.total_bytes != info.total_bytes) {
      trouble = "here " + std::to_string(*want.total_bytes) + " bytes in all, in the log of " + where + " " +
                std::to_string(info.total_bytes);
    } else if (w.info && (w.info->total_bytes != info.total_bytes || !agree(w.info->fingerprint, info.fingerprint))) {
      trouble = contradiction("one", *w.info, where, info);
    }
    if (!trouble.empty()) {
      finish(id, Status(Code::kDesync, "ranks disagree about " + name_of(want.key) + ": " + trouble));
      return false;
    }
    if (!w.sized && info.total_bytes > limits::kMaxStateBytes) {
      finish(id, Status(Code::kCorrupt, "the log of " + where + " gives " + name_of(want.key) + " " +
                                            std::to_string(info.total_bytes) + " bytes, and no state has more than " +
                                            std::to_string(limits::kMaxStateBytes)));
      return false;
    }
    if (!w.info) w.info = info;
    if (!w.sized) {
      w.sized = true;
      w.bytes.resize(static_cast<std::size_t>(info.total_bytes));
      w.missing = Ranges(0, info.total_bytes);
    }
    return true;
  }

  static std::string contradiction(const std::string& a, const RecordInfo& one, const std::string& b,
                                   const RecordInfo& other) {
    return "the log of " + a + " has " + to_string(one.fingerprint) + " of " + std::to_string(one.total_bytes) +
           " bytes, that of " + b + " " + to_string(other.fingerprint) + " of " + std::to_string(other.total_bytes) +
           " bytes";
  }

  // Bytes of the whole result from `begin` on, which are missing.
  static void write(Wanted& w, std::uint64_t begin, std::span<const std::byte> bytes) {
    if (w.extended) {
      auto in = w.extra_bytes.upper_bound(begin);
      --in;
      std::memcpy(in->second.data() + (begin - in->first), bytes.data(), bytes.size());
      w.missing = w.missing.minus(Ranges(begin, begin + bytes.size()));
      return;
    }
    std::byte* to = w.want.total_bytes ? w.want.base + (begin - w.want.base_at) : w.bytes.data() + begin;
    std::memcpy(to, bytes.data(), bytes.size());
    w.missing = w.missing.minus(Ranges(begin, begin + bytes.size()));
    w.written.add(begin, begin + bytes.size());
  }

  // False: the want has ended.
  bool read_own(std::uint64_t id, Wanted& w) {
    // What lies on this host may be of another run of the job, or of lives that were given up, until this one has a
    // place, and what is stale was left out.
    if (follows) return true;
    const auto info = own.info(w.want.key);
    if (!info.ok()) {
      finish(id, info.status().because_of_this("this host's log contradicts itself about " + name_of(w.want.key)));
      return false;
    }
    if (!info.value()) return true;
    if (!take_info(id, w, *info.value(), "this host")) return false;
    const Ranges there = own.held(w.want.key).intersect(w.missing);
    for (const Interval& i : there.intervals()) {
      bounce.resize(std::max<std::size_t>(bounce.size(), std::min<std::uint64_t>(i.end - i.begin, kBounceBytes)));
      for (std::uint64_t at = i.begin; at < i.end;) {
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(i.end - at, bounce.size()));
        const std::span<std::byte> block = std::span(bounce).first(size);
        if (!own.read(w.want.key, at, block)) break;  // dropped meanwhile
        write(w, at, block);
        at += size;
      }
    }
    return true;
  }

  void read_cache(Wanted& w, Round& round) {
    for (const auto& [at, bytes] : round.cache) {
      const Ranges useful = w.missing.intersect(at, at + bytes.size());
      for (const Interval& i : useful.intervals()) {
        write(w, i.begin, std::span(bytes).subspan(i.begin - at, i.end - i.begin));
      }
    }
  }

  std::uint64_t add(Want want, TimeMs now, std::vector<Send>& out) {
    WARREN_CHECK(!want.total_bytes || want.bytes.empty() ||
                     (want.base != nullptr && want.bytes.intervals().front().begin >= want.base_at &&
                      want.bytes.intervals().back().end <= *want.total_bytes),
                 "a want's bytes are within the result and the buffer");
    const std::uint64_t id = ++last_want;
    const std::uint64_t sequence = want.key.round.sequence.value;
    WARREN_CHECK(sequence != UINT64_MAX, "a sequence has a successor");
    const RecordKey at = stream_key(want.key);
    Wanted& w = wants[id];
    w.want = std::move(want);
    w.since = now;
    w.sized = w.want.total_bytes.has_value();
    if (w.sized) w.missing = w.want.bytes;
    const bool old = streams.contains(at);
    if (!old) make_room();
    Stream& s = streams[at];
    s.used = ++clock;
    if (!old) {
      s.base = s.ahead = sequence;
      start_listing(s, now);
      s.all = false;  // who is asked, its first want says
    } else if (sequence < s.base) {
      s.base = sequence;
      start_listing(s, now);
    }
    w.stale_edition = old ? s.edition : 0;
    s.wants.emplace(sequence, id);
    aim(s, w, now);
    Round& round = s.rounds[sequence];
    round.wants.push_back(id);
    round.served = false;
    if (!read_own(id, w)) return id;
    read_cache(w, round);
    s.open.insert(sequence);
    look.emplace_back(at, id);
    pump(now, out);
    return id;
  }

  // A stream more: one that has no wants goes, if there are too many.
  void make_room() {
    auto oldest = streams.end();
    std::size_t idle = 0;
    for (auto i = streams.begin(); i != streams.end(); ++i) {
      if (!i->second.wants.empty()) continue;
      ++idle;
      if (oldest == streams.end() || i->second.used < oldest->second.used) oldest = i;
    }
    if (idle >= kIdleStreams) erase(oldest);
  }
  void erase(std::map<RecordKey, Stream>::iterator s) {
    for (auto& [sequence, round] : s->second.rounds) drop_cache(round);
    streams.erase(s);
  }

  // --- what is known of holders ---

  void start_listing(Stream& s, TimeMs now) {
    s.edition = ++clock;
    s.relist_at.reset();
    s.listings.resize(hosts.size());
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      const bool known = std::ranges::find(hosts[h].ranks, s.listings[h].asked) != hosts[h].ranks.end();
      s.listings[h] = {known ? s.listings[h].asked : hosts[h].first(), s.base, 0, 0};
    }
    for (auto& [sequence, round] : s.rounds) {
      round.holders.clear();
      round.conflict = {};
    }
    s.ahead = s.base;
    for (const auto& [sequence, id] : s.wants) s.open.insert(sequence);
    s.look = true;
    s.first.clear();
    s.all = s.wants.empty();
    for (const auto& [sequence, id] : s.wants) aim(s, wants.at(id), now);
  }

  [[nodiscard]] static bool is_copied(const Wanted& w) { return w.want.key.kind == RecordKind::kLocal && w.want.wait; }
  [[nodiscard]] TimeMs one_host_until(const Wanted& w) const { return w.since + timeout_ms / kOneHostPart; }

  // A local state that is to be copied comes from its rank's host: with a world of K ranks whose every checkpoint asks
  // all hosts, K² requests would travel. After a change of plan somebody else may have it.
  void aim(Stream& s, const Wanted& w, TimeMs now) const {
    const RecordKey& key = w.want.key;
    const auto rank = key.round.sequence.value <= INT32_MAX
                          ? host_of.find(Rank(static_cast<std::int32_t>(key.round.sequence.value)))
                          : host_of.end();
    if (!is_copied(w) || now >= one_host_until(w) || rank == host_of.end()) {
      s.all = true;
    } else {
      s.first.insert(rank->second);
    }
  }
  [[nodiscard]] bool is_asked(const Stream& s, std::size_t host) const {
    const Host& h = hosts[host];
    return !h.gone() && (!h.own || s.gap) && (s.all || s.first.contains(host));
  }

  // Of rounds below this every host that is asked has said what it holds, as far as it says anything.
  [[nodiscard]] std::uint64_t known_below(const Stream& s) const {
    std::uint64_t known = UINT64_MAX;
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      if (is_asked(s, h)) known = std::min(known, s.listings[h].sequence);
    }
    return known;
  }
  [[nodiscard]] bool all_answer() const {
    return std::none_of(hosts.begin(), hosts.end(), [](const Host& h) { return h.gone() && !h.own && !h.server; });
  }
  // Each may have on its disk what nobody else of its host can read.
  [[nodiscard]] bool all_ranks_answer() const {
    return std::none_of(hosts.begin(), hosts.end(), [](const Host& h) { return !h.unheard.empty() && !h.server; });
  }

  // What enough domains hold of these bytes; `living`: what living ranks of this host do.
  [[nodiscard]] Ranges held_enough(const Ranges& wanted, const Round& round, const Ranges& living) const {
    std::map<std::string_view, Ranges> by_domain;
    for (const Holder& h : round.holders) {
      if (!hosts[h.host].server) by_domain[hosts[h.host].domain].add(h.held.intersect(wanted));
    }
    by_domain[own_domain].add(living);
    // +1 where a domain's bytes begin, −1 where they end.
    std::map<std::uint64_t, std::int64_t> steps;
    for (const auto& [domain, held] : by_domain) {
      for (const Interval& i : held.intervals()) {
        ++steps[i.begin];
        --steps[i.end];
      }
    }
    Ranges enough;
    std::int64_t depth = 0;
    std::uint64_t from = 0;
    for (const auto& [at, step] : steps) {
      if (depth >= static_cast<std::int64_t>(need_domains)) enough.add(from, at);
      depth += step;
      from = at;
    }
    return enough;
  }

  // Of the bytes that were wanted, what too few domains hold.
  [[nodiscard]] Ranges log_again(const Wanted& w, const Round& round) const {
    if (follows) return {};
    const Ranges wanted = w.want.total_bytes ? w.want.bytes : Ranges(0, w.info->total_bytes);
    const Ranges living = own.held_by(w.want.key, own_lives).intersect(wanted);
    Ranges again = wanted.minus(held_enough(wanted, round, living));
    again.add(own.held(w.want.key).intersect(wanted).minus(living));
    return again;
  }

  // What was wanted is here. True: parts of other ranks are to be fetched too.
  bool extend(Wanted& w, const Round& round) const {
    const Ranges rest = Ranges(0, w.info->total_bytes).minus(w.want.bytes);
    const Ranges living = own.held_by(w.want.key, own_lives).intersect(rest);
    Ranges somewhere = own.held(w.want.key);
    for (const Holder& h : round.holders) {
      if (hosts[h.host].domain == own_domain && !hosts[h.host].server) continue;
      somewhere.add(h.held);
    }
    w.extended = true;
    w.extra = rest.minus(held_enough(rest, round, living)).minus(living).intersect(somewhere);
    w.missing = w.extra;
    for (const Interval& i : w.extra.intervals()) w.extra_bytes[i.begin].resize(i.end - i.begin);
    return !w.extra.empty();
  }

  // Ends a want that has all, or looks for a gap.
  void look_at(const RecordKey& at, std::uint64_t id, TimeMs now) {
    const auto found = wants.find(id);
    if (found == wants.end()) return;
    Wanted& w = found->second;
    Stream& s = streams.at(at);
    const std::uint64_t sequence = w.want.key.round.sequence.value;
    Round& round = s.rounds[sequence];
    if (!round.conflict.ok()) return finish(id, round.conflict);
    if (round.info && !take_info(id, w, *round.info, round.info_from)) return;
    const bool all_known = sequence < known_below(s);
    // What is to be refilled may lie on a silent host alone.
    const bool waits = w.want.refill && !all_answer();
    if (w.info && w.missing.empty()) {
      const bool extends = w.want.refill && !w.extended;
      Ranges again = log_again(w, round);
      if (extends && all_known && waits) return look_again(s, w, now);
      if (extends && all_known && extend(w, round)) {
        if (!read_own(id, w)) return;
        if (w.missing.empty()) return finish(id, {}, std::move(again));
        s.open.insert(sequence);
        s.asleep = false;
        return;
      }
      if ((again.empty() && !extends) || all_known) return finish(id, {}, std::move(again));
    }
    s.asleep = false;
    if (!all_known || (w.info && w.missing.empty())) return;
    Ranges gap = w.missing.minus(round.requested);
    for (const Holder& h : round.holders) {
      if (!gap.empty()) gap = gap.minus(h.held);
    }
    if (gap.empty() && (w.info || !round.requested.empty())) return;
    if (waits && (w.extended || w.want.bytes.empty())) return look_again(s, w, now);
    if (w.extended) {
      // Nobody needs it here: whoever received it has it, or replays. But what has arrived damaged is there.
      const bool again = round.was_damaged && round.damaged < kAsks && w.asks < enough_asks();
      return again ? look_again(s, w, now) : finish(id, {}, log_again(w, round));
    }
    if (w.want.refill && w.want.bytes.empty()) return finish(id, {});
    if (s.edition <= w.stale_edition) {
      s.relist_at = now;  // a want that came after the listing: what it says is not about this want
      return;
    }
    count_ask(s, w);
    s.gap = true;
    // Who follows asks again when there is another plan, or a checkpoint.
    if (!all_ranks_answer() && !follows && !w.want.wait) w.asks = std::min(w.asks, enough_asks() - 1);
    if (w.asks >= enough_asks() && !w.want.wait) {
      std::string text = "the log has a gap: no host holds ";
      text += w.info ? ranges_text(gap) + " of " + std::to_string(w.info->total_bytes) + " of " : "anything of ";
      text += name_of(w.want.key);
      return finish(id, Status(Code::kUnavailable, text + asked_text(s)));
    }
    look_again(s, w, now);
  }

  // Of each host one rank is asked at a time, and each may have on its disk what the others cannot read. The own one's
  // are asked from the second time on.
  [[nodiscard]] std::uint32_t enough_asks() const {
    std::size_t most = kAsks;
    for (const Host& h : hosts) most = std::max(most, h.ranks.size() + (h.own ? 1 : 0));
    return static_cast<std::uint32_t>(most);
  }

  // One for each listing.
  void count_ask(const Stream& s, Wanted& w) const {
    if (w.asked_edition == s.edition) return;
    w.asked_edition = s.edition;
    if (w.asks < std::max(kMaxAsks, enough_asks())) ++w.asks;
  }

  // Soon at first: a host may still be attaching segments, or about to publish. A commit waits for copies of local
  // states, and no checkpoint is taken by all ranks in the same moment: they are looked for at once, and on one host.
  void look_again(Stream& s, Wanted& w, TimeMs now) const {
    s.asleep = false;
    count_ask(s, w);
    // A large host's other ranks are asked, and not given time.
    const bool others = !w.want.wait && w.asks >= kAsks && w.asks < enough_asks();
    const std::uint32_t pauses = others ? 0 : std::min(w.asks, kMaxAsks);
    const std::int64_t first_part = is_copied(w) ? 5000 : w.want.wait ? 100 : 20;
    const std::int64_t wait_ms = std::max<std::int64_t>(timeout_ms / first_part, 1) << pauses;
    TimeMs next = now + std::min(wait_ms / 2, kMaxPauseMs);
    if (is_copied(w) && now < one_host_until(w)) next = std::min(next, one_host_until(w));
    if (!s.relist_at || next < *s.relist_at) s.relist_at = next;
  }

  [[nodiscard]] std::string asked_text(const Stream& s) const {
    std::set<std::int32_t> asked;
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      if (!hosts[h].gone() && !hosts[h].server) asked.insert(s.listings[h].asked.value);
    }
    return asked.empty() ? " (there is no other host)" : " (asked " + ranks_text(asked) + " and this host)";
  }

  // Asks all hosts again, each by way of its next rank; silent ones are given another chance.
  void relist(const RecordKey& at, TimeMs now) {
    Stream& s = streams.at(at);
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      Host& h = hosts[i];
      for (const Rank rank : h.silent) heard.erase(rank);
      h.ranks.insert(h.ranks.end(), h.silent.begin(), h.silent.end());
      h.silent.clear();
      s.listings[i].asked = h.after(s.listings[i].asked);
    }
    start_listing(s, now);
    std::vector<std::uint64_t> ids;
    for (const auto& [sequence, id] : s.wants) ids.push_back(id);
    for (const std::uint64_t id : ids) (void)read_own(id, wants.at(id));  // the last that ends may end the stream
  }
  void relist_due(TimeMs now) {
    std::vector<RecordKey> due;
    for (const auto& [at, s] : streams) {
      if (s.relist_at && *s.relist_at <= now) due.push_back(at);
    }
    for (const RecordKey& at : due) relist(at, now);
  }

  // --- requests ---

  wire::FetchRequest& request(Rank to, const RecordKey& at, Pending p, TimeMs now, std::vector<Send>& out) {
    const std::uint64_t id = ++last_request;
    Send& send = out.emplace_back();
    send.to = to;
    wire::FetchRequest& r = send.request;
    r.set_protocol(kProtocolVersion);
    r.set_sender(life.value);
    r.set_receiver(lives.at(to).value);
    r.set_generation(generation.value);
    r.set_follows(follows);
    r.set_id(id);
    r.set_kind(static_cast<std::uint32_t>(at.kind));
    r.set_timeline(at.round.timeline.value);
    r.set_group(at.round.group.value);
    r.set_version(at.round.version.value);
    p.rank = to;
    p.stream = at;
    p.sent = now;
    pending.emplace(id, std::move(p));
    return r;
  }

  void ask_listings(const RecordKey& at, Stream& s, TimeMs now, std::vector<Send>& out) {
    const std::uint64_t end = end_of_window(at, s);
    // A page more when half of the last one is used, or a want needs it.
    std::uint64_t enough = s.base + (end - s.base + 1) / 2;
    if (!s.wants.empty()) enough = std::max(enough, std::min(end, s.wants.rbegin()->first + 1));
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      Listing& l = s.listings[h];
      if (!is_asked(s, h) || l.request != 0) continue;
      if (l.sequence < s.base) l = {l.asked, s.base, 0, 0};
      if (l.sequence >= enough) continue;
      Pending p;
      p.host = h;
      p.edition = s.edition;
      p.first_sequence = l.sequence;
      p.end_sequence = end;
      p.begin = l.begin;
      wire::FetchRequest& r = request(l.asked, at, std::move(p), now, out);
      r.set_first_sequence(l.sequence);
      r.set_end_sequence(end);
      r.set_begin(l.begin);
      r.set_most_ranges(ranges_a_listing());
      l.request = last_request;
    }
  }

  // What is being asked for in one go at the holders of one stream.
  struct Asking {
    const RecordKey& at;
    const Stream& stream;
    TimeMs now;
    std::vector<Send>& out;
    std::map<std::size_t, Batch> batches = {};  // by host
    std::size_t skipped = 0;                    // pieces whose holders take no more now
    bool full = false;                          // nothing more in this go
    std::uint64_t known = 0;                    // of rounds below, every host has said what it holds
  };

  void flush(Asking& a, std::size_t h, Batch& b) {
    if (b.pieces.empty()) return;
    std::sort(b.pieces.begin(), b.pieces.end());
    Pending p;
    p.host = h;
    p.load = b.load;
    p.reserved = b.reserved;
    for (const Piece& piece : b.pieces) {
      if (!p.pieces.empty() && p.pieces.back().sequence == piece.sequence && p.pieces.back().end == piece.begin) {
        p.pieces.back().end = piece.end;
      } else {
        p.pieces.push_back(piece);
      }
    }
    ++hosts[h].requests;
    const std::vector<Piece> pieces = p.pieces;
    wire::FetchRequest& r = request(a.stream.listings[h].asked, a.at, std::move(p), a.now, a.out);
    for (const Piece& piece : pieces) {
      wire::FetchPiece& to = *r.add_pieces();
      to.set_sequence(piece.sequence);
      to.set_begin(piece.begin);
      to.set_end(piece.end);
    }
    r.set_most_bytes(b.bytes);
    b = {};
  }

  // The holder of byte `at` that has least to do and takes more; kNone: none. `next`: where somebody holds bytes again,
  // if nobody holds this one.
  [[nodiscard]] std::size_t choose(const Round& round, std::uint64_t at, bool all_known, std::uint64_t& end, bool& held,
                                   std::uint64_t& next) const {
    std::size_t best = kNone;
    std::uint64_t best_end = 0;
    held = false;
    next = UINT64_MAX;
    for (const Holder& h : round.holders) {
      const Interval* i = interval_from(h.held, at);
      if (i == nullptr) continue;
      if (i->begin > at) {
        next = std::min(next, i->begin);
        continue;
      }
      held = true;
      const Host& host = hosts[h.host];
      if (host.gone() || host.requests >= kRequestsPerHolder) continue;
      // As long as others may turn out to hold it too, whoever answered first does not get it all.
      if (!all_known && host.load > 0) continue;
      // Ties: several ranks that fetch the same begin with different holders.
      const auto better = [&] {
        if (best == kNone) return true;
        if (host.load != hosts[best].load) return host.load < hosts[best].load;
        const auto turn = [&](std::size_t x) { return (x + static_cast<std::size_t>(self.value)) % hosts.size(); };
        return turn(h.host) < turn(best);
      };
      if (better()) {
        best = h.host;
        best_end = i->end;
      }
    }
    end = std::min(end, best_end);
    return best;
  }

  // Asks for as much of `need` as holders take; true: for all of it that anybody holds.
  bool assign(Asking& a, std::uint64_t sequence, Round& round, const Ranges& need, bool ahead) {
    bool all = true;
    for (const Interval& i : need.intervals()) {
      for (std::uint64_t b = i.begin; b < i.end;) {
        if (bytes_in_flight >= kBytesInFlight || a.skipped >= kMaxSkipped) a.full = true;
        if (a.full) return false;
        std::uint64_t end = std::min(i.end, b + kPieceBytes);
        bool held = false;
        std::uint64_t next = 0;
        const std::size_t h = choose(round, b, sequence < a.known, end, held, next);
        if (h == kNone) {
          // Others may have room for what follows.
          a.skipped += held;
          all = all && !held;
          b = held ? std::min(i.end, b + kPieceBytes) : next;
          continue;
        }
        std::uint64_t reserve = 0;
        if (ahead) {
          const std::uint64_t used = cache_bytes + reserved_bytes + kCachePieceOverhead;
          a.full = used >= kCacheBytes;
          if (a.full) return false;
          end = std::min(end, b + (kCacheBytes - used));
          reserve = end - b + kCachePieceOverhead;
        }
        Batch& batch = a.batches[h];
        const std::uint64_t load = end - b + kPieceCostBytes;
        batch.pieces.push_back({sequence, b, end});
        batch.bytes += end - b;
        batch.load += load;
        batch.reserved += reserve;
        reserved_bytes += reserve;
        bytes_in_flight += load;
        hosts[h].load += load;
        round.requested.add(b, end);
        if (batch.bytes >= kRequestBytes || batch.pieces.size() >= kRequestPieces) flush(a, h, batch);
        b = end;
      }
    }
    return all;
  }

  void ask_data(const RecordKey& at, Stream& s, TimeMs now, std::vector<Send>& out) {
    Asking a{at, s, now, out};
    a.known = known_below(s);
    for (auto o = s.open.begin(); !a.full && o != s.open.end();) {
      Round& round = s.rounds[*o];
      Ranges need;
      for (const std::uint64_t id : round.wants) need.add(wants.at(id).missing);
      // What nobody holds is looked for again with the next listing.
      o = assign(a, *o, round, need.minus(round.requested), false) ? s.open.erase(o) : std::next(o);
    }
    if (!a.full && windowed(at.kind)) ask_ahead(a, s);
    for (auto& [h, batch] : a.batches) flush(a, h, batch);
  }

  // What was fetched ahead for a program that has gone another way is not to stop this one.
  void drop_forgotten(const Stream& current) {
    for (auto i = streams.begin(); i != streams.end();) {
      const auto at = i++;
      const Stream& s = at->second;
      if (&s != &current && s.wants.empty() && clock - s.used >= kForgotten) erase(at);
    }
  }

  void ask_ahead(Asking& a, Stream& s) {
    s.ahead = std::max(s.ahead, s.base);
    // Not a round at a time: when half of what was fetched ahead is used up. So it is with listings: ask_listings().
    if (cache_bytes + reserved_bytes > kCacheBytes / 2) {
      drop_forgotten(s);
      if (cache_bytes + reserved_bytes > kCacheBytes / 2) return;
    }
    const std::uint64_t end = std::min(a.known, end_of_window(a.at, s));
    std::uint64_t seen = std::max(s.ahead, end);
    for (auto r = s.rounds.lower_bound(s.ahead); r != s.rounds.end() && r->first < end; ++r) {
      Round& round = r->second;
      if (!round.info || round.served || !round.wants.empty() || !round.conflict.ok()) continue;
      if (round.info->total_bytes > kSmallResultBytes && !all_ranks_receive_all(round.info->fingerprint.collective)) {
        continue;
      }
      const RecordKey key{a.at.kind, {a.at.round.timeline, a.at.round.group, a.at.round.version, Sequence(r->first)}};
      Ranges need = Ranges(0, round.info->total_bytes).minus(round.requested).minus(round.cached);
      if (!need.empty()) need = need.minus(own.held(key));
      if (!assign(a, r->first, round, need, true)) seen = std::min(seen, r->first);
      if (a.full) break;
    }
    s.ahead = seen;
  }

  // Everything that can be done now.
  void pump(TimeMs now, std::vector<Send>& out) {
    if (!installed) return;
    relist_due(now);
    look_at_all(now);
    relist_due(now);  // for wants that came after the listing
    look_at_all(now);
    for (auto& [at, s] : streams) {
      if (s.asleep) continue;
      if (windowed(at.kind)) trim(s);
      ask_listings(at, s, now, out);
      ask_data(at, s, now, out);
    }
  }
  void look_at_all(TimeMs now) {
    for (auto& [at, s] : streams) {
      if (s.look) {
        for (const auto& [sequence, id] : s.wants) look.emplace_back(at, id);
      }
      s.look = false;
    }
    for (const auto& [at, id] : std::exchange(look, {})) look_at(at, id, now);
  }

  // Forgets what nobody will want again.
  void trim(Stream& s) {
    if (!s.wants.empty()) s.base = std::max(s.base, s.wants.begin()->first);
    while (!s.rounds.empty() && s.rounds.begin()->first < s.base) {
      drop_cache(s.rounds.begin()->second);
      s.rounds.erase(s.rounds.begin());
    }
    s.open.erase(s.open.begin(), s.open.lower_bound(s.base));
  }

  // --- replies ---

  // Takes a request out of the books; what did not come may be asked for again.
  void settle_request(const Pending& p, bool answered) {
    if (!p.pieces.empty()) {
      Host& h = hosts[p.host];
      --h.requests;
      h.load -= p.load;
      bytes_in_flight -= p.load;
      reserved_bytes -= p.reserved;
    }
    const auto found = streams.find(p.stream);
    if (found == streams.end()) return;
    Stream& s = found->second;
    if (p.pieces.empty()) {
      if (p.edition == s.edition) s.listings[p.host].request = 0;
      return;
    }
    for (const Piece& piece : p.pieces) {
      const auto r = s.rounds.find(piece.sequence);
      if (r == s.rounds.end()) continue;
      r->second.requested = r->second.requested.minus(Ranges(piece.begin, piece.end));
      for (const std::uint64_t id : r->second.wants) look.emplace_back(p.stream, id);
      if (!r->second.wants.empty()) s.open.insert(piece.sequence);
      if (!answered) s.ahead = std::min(s.ahead, piece.sequence);
    }
  }

  // What a host says about a round. False: it contradicts what others said.
  bool take_record(const RecordKey& at, std::uint64_t sequence, Round& round, const wire::FetchEntry& e, Rank from) {
    const RecordInfo info{fingerprint_of(e), e.total_bytes()};
    const Host& host = hosts[host_of.at(from)];
    const std::string where =
        host.server ? "host " + host.id + ", which has been left" : "rank " + std::to_string(from.value) + "'s host";
    if (!round.info) {
      round.info = info;
      round.info_from = where;
      return true;
    }
    if (round.info->total_bytes == info.total_bytes && agree(round.info->fingerprint, info.fingerprint)) return true;
    RecordKey key = at;
    key.round.sequence = Sequence(sequence);
    round.conflict = Status(Code::kDesync, "ranks disagree about " + name_of(key) + ": " +
                                               contradiction(round.info_from, *round.info, where, info));
    return false;
  }

  void take_listing(const Pending& p, Rank from, const wire::FetchReply& reply, TimeMs now, std::vector<Send>& out) {
    const auto found = streams.find(p.stream);
    if (found == streams.end() || found->second.edition != p.edition) return;
    Stream& s = found->second;
    Listing& l = s.listings[p.host];
    const std::pair next(reply.next_sequence(), reply.next_begin());
    bool right = next > std::pair(p.first_sequence, p.begin) && next <= std::pair(p.end_sequence, std::uint64_t{0});
    for (const wire::FetchEntry& e : reply.entries()) {
      right = right && e.sequence() >= p.first_sequence && e.sequence() < p.end_sequence;
    }
    if (!right) {
      warn(answerer(from) + " answered another question than what it holds; it is asked no more");
      return fail_rank(from, now, out);
    }
    for (const wire::FetchEntry& e : reply.entries()) {
      if (e.sequence() < s.base) continue;
      Round& round = s.rounds[e.sequence()];
      if (!take_record(p.stream, e.sequence(), round, e, from)) continue;
      auto h =
          std::find_if(round.holders.begin(), round.holders.end(), [&](const Holder& x) { return x.host == p.host; });
      if (h == round.holders.end()) h = round.holders.insert(round.holders.end(), {p.host, {}});
      for (const wire::ByteRange& r : e.held()) h->held.add(r.begin(), r.end());
      if (!round.wants.empty()) s.open.insert(e.sequence());
    }
    l.sequence = next.first;
    l.begin = next.second;
    s.look = true;
  }

  static void not_held(Round& round, std::size_t host, const Ranges& bytes) {
    for (Holder& h : round.holders) {
      if (h.host == host) h.held = h.held.minus(bytes);
    }
  }

  // Bytes of a round that were checked: to whoever wants them, or into the cache.
  void deliver(Stream& s, std::uint64_t sequence, Round& round, std::uint64_t begin, std::span<const std::byte> bytes,
               bool keep) {
    Ranges left(begin, begin + bytes.size());
    for (const std::uint64_t id : round.wants) {
      Wanted& w = wants.at(id);
      const Ranges useful = w.missing.intersect(begin, begin + bytes.size());
      if (!useful.empty()) round.damaged = 0;
      for (const Interval& i : useful.intervals()) write(w, i.begin, bytes.subspan(i.begin - begin, i.end - i.begin));
      left = left.minus(useful);
    }
    if (!keep || round.served || !round.wants.empty() || sequence < s.base) return;
    left = left.minus(round.cached);
    for (const Interval& i : left.intervals()) {
      const std::uint64_t cost = i.end - i.begin + kCachePieceOverhead;
      if (cache_bytes + reserved_bytes + cost > kCacheBytes) return;
      const auto from = bytes.subspan(i.begin - begin, i.end - i.begin);
      round.cache.emplace(i.begin, std::vector<std::byte>(from.begin(), from.end()));
      round.cached.add(i.begin, i.end);
      cache_bytes += cost;
    }
  }

  // `payload`: the entry's, if its checksum holds.
  void take_entry(const Pending& p, Stream& s, Rank from, const wire::FetchEntry& e,
                  std::span<const std::byte> payload) {
    const auto r = s.rounds.find(e.sequence());
    if (r == s.rounds.end()) return;
    Round& round = r->second;
    if (!take_record(p.stream, e.sequence(), round, e, from)) return;
    RecordKey key = p.stream;
    key.round.sequence = Sequence(e.sequence());
    if (xxh3(payload) != e.checksum()) {
      warn("bytes of " + name_of(key) + " from rank " + std::to_string(from.value) +
           " arrived damaged (checksum); they were dropped and are fetched again");
      round.was_damaged = true;
      // They are there, however often nobody had them before: hosts are asked once more.
      if (++round.damaged < kAsks) {
        for (const std::uint64_t id : round.wants) wants.at(id).asks = std::min(wants.at(id).asks, enough_asks() - 2);
      }
      return;
    }
    // A want's fingerprint is compared before anything is written for it.
    const std::vector<std::uint64_t> ids = round.wants;
    for (const std::uint64_t id : ids) (void)take_info(id, wants.at(id), *round.info, round.info_from);
    if (!streams.contains(p.stream)) return;
    std::size_t at = 0;
    for (const wire::ByteRange& range : e.held()) {
      const auto size = static_cast<std::size_t>(range.end() - range.begin());
      deliver(s, e.sequence(), round, range.begin(), payload.subspan(at, size), p.reserved > 0);
      at += size;
    }
  }

  void take_data(const Pending& p, Rank from, const wire::FetchReply& reply,
                 const std::vector<std::span<const std::byte>>& payloads) {
    const auto found = streams.find(p.stream);
    if (found == streams.end()) return;
    std::map<std::uint64_t, Ranges> asked;
    for (const Piece& piece : p.pieces) asked[piece.sequence].add(piece.begin, piece.end);
    for (int i = 0; i < reply.entries_size(); ++i) {
      const wire::FetchEntry& e = reply.entries(i);
      const auto a = asked.find(e.sequence());
      bool right = a != asked.end();
      for (const wire::ByteRange& r : e.held()) right = right && a->second.covers(r.begin(), r.end());
      if (!right) {
        warn(answerer(from) + " sent bytes that it was not asked for; they were dropped");
        continue;
      }
      take_entry(p, found->second, from, e, payloads[static_cast<std::size_t>(i)]);
      if (streams.find(p.stream) == streams.end()) return;  // the only want has ended
    }
    // What was looked at and is still not here is not to be had from this host, until it is listed again.
    Stream& s = found->second;
    for (const Piece& piece : p.pieces) {
      const auto r = s.rounds.find(piece.sequence);
      if (r == s.rounds.end() || r->second.served) continue;
      Round& round = r->second;
      Ranges absent;
      for (const std::uint64_t id : round.wants) absent.add(wants.at(id).missing.intersect(piece.begin, piece.end));
      if (round.wants.empty()) absent = Ranges(piece.begin, piece.end).minus(round.cached);
      if (absent.empty()) continue;
      s.ahead = std::min(s.ahead, piece.sequence);
      std::uint64_t looked = piece.end;
      if (piece.sequence > reply.next_sequence()) looked = piece.begin;
      if (piece.sequence == reply.next_sequence()) looked = std::min(piece.end, reply.next_begin());
      not_held(round, p.host, absent.intersect(piece.begin, std::max(piece.begin, looked)));
    }
  }

  void on_reply(Rank from, const wire::FetchReply& reply, const std::vector<std::span<const std::byte>>& payloads,
                TimeMs now, std::vector<Send>& out) {
    if (!installed || reply.generation() != generation.value || reply.receiver() != life.value) return;
    const auto found = pending.find(reply.id());
    if (found == pending.end() || found->second.rank != from || reply.sender() != lives.at(from).value ||
        reply.data() == found->second.pieces.empty()) {
      return;
    }
    const Pending p = std::move(found->second);
    pending.erase(found);
    Heard& h = heard[from];
    h = {now, std::max(h.id, reply.id()), h.lost};
    if (const auto host = host_of.find(from); host != host_of.end()) hosts[host->second].unheard.erase(from);
    settle_request(p, true);
    if (p.pieces.empty()) {
      take_listing(p, from, reply, now, out);
    } else if (std::pair(reply.next_sequence(), reply.next_begin()) <=
               std::pair(p.pieces.front().sequence, p.pieces.front().begin)) {
      warn(answerer(from) + " looked at nothing of what it was asked for; it is asked no more");
      fail_rank(from, now, out);
    } else {
      take_data(p, from, reply, payloads);
    }
    pump(now, out);
  }

  // --- ranks that do not answer ---

  void fail_rank(Rank rank, TimeMs now, std::vector<Send>& out) {
    for (auto p = pending.begin(); p != pending.end();) {
      if (p->second.rank != rank) {
        ++p;
        continue;
      }
      const Pending gone = std::move(p->second);
      p = pending.erase(p);
      settle_request(gone, false);
    }
    if (const auto h = host_of.find(rank); h != host_of.end()) ask_another(h->second, rank);
    pump(now, out);
  }

  void ask_another(std::size_t host, Rank instead_of) {
    Host& h = hosts[host];
    const auto at = std::find(h.ranks.begin(), h.ranks.end(), instead_of);
    if (at == h.ranks.end()) return;
    const Rank next = h.after(instead_of);
    h.ranks.erase(at);
    h.silent.push_back(instead_of);
    h.unheard.insert(instead_of);
    if (h.gone()) {
      warn(h.server ? "who has left host " + h.id + " does not say what it has logged; it is asked again later"
                    : "no rank of host " + h.id + " says what it has logged; they are asked again later");
    }
    for (auto& [key, s] : streams) {
      if (s.listings[host].asked == instead_of) restart_host(s, host, next);
    }
  }

  // Another rank of the host is asked: what the last one listed may be different.
  void restart_host(Stream& s, std::size_t host, Rank rank) {
    s.listings[host] = {rank, s.base, 0, 0};
    for (auto& [sequence, round] : s.rounds) {
      std::erase_if(round.holders, [&](const Holder& h) { return h.host == host; });
    }
    for (const auto& [sequence, id] : s.wants) s.open.insert(sequence);
    s.ahead = s.base;
    s.look = true;
  }

  // Until when an answer is waited for. A rank that answers what was asked earlier is at work; it has passed over what
  // it was asked before something that it has answered.
  [[nodiscard]] TimeMs deadline_of(std::uint64_t id, const Pending& p) const {
    const auto h = heard.find(p.rank);
    const bool at_work = h != heard.end() && h->second.id < id && p.sent < h->second.at;
    return (at_work ? h->second.at : p.sent) + timeout_ms;
  }

  void on_tick(TimeMs now, std::vector<Send>& out) {
    if (!installed) return;
    std::set<Rank> silent;
    for (auto i = pending.begin(); i != pending.end();) {
      const auto [id, p] = *i;
      if (deadline_of(id, p) > now || silent.contains(p.rank)) {
        ++i;
        continue;
      }
      const auto h = heard.find(p.rank);
      if (h != heard.end() && h->second.id > id && ++h->second.lost <= kLostRequests) {
        i = pending.erase(i);
        settle_request(p, false);
      } else {
        silent.insert(p.rank);
        ++i;
      }
    }
    for (const Rank rank : silent) {
      warn(answerer(rank) + " has not said for " + std::to_string(timeout_ms) + " ms what it has logged");
      fail_rank(rank, now, out);
    }
    pump(now, out);
  }
};

Replayer::Replayer(HostLogReader& own_host) : state_(std::make_unique<State>(own_host)) {}
Replayer::~Replayer() = default;

void Replayer::install(const Plan& plan, TimeMs now, std::vector<Send>& out) {
  State& s = *state_;
  suspend();
  s.installed = true;
  s.follows = plan.follows;
  s.generation = plan.generation;
  s.self = plan.self;
  s.timeout_ms = std::max<std::int64_t>(plan.timeout_ms, 1);
  s.hosts.clear();
  s.host_of.clear();
  s.lives.clear();
  s.own_lives.clear();
  s.heard.clear();
  const auto self =
      std::find_if(plan.peers.begin(), plan.peers.end(), [&](const Peer& p) { return p.rank == plan.self; });
  WARREN_CHECK(self != plan.peers.end(), "a plan names its own rank");
  s.life = self->life;
  s.own_domain = self->domain_id;
  std::set<std::string_view> domains;
  std::map<std::string_view, std::size_t> by_id;
  for (const bool fresh : {false, true}) {
    for (const Peer& p : plan.peers) {
      if (p.fresh != fresh || p.server) continue;
      domains.insert(p.domain_id);
      s.lives[p.rank] = p.life;
      if (p.host_id == self->host_id) s.own_lives.push_back(p.life);
      if (p.rank == plan.self) continue;
      const auto [at, is_new] = by_id.emplace(p.host_id, s.hosts.size());
      if (is_new) {
        s.hosts.emplace_back();
        s.hosts.back().id = p.host_id;
        s.hosts.back().domain = p.domain_id;
        s.hosts.back().own = p.host_id == self->host_id;
      }
      s.hosts[at->second].ranks.push_back(p.rank);
      s.host_of[p.rank] = at->second;
    }
  }
  s.need_domains = std::max<std::size_t>(1, std::min<std::size_t>(plan.replicas, domains.size()));
  // A host may have ranks again beside the one that has left it.
  for (const Peer& p : plan.peers) {
    if (!p.server || p.rank == plan.self) continue;
    s.lives[p.rank] = p.life;
    s.host_of[p.rank] = s.hosts.size();
    State::Host& host = s.hosts.emplace_back();
    host.id = p.host_id;
    host.domain = p.domain_id;
    host.server = true;
    host.ranks.push_back(p.rank);
  }
  std::vector<const Peer*> here;
  for (const Peer& p : plan.peers) {
    if (p.host_id == self->host_id && !p.server) here.push_back(&p);
  }
  std::ranges::stable_sort(here, std::greater(), &Peer::since);
  s.newest_here.clear();
  for (const Peer* p : here) s.newest_here.push_back(p->rank);
  std::vector<std::uint64_t> ids;
  for (auto& [id, w] : s.wants) {
    w.asks = 0;
    w.stale_edition = 0;
    w.since = now;
    ids.push_back(id);
  }
  for (auto& [key, stream] : s.streams) {
    stream.asleep = true;
    stream.listings.clear();
    for (auto& [sequence, round] : stream.rounds) round.requested = {};
    s.start_listing(stream, now);
  }
  for (const std::uint64_t id : ids) (void)s.read_own(id, s.wants.at(id));
  s.pump(now, out);
}

void Replayer::suspend() {
  State& s = *state_;
  s.installed = false;
  s.pending.clear();
  s.look.clear();
  s.reserved_bytes = 0;
  s.bytes_in_flight = 0;
}

std::uint64_t Replayer::want(Want want, TimeMs now, std::vector<Send>& out) {
  return state_->add(std::move(want), now, out);
}

Ranges Replayer::cancel(std::uint64_t id) {
  const auto ended = std::ranges::find(state_->done, id, &Done::id);
  if (ended != state_->done.end()) {
    Ranges written = std::move(ended->written);
    state_->done.erase(ended);
    return written;
  }
  const auto w = state_->wants.find(id);
  if (w == state_->wants.end()) return {};
  Ranges written = std::move(w->second.written);
  state_->forget(id);
  return written;
}

void Replayer::on_reply(Rank from, const wire::FetchReply& reply, TimeMs now, std::vector<Send>& out) {
  std::vector<std::span<const std::byte>> payloads;
  for (const wire::FetchEntry& e : reply.entries()) payloads.push_back(std::as_bytes(std::span(e.payload())));
  state_->on_reply(from, reply, payloads, now, out);
}

void Replayer::on_reply(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads, TimeMs now,
                        std::vector<Send>& out) {
  std::vector<std::span<const std::byte>> parts;
  if (reply.data()) {
    WARREN_CHECK(range_bytes(reply) == payloads.size(), "payloads are as long as the reply's entries say");
    for (const wire::FetchEntry& e : reply.entries()) {
      const auto size = static_cast<std::size_t>(range_bytes(e));
      parts.push_back(payloads.first(size));
      payloads = payloads.subspan(size);
    }
  }
  state_->on_reply(from, reply, parts, now, out);
}

void Replayer::on_tick(TimeMs now, std::vector<Send>& out) {
  state_->on_tick(now, out);
}

std::optional<TimeMs> Replayer::next_deadline() const {
  const State& s = *state_;
  if (!s.installed) return std::nullopt;
  std::optional<TimeMs> next;
  const auto at = [&](TimeMs t) {
    if (!next || t < *next) next = t;
  };
  for (const auto& [id, p] : s.pending) at(s.deadline_of(id, p));
  for (const auto& [key, stream] : s.streams) {
    if (stream.relist_at) at(*stream.relist_at);
  }
  return next;
}

bool Replayer::has_done() const {
  return !state_->done.empty();
}

std::vector<Replayer::Done> Replayer::take_done() {
  return std::exchange(state_->done, {});
}

bool Replayer::idle() const {
  return state_->wants.empty();
}

bool Replayer::refills(std::span<const Rank> members) const {
  const State& s = *state_;
  if (s.need_domains == 1) return false;
  const auto newest =
      std::ranges::find_if(s.newest_here, [&](Rank rank) { return std::ranges::find(members, rank) != members.end(); });
  return newest != s.newest_here.end() && *newest == s.self;
}

std::span<const Incarnation> Replayer::host_lives() const {
  return state_->own_lives;
}

std::vector<std::string> Replayer::take_warnings() {
  std::vector<std::string> out = std::exchange(state_->warnings, {});
  const std::size_t more = std::exchange(state_->warnings_left_out, 0);
  if (more > 0) out.push_back(std::to_string(more) + " more warnings about what was fetched");
  return out;
}

std::string Replayer::describe() const {
  const State& s = *state_;
  if (s.wants.empty()) return {};
  const RecordKey& key = s.wants.begin()->second.want.key;
  const std::string name = name_of(key);
  if (!s.installed) return "waits for the next plan to replay " + name;
  std::set<std::int32_t> data, listing;
  for (const auto& [id, p] : s.pending) {
    if (p.stream == stream_key(key)) (p.pieces.empty() ? listing : data).insert(p.rank.value);
  }
  if (!data.empty()) return "replays " + name + " from " + s.answerers(data);
  if (!listing.empty()) return "asks " + s.answerers(listing) + " who holds " + name;
  return "waits until a host holds " + name;
}

}  // namespace warren::worker

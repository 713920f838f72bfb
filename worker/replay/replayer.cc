#include "worker/replay/replayer.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/fetch_codec.h"
#include "storage/xxh3.h"
#include "worker/replay/fetch_window.h"
#include "worker/replay/hosts.h"
#include "worker/replay/listings.h"
#include "worker/replay/own_log.h"
#include "worker/replay/record_text.h"
#include "worker/replay/requests.h"
#include "worker/replay/streams.h"
#include "worker/replay/striping.h"
#include "worker/replay/wants.h"

namespace warren::worker {
namespace {

static_assert(static_cast<std::uint32_t>(RecordKind::kMessage) == kMaxRecordKind);
static_assert(static_cast<std::uint32_t>(RecordKind::kGlobal) == kGlobalRecord);

// Results that do not go to all ranks in whole are fetched ahead up to this size.
constexpr std::uint64_t kSmallResultBytes = std::uint64_t{64} << 10;
constexpr std::int64_t kMaxPauseMs = 2000;
constexpr std::size_t kMaxWarnings = 32;

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

}  // namespace

// Brings the parts together: each owns its state, and the functions here are the ones that need several of them.
struct Replayer::State {
  using Host = replay::Host;
  using Holder = replay::Holder;
  using Pending = replay::Pending;
  using Piece = replay::Piece;
  using Round = replay::Round;
  using Stream = replay::Stream;
  using Striping = replay::Striping;
  using Wanted = replay::Wanted;

  explicit State(HostLogReader& reader) : own(reader) {}

  replay::OwnLog own;
  bool installed = false;
  bool follows = false;
  std::int64_t timeout_ms = 1;
  replay::Hosts hosts;
  replay::FetchWindow window;
  replay::Requests requests{hosts};
  replay::Streams streams{window};
  replay::Wants wants;
  std::vector<std::pair<RecordKey, std::uint64_t>> look;  // wants to be looked at
  std::vector<std::string> warnings;
  std::size_t warnings_left_out = 0;

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
    const RecordKey key = wants.at(id).key();
    wants.finish(id, requests.generation(), std::move(status), std::move(again));
    streams.leave(key, id);
  }

  // Compares with what a record says. False: the want has ended.
  bool take_info(std::uint64_t id, Wanted& w, const RecordInfo& info, const std::string& where) {
    Status status = w.take_info(info, where);
    if (status.ok()) return true;
    finish(id, std::move(status));
    return false;
  }

  // False: the want has ended.
  bool read_own(std::uint64_t id, Wanted& w) {
    // Until this life has a place, the logs of this host may be of another run of the job, or of lives that were given
    // up. With the place, stale records were left out.
    if (follows) return true;
    const auto info = own.info(w.key());
    if (!info.ok()) {
      finish(id, info.status().because_of_this("this host's log contradicts itself about " + replay::name_of(w.key())));
      return false;
    }
    if (!info.value()) return true;
    if (!take_info(id, w, *info.value(), "this host")) return false;
    own.copy_to(w);
    return true;
  }

  static void read_ahead(Wanted& w, const Round& round) {
    for (const auto& [at, bytes] : round.ahead.pieces()) {
      const Ranges useful = w.missing().intersect(at, at + bytes.size());
      for (const Interval& i : useful.intervals()) {
        w.write(i.begin, std::span(bytes).subspan(i.begin - at, i.end - i.begin));
      }
    }
  }

  std::uint64_t add(Want want, TimeMs now, std::vector<Send>& out) {
    const std::uint64_t id = wants.add(std::move(want), now);
    Wanted& w = wants.at(id);
    const std::uint64_t sequence = w.sequence();
    const RecordKey at = replay::stream_key(w.key());
    const auto [stream, is_new] = streams.use(at);
    Stream& s = stream;
    if (is_new) {
      s.base = s.ahead = sequence;
      start_listing(s, now);
      s.listings.ask_no_host();  // its first want says which
    } else if (sequence < s.base) {
      s.base = sequence;
      start_listing(s, now);
    }
    w.ignore_listings_to(is_new ? 0 : s.listings.edition());
    s.wants.emplace(sequence, id);
    s.listings.aim(hosts, w, now, timeout_ms);
    Round& round = s.rounds[sequence];
    round.wants.push_back(id);
    round.served = false;
    if (!read_own(id, w)) return id;
    read_ahead(w, round);
    s.open.insert(sequence);
    look.emplace_back(at, id);
    pump(now, out);
    return id;
  }

  void start_listing(Stream& s, TimeMs now) {
    s.listings.restart(hosts, streams.next_edition(), s.base);
    for (auto& [sequence, round] : s.rounds) {
      round.holders.clear();
      round.conflict = {};
    }
    s.ahead = s.base;
    s.open_all_wants();
    s.look = true;
    if (s.wants.empty()) s.listings.ask_all_hosts();
    for (const auto& [sequence, id] : s.wants) s.listings.aim(hosts, wants.at(id), now, timeout_ms);
  }

  [[nodiscard]] Ranges log_again(const Wanted& w, const Round& round) const {
    return follows ? Ranges() : own.log_again(w, round.holders, hosts);
  }

  // All that was wanted is here. True: parts of other ranks are to be fetched too.
  bool extend(Wanted& w, const Round& round) const {
    w.extend(own.refill(w, round.holders, hosts));
    return !w.missing().empty();
  }

  // Ends a want that has all, or looks for a gap.
  void look_at(const RecordKey& at, std::uint64_t id, TimeMs now) {
    Wanted* const found = wants.find(id);
    if (found == nullptr) return;
    Wanted& w = *found;
    Stream& s = streams.at(at);
    const std::uint64_t sequence = w.sequence();
    Round& round = s.rounds[sequence];
    if (!round.conflict.ok()) return finish(id, round.conflict);
    if (round.info && !take_info(id, w, *round.info, round.info_from)) return;
    const bool all_known = sequence < s.listings.known_below(hosts);
    // Bytes to be refilled may lie on a silent host alone.
    const bool waits = w.want().refill && !hosts.all_answer();
    if (w.has_all()) {
      const bool extends = w.want().refill && !w.extended();
      Ranges again = log_again(w, round);
      if (extends && all_known && waits) return look_again(s, w, now);
      if (extends && all_known && extend(w, round)) {
        if (!read_own(id, w)) return;
        if (w.missing().empty()) return finish(id, {}, std::move(again));
        s.open.insert(sequence);
        s.asleep = false;
        return;
      }
      if ((again.empty() && !extends) || all_known) return finish(id, {}, std::move(again));
    }
    s.asleep = false;
    if (!all_known || w.has_all()) return;
    Ranges gap = w.missing().minus(round.requested);
    for (const Holder& h : round.holders) {
      if (!gap.empty()) gap = gap.minus(h.held);
    }
    if (gap.empty() && (w.info() || !round.requested.empty())) return;
    if (waits && (w.extended() || w.want().bytes.empty())) return look_again(s, w, now);
    if (w.extended()) {
      // Nobody needs it here: whoever received it has it, or replays. But what has arrived damaged is there.
      const bool again = round.was_damaged && round.damaged < replay::kAsks && w.asks() < hosts.enough_asks();
      return again ? look_again(s, w, now) : finish(id, {}, log_again(w, round));
    }
    if (w.want().refill && w.want().bytes.empty()) return finish(id, {});
    if (w.newer_than(s.listings.edition())) {
      s.listings.ask_again_at(now);  // a want that came after the listing: what it says is not about this want
      return;
    }
    w.count_ask(s.listings.edition(), hosts.enough_asks());
    s.listings.see_gap();
    // A life that follows asks again when there is another plan, or a checkpoint.
    if (!hosts.all_ranks_answer() && !follows && !w.want().wait) w.limit_asks(hosts.enough_asks() - 1);
    if (w.asks() >= hosts.enough_asks() && !w.want().wait) {
      return finish(id, Status(Code::kUnavailable, gap_text(w, gap) + s.listings.asked_text(hosts)));
    }
    look_again(s, w, now);
  }

  [[nodiscard]] static std::string gap_text(const Wanted& w, const Ranges& gap) {
    std::string text = "the log has a gap: no host holds ";
    text +=
        w.info() ? replay::ranges_text(gap) + " of " + std::to_string(w.info()->total_bytes) + " of " : "anything of ";
    return text + replay::name_of(w.key());
  }

  // Soon at first: a host may still be attaching segments, or about to publish. A commit waits for copies of local
  // states, which are looked for at once, and on one host: no checkpoint is taken by all ranks in the same moment.
  void look_again(Stream& s, Wanted& w, TimeMs now) const {
    s.asleep = false;
    w.count_ask(s.listings.edition(), hosts.enough_asks());
    // A large host's other ranks are asked, and not given time.
    const bool others = !w.want().wait && w.asks() >= replay::kAsks && w.asks() < hosts.enough_asks();
    const std::uint32_t pauses = others ? 0 : std::min(w.asks(), replay::kMaxAsks);
    const std::int64_t first_part = w.is_copied() ? 5000 : w.want().wait ? 100 : 20;
    const std::int64_t wait_ms = std::max<std::int64_t>(timeout_ms / first_part, 1) << pauses;
    const TimeMs one_host_until = w.one_host_until(timeout_ms);
    TimeMs next = now + std::min(wait_ms / 2, kMaxPauseMs);
    if (w.is_copied() && now < one_host_until) next = std::min(next, one_host_until);
    s.listings.ask_again_by(next);
  }

  // Asks all hosts again, each by way of its next rank; silent ones are given another chance.
  void relist(const RecordKey& at, TimeMs now) {
    Stream& s = streams.at(at);
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      for (const Rank rank : hosts.revive(h)) requests.forget(rank);
      s.listings.ask_next_rank(hosts, h);
    }
    start_listing(s, now);
    std::vector<std::uint64_t> ids;
    for (const auto& [sequence, id] : s.wants) ids.push_back(id);
    for (const std::uint64_t id : ids) (void)read_own(id, wants.at(id));  // the last that ends may end the stream
  }
  void relist_due(TimeMs now) {
    std::vector<RecordKey> due;
    for (const auto& [at, s] : streams) {
      if (s.listings.again_at() && *s.listings.again_at() <= now) due.push_back(at);
    }
    for (const RecordKey& at : due) relist(at, now);
  }

  // --- requests ---

  void ask_data(const RecordKey& at, Stream& s, TimeMs now, std::vector<Send>& out) {
    Striping go({hosts, window, requests}, at, s.listings, now, out);
    for (auto o = s.open.begin(); !go.full() && o != s.open.end();) {
      Round& round = s.rounds[*o];
      Ranges need;
      for (const std::uint64_t id : round.wants) need.add(wants.at(id).missing());
      // Bytes that nobody holds are looked for again with the next listing.
      o = go.assign(*o, round, need.minus(round.requested), false) ? s.open.erase(o) : std::next(o);
    }
    if (!go.full() && replay::windowed(at.kind)) ask_ahead(go, at, s);
    go.flush();
  }

  void ask_ahead(Striping& go, const RecordKey& at, Stream& s) {
    s.ahead = std::max(s.ahead, s.base);
    // Not a round at a time: when half of what was fetched ahead is used up. So it is with listings:
    // Listings::request().
    if (!window.fetches_ahead()) {
      streams.drop_forgotten(s);
      if (!window.fetches_ahead()) return;
    }
    const std::uint64_t end = std::min(go.known_below(), replay::end_of_window(at, s.base, hosts.size()));
    std::uint64_t seen = std::max(s.ahead, end);
    for (auto r = s.rounds.lower_bound(s.ahead); r != s.rounds.end() && r->first < end; ++r) {
      Round& round = r->second;
      if (!round.info || round.served || !round.wants.empty() || !round.conflict.ok()) continue;
      if (round.info->total_bytes > kSmallResultBytes && !all_ranks_receive_all(round.info->fingerprint.collective)) {
        continue;
      }
      const RecordKey key{at.kind, {at.round.timeline, at.round.group, at.round.version, Sequence(r->first)}};
      Ranges need = Ranges(0, round.info->total_bytes).minus(round.requested).minus(round.ahead.bytes());
      if (!need.empty()) need = need.minus(own.held(key));
      if (!go.assign(r->first, round, need, true)) seen = std::min(seen, r->first);
      if (go.full()) break;
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
      if (replay::windowed(at.kind)) streams.trim(s);
      s.listings.request(hosts, at, s.base, s.last_wanted(), requests, now, out);
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

  // --- replies ---

  // Takes a request out of the books; what did not come may be asked for again.
  void settle_request(const Pending& p, bool answered) {
    if (!p.pieces.empty()) window.settle(p.host, p.load, p.reserved);
    Stream* const found = streams.find(p.stream);
    if (found == nullptr) return;
    Stream& s = *found;
    if (p.pieces.empty()) return s.listings.settle(p.host, p.edition);
    for (const Piece& piece : p.pieces) {
      const auto r = s.rounds.find(piece.sequence);
      if (r == s.rounds.end()) continue;
      r->second.requested = r->second.requested.minus(Ranges(piece.begin, piece.end));
      for (const std::uint64_t id : r->second.wants) look.emplace_back(p.stream, id);
      if (!r->second.wants.empty()) s.open.insert(piece.sequence);
      if (!answered) s.ahead = std::min(s.ahead, piece.sequence);
    }
  }

  // Takes what a host says about a round. False: it contradicts what others said.
  bool take_record(const RecordKey& at, std::uint64_t sequence, Round& round, const wire::FetchEntry& e, Rank from) {
    const RecordInfo info{fingerprint_of(e), e.total_bytes()};
    const Host& host = hosts[hosts.host_of(from).value()];
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
    round.conflict = Status(Code::kDesync, "ranks disagree about " + replay::name_of(key) + ": " +
                                               replay::contradiction(round.info_from, *round.info, where, info));
    return false;
  }

  void take_listing(const Pending& p, Rank from, const wire::FetchReply& reply, TimeMs now, std::vector<Send>& out) {
    Stream* const found = streams.find(p.stream);
    if (found == nullptr || found->listings.edition() != p.edition) return;
    Stream& s = *found;
    const std::pair next(reply.next_sequence(), reply.next_begin());
    bool right = next > std::pair(p.first_sequence, p.begin) && next <= std::pair(p.end_sequence, std::uint64_t{0});
    for (const wire::FetchEntry& e : reply.entries()) {
      right = right && e.sequence() >= p.first_sequence && e.sequence() < p.end_sequence;
    }
    if (!right) {
      warn(hosts.answerer(from) + " answered another question than what it holds; it is asked no more");
      return fail_rank(from, now, out);
    }
    for (const wire::FetchEntry& e : reply.entries()) {
      if (e.sequence() < s.base) continue;
      Round& round = s.rounds[e.sequence()];
      if (!take_record(p.stream, e.sequence(), round, e, from)) continue;
      round.add_held(p.host, e);
      if (!round.wants.empty()) s.open.insert(e.sequence());
    }
    s.listings.advance(p.host, next);
    s.look = true;
  }

  // Bytes of a round that were checked: to whoever wants them, or into the cache.
  void deliver(Stream& s, std::uint64_t sequence, Round& round, std::uint64_t begin, std::span<const std::byte> bytes,
               bool keep) {
    Ranges left(begin, begin + bytes.size());
    for (const std::uint64_t id : round.wants) {
      Wanted& w = wants.at(id);
      const Ranges useful = w.missing().intersect(begin, begin + bytes.size());
      if (!useful.empty()) round.damaged = 0;
      for (const Interval& i : useful.intervals()) w.write(i.begin, bytes.subspan(i.begin - begin, i.end - i.begin));
      left = left.minus(useful);
    }
    if (!keep || round.served || !round.wants.empty() || sequence < s.base) return;
    left = left.minus(round.ahead.bytes());
    for (const Interval& i : left.intervals()) {
      if (!window.keep(round.ahead, i.begin, bytes.subspan(i.begin - begin, i.end - i.begin))) return;
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
      warn("bytes of " + replay::name_of(key) + " from rank " + std::to_string(from.value) +
           " arrived damaged (checksum); they were dropped and are fetched again");
      round.was_damaged = true;
      // They are there, however often nobody had them before: hosts are asked once more.
      if (++round.damaged < replay::kAsks) {
        for (const std::uint64_t id : round.wants) wants.at(id).limit_asks(hosts.enough_asks() - 2);
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
    Stream* const found = streams.find(p.stream);
    if (found == nullptr) return;
    std::map<std::uint64_t, Ranges> asked;
    for (const Piece& piece : p.pieces) asked[piece.sequence].add(piece.begin, piece.end);
    for (int i = 0; i < reply.entries_size(); ++i) {
      const wire::FetchEntry& e = reply.entries(i);
      const auto a = asked.find(e.sequence());
      bool right = a != asked.end();
      for (const wire::ByteRange& r : e.held()) right = right && a->second.covers(r.begin(), r.end());
      if (!right) {
        warn(hosts.answerer(from) + " sent bytes that it was not asked for; they were dropped");
        continue;
      }
      take_entry(p, *found, from, e, payloads[static_cast<std::size_t>(i)]);
      if (!streams.contains(p.stream)) return;  // the only want has ended
    }
    // Bytes that were looked at and are still not here are not to be had from this host, until it lists them again.
    Stream& s = *found;
    for (const Piece& piece : p.pieces) {
      const auto r = s.rounds.find(piece.sequence);
      if (r == s.rounds.end() || r->second.served) continue;
      Round& round = r->second;
      Ranges absent;
      for (const std::uint64_t id : round.wants) absent.add(wants.at(id).missing().intersect(piece.begin, piece.end));
      if (round.wants.empty()) absent = Ranges(piece.begin, piece.end).minus(round.ahead.bytes());
      if (absent.empty()) continue;
      s.ahead = std::min(s.ahead, piece.sequence);
      std::uint64_t looked = piece.end;
      if (piece.sequence > reply.next_sequence()) looked = piece.begin;
      if (piece.sequence == reply.next_sequence()) looked = std::min(piece.end, reply.next_begin());
      round.not_held(p.host, absent.intersect(piece.begin, std::max(piece.begin, looked)));
    }
  }

  void on_reply(Rank from, const wire::FetchReply& reply, const std::vector<std::span<const std::byte>>& payloads,
                TimeMs now, std::vector<Send>& out) {
    if (!installed) return;
    const std::optional<Pending> answered = requests.take(from, reply, now);
    if (!answered) return;
    const Pending& p = *answered;
    hosts.hear(from);
    settle_request(p, true);
    if (p.pieces.empty()) {
      take_listing(p, from, reply, now, out);
    } else if (std::pair(reply.next_sequence(), reply.next_begin()) <=
               std::pair(p.pieces.front().sequence, p.pieces.front().begin)) {
      warn(hosts.answerer(from) + " looked at nothing of what it was asked for; it is asked no more");
      fail_rank(from, now, out);
    } else {
      take_data(p, from, reply, payloads);
    }
    pump(now, out);
  }

  // --- ranks that do not answer ---

  void fail_rank(Rank rank, TimeMs now, std::vector<Send>& out) {
    for (const Pending& gone : requests.take_all_of(rank)) settle_request(gone, false);
    if (const auto host = hosts.host_of(rank)) ask_another(*host, rank);
    pump(now, out);
  }

  void ask_another(std::size_t host, Rank instead_of) {
    const std::optional<Rank> next = hosts.silence(host, instead_of);
    if (!next) return;
    const Host& h = hosts[host];
    if (h.gone()) {
      warn(h.server ? "who has left host " + h.id + " does not say what it has logged; it is asked again later"
                    : "no rank of host " + h.id + " says what it has logged; they are asked again later");
    }
    for (auto& [key, s] : streams) {
      if (s.listings.asked(host) != instead_of) continue;
      s.listings.restart_host(host, *next, s.base);
      for (auto& [sequence, round] : s.rounds) round.forget_host(host);
      s.open_all_wants();
      s.ahead = s.base;
      s.look = true;
    }
  }

  void on_tick(TimeMs now, std::vector<Send>& out) {
    if (!installed) return;
    std::vector<Pending> passed_over;
    const std::set<Rank> silent = requests.look_for_silent(now, passed_over);
    for (const Pending& p : passed_over) settle_request(p, false);
    for (const Rank rank : silent) {
      warn(hosts.answerer(rank) + " has not said for " + std::to_string(timeout_ms) + " ms what it has logged");
      fail_rank(rank, now, out);
    }
    pump(now, out);
  }

  // --- plans ---

  void install(const Plan& plan, TimeMs now, std::vector<Send>& out) {
    suspend();
    installed = true;
    follows = plan.follows;
    timeout_ms = std::max<std::int64_t>(plan.timeout_ms, 1);
    hosts.install(plan);
    requests.install(plan);
    window.install(hosts.size());
    const std::vector<std::uint64_t> ids = wants.restart(now);
    for (auto& [key, stream] : streams) {
      stream.asleep = true;
      stream.listings.forget_ranks();
      for (auto& [sequence, round] : stream.rounds) round.requested = {};
      start_listing(stream, now);
    }
    for (const std::uint64_t id : ids) (void)read_own(id, wants.at(id));
    pump(now, out);
  }

  void suspend() {
    installed = false;
    requests.suspend();
    window.suspend();
    look.clear();
  }

  [[nodiscard]] std::optional<TimeMs> next_deadline() const {
    if (!installed) return std::nullopt;
    std::optional<TimeMs> next = requests.next_deadline();
    for (const auto& [key, stream] : streams) {
      const std::optional<TimeMs> again = stream.listings.again_at();
      if (again && (!next || *again < *next)) next = again;
    }
    return next;
  }

  [[nodiscard]] std::string describe() const {
    if (wants.empty()) return {};
    const RecordKey& key = wants.oldest().key();
    const std::string name = replay::name_of(key);
    if (!installed) return "waits for the next plan to replay " + name;
    const auto [data, listing] = requests.asked(replay::stream_key(key));
    if (!data.empty()) return "replays " + name + " from " + hosts.answerers(data);
    if (!listing.empty()) return "asks " + hosts.answerers(listing) + " who holds " + name;
    return "waits until a host holds " + name;
  }
};

Replayer::Replayer(HostLogReader& own_host) : state_(std::make_unique<State>(own_host)) {}
Replayer::~Replayer() = default;

void Replayer::install(const Plan& plan, TimeMs now, std::vector<Send>& out) {
  state_->install(plan, now, out);
}

void Replayer::suspend() {
  state_->suspend();
}

std::uint64_t Replayer::want(Want want, TimeMs now, std::vector<Send>& out) {
  return state_->add(std::move(want), now, out);
}

Ranges Replayer::cancel(std::uint64_t id) {
  if (std::optional<Ranges> written = state_->wants.drop_done(id)) return std::move(*written);
  const replay::Wanted* const w = state_->wants.find(id);
  if (w == nullptr) return {};
  const RecordKey key = w->key();
  Ranges written = state_->wants.remove(id);
  state_->streams.leave(key, id);
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
  return state_->next_deadline();
}

bool Replayer::has_done() const {
  return state_->wants.has_done();
}

std::vector<Replayer::Done> Replayer::take_done() {
  return state_->wants.take_done();
}

bool Replayer::idle() const {
  return state_->wants.empty();
}

bool Replayer::refills(std::span<const Rank> members) const {
  return state_->hosts.refills(members);
}

std::span<const Incarnation> Replayer::host_lives() const {
  return state_->hosts.own_lives();
}

std::vector<std::string> Replayer::take_warnings() {
  std::vector<std::string> out = std::exchange(state_->warnings, {});
  const std::size_t more = std::exchange(state_->warnings_left_out, 0);
  if (more > 0) out.push_back(std::to_string(more) + " more warnings about what was fetched");
  return out;
}

std::string Replayer::describe() const {
  return state_->describe();
}

}  // namespace warren::worker

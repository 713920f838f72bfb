#include "recovery/wire/codec.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/wire/frame.h"
#include "recovery/wire/job_settings.h"

namespace warren {
namespace {

static_assert(limits::kMaxRoundsPerHeartbeat * (limits::kMaxWorldSize * 3 + 256) + limits::kMaxLinksPerHeartbeat * 128 +
                      2 * limits::kMaxReasonBytes + 256 <
                  kMaxWorkerMessageBytes,
              "the longest heartbeat fits: a rank takes at most three bytes, a link at most 128");
static_assert(limits::kMaxPositions * limits::kMaxPositionBytes + limits::kMaxRangesPerReport * limits::kMaxRangeBytes +
                      limits::kMaxSetups * limits::kMaxSetupEntryBytes +
                      limits::kMaxSetupRangesPerReport * limits::kMaxRangeBytes + 1024 <=
                  kMaxWorkerMessageBytes,
              "the longest report fits");
static_assert(limits::kMaxPositions * limits::kMaxPositionBytes + limits::kMaxSetups * limits::kMaxSetupEntryBytes +
                      limits::kMaxStateHashes * 8 + limits::kMaxLocalCopies * limits::kMaxLocalCopyBytes + 1024 <=
                  kMaxWorkerMessageBytes,
              "the longest vote fits");
static_assert(limits::kMaxHeldRounds * limits::kMaxHeldRoundsBytes + limits::kMaxHeldRuns * limits::kMaxHeldRunBytes +
                      limits::kMaxHeldRanges * limits::kMaxRangeBytes + limits::kMaxHeldPlanBytes +
                      limits::kMaxSetups * limits::kMaxSetupEntryBytes +
                      limits::kMaxLoggedPositions * limits::kMaxPositionBytes +
                      limits::kMaxLoggedRanges * limits::kMaxRangeBytes +
                      limits::kMaxLoggedSetups * limits::kMaxSetupEntryBytes + limits::kMaxLoggedLives * 8 +
                      limits::kMaxMemberBytes + 4096 <=
                  kMaxWorkerMessageBytes,
              "the longest join fits");

Status bad(std::string why) {
  return {Code::kCorrupt, std::move(why)};
}
std::string str(std::integral auto v) {
  return std::to_string(v);
}

Status in_range(std::string_view what, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value >= low && value <= high) return {};
  return bad(std::string(what) + " " + str(value) + " is outside " + str(low) + " to " + str(high));
}

// The generation that a member speaks of.
Status member_generation(std::uint64_t generation) {
  return in_range("generation", generation, 1, kMaxGeneration);
}
Status rank_in_any_world(std::string_view what, std::uint64_t rank) {
  return in_range(what, rank, 0, limits::kMaxWorldSize - 1);
}

// Length of the valid UTF-8 sequence at text[at], 0 if there is none.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(at);
  const std::size_t n = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (n == 0 || at + n > text.size()) return 0;
  std::uint32_t code = n == 1 ? lead : lead & ((1U << (7 - n)) - 1);
  for (std::size_t i = 1; i < n; ++i) {
    if (byte(at + i) >> 6 != 2) return 0;
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  static constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[n] || code > 0x10ffff || surrogate ? 0 : n;
}
// Length of the printable sequence at text[at], 0 if there is none.
std::size_t printable_length(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x20 || lead == 0x7f) return 0;
  const std::size_t n = utf8_length(text, at);
  // U+0080 to U+009F are control characters too: a terminal takes U+009B for the beginning of a command.
  return n == 2 && lead == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0 ? 0 : n;
}

Status text_is_printable(std::string_view what, std::string_view text, std::size_t limit_bytes) {
  if (text.size() > limit_bytes) {
    return bad(std::string(what) + " of " + str(text.size()) + " bytes is over the limit of " + str(limit_bytes));
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = printable_length(text, at);
    if (n == 0) return bad(std::string(what) + " has an unprintable byte at " + str(at));
    at += n;
  }
  return {};
}

Status validate_setting(const JobSetting& setting, const wire::JobSettings& s) {
  if (setting.text == nullptr) return in_range(setting.name, setting.get(s), setting.least, setting.most);
  const std::string& text = setting.text(s);
  if (setting.words.empty()) return text_is_printable(setting.name, text, setting.most_bytes);
  if (std::ranges::find(setting.words, text) != setting.words.end()) return {};
  std::string known;
  for (const std::string_view word : setting.words) {
    known += (known.empty() ? "" : word == setting.words.back() ? " and " : ", ") + std::string(word);
  }
  return bad("unknown " + std::string(setting.name) + " '" + wire_text(text).substr(0, 32) + "', known are " + known);
}

Status known_code(std::uint32_t code) {
  if (code >= 1 && code <= static_cast<std::uint32_t>(Code::kFinished)) return {};
  return bad("unknown failure code " + str(code));
}

bool numeric_ipv4(std::string_view text) {
  int parts = 0;
  std::size_t at = 0;
  while (true) {
    std::size_t digits = 0;
    unsigned value = 0;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9' && digits < 4) {
      value = value * 10 + static_cast<unsigned>(text[at++] - '0');
      ++digits;
    }
    if (digits == 0 || digits > 3 || value > 255) return false;
    if (++parts == 4) return at == text.size();
    if (at == text.size() || text[at++] != '.') return false;
  }
}

// Groups of up to four hex digits, one "::" for a run of zeros, an IPv4 address as the last two groups, a zone after
// '%'.
bool numeric_ipv6(std::string_view text) {
  if (const std::size_t percent = text.find('%'); percent != std::string_view::npos) {
    const std::string_view zone = text.substr(percent + 1);
    const auto zone_char = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' ||
             c == '-';
    };
    if (zone.empty() || !std::all_of(zone.begin(), zone.end(), zone_char)) return false;
    text = text.substr(0, percent);
  }
  int groups = 0;
  bool compressed = false;
  if (text.starts_with("::")) {
    compressed = true;
    text.remove_prefix(2);
    if (text.empty()) return true;
  }
  while (true) {
    const std::size_t end = std::min(text.find(':'), text.size());
    const std::string_view group = text.substr(0, end);
    if (end == text.size() && group.find('.') != std::string_view::npos) {
      if (!numeric_ipv4(group)) return false;
      groups += 2;
      break;
    }
    const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); };
    if (group.empty() || group.size() > 4 || !std::all_of(group.begin(), group.end(), hex)) return false;
    ++groups;
    text.remove_prefix(end);
    if (text.empty()) break;
    if (text.starts_with("::")) {
      if (compressed) return false;
      compressed = true;
      text.remove_prefix(2);
      if (text.empty()) break;
    } else {
      text.remove_prefix(1);
      if (text.empty()) return false;
    }
  }
  return compressed ? groups < 8 : groups == 8;
}

template <class Endpoints>
Status validate_endpoints(const Endpoints& endpoints) {
  if (endpoints.empty()) return bad("no endpoint: peers could not connect");
  if (static_cast<std::size_t>(endpoints.size()) > limits::kMaxEndpointsPerWorker) {
    return bad(str(endpoints.size()) + " endpoints are over the limit of " + str(limits::kMaxEndpointsPerWorker));
  }
  std::set<std::pair<std::string_view, std::uint32_t>> seen;
  for (const wire::Endpoint& e : endpoints) {
    if (e.address().size() > limits::kMaxAddressBytes) return bad("an address is too long");
    if (!numeric_ipv4(e.address()) && !numeric_ipv6(e.address())) {
      return bad("an endpoint's address is not a numeric IPv4 or IPv6 address: '" + wire_text(e.address()) + "'");
    }
    if (Status s = in_range("port", e.port(), 1, 65535); !s.ok()) return s;
    if (!seen.emplace(e.address(), e.port()).second) {
      return bad("endpoint " + e.address() + " port " + str(e.port()) + " stands twice");
    }
  }
  return {};
}

Status validate_identity(const std::string& worker_id, const std::string& host_id, const std::string& domain_id) {
  if (Status s = validate_name("worker id", worker_id, limits::kMaxWorkerIdBytes); !s.ok()) return s;
  if (Status s = validate_name("host id", host_id, limits::kMaxHostIdBytes); !s.ok()) return s;
  return validate_name("domain id", domain_id, limits::kMaxHostIdBytes);
}

Status validate_activity(const wire::Activity& a) {
  const std::uint64_t parts = std::uint64_t{a.outside_ms()} + a.idle_ms() + a.held_ms();
  if (parts > a.window_ms()) {
    return bad("activity: " + str(parts) + " ms are told of a window of " + str(a.window_ms()) + " ms");
  }
  if (static_cast<std::size_t>(a.links_size()) > limits::kMaxLinksPerHeartbeat) {
    return bad("activity: " + str(a.links_size()) + " links are over the limit of " +
               str(limits::kMaxLinksPerHeartbeat));
  }
  std::int64_t last = -1;
  for (const wire::LinkActivity& l : a.links()) {
    if (Status s = rank_in_any_world("peer of a link", l.peer()); !s.ok()) return s;
    if (l.peer() <= last) return bad("activity: links are not in rising order");
    last = l.peer();
    const std::string link = "activity: the link to rank " + str(l.peer());
    if (l.awaited_ms() > a.idle_ms() || l.blocked_ms() > a.idle_ms()) {
      return bad(link + " was waited for longer than its rank waited");
    }
    if (l.window_sent_bytes() > l.sent_bytes() || l.window_received_bytes() > l.received_bytes()) {
      return bad(link + " moved more in a part of the generation than in all of it");
    }
  }
  return {};
}

Status validate_gpu_counters(const wire::GpuCounters& g) {
  if (Status s = in_range("readers of a GPU", g.readers(), 0, limits::kMaxWorldSize - 1); !s.ok()) return s;
  if (Status s = in_range("inputs lent", g.inputs_lent(), 0, limits::kMaxGpuCount); !s.ok()) return s;
  if (Status s = in_range("finals from GPUs", g.finals_from_gpus(), 0, limits::kMaxGpuCount); !s.ok()) return s;
  return in_range("rounds exchanged", g.rounds_exchanged(), 0, limits::kMaxGpuCount);
}

Status validate_round(const wire::CurrentRound& r) {
  const std::string name =
      to_string(RoundId{Timeline(r.timeline()), GroupId(r.group()), Version(r.version()), Sequence(r.sequence())});
  const auto wrong = [&](const std::string& why) { return bad(name + ": " + why); };
  if (r.collective() < 1 || r.collective() > static_cast<std::uint32_t>(kLastCollective)) {
    return wrong("unknown collective " + str(r.collective()));
  }
  if (r.type() < 1 || r.type() > static_cast<std::uint32_t>(kLastDataType)) {
    return wrong("unknown type " + str(r.type()));
  }
  if (r.op() > static_cast<std::uint32_t>(ReduceOp::kCustom)) {
    return wrong("unknown operation " + str(r.op()));
  }
  if (r.algorithm() > 255) return wrong("unknown algorithm " + str(r.algorithm()));
  if (r.version() > kMaxVersion) return wrong("version " + str(r.version()) + " is over the limit");
  if (r.waited_ms() > kMaxWaitedMs) return wrong("has waited " + str(r.waited_ms()) + " ms, over the limit");
  if (r.root() < -1) return wrong("root " + str(r.root()) + " is negative");
  const bool point = r.collective() == static_cast<std::uint32_t>(Collective::kPoint);
  if (!point && r.root() >= static_cast<std::int32_t>(limits::kMaxWorldSize)) {
    return wrong("root " + str(r.root()) + " is over the limit");
  }
  if (static_cast<std::size_t>(r.waiting_for_size()) >= limits::kMaxWorldSize) {
    return wrong("waits for more ranks than a world has");
  }
  std::int64_t last = -1;
  for (const std::uint32_t rank : r.waiting_for()) {
    if (Status s = rank_in_any_world("rank waited for", rank); !s.ok()) return wrong(std::string(s.message()));
    if (rank <= last) return wrong("ranks waited for are not in rising order");
    last = rank;
  }
  return {};
}

Status validate_blocked(const wire::Blocked& b) {
  const auto too_many = [](const char* what, int count, std::size_t most) {
    return bad("blocked: " + str(count) + " " + what + " are over the limit of " + str(most));
  };
  if (b.blocked_ms() > kMaxWaitedMs) return bad("blocked: " + str(b.blocked_ms()) + " ms are over the limit");
  if (static_cast<std::size_t>(b.calls_size()) > limits::kMaxBlockedCalls) {
    return too_many("calls", b.calls_size(), limits::kMaxBlockedCalls);
  }
  if (static_cast<std::size_t>(b.begun_size()) > limits::kMaxBlockedGroups) {
    return too_many("groups", b.begun_size(), limits::kMaxBlockedGroups);
  }
  if (static_cast<std::size_t>(b.sent_size()) > limits::kMaxBlockedLinks) {
    return too_many("links", b.sent_size(), limits::kMaxBlockedLinks);
  }
  for (const wire::CurrentRound& r : b.calls()) {
    if (Status s = validate_round(r); !s.ok()) return s;
  }
  const wire::BegunRounds* before = nullptr;
  for (const wire::BegunRounds& g : b.begun()) {
    if (before != nullptr && g.group() <= before->group()) return bad("blocked: groups are not in rising order");
    if (g.version() > kMaxVersion) return bad("blocked: version " + str(g.version()) + " is over the limit");
    before = &g;
  }
  const wire::SentMessages* last = nullptr;
  for (const wire::SentMessages& s : b.sent()) {
    if (Status in_world = rank_in_any_world("peer of a link for messages", s.peer()); !in_world.ok()) return in_world;
    if (last != nullptr && std::pair(s.group(), s.peer()) <= std::pair(last->group(), last->peer())) {
      return bad("blocked: links for messages are not in rising order");
    }
    last = &s;
  }
  return {};
}

Status validate_log_addresses(std::uint32_t fetch_port, const std::string& segment_socket, std::uint32_t replicas) {
  if (Status s = in_range("fetch port", fetch_port, replicas == 0 ? 0 : 1, 65535); !s.ok()) return s;
  return text_is_printable("segment socket", segment_socket, limits::kMaxSegmentSocketBytes);
}

Status validate_traits(const wire::Traits& t) {
  if (Status s = in_range("cores", t.cores(), 0, limits::kMaxCores); !s.ok()) return s;
  return in_range("first core", t.first_core(), 0, limits::kMaxCores - 1);
}

Status validate_member(const wire::Member& m, const wire::JobSettings& settings) {
  if (is_vacant(m)) {
    if (!settings.elastic_start()) return bad("nobody has had the place, and the job begins with all");
    wire::Member nobody;
    nobody.set_rank(m.rank());
    nobody.set_absent(true);
    return m.SerializeAsString() == nobody.SerializeAsString()
               ? Status()
               : bad("nobody has had the place, and somebody is told of");
  }
  const std::uint32_t replicas = settings.replicas();
  if (m.incarnation() == 0) return bad("no incarnation");
  if (Status s = validate_identity(m.worker_id(), m.host_id(), m.domain_id()); !s.ok()) return s;
  if (Status s = validate_log_addresses(m.fetch_port(), m.segment_socket(), replicas); !s.ok()) return s;
  if (Status s = validate_traits(m.traits()); !s.ok()) return s;
  return validate_endpoints(m.endpoints());
}

std::string name_of(const wire::Position& p) {
  const std::string version = p.version() == 0 ? "the preamble" : "version " + str(p.version() - 1);
  return "position in " + version + (p.group() == 0 ? "" : " of group " + hex(p.group()));
}

// The result of the round that is in flight: the bytes of it that are final.
template <class Known>
Status validate_final(const Known& p) {
  static constexpr std::uint64_t kMostBytes = limits::kMaxBufferBytes * limits::kMaxWorldSize;
  if (p.total_bytes() > limits::kMaxResultBytes || (p.total_bytes() != 0 && p.final().empty())) {
    return bad("a whole result of " + str(p.total_bytes()) + " bytes");
  }
  std::uint64_t last = 0;
  for (const wire::ByteRange& range : p.final()) {
    if (range.begin() >= range.end()) return bad("the range " + str(range.begin()) + " is empty");
    if (range.begin() < last) return bad("ranges are not in rising order, or overlap");
    if (range.end() > kMostBytes) return bad("a range ends at " + str(range.end()) + ", no result is as large");
    last = range.end();
  }
  return {};
}

// What numbers of rounds and versions, and timelines, may be at most. The tracker counts on from what workers say, and
// its plans and records say more then.
struct Most {
  std::uint64_t count;
  std::uint32_t timeline;
};
constexpr Most kOfClaims{kMaxVersion / 2, UINT32_MAX / 2}, kOfDecisions{kMaxVersion, UINT32_MAX - 1};

Status check_plan(const wire::Plan& p, const Most& most);
Status check_told(const wire::Plan& p, const Most& most);

Status validate_timeline(std::uint32_t timeline, const Most& most) {
  return timeline <= most.timeline ? Status() : bad("timeline " + str(timeline) + " is over the limit");
}

template <class Positions>
Status validate_positions(const Positions& positions, std::size_t most_ranges, const Most& most) {
  if (static_cast<std::size_t>(positions.size()) > limits::kMaxPositions) {
    return bad(str(positions.size()) + " positions are over the limit of " + str(limits::kMaxPositions));
  }
  std::size_t ranges = 0;
  const wire::Position* last = nullptr;
  for (const wire::Position& p : positions) {
    const auto wrong = [&](const std::string& why) { return bad(name_of(p) + ": " + why); };
    if (last != nullptr && std::pair(last->group(), last->version()) >= std::pair(p.group(), p.version())) {
      return wrong("not in rising order, or it stands twice");
    }
    if (p.version() > most.count) return wrong("version is over the limit");
    if (p.rounds() > most.count) return wrong("number of rounds is over the limit");
    if (p.closed() && p.final_size() != 0) return wrong("it is closed, and a round is in flight");
    if (Status s = validate_final(p); !s.ok()) return s.because_of_this(name_of(p));
    if (p.empty() && (p.group() != 0 || p.closed() || p.final_size() != 0)) return wrong("a result without bytes");
    ranges += static_cast<std::size_t>(p.final_size());
    last = &p;
  }
  if (ranges > most_ranges) return bad(str(ranges) + " ranges are over the limit of " + str(most_ranges));
  return {};
}

// most_ranges 0: all of them are done.
Status validate_setups(const google::protobuf::RepeatedPtrField<wire::Setup>& setups, std::size_t most,
                       std::size_t most_ranges) {
  if (static_cast<std::size_t>(setups.size()) > most) {
    return bad(str(setups.size()) + " set-up rounds are over the limit of " + str(most));
  }
  std::size_t ranges = 0;
  const wire::Setup* last = nullptr;
  for (const wire::Setup& s : setups) {
    const auto wrong = [&](const std::string& why) { return bad("set-up round " + hex(s.name()) + ": " + why); };
    if (last != nullptr && std::pair(last->group(), last->name()) >= std::pair(s.group(), s.name())) {
      return wrong("not in rising order, or it stands twice");
    }
    // The greatest number ends listings.
    if ((s.name() & kSetupBit) == 0 || s.name() == UINT64_MAX) return wrong("not the hash of a name");
    if (s.done() && s.final_size() != 0) return wrong("it is done, and in flight");
    if (most_ranges == 0 && !s.done()) return wrong("it is not done");
    if (Status status = validate_final(s); !status.ok()) {
      return status.because_of_this("set-up round " + hex(s.name()));
    }
    ranges += static_cast<std::size_t>(s.final_size());
    last = &s;
  }
  if (ranges > most_ranges) return bad(str(ranges) + " ranges of set-up rounds are over the limit");
  return {};
}

Status validate_given_up(const wire::GivenUp& g) {
  if (Status s = validate_timeline(g.timeline(), kOfClaims); !s.ok()) return s;
  return in_range("version of results that were given up", g.version(), 0, kOfClaims.count);
}

Status validate_log_fill(const wire::LogFill& f) {
  if (Status s = in_range("budget of the log", f.budget_bytes(), 0, limits::kMaxLogBytes); !s.ok()) return s;
  if (Status s = in_range("bytes of the log in use", f.held_bytes(), 0, f.budget_bytes()); !s.ok()) return s;
  return validate_given_up(f.given_up());
}

Status validate_logged(const wire::Logged& l) {
  if (Status s = validate_timeline(l.timeline(), kOfClaims); !s.ok()) return s;
  if (Status s = validate_given_up(l.given_up()); !s.ok()) return s;
  if (l.run() == 0 && (!l.positions().empty() || !l.setups().empty())) return bad("what is logged is of no run");
  for (const wire::Position& p : l.positions()) {
    if (p.closed()) return bad(name_of(p) + ": what is logged closes nothing");
  }
  for (const wire::Setup& s : l.setups()) {
    if (s.done()) return bad("set-up round " + hex(s.name()) + ": memory does not know what is done");
    if (s.timeline() != l.timeline()) return bad("set-up round " + hex(s.name()) + " is of another timeline");
  }
  if (static_cast<std::size_t>(l.lives_size()) > limits::kMaxLoggedLives) {
    return bad(str(l.lives_size()) + " lives are over the limit of " + str(limits::kMaxLoggedLives));
  }
  if (Status s = validate_setups(l.setups(), limits::kMaxSetups, limits::kMaxLoggedRanges); !s.ok()) return s;
  return validate_positions(l.positions(), limits::kMaxLoggedRanges, kOfClaims);
}

Status validate_run(const wire::HeldRun& run, std::uint64_t after) {
  if (run.first() < after) return bad("runs are not in rising order, or overlap");
  constexpr std::uint64_t kMost = kOfClaims.count;
  if (run.count() == 0 || run.count() > kMost || run.first() > kMost - run.count()) {
    return bad("a run of " + str(run.count()) + " rounds from " + str(run.first()));
  }
  if (run.total_bytes() > limits::kMaxResultBytes) return bad("no result is of " + str(run.total_bytes()) + " bytes");
  std::uint64_t last = 0;
  for (const wire::ByteRange& range : run.held()) {
    if (range.begin() >= range.end()) return bad("the range " + str(range.begin()) + " is empty");
    if (range.begin() < last) return bad("ranges are not in rising order, or overlap");
    if (range.end() > run.total_bytes()) return bad("a range ends behind its result");
    last = range.end();
  }
  return {};
}

// Rounds that keep older names.
Status validate_kept(const wire::Plan& p, const Most& most) {
  if (static_cast<std::size_t>(p.kept_size()) > limits::kMaxKept) {
    return bad(str(p.kept_size()) + " of them are over the limit of " + str(limits::kMaxKept));
  }
  const wire::Kept* last = nullptr;
  for (const wire::Kept& k : p.kept()) {
    const bool same = last != nullptr && last->group() == k.group() && last->version() == k.version();
    if (last != nullptr &&
        std::tuple(last->group(), last->version(), last->rounds()) >= std::tuple(k.group(), k.version(), k.rounds())) {
      return bad("not in rising order, or they stand twice");
    }
    if (k.rounds() == 0 || k.rounds() > most.count || k.version() > most.count) return bad("numbers out of range");
    if (k.timeline() >= p.timeline()) return bad("of timeline " + str(k.timeline()) + ", which is not over");
    if (same && last->timeline() >= k.timeline()) return bad("timelines do not rise");
    last = &k;
  }
  return {};
}

// Ranks without whose inputs rounds are computed; `absent`: those of the plan's own.
Status validate_absences(const wire::Plan& p, const std::vector<std::uint32_t>& absent) {
  std::int64_t last = -1;
  std::size_t all = 0;
  bool own = false;
  for (const wire::Absence& a : p.absences()) {
    if (a.timeline() <= last || a.timeline() > p.timeline()) {
      return bad("timeline " + str(a.timeline()) + " is not in rising order, or has not begun");
    }
    last = a.timeline();
    if (a.ranks().empty()) return bad("no rank in timeline " + str(a.timeline()));
    std::int64_t last_rank = -1;
    for (const std::uint32_t rank : a.ranks()) {
      if (rank <= last_rank || rank >= p.settings().world_size()) {
        return bad("ranks of timeline " + str(a.timeline()) + " are not in rising order, or not of this world");
      }
      last_rank = rank;
    }
    all += static_cast<std::size_t>(a.ranks_size());
    if (a.timeline() == p.timeline()) own = std::ranges::equal(a.ranks(), absent);
  }
  if (all > limits::kMaxAbsences) return bad(str(all) + " ranks are over the limit of " + str(limits::kMaxAbsences));
  if (!absent.empty() && !own) return bad("other ranks than the plan's in its own timeline");
  if (absent.empty() && last == static_cast<std::int64_t>(p.timeline())) return bad("ranks, and all are there");
  if (p.absences_size() != 0 && p.settings().min_workers() == 0) return bad("the job waits for all its ranks");
  return {};
}

// In which order rings visit ranks.
Status validate_orders(const wire::Plan& p) {
  if (static_cast<std::size_t>(p.orders_size()) > limits::kMaxRingOrders) {
    return bad(str(p.orders_size()) + " of them are over the limit of " + str(limits::kMaxRingOrders));
  }
  if (p.orders_size() != 0 && !p.settings().reorders()) return bad("the job has none");
  std::uint64_t last = 0;
  for (const wire::RingOrder& o : p.orders()) {
    if (Status s = in_range("version", o.from_version(), last + 1, kMaxVersion); !s.ok()) return s;
    last = o.from_version();
    const std::string what = "from version " + str(last) + " on";
    std::vector<bool> seen(static_cast<std::size_t>(p.members_size()), false);
    if (static_cast<std::size_t>(o.ranks_size()) != seen.size()) {
      return bad(what + ": " + str(o.ranks_size()) + " ranks of " + str(seen.size()));
    }
    for (const std::uint32_t rank : o.ranks()) {
      if (rank >= seen.size()) return bad(what + ": rank " + str(rank) + " of " + str(seen.size()));
      if (seen[rank]) return bad(what + ": rank " + str(rank) + " twice");
      seen[rank] = true;
    }
  }
  return {};
}

// Links whose bytes go by way of others, given that the plan's members are right.
Status validate_detours(const wire::Plan& p) {
  if (static_cast<std::size_t>(p.detours_size()) > limits::kMaxDetours) {
    return bad(str(p.detours_size()) + " of them are over the limit of " + str(limits::kMaxDetours));
  }
  if (p.detours_size() != 0 && !p.settings().rewire()) return bad("the job has none");
  const auto n = static_cast<std::uint32_t>(p.members_size());
  const wire::Detour* last = nullptr;
  for (const wire::Detour& d : p.detours()) {
    const std::string what = "between ranks " + str(d.a()) + " and " + str(d.b());
    if (d.a() >= d.b() || d.b() >= n) return bad(what + " of " + str(n));
    if (last != nullptr && std::pair(last->a(), last->b()) >= std::pair(d.a(), d.b())) {
      return bad(what + ": not in rising order");
    }
    last = &d;
    if (d.relays().empty() || static_cast<std::size_t>(d.relays_size()) > limits::kMaxRelays) {
      return bad(what + ": " + str(d.relays_size()) + " relays");
    }
    const auto host = [&](std::uint32_t rank) -> const std::string& {
      return p.members(static_cast<int>(rank)).host_id();
    };
    if (host(d.a()) == host(d.b())) return bad(what + ", which are on one host");
    std::int64_t last_relay = -1;
    for (const std::uint32_t relay : d.relays()) {
      if (relay <= last_relay || relay >= n)
        return bad(what + ": relays are not in rising order, or not of this world");
      last_relay = relay;
      if (host(relay) == host(d.a()) || host(relay) == host(d.b())) {
        return bad(what + ": relay " + str(relay) + " is on a host of theirs");
      }
    }
    for (const std::uint32_t rank : {d.a(), d.b()}) {
      if (p.members(static_cast<int>(rank)).absent()) return bad(what + ": rank " + str(rank) + " is absent");
    }
    for (const std::uint32_t rank : d.relays()) {
      if (p.members(static_cast<int>(rank)).absent()) return bad(what + ": relay " + str(rank) + " is absent");
    }
  }
  return {};
}

// Lives that have left, and serve.
Status validate_servers(const wire::Plan& p) {
  if (p.servers().empty()) return {};
  if (static_cast<std::uint32_t>(p.servers_size()) >= p.settings().replicas()) {
    return bad(str(p.servers_size()) + " of them, with " + str(p.settings().replicas()) + " copies of what is logged");
  }
  if (p.settings().min_workers() != 0) return bad("the job goes on without lost ranks");
  std::uint64_t last = 0;
  for (const wire::Member& m : p.servers()) {
    if (Status s = validate_member(m, p.settings()); !s.ok()) return s;
    if (m.incarnation() <= last) return bad("not in rising order");
    last = m.incarnation();
    if (m.absent() || m.fresh()) return bad("one of them is a member");
    if (m.since() == 0 || m.since() > p.generation()) return bad("named since generation " + str(m.since()));
    const bool member = std::ranges::any_of(
        p.members(), [&](const wire::Member& other) { return other.incarnation() == m.incarnation(); });
    if (member) return bad("one of them has a rank");
  }
  return {};
}

// Of a plan, a record or an answer.
Status validate_committed(bool committed, std::uint64_t version, std::uint32_t timeline, const Most& most) {
  if (Status s = validate_timeline(timeline, most); !s.ok()) return s;
  if (committed) return in_range("committed version", version, kFirstCommit.value, most.count);
  return version == 0 && timeline == 0 ? Status() : bad("a version, and it is not committed");
}

std::string_view body_name(const wire::Envelope& e) {
  switch (e.body_case()) {
    case wire::Envelope::kJoin: return "Join";
    case wire::Envelope::kHeartbeat: return "Heartbeat";
    case wire::Envelope::kLinkBroken: return "LinkBroken";
    case wire::Envelope::kRoundFailed: return "RoundFailed";
    case wire::Envelope::kStopped: return "Stopped";
    case wire::Envelope::kLeave: return "Leave";
    case wire::Envelope::kReport: return "Report";
    case wire::Envelope::kLoad: return "Load";
    case wire::Envelope::kVote: return "Vote";
    case wire::Envelope::kLogGap: return "LogGap";
    case wire::Envelope::kKnown: return "Known";
    case wire::Envelope::kForget: return "Forget";
    case wire::Envelope::kWelcome: return "Welcome";
    case wire::Envelope::kRefused: return "Refused";
    case wire::Envelope::kPlan: return "Plan";
    case wire::Envelope::kInterrupt: return "Interrupt";
    case wire::Envelope::kFinished: return "Finished";
    case wire::Envelope::kHeartbeatReply: return "HeartbeatReply";
    case wire::Envelope::kLoaded: return "Loaded";
    case wire::Envelope::kCommitted: return "Committed";
    case wire::Envelope::kTell: return "Tell";
    case wire::Envelope::kCalled: return "Called";
    case wire::Envelope::kForgotten: return "Forgotten";
    case wire::Envelope::BODY_NOT_SET: return "no";
  }
  return "no";
}

Status validate_followed(const wire::Followed& f) {
  if (Status s = in_range("generation", f.generation(), 0, kMaxGeneration); !s.ok()) return s;
  if ((f.generation() == 0) != (f.run() == 0)) return bad("a plan of no run, or a run without a plan");
  if (f.version() != 0 && f.run() == 0) return bad("a version of no run");
  return validate_committed(f.version() != 0, f.version(), f.timeline(), kOfClaims);
}

Status validate_follow(const wire::Follow& f) {
  if (Status s = member_generation(f.generation()); !s.ok()) return s;
  if (Status s = validate_committed(true, f.version(), f.timeline(), kOfDecisions); !s.ok()) return s;
  if (f.run() == 0) return bad("it is of no run");
  if (!f.has_plan()) return {};
  if (f.plan().generation() != f.generation() || f.plan().run() != f.run())
    return bad("a plan of another generation, or run");
  if (f.plan().settings().replicas() == 0) return bad("the plan logs nothing");
  return validate(f.plan());
}

Status validate_body(const wire::Envelope& e) {
  switch (e.body_case()) {
    case wire::Envelope::kJoin: return validate(e.join());
    case wire::Envelope::kHeartbeat: return validate(e.heartbeat());
    case wire::Envelope::kLinkBroken: return validate(e.link_broken());
    case wire::Envelope::kRoundFailed: return validate(e.round_failed());
    case wire::Envelope::kStopped: return validate(e.stopped());
    case wire::Envelope::kLeave: return validate(e.leave());
    case wire::Envelope::kReport: return validate(e.report());
    case wire::Envelope::kLoad: return {};
    case wire::Envelope::kVote: return validate(e.vote());
    case wire::Envelope::kLogGap: return validate(e.log_gap());
    case wire::Envelope::kKnown: return validate(e.known());
    case wire::Envelope::kForget: return {};
    case wire::Envelope::kWelcome: return validate(e.welcome());
    case wire::Envelope::kRefused: return validate(e.refused());
    case wire::Envelope::kPlan: return validate_told(e.plan());
    case wire::Envelope::kInterrupt: return validate(e.interrupt());
    case wire::Envelope::kFinished: return validate(e.finished());
    case wire::Envelope::kHeartbeatReply: return validate(e.heartbeat_reply());
    case wire::Envelope::kLoaded: return validate(e.loaded());
    case wire::Envelope::kCommitted: return validate(e.committed());
    case wire::Envelope::kTell: return validate(e.tell());
    case wire::Envelope::kCalled: return validate(e.called());
    case wire::Envelope::kForgotten: return {};
    case wire::Envelope::BODY_NOT_SET: return bad("no body");
  }
  return bad("no body");
}

bool sent_by_worker(const wire::Envelope& e) {
  return e.body_case() <= wire::Envelope::kForget;
}

Status validate_envelope(const wire::Envelope& e, Side from) {
  if (e.protocol() != kProtocolVersion) {
    return {Code::kRefused, "protocol version " + str(e.protocol()) + ", this build speaks " + str(kProtocolVersion) +
                                ": use one version of Warren for the whole job"};
  }
  if (Status s = validate_name("job", e.job(), limits::kMaxJobNameBytes); !s.ok()) return s;
  if (e.sender() == 0) return bad("no sender");
  if (e.body_case() == wire::Envelope::BODY_NOT_SET) return bad("no body");
  if (sent_by_worker(e) != (from == Side::kWorker)) {
    return bad(std::string("a ") + (from == Side::kWorker ? "worker" : "tracker") + " never sends " +
               std::string(body_name(e)));
  }
  if (from == Side::kTracker && e.receiver() == 0) return bad("no receiver");
  if (e.term() >= kMaxGeneration) return bad("term " + str(e.term()) + " is too large");
  // A tracker that speaks of no job's state has none.
  if (from == Side::kTracker && e.term() == 0 && !e.has_refused() && !e.has_forgotten()) return bad("no term");
  if (from == Side::kWorker && e.term() != 0 && e.receiver() == 0) return bad("a term of no tracker's");
  if (Status s = validate_body(e); !s.ok()) return s.because_of_this("bad " + std::string(body_name(e)));
  return {};
}

}  // namespace

std::string wire_text(std::string_view text) {
  std::string out;
  out.reserve(std::min(text.size(), limits::kMaxReasonBytes));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = printable_length(text, at);
    if (out.size() + std::max<std::size_t>(n, 1) > limits::kMaxReasonBytes) break;
    if (n == 0) {
      out += text[at] == '\n' || text[at] == '\t' ? ' ' : '?';
      ++at;
    } else {
      out += text.substr(at, n);
      at += n;
    }
  }
  return out;
}

Status validate_name(std::string_view what, std::string_view name, std::size_t limit_bytes) {
  const auto invalid = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, std::string(what) + " " + why);
  };
  if (name.empty()) return invalid("is empty");
  if (name.size() > limit_bytes) return invalid("is longer than " + str(limit_bytes) + " bytes");
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("._:/@-").find(c) != std::string_view::npos;
  };
  if (!std::all_of(name.begin(), name.end(), allowed)) {
    return invalid("'" + wire_text(name) + "' has a character other than A-Z a-z 0-9 . _ : / @ -");
  }
  if (name[0] == '-' || name[0] == '.') return invalid("'" + std::string(name) + "' starts with '-' or '.'");
  return {};
}

Status validate(const wire::JobSettings& s) {
  for (const JobSetting& setting : job_settings()) {
    if (Status r = validate_setting(setting, s); !r.ok()) return r;
  }
  // Settings that depend on each other.
  if (s.replace_after_ms() != 0 && s.replicas() == 0) return bad("ranks are to be replaced, and nothing is logged");
  if (Status r = in_range("min_workers", s.min_workers(), 0, s.world_size()); !r.ok()) return r;
  if (Status r = in_range("grace_ms", s.grace_ms(), 0, s.min_workers() == 0 ? 0 : limits::kMaxGraceMs); !r.ok()) {
    return r;
  }
  if (s.min_workers() != 0 && s.replicas() == 0) return bad("the job may shrink, and nothing is logged");
  if (s.reorders() && !s.rewire()) return bad("rings may be ordered anew, and no link is gone around");
  if (s.elastic_start() && s.min_workers() == 0) return bad("the job may begin with fewer, and waits for all");
  return {};
}

Status validate(const wire::Join& j) {
  if (Status s = validate_identity(j.worker_id(), j.host_id(), j.domain_id()); !s.ok()) return s;
  if (Status s = validate_endpoints(j.endpoints()); !s.ok()) return s;
  if (!j.has_settings()) return bad("no settings");
  if (Status s = validate(j.settings()); !s.ok()) return s;
  if (Status s = validate_log_addresses(j.fetch_port(), j.segment_socket(), j.settings().replicas()); !s.ok()) return s;
  if (Status s = validate_traits(j.traits()); !s.ok()) return s;
  if (j.has_held()) {
    if (j.settings().replicas() == 0) return bad("nothing is logged, and a disk holds something");
    if (Status s = validate(j.held()); !s.ok()) return s.because_of_this("what the disk holds");
  }
  if (j.has_logged()) {
    if (j.settings().replicas() == 0) return bad("nothing is logged, and memory holds something");
    if (Status s = validate_logged(j.logged()); !s.ok()) return s.because_of_this("what memory holds");
  }
  if (Status s = in_range("join timeout in ms", j.join_timeout_ms(), 0, limits::kMaxRoundTimeoutMs); !s.ok()) return s;
  if (Status s = in_range("generation of the call", j.called(), 0, kMaxGeneration); !s.ok()) return s;
  if (!j.waits() && (j.spare() || j.called() != 0)) return bad("it does not wait, and is a spare");
  if (!j.waits() && j.settings().min_workers() != 0) return bad("the job may go on without it, and it does not wait");
  if (j.spare() && (j.called() != 0 || j.has_held() || j.has_logged())) {
    return bad("it waits as a spare, and says what its host holds");
  }
  if (j.has_followed()) {
    if (!j.spare()) return bad("it follows checkpoints, and is no spare");
    if (Status s = validate_followed(j.followed()); !s.ok()) return s.because_of_this("what it follows");
  }
  return text_is_printable("software", j.software(), kMaxSoftwareBytes);
}

Status validate(const wire::Held& h) {
  if (h.run() == 0) return bad("of no run");
  if (!h.has_known()) return bad("nothing is known of the job");
  if (Status s = validate(h.known()); !s.ok()) return s;
  if (h.known().has_plan()) {
    if (h.known().plan().run() != h.run()) return bad("the plan is of another run");
    if (h.known().plan().ByteSizeLong() > limits::kMaxHeldPlanBytes) return bad("the plan is too long");
  }
  if (static_cast<std::size_t>(h.rounds_size()) > limits::kMaxHeldRounds) return bad("too many groups and versions");
  if (h.mirrored() && (h.rounds_size() != 0 || !h.known().committed()))
    return bad("a mirror holds checkpoints, and only these");
  std::size_t runs = 0, ranges = 0;
  const wire::HeldRounds* last = nullptr;
  for (const wire::HeldRounds& r : h.rounds()) {
    if (last != nullptr && std::tuple(last->timeline(), last->group(), last->version()) >=
                               std::tuple(r.timeline(), r.group(), r.version())) {
      return bad("rounds are not in rising order, or stand twice");
    }
    if (r.version() > kOfClaims.count) return bad("version is over the limit");
    std::uint64_t after = 0;
    for (const wire::HeldRun& run : r.runs()) {
      if (Status s = validate_run(run, after); !s.ok()) return s;
      after = run.first() + run.count();
      ranges += static_cast<std::size_t>(run.held_size());
    }
    runs += static_cast<std::size_t>(r.runs_size());
    last = &r;
  }
  if (runs > limits::kMaxHeldRuns) return bad(str(runs) + " runs are over the limit of " + str(limits::kMaxHeldRuns));
  if (ranges > limits::kMaxHeldRanges) {
    return bad(str(ranges) + " ranges are over the limit of " + str(limits::kMaxHeldRanges));
  }
  return {};
}

Status validate(const wire::Heartbeat& h) {
  if (Status s = member_generation(h.generation()); !s.ok()) return s;
  if (static_cast<std::size_t>(h.rounds_size()) > limits::kMaxRoundsPerHeartbeat) {
    return bad(str(h.rounds_size()) + " rounds are over the limit of " + str(limits::kMaxRoundsPerHeartbeat));
  }
  // Point-to-point rounds of different peers may share a number.
  std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t>> seen;
  for (const wire::CurrentRound& r : h.rounds()) {
    if (Status s = validate_round(r); !s.ok()) return s;
    if (r.collective() == static_cast<std::uint32_t>(Collective::kPoint)) continue;
    if (!seen.emplace(r.timeline(), r.group(), r.version(), r.sequence()).second) return bad("a round stands twice");
  }
  if (h.has_draining()) {
    const wire::Draining& d = h.draining();
    if (Status s = in_range("time until it leaves", d.left_ms(), 0, limits::kMaxDrainMs); !s.ok()) return s;
    if (Status s = text_is_printable("reason to leave", d.reason(), limits::kMaxReasonBytes); !s.ok()) return s;
  }
  if (Status s = validate_gpu_counters(h.gpu()); !s.ok()) return s;
  if (Status s = validate_log_fill(h.log()); !s.ok()) return s;
  if (Status s = text_is_printable("trouble of its disk", h.disk_trouble(), limits::kMaxReasonBytes); !s.ok()) return s;
  if (h.has_blocked()) {
    if (Status s = validate_blocked(h.blocked()); !s.ok()) return s;
  }
  return h.has_activity() ? validate_activity(h.activity()) : Status();
}

Status validate(const wire::LinkBroken& b) {
  if (Status s = member_generation(b.generation()); !s.ok()) return s;
  if (Status s = rank_in_any_world("peer", b.peer()); !s.ok()) return s;
  if (b.peer_incarnation() == 0) return bad("no peer incarnation");
  return text_is_printable("evidence", b.evidence(), limits::kMaxReasonBytes);
}

Status validate(const wire::About& a) {
  if (a.has_rank()) {
    if (Status s = rank_in_any_world("rank", a.rank()); !s.ok()) return s;
  }
  if (a.has_peer()) {
    if (Status s = rank_in_any_world("peer", a.peer()); !s.ok()) return s;
  }
  return text_is_printable("round", a.round(), limits::kMaxRoundTextBytes);
}

Status validate(const wire::RoundFailed& f) {
  if (Status s = member_generation(f.generation()); !s.ok()) return s;
  if (Status s = known_code(f.code()); !s.ok()) return s;
  if (f.reason().empty()) return bad("no reason");
  if (Status s = validate(f.about()); !s.ok()) return s;
  return text_is_printable("reason", f.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Stopped& s) {
  return member_generation(s.generation());
}

Status validate(const wire::Leave& l) {
  // A worker that gives up before the first plan has no generation yet.
  if (Status s = in_range("generation", l.generation(), l.finalize() ? 1 : 0, kMaxGeneration); !s.ok()) return s;
  if (l.finalize() && l.preempted()) return bad("it finalizes, and is preempted");
  if (Status s = in_range("time for which it serves", l.serves_ms(), 0, limits::kMaxDrainMs); !s.ok()) return s;
  if (l.serves_ms() != 0 && !l.preempted()) return bad("it serves, and is not preempted");
  if (l.serves_ms() == 0 && (l.has_logged() || l.setups_size() != 0)) {
    return bad("it does not serve, and says how far it has come");
  }
  if (Status s = validate_logged(l.logged()); !s.ok()) return s.because_of_this("how far it has come");
  if (l.logged().setups_size() != 0 || l.logged().lives_size() != 0) {
    return bad("it has left, and speaks of more than rounds");
  }
  if (Status s = validate_setups(l.setups(), limits::kMaxSetups, limits::kMaxSetupRangesPerReport); !s.ok()) return s;
  return text_is_printable("reason", l.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Report& r) {
  if (Status s = member_generation(r.generation()); !s.ok()) return s;
  if (r.plan_generation() >= r.generation()) {
    return bad("it reports from generation " + str(r.plan_generation()) + " to the interrupt of generation " +
               str(r.generation()));
  }
  if (Status s =
          validate_committed(r.committed_version() != 0, r.committed_version(), r.committed_timeline(), kOfClaims);
      !s.ok()) {
    return s;
  }
  if (Status s = validate_timeline(r.timeline(), kOfClaims); !s.ok()) return s;
  if (r.timeline() != 0 && r.committed_timeline() > r.timeline())
    return bad("a version was committed in a later timeline");
  if (Status s = validate_positions(r.positions(), limits::kMaxRangesPerReport, kOfClaims); !s.ok()) return s;
  for (const wire::Position& p : r.positions()) {
    if (p.version() > r.version()) return bad(name_of(p) + ": the report says that it was not begun");
    if (p.version() < r.version() && p.final_size() != 0) {
      return bad(name_of(p) + ": a later version was begun, and a round is in flight");
    }
  }
  if (Status s = validate_logged(r.logged()); !s.ok()) return s.because_of_this("what memory holds");
  if (Status s = validate_given_up(r.given_up()); !s.ok()) return s;
  return validate_setups(r.setups(), limits::kMaxSetups, limits::kMaxSetupRangesPerReport);
}

namespace {

Status validate_state(const wire::StateDigest& d) {
  if (Status s = in_range("global state's bytes", d.global_bytes(), 0, limits::kMaxStateBytes); !s.ok()) return s;
  if (d.global_bytes() == 0) {
    return d.piece_bytes() == 0 && d.hashes_size() == 0 ? Status() : bad("hashes of a global state without bytes");
  }
  if (d.piece_bytes() < limits::kStatePieceBytes || !std::has_single_bit(d.piece_bytes())) {
    return bad("a hash for " + str(d.piece_bytes()) + " bytes of a global state");
  }
  const std::uint64_t pieces = (d.global_bytes() - 1) / d.piece_bytes() + 1;
  if (pieces > limits::kMaxStateHashes || static_cast<std::uint64_t>(d.hashes_size()) != pieces) {
    return bad(str(d.hashes_size()) + " hashes of " + str(pieces) + " pieces of a global state");
  }
  return {};
}

}  // namespace

Status validate(const wire::Vote& v) {
  if (Status s = member_generation(v.generation()); !s.ok()) return s;
  if (Status s = in_range("version", v.version(), kFirstCommit.value, kOfClaims.count); !s.ok()) return s;
  if (Status s = validate_positions(v.positions(), 0, kOfClaims); !s.ok()) return s;
  for (const wire::Position& p : v.positions()) {
    if (p.version() >= v.version() || !p.closed()) return bad(name_of(p) + ": it is not over where the vote stands");
  }
  if (v.has_state()) {
    if (Status s = validate_state(v.state()); !s.ok()) return s.because_of_this("what the vote says of the state");
  } else if (v.lacks()) {
    return bad("it is no vote, and tells of no state");
  }
  if (static_cast<std::size_t>(v.copies_size()) > limits::kMaxLocalCopies) {
    return bad(str(v.copies_size()) + " copies of local states");
  }
  std::int64_t before = -1;
  for (const wire::LocalCopy& c : v.copies()) {
    if (c.rank() >= limits::kMaxWorldSize || c.rank() <= before || c.hash() == 0) {
      return bad("the copy of rank " + str(c.rank()) + "'s local state has no hash, or is out of order");
    }
    before = c.rank();
  }
  return validate_setups(v.setups(), limits::kMaxSetups, 0);
}

Status validate(const wire::LogGap& g) {
  if (Status s = member_generation(g.generation()); !s.ok()) return s;
  if (g.reason().empty()) return bad("no reason");
  if (g.has_setup()) {
    google::protobuf::RepeatedPtrField<wire::Setup> one;
    *one.Add() = g.setup();
    if (Status s = validate_setups(one, 1, 0); !s.ok()) return s;
  }
  if (g.has_checkpoint()) {
    if (g.has_setup()) return bad("a set-up round is missing, and a checkpoint");
    if (Status s = validate(g.checkpoint()); !s.ok()) return s;
  }
  return text_is_printable("reason", g.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Known& k) {
  if (Status s = member_generation(k.generation()); !s.ok()) return s;
  if (Status s = in_range("plan's generation", k.plan_generation(), 0, k.generation()); !s.ok()) return s;
  if (k.has_plan()) {
    if (Status s = check_plan(k.plan(), kOfClaims); !s.ok()) return s.because_of_this("bad plan");
    if (k.plan().generation() != k.plan_generation())
      return bad("the plan is of another generation than it is said to be");
  }
  if (Status s = validate_setups(k.setups(), limits::kMaxSetups, 0); !s.ok()) return s;
  return validate_committed(k.committed(), k.committed_version(), k.committed_timeline(), kOfClaims);
}

Status validate(const wire::Welcome& w) {
  if (Status s = in_range("world size", w.world_size(), 1, limits::kMaxWorldSize); !s.ok()) return s;
  if (Status s = in_range("joined", w.joined(), w.spare() ? 0 : 1, w.world_size()); !s.ok()) return s;
  if (Status s = in_range("generation of the call", w.called(), 0, kMaxGeneration); !s.ok()) return s;
  if (static_cast<std::size_t>(w.missing_size()) > kMaxMissingNames) return bad("too many missing workers are named");
  std::set<std::string_view> seen;
  for (const std::string& name : w.missing()) {
    if (Status s = validate_name("missing worker id", name, limits::kMaxWorkerIdBytes); !s.ok()) return s;
    if (!seen.insert(name).second) return bad("missing worker " + name + " stands twice");
  }
  if (!w.has_follow()) return {};
  if (!w.spare()) return bad("who is no spare is to follow checkpoints");
  if (Status s = validate_follow(w.follow()); !s.ok()) return s.because_of_this("the checkpoint to be followed");
  return {};
}

Status validate(const wire::Refused& r) {
  if (Status s = known_code(r.code()); !s.ok()) return s;
  if (r.reason().empty()) return bad("no reason");
  return text_is_printable("reason", r.reason(), limits::kMaxReasonBytes);
}

// Of one that says everything.
Status validate_members(const wire::Plan& p) {
  if (static_cast<std::uint32_t>(p.members_size()) != p.settings().world_size()) {
    return bad(str(p.members_size()) + " members in a world of " + str(p.settings().world_size()));
  }
  std::set<std::string_view> ids;
  std::set<std::uint64_t> incarnations;
  std::map<std::string_view, std::vector<bool>> hosts;  // local ranks seen
  std::vector<std::uint32_t> absent;
  for (const wire::Member& m : p.members()) {
    if (!is_vacant(m)) hosts[m.host_id()].push_back(false);
  }
  for (int i = 0; i < p.members_size(); ++i) {
    const wire::Member& m = p.members(i);
    const std::string who = "member " + str(i);
    if (m.rank() != static_cast<std::uint32_t>(i)) return bad(who + " has rank " + str(m.rank()));
    if (Status s = validate_member(m, p.settings()); !s.ok()) return s.because_of_this(who);
    if (is_vacant(m)) {
      absent.push_back(m.rank());
      continue;
    }
    if (m.since() > p.generation() || m.fresh() != (m.since() == p.generation())) {
      return bad(who + " is " + (m.fresh() ? "" : "not ") + "fresh in generation " + str(p.generation()) +
                 ", and in plans since generation " + str(m.since()));
    }
    if (!ids.insert(m.worker_id()).second) return bad("worker id " + m.worker_id() + " stands twice");
    if (!incarnations.insert(m.incarnation()).second) return bad(who + "'s incarnation stands twice");
    std::vector<bool>& local = hosts[m.host_id()];
    if (m.local_size() != local.size()) {
      return bad(who + " has local size " + str(m.local_size()) + ", its host has " + str(local.size()) + " ranks");
    }
    if (m.local_rank() >= local.size() || local[m.local_rank()]) {
      return bad(who + "'s local rank " + str(m.local_rank()) + " is taken or over its host's size");
    }
    local[m.local_rank()] = true;
    if (m.absent() && m.fresh()) return bad(who + " is absent, and fresh");
    if (m.absent()) absent.push_back(m.rank());
  }
  const std::size_t present = static_cast<std::size_t>(p.members_size()) - absent.size();
  if (!absent.empty() && (p.settings().min_workers() == 0 || present < p.settings().min_workers())) {
    return bad(str(present) + " members are there, the least is " +
               str(p.settings().min_workers() == 0 ? p.settings().world_size() : p.settings().min_workers()));
  }
  if (Status s = validate_absences(p, absent); !s.ok()) return s.because_of_this("absences");
  if (Status s = validate_detours(p); !s.ok()) return s.because_of_this("detours");
  if (Status s = validate_orders(p); !s.ok()) return s.because_of_this("ring orders");
  return {};
}

// Of one that is told by changes: what is wrong with these alone.
Status validate_changed_members(const wire::Plan& p) {
  if (p.base_generation() >= p.generation())
    return bad("changes to the plan of generation " + str(p.base_generation()));
  std::int64_t last = -1;
  for (const wire::Member& m : p.members()) {
    const std::string who = "member " + str(m.rank());
    if (m.rank() <= last) return bad(who + " is not in rising order of ranks");
    if (m.rank() >= p.settings().world_size()) return bad(who + " in a world of " + str(p.settings().world_size()));
    if (Status s = validate_member(m, p.settings()); !s.ok()) return s.because_of_this(who);
    last = m.rank();
  }
  return {};
}

namespace {
Status check_told(const wire::Plan& p, const Most& most) {
  if (Status s = member_generation(p.generation()); !s.ok()) return s;
  if (!p.has_settings()) return bad("no settings");
  if (Status s = validate(p.settings()); !s.ok()) return s;
  if (Status s = p.base_generation() == 0 ? validate_members(p) : validate_changed_members(p); !s.ok()) return s;
  if (Status s = validate_timeline(p.timeline(), most); !s.ok()) return s;
  if (Status s = validate_committed(p.committed(), p.committed_version(), p.committed_timeline(), most); !s.ok()) {
    return s;
  }
  if (p.committed_timeline() > p.timeline()) return bad("a version was committed in a later timeline");
  if (Status s = validate_positions(p.frontier(), limits::kMaxRangesPerFrontier, most); !s.ok()) {
    return s.because_of_this("frontier");
  }
  if (Status s = validate_setups(p.setups(), limits::kMaxSetupsPerJob, limits::kMaxSetupRangesPerPlan); !s.ok())
    return s;
  for (const wire::Setup& s : p.setups()) {
    if (s.timeline() > p.timeline()) return bad("set-up round " + hex(s.name()) + " was begun in a later timeline");
  }
  if (p.settings().replicas() == 0 && (p.committed() || p.frontier_size() != 0 || p.setups_size() != 0)) {
    return bad("nothing is logged, and there is a frontier or a committed version");
  }
  if (p.run() == 0) return bad("it is of no run");
  if (Status s = validate_kept(p, most); !s.ok()) return s.because_of_this("rounds that were kept");
  if (Status s = validate_servers(p); !s.ok()) return s.because_of_this("servers");
  return {};
}

Status check_plan(const wire::Plan& p, const Most& most) {
  return p.base_generation() == 0 ? check_told(p, most)
                                  : bad("only its changes since generation " + str(p.base_generation()));
}
}  // namespace

Status validate_told(const wire::Plan& p) {
  return check_told(p, kOfDecisions);
}

Status validate(const wire::Plan& p) {
  return check_plan(p, kOfDecisions);
}

Status validate(const wire::Interrupt& i) {
  if (Status s = member_generation(i.generation()); !s.ok()) return s;
  if (Status s = known_code(i.code()); !s.ok()) return s;
  if (i.reason().empty()) return bad("no reason");
  if (i.ends_job() && i.resume()) return bad("it ends the job, and resumes");
  if (Status s = validate(i.about()); !s.ok()) return s;
  if (Status s = text_is_printable("reason", i.reason(), limits::kMaxReasonBytes); !s.ok()) return s;
  std::int64_t last = -1;
  for (const std::uint32_t rank : i.lost()) {
    if (Status s = rank_in_any_world("lost rank", rank); !s.ok()) return s;
    if (rank <= last) return bad("lost ranks are not in rising order");
    last = rank;
  }
  return {};
}

Status validate(const wire::Finished& f) {
  return member_generation(f.generation());
}

Status validate(const wire::HeartbeatReply& r) {
  if (Status s = in_range("time that others have waited in ms", r.awaited_ms(), 0, kMaxWaitedMs); !s.ok()) return s;
  if (!r.has_leave()) return {};
  const wire::LeaveRequest& l = r.leave();
  if (Status s = member_generation(l.generation()); !s.ok()) return s;
  if (Status s = in_range("time until it leaves", l.within_ms(), 0, limits::kMaxDrainMs); !s.ok()) return s;
  if (l.reason().empty()) return bad("it is to leave for no reason");
  return text_is_printable("reason to leave", l.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Loaded& l) {
  return validate_committed(l.committed(), l.version(), l.timeline(), kOfDecisions);
}

Status validate(const wire::Tell& t) {
  return in_range("generation", t.generation(), 0, kMaxGeneration);
}

Status validate(const wire::Called& c) {
  return member_generation(c.generation());
}

Status validate(const wire::Committed& c) {
  return validate_committed(true, c.version(), c.timeline(), kOfDecisions);
}

Status validate(const wire::JobRecord& r) {
  if (r.format() != kJobRecordFormat) {
    return {Code::kRefused, "format " + str(r.format()) + ", this build reads format " + str(kJobRecordFormat)};
  }
  if (Status s = validate_name("job", r.job(), limits::kMaxJobNameBytes); !s.ok()) return s;
  if (Status s = member_generation(r.generation()); !s.ok()) return s;
  if (!r.has_settings()) return bad("no settings");
  if (Status s = validate(r.settings()); !s.ok()) return s;
  if (Status s = text_is_printable("origin of the settings", r.settings_from(), limits::kMaxReasonBytes); !s.ok()) {
    return s;
  }
  if (r.term() == 0 || r.term() + 1 >= kMaxGeneration) return bad("term " + str(r.term()));
  if (r.finished()) {
    return r.has_plan() || r.has_interrupt() || r.finalized_size() != 0 || r.committed() || r.setups_size() != 0
               ? bad("a finished job has a plan")
               : Status();
  }
  if (Status s = validate_committed(r.committed(), r.committed_version(), r.committed_timeline(), kOfDecisions);
      !s.ok()) {
    return s;
  }
  if (Status s = validate_setups(r.setups(), limits::kMaxSetupsPerJob, 0); !s.ok()) return s;
  for (const wire::Setup& s : r.setups()) {
    if (s.timeline() > r.timeline()) return bad("set-up round " + hex(s.name()) + ": of a timeline that has not begun");
  }
  if (Status s = in_range("join timeout in ms", r.join_timeout_ms(), 0, limits::kMaxRoundTimeoutMs); !s.ok()) return s;
  if (!r.has_plan()) return bad("no plan");
  if (Status s = validate(r.plan()); !s.ok()) return s.because_of_this("bad plan");
  if (r.plan().settings().SerializeAsString() != r.settings().SerializeAsString()) {
    return bad("the plan's settings are not the job's");
  }
  if (r.plan().timeline() != r.timeline()) return bad("the plan's timeline is not the job's");
  if (r.committed_timeline() > r.timeline()) return bad("a version was committed in a later timeline");
  if (r.plan().committed() && r.committed_version() < r.plan().committed_version()) {
    return bad("the plan knows of a later commit");
  }
  if (r.has_interrupt()) {
    if (Status s = validate(r.interrupt()); !s.ok()) return s.because_of_this("bad interrupt");
    if (r.interrupt().generation() != r.generation() || r.plan().generation() >= r.generation())
      return bad("the interrupt ends no plan");
  } else if (r.plan().generation() != r.generation()) {
    return bad("the plan is not the newest generation's");
  } else if (r.without_frontier()) {
    return bad("a plan is in force without its frontier");
  }
  std::int64_t last = -1;
  for (const std::uint32_t rank : r.finalized()) {
    if (rank >= r.settings().world_size() || rank <= last) return bad("the finalized ranks are wrong");
    last = rank;
  }
  if (static_cast<std::size_t>(r.retired_size()) > limits::retired_lives(r.settings().world_size())) {
    return bad("too many lives are over");
  }
  std::set<std::uint64_t> lives;
  for (const std::uint64_t life : r.retired()) {
    if (life == 0 || !lives.insert(life).second) return bad("the lives that are over are wrong");
  }
  if (static_cast<std::uint32_t>(r.left_domains_size()) > r.settings().replicas())
    return bad("too many domains were left");
  std::set<std::string> left;
  for (const std::string& domain : r.left_domains()) {
    if (Status s = validate_name("failure domain", domain, limits::kMaxHostIdBytes); !s.ok()) return s;
    if (!left.insert(domain).second) return bad("a domain was left twice");
  }
  return {};
}

std::string encode(const wire::Envelope& envelope, Side from) {
  const Status valid = validate_envelope(envelope, from);
  WARREN_CHECK(valid.ok(), valid.describe().c_str());
  std::string bytes;
  WARREN_CHECK(envelope.SerializeToString(&bytes), "a valid envelope serializes");
  return bytes;
}

Result<wire::Envelope> decode_envelope(std::span<const std::byte> bytes, Side from) {
  const std::size_t limit = from == Side::kWorker ? kMaxWorkerMessageBytes : limits::kMaxControlMessageBytes;
  if (bytes.size() > limit) {
    return bad("message of " + str(bytes.size()) + " bytes is over the limit of " + str(limit));
  }
  wire::Envelope envelope;
  if (!envelope.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return bad("not one of Warren's messages");
  if (Status s = validate_envelope(envelope, from); !s.ok()) {
    // To whoever called us, a bad name is damage like any other.
    return s.code() == Code::kRefused ? s : s.because_of_this(Code::kCorrupt, "message refused");
  }
  return envelope;
}

}  // namespace warren

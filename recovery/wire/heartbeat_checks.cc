// Whether a heartbeat contradicts itself: rounds under way, what a rank waits for, its links, its log and its GPU.
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/field_checks.h"
#include "recovery/wire/frame.h"
#include "recovery/wire/progress_checks.h"

namespace warren {

using namespace checks;

namespace {

static_assert(limits::kMaxRoundsPerHeartbeat * (limits::kMaxWorldSize * 3 + 256) + limits::kMaxLinksPerHeartbeat * 128 +
                      2 * limits::kMaxReasonBytes + 256 <
                  kMaxWorkerMessageBytes,
              "the longest heartbeat fits: a rank takes at most three bytes, a link at most 128");

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

Status validate_log_fill(const wire::LogFill& f) {
  if (Status s = in_range("budget of the log", f.budget_bytes(), 0, limits::kMaxLogBytes); !s.ok()) return s;
  if (Status s = in_range("bytes of the log in use", f.held_bytes(), 0, f.budget_bytes()); !s.ok()) return s;
  return validate_given_up(f.given_up());
}

}  // namespace

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

}  // namespace warren

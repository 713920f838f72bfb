#include "worker/rounds/progress.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "recovery/base/limits.h"

namespace warren::worker {
namespace {

// A look that comes later than this after the one before says nothing of the time beyond.
constexpr std::int64_t kLooksCredited = 2;
constexpr std::int64_t kMostMs = 24LL * 3600 * 1000;
// A link's usual rate is a mean over some hundred heartbeats in which it was waited for.
constexpr double kWeightOfNew = 1.0 / 256;
constexpr std::int64_t kWaitedForParts = 5;  // for a fifth of the time

std::uint32_t narrow(std::int64_t ms) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

void tell(const RoundId& round, const Fingerprint& fingerprint, wire::CurrentRound& r) {
  r.set_timeline(round.timeline.value);
  r.set_group(round.group.value);
  r.set_version(round.version.value);
  r.set_sequence(round.sequence.value);
  r.set_collective(static_cast<std::uint32_t>(fingerprint.collective));
  r.set_type(static_cast<std::uint32_t>(fingerprint.type));
  r.set_op(static_cast<std::uint32_t>(fingerprint.op));
  r.set_algorithm(fingerprint.algorithm);
  r.set_root(fingerprint.root);
  r.set_count(fingerprint.count);
  r.set_shape(fingerprint.shape);
  r.set_site(fingerprint.site);
}

void ProgressReporter::restart() {
  outside_since_.reset();
  blocked_ = nullptr;
  waiting_.clear();
  sampled_.reset();
  part_ = {};
  window_.clear();
}

void ProgressReporter::sample(const RoundBoard& board, TimeMs now) {
  const std::uint64_t replayed = board.rounds_replayed.load(std::memory_order_relaxed);
  const bool asleep = board.asleep.load(std::memory_order_relaxed) > 0;
  // Of a rank at work it stays a part of the work: who has more to do waits longer for a core.
  const std::int64_t without_core_ms = std::exchange(without_core_ms_, 0) * (asleep ? 1 : 0);
  if (!sampled_) {
    sampled_ = now;
    replayed_ = replayed;
    seen_.assign(board.links(), LinkSeen{{}, now});
    for (std::size_t peer = 0; peer < seen_.size(); peer++) seen_[peer].moved = board.moved(peer);
    return;
  }
  const std::int64_t elapsed_ms = std::clamp<std::int64_t>(now - *sampled_, 0, kMostMs);
  const std::int64_t credited_ms =
      std::clamp<std::int64_t>(elapsed_ms - without_core_ms, 0, kLooksCredited * sample_ms_);
  sampled_ = now;
  part_.ms += elapsed_ms;
  part_.held_ms += elapsed_ms - credited_ms;
  part_.replayed += replayed - std::exchange(replayed_, replayed);
  const std::vector<RoundBoard::Entry> rounds = board.read();
  const std::uint64_t finished = board.rounds_finished.load(std::memory_order_relaxed);
  const bool inside =
      asleep || !rounds.empty() || board.at_once.load(std::memory_order_relaxed) || finished != finished_outside_;
  finished_outside_ = finished;
  if (inside) outside_since_.reset();
  if (!inside && !outside_since_) outside_since_ = now;
  if (asleep) {
    part_.idle_ms += credited_ms;
    std::set<Rank> awaited, blocked;
    for (const RoundBoard::Entry& round : rounds) {
      for (const RoundBoard::Waited& w : round.waiting_for) {
        if (w.receives) awaited.insert(w.rank);
        if (w.sends) blocked.insert(w.rank);
      }
    }
    for (const Rank peer : awaited) part_.links[static_cast<std::uint32_t>(peer.value)].awaited_ms += credited_ms;
    for (const Rank peer : blocked) part_.links[static_cast<std::uint32_t>(peer.value)].blocked_ms += credited_ms;
  } else if (rounds.empty() && !board.at_once.load(std::memory_order_relaxed)) {
    part_.outside_ms += credited_ms;
  }
  for (std::size_t peer = 0; peer < seen_.size(); peer++) {
    const RoundBoard::Moved moved = board.moved(peer);
    LinkSeen& before = seen_[peer];
    if (moved.sent == before.moved.sent && moved.received == before.moved.received) continue;
    LinkPart& link = part_.links[static_cast<std::uint32_t>(peer)];
    link.sent += moved.sent - before.moved.sent;
    link.received += moved.received - before.moved.received;
    if (moved.received != before.moved.received) before.arrived = now;
    before.moved = moved;
  }
}

void ProgressReporter::end_part() {
  if (part_.ms == 0) return;
  for (const auto& [peer, link] : part_.links) {
    if (link.received == 0 || kWaitedForParts * link.awaited_ms < part_.ms) continue;
    const double rate = static_cast<double>(link.received) * 1000 / static_cast<double>(link.awaited_ms);
    double& usual = usual_bytes_per_s_.try_emplace(peer, rate).first->second;
    usual += (rate - usual) * kWeightOfNew;
  }
  window_.push_back(std::exchange(part_, {}));
  if (window_.size() > limits::kHeartbeatsPerWindow) window_.pop_front();
}

std::optional<wire::Activity> ProgressReporter::activity(const RoundBoard& board, TimeMs now) const {
  if (window_.empty()) return std::nullopt;
  Part sum;
  for (const Part& part : window_) {
    sum.ms += part.ms;
    sum.outside_ms += part.outside_ms;
    sum.idle_ms += part.idle_ms;
    sum.held_ms += part.held_ms;
    sum.replayed += part.replayed;
    for (const auto& [peer, link] : part.links) {
      LinkPart& of = sum.links[peer];
      of.sent += link.sent;
      of.received += link.received;
      of.awaited_ms += link.awaited_ms;
      of.blocked_ms += link.blocked_ms;
    }
  }
  wire::Activity a;
  a.set_window_ms(narrow(sum.ms));
  a.set_outside_ms(narrow(sum.outside_ms));
  a.set_idle_ms(narrow(sum.idle_ms));
  a.set_held_ms(narrow(sum.held_ms));
  a.set_replayed_rounds(sum.replayed);
  a.set_replaying(board.replaying.load(std::memory_order_relaxed));
  std::uint64_t moved = 0;
  std::vector<std::pair<std::uint32_t, LinkPart>> links;
  for (const auto& [peer, link] : sum.links) {
    moved += link.sent + link.received;
    if (peer < seen_.size()) links.emplace_back(peer, link);
  }
  a.set_moved_bytes(moved);
  if (links.size() > limits::kMaxLinksPerHeartbeat) {
    std::ranges::stable_sort(links, [](const auto& x, const auto& y) {
      return x.second.awaited_ms + x.second.blocked_ms > y.second.awaited_ms + y.second.blocked_ms;
    });
    links.resize(limits::kMaxLinksPerHeartbeat);
    std::ranges::sort(links, {}, [](const auto& l) { return l.first; });
  }
  for (const auto& [peer, link] : links) {
    wire::LinkActivity& l = *a.add_links();
    const LinkSeen& seen = seen_[peer];
    l.set_peer(peer);
    l.set_sent_bytes(seen.moved.sent);
    l.set_received_bytes(seen.moved.received);
    l.set_window_sent_bytes(link.sent);
    l.set_window_received_bytes(link.received);
    l.set_awaited_ms(narrow(link.awaited_ms));
    l.set_blocked_ms(narrow(link.blocked_ms));
    l.set_quiet_ms(narrow(now - seen.arrived));
    const auto usual = usual_bytes_per_s_.find(peer);
    if (usual != usual_bytes_per_s_.end()) l.set_usual_bytes_per_s(static_cast<std::uint64_t>(usual->second));
  }
  return a;
}

WorkerMachine::Progress ProgressReporter::read(const RoundBoard& board, TimeMs now) {
  sample(board, now);
  end_part();
  WorkerMachine::Progress progress;
  progress.activity = activity(board, now);
  progress.rounds_finished = board.rounds_finished.load(std::memory_order_relaxed);
  progress.bytes_moved = board.bytes_moved.load(std::memory_order_relaxed);
  progress.gpu.set_readers(static_cast<std::uint32_t>(board.gpu_readers.load(std::memory_order_relaxed)));
  progress.gpu.set_inputs_lent(board.inputs_lent.load(std::memory_order_relaxed));
  progress.gpu.set_finals_from_gpus(board.finals_from_gpus.load(std::memory_order_relaxed));
  progress.gpu.set_rounds_exchanged(board.rounds_exchanged.load(std::memory_order_relaxed));
  if (board.log != nullptr) {
    wire::LogFill& log = progress.log.emplace();
    log.set_held_bytes(board.log->bytes_held());
    log.set_budget_bytes(board.log->budget_bytes());
    if (const auto given_up = board.log->gives_up()) {
      log.mutable_given_up()->set_timeline(given_up->timeline.value);
      log.mutable_given_up()->set_version(given_up->version.value);
    }
  }
  std::map<GroupId, WaitingRound> waiting;
  for (const RoundBoard::Entry& entry : board.read()) {
    const auto before = waiting_.find(entry.round.group);
    const bool waits = !entry.waiting_for.empty();
    // A set-up round may be called again and again under its one name.
    const bool one_call = !is_setup(entry.round) || progress.rounds_finished == finished_;
    const bool same = before != waiting_.end() && before->second.round == entry.round && one_call &&
                      before->second.moves == entry.fingerprint.shape && before->second.waits == waits;
    const WaitingRound w{entry.round, entry.fingerprint.shape, waits, same ? before->second.since : now};
    waiting.emplace(entry.round.group, w);
    wire::CurrentRound& r = progress.rounds.emplace_back();
    tell(entry.round, entry.fingerprint, r);
    for (const auto& waited : entry.waiting_for) r.add_waiting_for(static_cast<std::uint32_t>(waited.rank.value));
    r.set_waited_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(now - w.since, 0)));
  }
  waiting_ = std::move(waiting);
  finished_ = progress.rounds_finished;
  auto blocked = board.blocked();
  if (blocked != blocked_) blocked_since_ = now;
  blocked_ = std::move(blocked);
  if (blocked_ != nullptr) {
    progress.blocked = *blocked_;
    progress.blocked->set_blocked_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(now - blocked_since_, 0)));
  }
  return progress;
}

}  // namespace warren::worker

#include "worker/replay/inquiry.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/wire/codec.h"

namespace warren::worker {
namespace {

constexpr std::size_t kAskedAtOnce = 16;
constexpr std::int64_t kFirstPauseMs = 2, kMostPauseMs = 250;
constexpr std::size_t kMaxRanksInText = 8;

}  // namespace

void Inquiry::install(const Replayer::Plan& plan, TimeMs now, std::vector<Replayer::Send>& out) {
  installed_ = true;
  generation_ = plan.generation;
  most_pause_ms_ = std::clamp<std::int64_t>(plan.timeout_ms / 20, kFirstPauseMs, kMostPauseMs);
  peers_.clear();
  for (const bool fresh : {false, true}) {
    for (const Replayer::Peer& p : plan.peers) {
      if (p.server) continue;
      if (p.rank == plan.self) life_ = p.life;
      if (p.rank != plan.self && p.fresh == fresh) peers_.push_back({p.rank, p.life});
    }
  }
  if (round_) begin(now, out);
}

void Inquiry::suspend() {
  installed_ = false;
  answer_.reset();
}

void Inquiry::ask(const RoundId& round, std::vector<std::uint64_t> sites, TimeMs now,
                  std::vector<Replayer::Send>& out) {
  round_ = round;
  sites_ = std::move(sites);
  if (installed_) begin(now, out);
}

void Inquiry::begin(TimeMs now, std::vector<Replayer::Send>& out) {
  answer_.reset();
  for (Peer& p : peers_) p.word = RoundWord::kLater;
  if (peers_.empty()) answer_ = Answer{RoundWord::kAsks, {}};
  next_peer_ = 0;
  first_id_ = last_id_ + 1;
  pause_ms_ = kFirstPauseMs;
  send(now, out);
}

void Inquiry::send(TimeMs now, std::vector<Replayer::Send>& out) {
  std::size_t asked = 0;
  for (std::size_t i = 0; i < peers_.size() && asked < kAskedAtOnce; ++i) {
    const Peer& p = peers_[next_peer_];
    next_peer_ = (next_peer_ + 1) % peers_.size();
    if (p.word != RoundWord::kLater) continue;
    ++asked;
    Replayer::Send& s = out.emplace_back();
    s.to = p.rank;
    wire::FetchRequest& r = s.request;
    r.set_protocol(kProtocolVersion);
    r.set_sender(life_.value);
    r.set_receiver(p.life.value);
    r.set_generation(generation_.value);
    r.set_id(++last_id_);
    r.set_kind(static_cast<std::uint32_t>(RecordKind::kRound));
    r.set_timeline(round_->timeline.value);
    r.set_group(round_->group.value);
    r.set_version(round_->version.value);
    r.set_first_sequence(round_->sequence.value);
    r.set_asks(true);
    r.mutable_sites()->Add(sites_.begin(), sites_.end());
  }
  next_ = now + pause_ms_;
  pause_ms_ = std::min(pause_ms_ * 2, most_pause_ms_);
}

void Inquiry::on_reply(Rank from, const wire::FetchReply& reply) {
  if (!installed_ || !round_ || answer_ || reply.generation() != generation_.value || reply.receiver() != life_.value ||
      reply.id() < first_id_ || reply.id() > last_id_) {
    return;
  }
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.rank == from; });
  if (peer == peers_.end() || reply.sender() != peer->life.value) return;
  switch (static_cast<RoundWord>(reply.word())) {
    case RoundWord::kNone:
    case RoundWord::kLater: return;
    case RoundWord::kRound: answer_ = Answer{RoundWord::kRound, fingerprint_of(reply.entries(0))}; return;
    case RoundWord::kOver: answer_ = Answer{RoundWord::kOver, {}}; return;
    case RoundWord::kAsks:
    case RoundWord::kOther:
    case RoundWord::kGone: break;
  }
  peer->word = static_cast<RoundWord>(reply.word());
  const auto say = [this](RoundWord word) { return std::ranges::count(peers_, word, &Peer::word); };
  if (say(RoundWord::kLater) == 0) {
    // Where ranks wait with different calls, each may be the next round, and two that decided would differ.
    const bool same = say(RoundWord::kAsks) == std::ssize(peers_);
    answer_ = Answer{same ? RoundWord::kAsks : RoundWord::kGone, {}};
  }
}

void Inquiry::on_tick(TimeMs now, std::vector<Replayer::Send>& out) {
  if (const auto deadline = next_deadline(); deadline && *deadline <= now) send(now, out);
}

std::optional<TimeMs> Inquiry::next_deadline() const {
  return installed_ && round_ && !answer_ ? std::optional(next_) : std::nullopt;
}

std::optional<Inquiry::Answer> Inquiry::answer() const {
  return round_ ? answer_ : std::nullopt;
}

std::string Inquiry::describe() const {
  std::string text;
  std::size_t n = 0;
  for (const Peer& p : peers_) {
    if (p.word != RoundWord::kLater) continue;
    if (n == kMaxRanksInText) {
      text += " and others";
      break;
    }
    text += (n++ == 0 ? "" : ", ") + std::to_string(p.rank.value);
  }
  return (n == 1 ? "rank " : "ranks ") + text;
}

}  // namespace warren::worker

#include "worker/replay/requests.h"

#include <algorithm>
#include <utility>

#include "recovery/wire/codec.h"

namespace warren::worker::replay {
namespace {

// Requests of one rank that may get lost while it answers others, before it counts as one that does not answer.
constexpr int kLostRequests = 8;

}  // namespace

void Requests::install(const Replayer::Plan& plan) {
  generation_ = plan.generation;
  follows_ = plan.follows;
  timeout_ms_ = std::max<std::int64_t>(plan.timeout_ms, 1);
  heard_.clear();
}

wire::FetchRequest& Requests::add(Rank to, const RecordKey& stream, Pending p, TimeMs now,
                                  std::vector<Replayer::Send>& out) {
  const std::uint64_t id = ++last_;
  Replayer::Send& send = out.emplace_back();
  send.to = to;
  wire::FetchRequest& r = send.request;
  r.set_protocol(kProtocolVersion);
  r.set_sender(hosts_.own_life().value);
  r.set_receiver(hosts_.life_of(to).value);
  r.set_generation(generation_.value);
  r.set_follows(follows_);
  r.set_id(id);
  r.set_kind(static_cast<std::uint32_t>(stream.kind));
  r.set_timeline(stream.round.timeline.value);
  r.set_group(stream.round.group.value);
  r.set_version(stream.round.version.value);
  p.rank = to;
  p.stream = stream;
  p.sent = now;
  pending_.emplace(id, std::move(p));
  return r;
}

std::optional<Pending> Requests::take(Rank from, const wire::FetchReply& reply, TimeMs now) {
  if (reply.generation() != generation_.value || reply.receiver() != hosts_.own_life().value) return std::nullopt;
  const auto found = pending_.find(reply.id());
  if (found == pending_.end() || found->second.rank != from || reply.sender() != hosts_.life_of(from).value ||
      reply.data() == found->second.pieces.empty()) {
    return std::nullopt;
  }
  std::optional<Pending> p = std::move(found->second);
  pending_.erase(found);
  Heard& h = heard_[from];
  h = {now, std::max(h.id, reply.id()), h.lost};
  return p;
}

std::vector<Pending> Requests::take_all_of(Rank rank) {
  std::vector<Pending> taken;
  for (auto p = pending_.begin(); p != pending_.end();) {
    if (p->second.rank != rank) {
      ++p;
      continue;
    }
    taken.push_back(std::move(p->second));
    p = pending_.erase(p);
  }
  return taken;
}

std::set<Rank> Requests::look_for_silent(TimeMs now, std::vector<Pending>& passed_over) {
  std::set<Rank> silent;
  for (auto i = pending_.begin(); i != pending_.end();) {
    auto& [id, p] = *i;
    if (deadline_of(id, p) > now || silent.contains(p.rank)) {
      ++i;
      continue;
    }
    const auto h = heard_.find(p.rank);
    if (h != heard_.end() && h->second.id > id && ++h->second.lost <= kLostRequests) {
      passed_over.push_back(std::move(p));
      i = pending_.erase(i);
    } else {
      silent.insert(p.rank);
      ++i;
    }
  }
  return silent;
}

std::optional<TimeMs> Requests::next_deadline() const {
  std::optional<TimeMs> next;
  for (const auto& [id, p] : pending_) {
    const TimeMs t = deadline_of(id, p);
    if (!next || t < *next) next = t;
  }
  return next;
}

// Until when an answer is waited for. A rank that answers what was asked earlier is at work; it has passed over what
// it was asked before something that it has answered.
TimeMs Requests::deadline_of(std::uint64_t id, const Pending& p) const {
  const auto h = heard_.find(p.rank);
  const bool at_work = h != heard_.end() && h->second.id < id && p.sent < h->second.at;
  return (at_work ? h->second.at : p.sent) + timeout_ms_;
}

Requests::Asked Requests::asked(const RecordKey& stream) const {
  Asked asked;
  for (const auto& [id, p] : pending_) {
    if (p.stream == stream) (p.pieces.empty() ? asked.listing : asked.data).insert(p.rank.value);
  }
  return asked;
}

}  // namespace warren::worker::replay

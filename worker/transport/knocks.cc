#include "worker/transport/knocks.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace warren::worker {
namespace {

constexpr std::int64_t kPatienceMs = 1000;  // with one attempt
constexpr std::int64_t kRefusedPauseMs = 25;
constexpr std::int64_t kFirstPauseMs = 50;
constexpr std::int64_t kMostPauseMs = 1000;

}  // namespace

void Knocks::begin(Rank peer, std::vector<Place> places, std::int64_t first_ms, std::int64_t for_ms, TimeMs now) {
  if (knocks_.size() >= kMost || places.empty()) return;
  const auto [it, fresh] = knocks_.try_emplace(peer);
  if (!fresh) return;
  Knock& k = it->second;
  k.places = std::move(places);
  k.next = now + first_ms;
  k.until = now + for_ms;
  k.pause_ms = kFirstPauseMs;
}

std::vector<Rank> Knocks::peers() const {
  std::vector<Rank> peers;
  for (const auto& [peer, k] : knocks_) peers.push_back(peer);
  return peers;
}

Knocks::Answer Knocks::attempt(Knock& k) {
  const SocketAddress& to = k.places[k.attempts++ % k.places.size()].address;
  k.fd = begin_to_connect(to);
  if (k.fd.open()) return look(k);
  return errno == ECONNREFUSED ? Answer::kRefused : Answer::kOther;
}

Knocks::Answer Knocks::look(Knock& k) {
  const auto error = why_not_connected(k.fd.get());
  if (!error) return Answer::kNone;
  return *error == 0 ? Answer::kAccepted : *error == ECONNREFUSED ? Answer::kRefused : Answer::kOther;
}

bool Knocks::judge(Knock& k, Answer answer, TimeMs now) {
  k.fd = OwnedFd();
  if (answer != Answer::kRefused) {
    k.refusals = 0;
    k.next = now + k.pause_ms;
    k.pause_ms = std::min(2 * k.pause_ms, kMostPauseMs);
    return false;
  }
  if (k.refusals++ == 0) k.refused_since = now;
  k.next = now + kRefusedPauseMs;
  return k.refusals >= std::max(kRefusals, k.places.size()) && now - k.refused_since >= kRefusedForMs;
}

std::vector<Knocks::Gone> Knocks::run(TimeMs now) {
  std::vector<Gone> gone;
  for (auto it = knocks_.begin(); it != knocks_.end();) {
    Knock& k = it->second;
    Answer answer = Answer::kNone;
    if (k.fd.open()) {
      answer = look(k);
      if (answer == Answer::kNone && now >= k.next) answer = Answer::kOther;
    } else if (now >= k.next && now < k.until) {
      k.next = now + kPatienceMs;
      answer = attempt(k);
    }
    bool over = !k.fd.open() && now >= k.until;
    if (answer != Answer::kNone && judge(k, answer, now)) {
      over = true;
      std::string where;
      for (const Place& place : k.places) where += (where.empty() ? "" : ", ") + place.name;
      gone.push_back({it->first, "its process has gone: nobody listens at " + where + " any more (refused " +
                                     std::to_string(k.refusals) + " times in " + std::to_string(now - k.refused_since) +
                                     " ms)"});
    }
    it = over ? knocks_.erase(it) : std::next(it);
  }
  return gone;
}

void Knocks::collect_pollfds(std::vector<pollfd>& out) const {
  for (const auto& [peer, k] : knocks_) {
    if (k.fd.open()) out.push_back({k.fd.get(), POLLOUT, 0});
  }
}

std::optional<TimeMs> Knocks::next_deadline() const {
  std::optional<TimeMs> next;
  for (const auto& [peer, k] : knocks_) {
    const TimeMs at = k.fd.open() ? k.next : std::min(k.next, k.until);
    if (!next || at < *next) next = at;
  }
  return next;
}

}  // namespace warren::worker

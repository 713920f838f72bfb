#include "worker/replay/streams.h"

#include <algorithm>

#include "worker/replay/record_text.h"

namespace warren::worker::replay {
namespace {

constexpr std::size_t kIdleStreams = 64;
// So many wants for others make a stream one that nobody comes back to.
constexpr std::uint64_t kForgotten = 1000;

}  // namespace

void Round::add_held(std::size_t host, const wire::FetchEntry& entry) {
  auto h = std::find_if(holders.begin(), holders.end(), [&](const Holder& x) { return x.host == host; });
  if (h == holders.end()) h = holders.insert(holders.end(), {host, {}});
  for (const wire::ByteRange& r : entry.held()) h->held.add(r.begin(), r.end());
}

void Round::not_held(std::size_t host, const Ranges& bytes) {
  for (Holder& h : holders) {
    if (h.host == host) h.held = h.held.minus(bytes);
  }
}

void Round::forget_host(std::size_t host) {
  std::erase_if(holders, [&](const Holder& h) { return h.host == host; });
}

Stream* Streams::find(const RecordKey& stream) {
  const auto s = streams_.find(stream);
  return s == streams_.end() ? nullptr : &s->second;
}

std::pair<Stream&, bool> Streams::use(const RecordKey& stream) {
  const bool is_new = !streams_.contains(stream);
  if (is_new) make_room();
  Stream& s = streams_[stream];
  s.used = ++clock_;
  return {s, is_new};
}

void Streams::leave(const RecordKey& key, std::uint64_t id) {
  const std::uint64_t sequence = key.round.sequence.value;
  const auto s = streams_.find(stream_key(key));
  if (s == streams_.end()) return;
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
    window_.drop(round.ahead);
    stream.open.erase(sequence);
  }
  if (stream.wants.empty()) {
    stream.listings.ask_no_more();
    stream.base = std::max(stream.base, sequence + 1);
    if (!windowed(key.kind)) streams_.erase(s);
  }
}

void Streams::trim(Stream& s) {
  if (!s.wants.empty()) s.base = std::max(s.base, s.wants.begin()->first);
  while (!s.rounds.empty() && s.rounds.begin()->first < s.base) {
    window_.drop(s.rounds.begin()->second.ahead);
    s.rounds.erase(s.rounds.begin());
  }
  s.open.erase(s.open.begin(), s.open.lower_bound(s.base));
}

void Streams::drop_forgotten(const Stream& current) {
  for (auto i = streams_.begin(); i != streams_.end();) {
    const auto at = i++;
    const Stream& s = at->second;
    if (&s != &current && s.wants.empty() && clock_ - s.used >= kForgotten) erase(at);
  }
}

void Streams::make_room() {
  auto oldest = streams_.end();
  std::size_t idle = 0;
  for (auto i = streams_.begin(); i != streams_.end(); ++i) {
    if (!i->second.wants.empty()) continue;
    ++idle;
    if (oldest == streams_.end() || i->second.used < oldest->second.used) oldest = i;
  }
  if (idle >= kIdleStreams) erase(oldest);
}

void Streams::erase(Place s) {
  for (auto& [sequence, round] : s->second.rounds) window_.drop(round.ahead);
  streams_.erase(s);
}

}  // namespace warren::worker::replay

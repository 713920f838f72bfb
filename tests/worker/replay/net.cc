#include "tests/worker/replay/net.h"

#include <gtest/gtest.h>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/fetch_codec.h"
#include "tests/storage/record_info.h"

namespace warren::worker::replaytest {

RecordInfo info_of(std::uint64_t total, std::uint64_t count) {
  return record_info(total, count, DataType::kF32, ReduceOp::kSum);
}

std::byte byte_of(const RecordKey& key, std::uint64_t at) {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(key.kind) * 7 + key.round.version.value * 31 +
                               key.round.group.value * 101 + key.round.sequence.value * 1009 + at / 8 + 1) *
                              0x9e3779b97f4a7c15;
  return static_cast<std::byte>(mixed >> (8 * (at % 8)));
}

std::vector<std::byte> bytes_of(const RecordKey& key, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::byte> bytes(end - begin);
  for (std::uint64_t at = begin; at < end; ++at) bytes[at - begin] = byte_of(key, at);
  return bytes;
}

void Life::publish(const RecordKey& key, std::uint64_t total, std::uint64_t begin, std::uint64_t end) const {
  const Status s = log->publish(key, info_of(total), begin, bytes_of(key, begin, end));
  WARREN_CHECK(s.ok(), "the test's log has room");
}

Net::Net(const std::vector<std::string>& hosts, std::uint64_t seed, std::size_t segment_bytes)
    : random(seed), segment_bytes_(segment_bytes) {
  plan.self = Rank(0);
  plan.replicas = 1;
  plan.timeout_ms = 1000;
  lives.push_back(make(Rank(0), "host-0", "domain-host-0"));
  for (const std::string& host : hosts) {
    lives.push_back(make(Rank(static_cast<std::int32_t>(lives.size())), host, "domain-" + host));
  }
  for (const Life& a : lives) {
    for (const Life& b : lives) {
      if (a.rank != b.rank && a.host == b.host) attach(a.rank.value, b.rank.value);
    }
  }
  replayer = std::make_unique<Replayer>(*lives[0].reader);
}

Life Net::make(Rank rank, const std::string& host, const std::string& domain) {
  Life l;
  l.rank = rank;
  l.self = Incarnation(++last_life_);
  l.host = host;
  l.domain = domain;
  l.memory = heap_segment(segment_bytes_);
  auto log = HostLog::create(l.self, l.memory);
  WARREN_CHECK(log.ok(), "the test's segment is large enough");
  l.log = std::move(log).value();
  l.reader = l.log->reader();
  return l;
}

void Net::attach(std::int32_t reader, std::int32_t of) {
  Life& l = life(of);
  WARREN_CHECK(life(reader).log->attach(l.self, l.memory->bytes(), l.memory).ok(), "a segment of the test is one");
}

void Net::replace(std::int32_t rank) {
  Life next = make(Rank(rank), life(rank).host, life(rank).domain);
  std::swap(next, life(rank));
  next.alive = false;
  dead.push_back(std::move(next));
}

void Net::install() {
  plan.generation = plan.generation.next();
  plan.peers.clear();
  for (const Life& l : lives) plan.peers.push_back({l.rank, l.self, l.host, l.domain, l.fresh, l.since, l.server});
  std::vector<Replayer::Send> out;
  replayer->install(plan, now, out);
  send(out);
}

void Net::suspend() {
  replayer->suspend();
  asked_.clear();
}

std::uint64_t Net::want(Replayer::Want want) {
  std::vector<Replayer::Send> out;
  const std::uint64_t id = replayer->want(std::move(want), now, out);
  send(out);
  return id;
}

std::uint64_t Net::want(const RecordKey& key, std::vector<std::byte>& buffer, std::uint64_t begin, std::uint64_t end) {
  Replayer::Want w;
  w.key = key;
  w.fingerprint = info_of(buffer.size()).fingerprint;
  w.total_bytes = buffer.size();
  w.bytes = Ranges(begin, end);
  w.base = buffer.data();
  return want(std::move(w));
}

std::uint64_t Net::want(const RecordKey& key, std::vector<std::byte>& buffer) {
  return want(key, buffer, 0, buffer.size());
}

void Net::send(std::vector<Replayer::Send>& out) {
  for (const Replayer::Send& s : out) {
    const std::string bytes = encode(s.request);
    EXPECT_LE(bytes.size(), limits::kMaxFetchRequestBytes);
    (s.request.pieces().empty() ? listings : data_requests) += 1;
    std::uint64_t payload = 0;
    for (const wire::FetchPiece& p : s.request.pieces()) payload += p.end() - p.begin();
    asked_[s.request.id()] = payload;
    std::uint64_t sum = 0;
    for (const auto& [id, n] : asked_) sum += n;
    most_asked_at_once = std::max(most_asked_at_once, sum);
    if (on_request && !on_request(s)) continue;
    if (happens(faults.lose)) continue;
    const auto request = decode_fetch_request(std::as_bytes(std::span(bytes)));
    EXPECT_TRUE(request.ok()) << request.status().describe();
    for (int copies = happens(faults.copy) ? 2 : 1; copies > 0; --copies) {
      after(delay_ms(), [this, s] { serve(s); });
    }
  }
  out.clear();
}

void Net::serve(const Replayer::Send& s) {
  Life& l = life(s.to.value);
  if (!l.alive || s.request.receiver() != l.self.value) return;
  wire::FetchReply reply = Replayer::answer(s.request, *l.reader);
  const std::string bytes = encode(reply, Payloads::kInside);
  EXPECT_LE(bytes.size(), limits::kMaxFetchReplyBytes);
  auto decoded = decode_fetch_reply(std::as_bytes(std::span(bytes)), Payloads::kInside);
  EXPECT_TRUE(decoded.ok()) << decoded.status().describe();
  payload_of[s.to.value] += reply.data() ? range_bytes(reply) : 0;
  if (reply.data() && happens(faults.damage)) {
    for (wire::FetchEntry& e : *reply.mutable_entries()) {
      if (!e.payload().empty()) (*e.mutable_payload())[0] ^= 1;
    }
  }
  if (on_reply && !on_reply(s.to, reply)) return;
  if (happens(faults.lose)) return;
  std::int64_t busy_ms = 0;
  if (service_ms.contains(s.to.value)) {
    TimeMs& until = busy_until_[s.to.value];
    until = std::max(until, now) + service_ms[s.to.value];
    busy_ms = until - now;
  }
  for (int copies = happens(faults.copy) ? 2 : 1; copies > 0; --copies) {
    after(busy_ms + delay_ms(), [this, from = s.to, reply] {
      asked_.erase(reply.id());
      std::vector<Replayer::Send> out;
      replayer->on_reply(from, reply, now, out);
      send(out);
    });
  }
}

bool Net::step(TimeMs end) {
  for (const std::string& w : replayer->take_warnings()) warnings.push_back(w);
  const auto deadline = replayer->next_deadline();
  TimeMs next = end;
  if (!events_.empty() && events_.top().at < next) next = events_.top().at;
  const bool tick = deadline && *deadline <= next;
  if (tick) next = *deadline;
  if (next >= end && !tick && (events_.empty() || events_.top().at > end)) {
    now = end;
    return false;
  }
  if (next > now) now = next;
  if (tick) {
    std::vector<Replayer::Send> out;
    replayer->on_tick(now, out);
    const auto again = replayer->next_deadline();
    EXPECT_TRUE(!again || *again > now) << "a deadline that has passed is dealt with";
    send(out);
  } else {
    const Event e = events_.top();
    events_.pop();
    e.what();
  }
  return true;
}

std::optional<Replayer::Done> Net::run(std::int64_t for_ms) {
  const TimeMs end = now + for_ms;
  while (true) {
    for (Replayer::Done& d : replayer->take_done()) done_.push_back(std::move(d));
    if (!done_.empty()) {
      Replayer::Done d = std::move(done_.front());
      done_.erase(done_.begin());
      return d;
    }
    if (!step(end)) return std::nullopt;
  }
}

void Net::run_for(std::int64_t ms) {
  const TimeMs end = now + ms;
  while (step(end)) {
  }
}

}  // namespace warren::worker::replaytest

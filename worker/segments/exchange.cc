#include "worker/segments/exchange.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/packed_members.h"
#include "worker/transport/same_user.h"

namespace warren::worker {
namespace {

constexpr std::int64_t kStrangerTimeoutMs = 5000;  // for a handshake, and for us to hear of a new life's plan
constexpr std::int64_t kFirstBackoffMs = 10;
constexpr std::int64_t kMaxBackoffMs = 500;
constexpr std::int64_t kAcceptPauseMs = 100;
constexpr int kWarningsPerSecond = 5;
// Each kept segment is a descriptor and a mapping. The owner forgets what serves no more (worker/life/dead_segments.h);
// so many are there only if what they hold finds no room elsewhere.
constexpr std::size_t kMostDead = 512;
constexpr std::size_t kMostForgotten = 4096;
// That a mate lends: more than a program may allocate (HostMemory::kMost).
constexpr std::size_t kMostMemory = 1024;
// Of this life's memory, on its way to one mate.
constexpr std::size_t kMostUnanswered = 4;
// Of what is mapped in one run(): heartbeats wait for it. Some 20 ms; the rest is touched by who reads it first.
constexpr std::size_t kMostPopulated = std::size_t{256} << 20;

}  // namespace

Result<std::unique_ptr<SegmentExchange>> SegmentExchange::create(const std::string& job,
                                                                 const handshake::LinkKey& link_key, Incarnation self,
                                                                 const std::shared_ptr<MemfdSegment>& segment,
                                                                 Events events) {
  // A name that plans need not say, unless another process has it.
  auto listener = listen_at(segment_socket_of(self));
  if (!listener.ok()) listener = listen_for_segments("warren-segments-");
  if (!listener.ok()) return listener.status();
  OwnedFd own(::fcntl(segment->fd(), F_DUPFD_CLOEXEC, 0));
  if (!own.open()) {
    return Status(Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno));
  }
  Kept kept{std::make_shared<const OwnedFd>(std::move(own)), segment->bytes().size()};
  return std::unique_ptr<SegmentExchange>(
      new SegmentExchange(job, link_key, self, std::move(kept), std::move(listener).value(), std::move(events)));
}

SegmentExchange::SegmentExchange(const std::string& job, const handshake::LinkKey& link_key, Incarnation self, Kept own,
                                 SegmentListener listener, Events events)
    : job_hash_(handshake::job_hash(job)),
      key_(segment_key(link_key)),
      self_(self),
      own_(std::move(own)),
      listener_(std::move(listener)),
      events_(std::move(events)) {}

SegmentExchange::~SegmentExchange() {
  sodium_memzero(key_.data(), key_.size());
}

Status SegmentExchange::add(Incarnation life, OwnedFd fd, std::uint64_t bytes) {
  if (life == self_ || kept_.contains(life)) return {};
  if (!friends_.contains(life) && std::ranges::find(forgotten_, life) != forgotten_.end()) return {};
  const auto fail = [life](const Status& why) {
    return why.because_of_this("cannot map the log segment of life " + std::to_string(life.value));
  };
  if (kept_.size() >= friends_.size() + kMostDead) {
    return fail(Status(Code::kExhausted, "segments of " + std::to_string(kept_.size()) + " lives are kept already"));
  }
  auto mapped = map_segment(fd.get(), bytes);
  if (!mapped.ok()) return fail(mapped.status());
  if (Status s = events_.attached(life, std::move(mapped).value()); !s.ok()) return fail(s);
  kept_[life] = {std::make_shared<const OwnedFd>(std::move(fd)), bytes};
  return {};
}

void SegmentExchange::begin_generation(Membership membership, TimeMs now) {
  WARREN_CHECK(!members_, "a generation begins after the one before has ended");
  members_ = std::move(membership);
  complete_ = false;
  deadline_ = now + members_->timeout_ms;
  std::map<Incarnation, Friend> before = std::exchange(friends_, {});
  for (const Mate& mate : members_->mates) {
    WARREN_CHECK(mate.life != self_ && mate.rank != members_->self, "mates are the other ranks");
    if (auto known = before.find(mate.life); known != before.end()) friends_[mate.life] = std::move(known->second);
    Friend& f = friends_[mate.life];
    f.mate = mate;
    f.has.insert(mate.life);
    f.failed = false;
    // It may be able to by now.
    if (!f.refused.ok()) f.sent.erase(self_);
    f.refused = f.cannot = {};
    f.retry_at = now;
    f.backoff_ms = kFirstBackoffMs;
  }
  run(now);
}

void SegmentExchange::end_generation() {
  members_.reset();
}

void SegmentExchange::forget(Incarnation life) {
  kept_.erase(life);
  forgotten_.push_back(life);
  if (forgotten_.size() > kMostForgotten) forgotten_.pop_front();
}

std::vector<Incarnation> SegmentExchange::kept() const {
  std::vector<Incarnation> lives;
  for (const auto& [life, kept] : kept_) lives.push_back(life);
  return lives;
}

handshake::Verdict SegmentExchange::judge(const handshake::Hello& hello) const {
  const bool me = hello.job_hash == job_hash_ && hello.to_incarnation == self_ && hello.from_incarnation != self_;
  return me ? handshake::Verdict::kWelcome : handshake::Verdict::kNotMe;
}

void SegmentExchange::warn(const std::string& text, TimeMs now) {
  if (now - warnings_since_ >= 1000) {
    warnings_since_ = now;
    warnings_ = 0;
  }
  if (++warnings_ <= kWarningsPerSecond) events_.warning(text);
}

void SegmentExchange::accept_some(TimeMs now) {
  for (int taken = 0; taken < kAcceptsATurn; ++taken) {
    OwnedFd fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        warn(std::string("cannot accept log segments of this host: ") + std::strerror(errno) + "; trying again", now);
        accept_again_ = now + kAcceptPauseMs;
      }
      return;
    }
    if (!is_same_user(fd.get())) {
      warn("a connection for log segments was refused: a process of another user", now);
      continue;
    }
    // The oldest goes first, so that a flood does not lock mates out: they try again.
    if (arrivals_.size() >= limits::kMaxPendingHandshakes) arrivals_.pop_front();
    auto channel = SegmentChannel::accept(std::move(fd), key_, [this](const auto& hello) { return judge(hello); });
    arrivals_.push_back({std::move(channel), now + kStrangerTimeoutMs});
  }
}

// Moves handshakes on; those that belong to a mate become its channel, those of lives that no plan has named yet wait.
void SegmentExchange::sort_arrivals(TimeMs now) {
  for (auto a = arrivals_.begin(); a != arrivals_.end();) {
    a->channel->run();
    bool done = a->channel->closed();
    if (done && (!a->channel->trouble().ok() || a->channel->heard())) {
      warn(
          "a connection for log segments was refused: " +
              (a->channel->trouble().ok() ? "closed in the middle of the handshake" : a->channel->trouble().describe()),
          now);
    } else if (!done && a->channel->open() && members_) {
      const auto f = friends_.find(a->channel->hello().from_incarnation);
      if (f != friends_.end()) {
        adopt(f->second, std::move(a->channel));
        done = true;
      }
    }
    if (!done && now >= a->deadline) {
      warn("a connection for log segments came to nothing within " + std::to_string(kStrangerTimeoutMs) + " ms", now);
      done = true;
    }
    a = done ? arrivals_.erase(a) : std::next(a);
  }
}

void SegmentExchange::connect(Friend& f, TimeMs now) {
  handshake::Hello hello;
  hello.job_hash = job_hash_;
  hello.generation = members_->generation;
  hello.from = members_->self;
  hello.to = f.mate.rank;
  hello.from_incarnation = self_;
  hello.to_incarnation = f.mate.life;
  f.retry_at = now + f.backoff_ms;
  f.backoff_ms = std::min(2 * f.backoff_ms, kMaxBackoffMs);
  auto channel = SegmentChannel::connect(f.mate.socket, key_, hello);
  if (!channel.ok()) {
    f.last_trouble = channel.status().describe();
    return;
  }
  adopt(f, std::move(channel).value());
}

void SegmentExchange::adopt(Friend& f, std::unique_ptr<SegmentChannel> channel) {
  f.channel = std::move(channel);
  f.sent.clear();
  f.offered_here.clear();
  f.unanswered.clear();
  f.told_gone.clear();
  f.told = Generation();
}

// Everything that the mate may lack, then that this is all.
void SegmentExchange::give(Friend& f) {
  const auto give_one = [&f](Incarnation life, const Kept& segment) {
    if (f.has.contains(life) || !f.sent.insert(life).second) return;
    f.channel->send({SegmentMessage::Kind::kSegment, life, segment.bytes, 0}, segment.fd);
  };
  give_one(self_, own_);
  for (const auto& [life, segment] : kept_) {
    // The living give their own.
    if (!friends_.contains(life)) give_one(life, segment);
  }
  f.told = members_->generation;
  f.channel->send({SegmentMessage::Kind::kDone, self_, f.told.value, 0});
}

void SegmentExchange::lend(std::uint32_t memory, std::shared_ptr<const OwnedFd> fd, std::uint64_t bytes, bool on_gpu) {
  memory_[memory] = {std::move(fd), bytes, on_gpu};
}

void SegmentExchange::take_back(std::uint32_t memory) {
  memory_.erase(memory);
  for (auto& [life, f] : friends_) {
    const bool known = f.offered.erase(memory) + f.reads.erase(memory) != 0;
    f.offered_here.erase(memory);
    if (known) f.gone.insert(memory);
  }
}

void SegmentExchange::give_memory(Friend& f) {
  for (const std::uint32_t memory : f.gone) {
    if (f.told_gone.insert(memory).second) f.channel->send({SegmentMessage::Kind::kMemoryGone, self_, 0, memory});
  }
  for (const auto& [memory, kept] : memory_) {
    // What lies in the channel of a mate that does not read keeps its pages, however often it is freed.
    if (f.unanswered.size() == kMostUnanswered) break;
    if (f.reads.contains(memory) || !f.offered_here.insert(memory).second) continue;
    f.offered.insert(memory);
    // A GPU's is not freed and made again, and may be answered never.
    if (!kept.on_gpu) f.unanswered.insert(memory);
    const auto kind = kept.on_gpu ? SegmentMessage::Kind::kGpuMemory : SegmentMessage::Kind::kMemory;
    f.channel->send({kind, self_, kept.bytes, memory}, kept.fd);
  }
}

void SegmentExchange::on_memory(Friend& f, SegmentChannel::Received received) {
  const auto memory = static_cast<std::uint32_t>(received.message.owner);
  if (received.message.kind == SegmentMessage::Kind::kMemoryAck) {
    f.unanswered.erase(memory);
    if (received.message.value == 0) {
      f.gone.erase(memory);
      f.told_gone.erase(memory);
    }
    if (received.message.value != 0 && f.offered.contains(memory) && f.reads.insert(memory).second) {
      events_.lent(f.mate.life, memory);
    }
    return;
  }
  if (received.message.kind == SegmentMessage::Kind::kMemoryGone) {
    f.asks.erase(memory);
    if (f.lends.erase(memory) != 0) events_.returned(f.mate.life, memory);
    f.channel->send({SegmentMessage::Kind::kMemoryAck, self_, 0, memory});
    return;
  }
  bool taken = f.lends.contains(memory);
  if (received.message.kind == SegmentMessage::Kind::kGpuMemory && !taken) {
    // Over a new connection what was asked is asked again.
    if (f.asks.contains(memory)) return;
    if (events_.offered && f.lends.size() + f.asks.size() < kMostMemory) {
      f.asks.insert(memory);
      return events_.offered(f.mate.life, memory, std::move(received.fd), received.message.value);
    }
  } else if (!taken && f.lends.size() < kMostMemory && events_.borrowed) {
    auto mapped = map_segment(received.fd.get(), received.message.value);
    taken = mapped.ok();
    if (taken) {
      // Its pages are there: not one by one in the first round.
      const auto bytes = mapped.value().bytes;
      const std::size_t populated = std::min(bytes.size(), populate_left_);
      populate_left_ -= populated;
      if (populated != 0) (void)::madvise(const_cast<std::byte*>(bytes.data()), populated, MADV_POPULATE_READ);
      f.lends.insert(memory);
      events_.borrowed(f.mate.life, memory, std::move(mapped).value());
    } else {
      f.last_trouble = mapped.status().describe();
    }
  }
  f.channel->send({SegmentMessage::Kind::kMemoryAck, self_, taken ? 1u : 0u, memory});
}

void SegmentExchange::answer(Incarnation life, std::uint32_t memory, bool mapped) {
  const auto f = friends_.find(life);
  if (f == friends_.end() || f->second.asks.erase(memory) == 0) return;
  if (mapped) f->second.lends.insert(memory);
  if (f->second.channel && f->second.channel->open()) {
    f->second.channel->send({SegmentMessage::Kind::kMemoryAck, self_, mapped ? 1u : 0u, memory});
  }
}

void SegmentExchange::pump(Friend& f, TimeMs now) {
  if (!f.channel) {
    if (connects_to(f.mate) && now >= f.retry_at) connect(f, now);
    if (!f.channel) return;
  }
  f.channel->run();
  if (f.channel->open() && f.told < members_->generation) give(f);
  if (f.channel->open()) give_memory(f);
  while (auto received = f.channel->receive()) on_message(f, std::move(*received));
  // What was answered makes room for more.
  if (f.channel->open()) give_memory(f);
  if (!f.channel->closed()) return;
  f.last_trouble = f.channel->trouble().ok() ? "it has closed the connection" : f.channel->trouble().describe();
  f.channel.reset();
  f.retry_at = now + f.backoff_ms;
}

void SegmentExchange::on_message(Friend& f, SegmentChannel::Received received) {
  const SegmentMessage& m = received.message;
  switch (m.kind) {
    case SegmentMessage::Kind::kSegment: {
      const Status status = add(m.life, std::move(received.fd), m.value);
      if (!status.ok()) f.last_trouble = status.describe();
      if (!status.ok() && m.life == f.mate.life) f.cannot = status;
      if (status.ok()) f.has.insert(m.life);
      f.channel->send({SegmentMessage::Kind::kAck, m.life, status.ok() ? 1u : 0u, 0});
      break;
    }
    case SegmentMessage::Kind::kAck:
      if (!f.sent.contains(m.life)) break;
      if (m.value != 0) {
        f.has.insert(m.life);
      } else if (m.life == self_) {
        f.refused = {Code::kRefused, "it could not map it; its own log says why"};
      }
      break;
    case SegmentMessage::Kind::kDone: f.heard = std::max(f.heard, Generation(m.value)); break;
    case SegmentMessage::Kind::kForget: break;  // keepers are told; mates decide for themselves
    case SegmentMessage::Kind::kMemory:
    case SegmentMessage::Kind::kGpuMemory:
    case SegmentMessage::Kind::kMemoryAck:
    case SegmentMessage::Kind::kMemoryGone: on_memory(f, std::move(received)); break;
  }
}

void SegmentExchange::run(TimeMs now) {
  if (!accept_again_ || now >= *accept_again_) {
    accept_again_.reset();
    accept_some(now);
  }
  sort_arrivals(now);
  if (!members_) return;
  populate_left_ = kMostPopulated;
  for (auto& [life, f] : friends_) pump(f, now);
  look(now);
}

// Whether the generation is complete, or a mate has failed it.
void SegmentExchange::look(TimeMs now) {
  if (complete_) return;
  const Generation generation = members_->generation;
  std::vector<std::pair<Rank, Status>> failed;
  bool all = true;
  for (auto& [life, f] : friends_) {
    if (f.has.contains(self_) && f.heard >= generation && f.cannot.ok()) continue;
    all = false;
    if (f.failed || (f.refused.ok() && f.cannot.ok() && now < deadline_)) continue;
    f.failed = true;
    if (!f.cannot.ok()) {
      failed.emplace_back(f.mate.rank,
                          f.cannot.because_of_this(Code::kPeerLost, "this rank shares no memory with rank " +
                                                                        std::to_string(f.mate.rank.value)));
      continue;
    }
    const std::string what = "rank " + std::to_string(f.mate.rank.value) + " of this host " +
                             (f.has.contains(self_) ? "has not passed on the log segments that it keeps"
                                                    : "has not mapped this life's log segment");
    if (!f.refused.ok()) {
      failed.emplace_back(f.mate.rank, f.refused.because_of_this(Code::kPeerLost, what));
    } else {
      failed.emplace_back(f.mate.rank,
                          Status(Code::kPeerLost, what + " within " + std::to_string(members_->timeout_ms) + " ms" +
                                                      (f.last_trouble.empty() ? "" : ": " + f.last_trouble)));
    }
  }
  complete_ = all;
  if (all) events_.complete(generation);
  for (const auto& [rank, status] : failed) events_.failed(generation, rank, status);
}

void SegmentExchange::collect_pollfds(std::vector<pollfd>& out) const {
  if (!accept_again_) out.push_back({listener_.fd.get(), POLLIN, 0});
  for (const Arrival& a : arrivals_) {
    // One that waits for its plan is not read.
    if (!a.channel->open()) out.push_back(a.channel->wait_for(true));
  }
  if (!members_) return;
  for (const auto& [life, f] : friends_) {
    if (f.channel) out.push_back(f.channel->wait_for(true));
  }
}

std::optional<TimeMs> SegmentExchange::next_deadline() const {
  std::optional<TimeMs> next = accept_again_;
  const auto sooner = [&](TimeMs t) {
    if (!next || t < *next) next = t;
  };
  for (const Arrival& a : arrivals_) sooner(a.deadline);
  if (!members_) return next;
  for (const auto& [life, f] : friends_) {
    if (!f.channel && connects_to(f.mate)) sooner(f.retry_at);
    if (!complete_ && !f.failed) sooner(deadline_);
  }
  return next;
}

}  // namespace warren::worker

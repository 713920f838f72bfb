#include "worker/transport/connector.h"

#include <netinet/in.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "storage/fork_guard.h"
#include "worker/transport/link_sockets.h"
#include "worker/transport/pass_fd.h"
#include "worker/transport/same_user.h"

namespace warren::worker {
namespace {

constexpr std::int64_t kStrangerTimeoutMs = 5000;  // for a handshake to finish, once a connection is there
constexpr std::int64_t kFirstBackoffMs = 20;
constexpr std::int64_t kMaxBackoffMs = 1000;
// Links are up sooner than this, but where machines are busy; and so are plans, after an interrupt that all answer.
constexpr std::int64_t kLookAtLateLinkMs = 50;
constexpr std::int64_t kLookAtSuspendedMs = 20;
constexpr std::int64_t kAcceptPauseMs = 100;
constexpr int kWarningsPerSecond = 5;
// Groups and peers with links that are wanted, or have come: as many as the transport takes.
constexpr std::size_t kMaxWishes = 65536;
constexpr const char* kNotNumeric = "not a numeric address";
constexpr int kStream = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

// Nobody listens there, or it is forbidden.
bool is_for_good(int error) {
  return error == ECONNREFUSED || error == ENOENT || error == EPERM || error == EACCES;
}

std::string no_way_on(Rank to, const char* why) {
  return "it leads to rank " + std::to_string(to.value) + ", and there is no way on: " + why;
}

}  // namespace

Connector::Connector(const std::string& job, handshake::LinkKey key, Incarnation self, Events events)
    : job_hash_(handshake::job_hash(job)), key_(key), self_(self), events_(std::move(events)) {}

Connector::~Connector() {
  end_generation();
  for (auto& c : conversations_) {
    if (c.fd >= 0) ::close(c.fd);
  }
  if (listener_ >= 0) ::close(listener_);
  if (host_listener_ >= 0) ::close(host_listener_);
  sodium_memzero(key_.data(), key_.size());
}

Result<std::uint16_t> Connector::listen(const std::string& host, std::uint16_t port) {
  const auto fail = [&](const std::string& what) {
    return Status(Code::kUnavailable,
                  "cannot accept data links on " + host + " port " + std::to_string(port) + ": " + what);
  };
  const auto address = numeric({host, port});
  if (!address) return fail("not a numeric IPv4 or IPv6 address");
  const int fd = not_for_children(::socket(address->storage.ss_family, kStream, 0));
  if (fd < 0) return fail(std::strerror(errno));
  constexpr int kYes = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &kYes, sizeof kYes);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address->storage), address->length) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    const int why = errno;
    ::close(fd);
    const Status failed = fail(std::strerror(why));
    return why == EADDRINUSE ? Status(Code::kExhausted, std::string(failed.message())) : failed;
  }
  listener_ = fd;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

Status Connector::listen_on_host() {
  const SocketAddress address = host_address(self_);
  const int fd = not_for_children(::socket(AF_UNIX, kStream, 0));
  if (fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0 &&
      ::listen(fd, SOMAXCONN) == 0) {
    host_listener_ = fd;
    return {};
  }
  const std::string why = std::strerror(errno);
  if (fd >= 0) ::close(fd);
  return {Code::kUnavailable, "cannot accept data links within the host: " + why};
}

void Connector::begin_generation(Membership membership, TimeMs now) {
  WARREN_CHECK(!members_, "a generation begins after the one before has ended");
  newest_ = membership.generation;
  members_ = std::move(membership);
  const auto on_this_host = std::ranges::count(members_->peers, true, &Peer::same_host);
  mates_ = static_cast<std::size_t>(on_this_host) - (peer_at(members_->self).same_host ? 1 : 0);
  told_over_tcp_ = false;
  knocks_.end_all();
  std::erase_if(was_gone_, [this](Incarnation life) {
    return std::ranges::none_of(members_->peers, [life](const Peer& p) { return p.incarnation == life; });
  });
  for (std::size_t rank = 0; rank < members_->peers.size(); rank++) {
    const Rank peer(static_cast<std::int32_t>(rank));
    if (members_->peers[rank].same_host && peer != members_->self) look_after(peer, kLookAtLateLinkMs, now);
  }
  for (auto& c : conversations_) {
    if (c.state == State::kParked) judge_hello(c, now);
  }
}

std::uint64_t Connector::end_generation() {
  members_.reset();
  wishes_.clear();
  knocks_.end_all();
  rings_bytes_ = 0;
  std::erase_if(conversations_, [](Conversation& c) {
    if (c.state == State::kReadHello || c.state == State::kParked) return false;
    if (c.fd >= 0) ::close(c.fd);
    return true;
  });
  return relay_.stop();
}

std::uint64_t Connector::suspend_generation(bool looks, TimeMs now) {
  if (!members_) return end_generation();
  std::map<Rank, std::vector<Knocks::Place>> linked;
  for (const auto& [key, wish] : wishes_) {
    if (looks && !linked.contains(key.second)) linked[key.second] = places_of(key.second);
  }
  const std::int64_t timeout_ms = members_->timeout_ms;
  const std::uint64_t relayed_bytes = end_generation();
  for (auto& [peer, places] : linked) {
    knocks_.begin(peer, std::move(places), kLookAtSuspendedMs, timeout_ms, now);
  }
  return relayed_bytes;
}

void Connector::mates_are_there() {
  for (const Rank peer : knocks_.peers()) {
    const bool wanted = std::ranges::any_of(
        wishes_, [peer](const auto& wish) { return wish.first.second == peer && wish.second.wanted; });
    if (!wanted) knocks_.end(peer);
  }
}

std::vector<Knocks::Place> Connector::places_of(Rank rank) const {
  const Peer& peer = peer_at(rank);
  std::vector<Knocks::Place> places;
  for (const Address& a : peer.addresses) {
    if (const auto address = numeric(a)) places.push_back({*address, a.host + " port " + std::to_string(a.port)});
  }
  if (peer.same_host) places.push_back({host_address(peer.incarnation), "its socket on this host"});
  return places;
}

void Connector::look_after(Rank peer, std::int64_t first_ms, TimeMs now) {
  if (was_gone_.contains(peer_at(peer).incarnation)) return;
  knocks_.begin(peer, places_of(peer), first_ms, members_->timeout_ms, now);
}

void Connector::want(GroupId group, Rank peer, TimeMs now) {
  if (!members_) return;
  WARREN_CHECK(
      peer.value >= 0 && static_cast<std::size_t>(peer.value) < members_->peers.size() && peer != members_->self,
      "links go to other ranks of the job");
  Wish& w = wish_for(group, peer);
  if (w.wanted) return;
  w.wanted = true;
  if (std::all_of(w.up.begin(), w.up.end(), [](bool b) { return b; })) return;
  look_after(peer, kLookAtLateLinkMs, now);
  // The higher rank waits without limit: the lower one may have long to compute before it uses the link, and whether it
  // is alive is for the tracker to say, unless its process is seen to have gone.
  if (peer < members_->self) return;
  w.deadline = now + members_->timeout_ms;
  w.on_host_until = now + members_->timeout_ms / 3;
  w.backoff_ms = kFirstBackoffMs;
  start_attempt(w, now);
}

Connector::Wish& Connector::wish_for(GroupId group, Rank peer) {
  const auto [it, fresh] = wishes_.try_emplace({group, peer});
  if (fresh) {
    it->second.group = group;
    it->second.peer = peer;
    it->second.up.assign(peer_at(peer).streams, false);
  }
  return it->second;
}

// Each mate gets its share, as long as there is any.
std::size_t Connector::ring_bytes() const {
  const std::size_t left = kRingsBytes - std::min(kRingsBytes, rings_bytes_);
  const std::size_t share = std::min(kRingsBytes / std::max<std::size_t>(mates_, 1), left);
  return std::clamp(std::bit_floor(share / 2), HostPipe::kLeastRingBytes, HostPipe::kRingBytes);
}

void Connector::start_attempt(Wish& wish, TimeMs now) {
  const Peer& peer = peer_at(wish.peer);
  const bool within = peer.same_host && host_listener_ >= 0 && !wish.over_tcp && now < wish.on_host_until;
  const std::size_t turn = within ? wish.next_address : wish.next_address++;
  wish.retry_at = wish.deadline;
  for (std::uint32_t i = 0; i < peer.streams; i++) {
    const auto stream = static_cast<std::uint16_t>(i);
    if (wish.up[stream]) continue;
    const Rank relay = peer.relays.empty() ? kNoRank : peer.relays[stream];
    const Rank first = relay == kNoRank ? wish.peer : relay;
    const std::vector<Address>& addresses = peer_at(first).addresses;
    const Address& address = addresses[turn % addresses.size()];
    Conversation c;
    c.outgoing = true;
    c.on_host = within;
    c.remote = within ? "its socket on this host" : address.host + " port " + std::to_string(address.port);
    if (relay != kNoRank) c.remote = "by way of rank " + std::to_string(relay.value) + " at " + c.remote;
    c.deadline = std::min(now + kStrangerTimeoutMs, wish.deadline);
    c.hello.job_hash = job_hash_;
    c.hello.generation = members_->generation;
    c.hello.group = wish.group;
    c.hello.from = members_->self;
    c.hello.from_incarnation = self_;
    c.hello.stream = stream;
    c.hello.streams = static_cast<std::uint16_t>(peer.streams);
    greet(c, first, relay == kNoRank ? kNoRank : wish.peer);
    c.state = State::kConnecting;
    wish.in_progress++;
    const auto socket_address = within ? host_address(peer.incarnation) : numeric(address);
    if (!socket_address) {
      trouble(c, kNotNumeric, false, now);
      continue;
    }
    c.fd = begin_to_connect(*socket_address).release();
    if (c.fd < 0) {
      if (within && is_for_good(errno)) wish.over_tcp = true;
      trouble(c, std::strerror(errno), false, now);
      continue;
    }
    conversations_.push_back(std::move(c));
  }
}

void Connector::greet(Conversation& c, Rank to, Rank relay_to) {
  c.hello.to = to;
  c.hello.to_incarnation = peer_at(to).incarnation;
  c.hello.relay_to = relay_to;
  randombytes_buf(c.hello.nonce.data(), c.hello.nonce.size());
  c.hello_bytes = handshake::encode(c.hello);
}

void Connector::trouble(Conversation& c, const std::string& what, bool fatal, TimeMs now) {
  if (!c.outgoing) {
    warn("a connection from " + c.remote + " was refused: " + what, now);
    return;
  }
  const auto it = wishes_.find({c.hello.group, c.hello.relay_to == kNoRank ? c.hello.to : c.hello.relay_to});
  if (it == wishes_.end()) return;
  Wish& w = it->second;
  w.last_trouble = c.remote + ": " + what;
  if (c.on_host) w.why_not_on_host = w.last_trouble;
  if (fatal) w.deadline = now;
  attempt_ended(w, now);
}

void Connector::leave_host(const Conversation& c) {
  const auto it = wishes_.find({c.hello.group, c.hello.to});
  if (c.outgoing && c.on_host && it != wishes_.end()) it->second.over_tcp = true;
}

// Streams that did not come up are tried again, however the others fared.
void Connector::attempt_ended(Wish& w, TimeMs now) {
  if (--w.in_progress != 0) return;
  if (std::all_of(w.up.begin(), w.up.end(), [](bool b) { return b; })) return;
  w.retry_at = std::min(now + w.backoff_ms, w.deadline);
  w.backoff_ms = std::min(w.backoff_ms * 2, kMaxBackoffMs);
}

void Connector::warn(const std::string& text, TimeMs now) {
  if (now - warnings_since_ >= 1000) {
    warnings_since_ = now;
    warnings_ = 0;
  }
  if (++warnings_ <= kWarningsPerSecond) events_.warning(text);
}

void Connector::accept_some(int listener, TimeMs now) {
  if (listener < 0) return;
  // Those that this rank has begun are as many as its plan has links.
  auto incoming = static_cast<std::size_t>(
      std::ranges::count_if(conversations_, [](const Conversation& c) { return !c.outgoing; }));
  for (int taken = 0; taken < kAcceptsATurn; ++taken) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    const int fd = ::accept4(listener, reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        warn(std::string("cannot accept data links: ") + std::strerror(errno) + "; trying again", now);
        accept_again_ = now + kAcceptPauseMs;
      }
      return;
    }
    const bool on_host = listener == host_listener_;
    if (on_host && !is_same_user(fd)) {
      ::close(fd);
      warn("a connection from a process of this host was refused: it is another user's", now);
      continue;
    }
    if (incoming >= limits::kMaxPendingHandshakes) {
      // The oldest that has proven nothing goes first, so that a flood does not lock peers out: they try again.
      const auto oldest = std::find_if(conversations_.begin(), conversations_.end(), [](const Conversation& c) {
        return !c.outgoing && c.state != State::kConnectOnward && c.state != State::kSendVerdict &&
               c.state != State::kReadMemory && c.state != State::kSendMapped;
      });
      if (oldest == conversations_.end()) {
        ::close(fd);
        continue;
      }
      ::close(oldest->fd);
      conversations_.erase(oldest);
      --incoming;
    }
    ++incoming;
    Conversation& c = conversations_.emplace_back();
    c.fd = not_for_children(fd);
    c.state = State::kReadHello;
    c.on_host = on_host;
    c.remote = c.on_host ? "a process of this host" : name_of(reinterpret_cast<const sockaddr*>(&from), length);
    c.deadline = now + kStrangerTimeoutMs;
    c.bytes.expect(handshake::kHelloBytes);
  }
}

Status Connector::make_pipe(Conversation& c) {
  auto memory = HostPipe::create(ring_bytes());
  if (!memory.ok()) return memory.status();
  auto pipe = HostPipe::map(memory.value().get(), true);
  if (!pipe.ok()) return pipe.status();
  c.memory = std::move(memory).value();
  c.pipe = std::move(pipe).value();
  rings_bytes_ += 2 * c.pipe->ring_bytes();
  return {};
}

// One byte, and the descriptor with it.
bool Connector::send_memory(Conversation& c, bool& dead) {
  const std::byte byte{};
  const auto sent = send_with_fd(c.fd, std::span(&byte, 1), c.memory.get());
  dead = !sent.ok();
  return sent.ok() && sent.value();
}

bool Connector::read_memory(Conversation& c, bool& dead) {
  std::byte byte{};
  auto came = receive_with_fd(c.fd, std::span(&byte, 1));
  if (came.ok() && !came.value()) return false;
  dead = !came.ok() || came.value()->bytes != 1 || !came.value()->fd.open();
  if (!dead) c.memory = std::move(came.value()->fd);
  return !dead;
}

bool Connector::judge_hello(Conversation& c, TimeMs now) {
  const handshake::Hello& h = c.hello;
  using handshake::Verdict;
  if (!members_ || h.generation > members_->generation) {
    if (h.generation <= newest_) {
      c.verdict = Verdict::kStaleGeneration;
    } else {
      // The peer has heard of the next generation before us; it waits until we have, within its deadline.
      c.state = State::kParked;
      c.deadline = std::max(c.deadline, now + kStrangerTimeoutMs);
      return true;
    }
  } else if (h.generation < members_->generation) {
    c.verdict = Verdict::kStaleGeneration;
  } else if (h.job_hash != job_hash_ || h.to != members_->self || h.to_incarnation != self_ ||
             static_cast<std::size_t>(h.from.value) >= members_->peers.size() ||
             peer_at(h.from).incarnation != h.from_incarnation || !may_join(c)) {
    c.verdict = Verdict::kNotMe;
  }
  handshake::Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  c.challenge = handshake::make_challenge(key_, c.hello_bytes, nonce);
  c.bytes.load(c.challenge);
  c.state = State::kSendChallenge;
  return true;
}

// Whether the plan has such a stream.
bool Connector::may_join(const Conversation& c) const {
  const handshake::Hello& h = c.hello;
  if (h.relay_to == kNoRank) {
    if (wishes_.size() >= kMaxWishes && !wishes_.contains({h.group, h.from})) return false;
    return h.from < h.to && h.streams == peer_at(h.from).streams;
  }
  return !c.on_host && std::ranges::find(members_->relayed, Relayed{h.from, h.relay_to, h.stream, h.streams}) !=
                           members_->relayed.end();
}

void Connector::connect_onward(Conversation& c, TimeMs now) {
  const std::vector<Address>& addresses = peer_at(c.hello.relay_to).addresses;
  const Address& address = addresses[next_onward_++ % addresses.size()];
  const auto to = numeric(address);
  if (to) c.onward = begin_to_connect(*to);
  c.state = c.onward.open() ? State::kConnectOnward : State::kDone;
  if (!c.onward.open()) trouble(c, no_way_on(c.hello.relay_to, to ? std::strerror(errno) : kNotNumeric), false, now);
}

void Connector::pass_on(Conversation& c, TimeMs now) {
  tune_link(c.fd, members_->timeout_ms);
  tune_link(c.onward.get(), members_->timeout_ms);
  const Status status = relay_.join(OwnedFd(std::exchange(c.fd, -1)), std::move(c.onward));
  if (!status.ok()) trouble(c, status.describe(), false, now);
}

void Connector::hand_over(Conversation& c, TimeMs now) {
  if (!c.on_host) tune_link(c.fd, members_->timeout_ms);
  const Rank peer = c.outgoing ? c.hello.to : c.hello.from;
  Wish& w = wish_for(c.hello.group, peer);
  if (!c.on_host && !w.why_not_on_host.empty() && !std::exchange(told_over_tcp_, true)) {
    events_.warning("the link to rank " + std::to_string(peer.value) +
                    " of this host, and perhaps others, goes over TCP, not through shared memory: " +
                    w.why_not_on_host + "; ranks that cannot share memory need a --host_id each");
  }
  w.up[c.hello.stream] = true;
  knocks_.end(peer);  // from here on the link says so
  if (std::all_of(w.up.begin(), w.up.end(), [](bool b) { return b; })) w.deadline = w.retry_at = {INT64_MAX};
  if (c.outgoing) attempt_ended(w, now);
  const int fd = std::exchange(c.fd, -1);
  events_.connected(c.hello.generation, c.hello.group, peer, c.hello.stream, fd, std::move(c.pipe));
}

// One step of a conversation; false: it waits for the other end, or is over.
bool Connector::advance(Conversation& c, TimeMs now) {
  bool dead = false, done = false;
  switch (c.state) {
    case State::kConnecting: return take_connection(c, now);
    case State::kConnectOnward: return take_way_on(c, now);
    case State::kSendHello:
    case State::kSendProof:
    case State::kSendChallenge:
    case State::kSendVerdict:
      done = c.bytes.write(c.fd, dead);
      if (done) has_sent(c, now);
      break;
    case State::kReadHello:
      // The rank it asks for decides whether it waits.
      if (c.bytes.read(c.fd, dead)) return take_hello(c, now);
      break;
    case State::kReadChallenge:
      done = c.bytes.read(c.fd, dead);
      if (done) take_challenge(c, now);
      break;
    case State::kReadProof:
      done = c.bytes.read(c.fd, dead);
      if (done) take_proof(c, now);
      break;
    case State::kReadVerdict:
      done = c.bytes.read(c.fd, dead);
      if (done) take_verdict(c, now);
      break;
    case State::kSendMemory:
      done = send_memory(c, dead);
      if (!done) break;
      c.memory = OwnedFd();
      c.bytes.expect(1);
      c.state = State::kReadMapped;
      break;
    case State::kReadMemory:
      done = read_memory(c, dead);
      if (done) take_memory(c, now);
      break;
    case State::kReadMapped:
    case State::kSendMapped:
      // The link is one once both ends have mapped it: who cannot is connected to over TCP.
      done = c.state == State::kReadMapped ? c.bytes.read(c.fd, dead) : c.bytes.write(c.fd, dead);
      if (!done) break;
      c.state = State::kDone;
      if (members_ && members_->generation == c.hello.generation) hand_over(c, now);
      break;
    case State::kParked:
    case State::kDone: return false;
  }
  if (done) return true;
  if (dead) end_in_the_middle(c, now);
  return dead;
}

bool Connector::take_connection(Conversation& c, TimeMs now) {
  const auto error = why_not_connected(c.fd);
  if (!error) return false;
  if (*error != 0) {
    if (is_for_good(*error)) leave_host(c);
    trouble(c, std::strerror(*error), false, now);
    c.state = State::kDone;
    return true;
  }
  c.bytes.load(c.hello_bytes);
  c.state = State::kSendHello;
  return true;
}

bool Connector::take_way_on(Conversation& c, TimeMs now) {
  const auto error = why_not_connected(c.onward.get());
  if (!error) return false;
  if (*error != 0) {
    trouble(c, no_way_on(c.hello.relay_to, std::strerror(*error)), false, now);
    c.state = State::kDone;
    return true;
  }
  c.bytes.load(handshake::make_verdict(c.verdict));
  c.state = State::kSendVerdict;
  return true;
}

void Connector::has_sent(Conversation& c, TimeMs now) {
  if (c.state == State::kSendHello) {
    c.bytes.expect(handshake::kChallengeBytes);
    c.state = State::kReadChallenge;
  } else if (c.state == State::kSendProof) {
    c.bytes.expect(handshake::kVerdictBytes);
    c.state = State::kReadVerdict;
  } else if (c.state == State::kSendChallenge) {
    c.bytes.expect(handshake::kProofBytes);
    c.state = State::kReadProof;
  } else {
    const bool welcome =
        c.verdict == handshake::Verdict::kWelcome && members_ && members_->generation == c.hello.generation;
    c.state = welcome && c.on_host ? State::kReadMemory : State::kDone;
    if (!welcome) {
      trouble(c, handshake::to_string(c.verdict), false, now);
    } else if (c.hello.relay_to != kNoRank) {
      pass_on(c, now);
    } else if (!c.on_host) {
      hand_over(c, now);
    }
  }
}

bool Connector::take_hello(Conversation& c, TimeMs now) {
  std::memcpy(c.hello_bytes.data(), c.bytes.all().data(), c.hello_bytes.size());
  auto hello = handshake::decode_hello(c.hello_bytes);
  if (!hello.ok()) {
    trouble(c, hello.status().describe(), true, now);
    c.state = State::kDone;
    return true;
  }
  c.hello = hello.value();
  return judge_hello(c, now) && c.state != State::kParked;
}

void Connector::take_challenge(Conversation& c, TimeMs now) {
  std::memcpy(c.challenge.data(), c.bytes.all().data(), c.challenge.size());
  const Status status = handshake::check_challenge(key_, c.hello_bytes, c.challenge);
  if (!status.ok()) {
    trouble(c, status.describe(), status.code() == Code::kRefused, now);
    c.state = State::kDone;
    return;
  }
  c.bytes.load(handshake::make_proof(key_, c.hello_bytes, c.challenge));
  c.state = State::kSendProof;
}

void Connector::take_proof(Conversation& c, TimeMs now) {
  using handshake::Verdict;
  const Status status =
      handshake::check_proof(key_, c.hello_bytes, c.challenge, c.bytes.all().first<handshake::kProofBytes>());
  if (!status.ok()) c.verdict = Verdict::kBadProof;
  const bool leads_on = c.verdict == Verdict::kWelcome && c.hello.relay_to != kNoRank;
  if (leads_on) {
    const auto begun = std::ranges::count_if(conversations_, [](const auto& other) { return other.onward.open(); });
    if (relay_.connections() + static_cast<std::size_t>(begun) >= limits::kMaxRelayed) c.verdict = Verdict::kBusy;
  }
  if (leads_on && c.verdict == Verdict::kWelcome) return connect_onward(c, now);
  c.bytes.load(handshake::make_verdict(c.verdict));
  c.state = State::kSendVerdict;
}

void Connector::take_verdict(Conversation& c, TimeMs now) {
  using handshake::Verdict;
  const auto verdict = handshake::decode_verdict(c.bytes.all().first<handshake::kVerdictBytes>());
  c.state = State::kDone;
  if (verdict.ok() && verdict.value() == Verdict::kWelcome && c.hello.relay_to != kNoRank) {
    // From here on it is the rank meant that answers.
    greet(c, c.hello.relay_to, kNoRank);
    c.bytes.load(c.hello_bytes);
    c.state = State::kSendHello;
    c.deadline = std::min(now + kStrangerTimeoutMs, wishes_.at({c.hello.group, c.hello.to}).deadline);
  } else if (!verdict.ok() || verdict.value() != Verdict::kWelcome) {
    trouble(c, verdict.ok() ? handshake::to_string(verdict.value()) : verdict.status().describe(), false, now);
  } else if (!c.on_host) {
    hand_over(c, now);
  } else if (Status made = make_pipe(c); made.ok()) {
    c.state = State::kSendMemory;
  } else {
    leave_host(c);
    trouble(c, made.describe(), false, now);
  }
}

void Connector::take_memory(Conversation& c, TimeMs now) {
  auto pipe = HostPipe::map(c.memory.get(), false);
  c.memory = OwnedFd();
  c.state = pipe.ok() ? State::kSendMapped : State::kDone;
  if (pipe.ok()) {
    c.pipe = std::move(pipe).value();
    c.bytes.expect(1);
  } else {
    trouble(c, pipe.status().describe(), false, now);
  }
}

void Connector::end_in_the_middle(Conversation& c, TimeMs now) {
  // The other end could not map it.
  if (c.state == State::kReadMapped) leave_host(c);
  // A connection that says nothing before it goes is a port scan or a health check, not worth a line.
  if (c.outgoing || c.bytes.begun() || c.state != State::kReadHello) {
    trouble(c, "closed in the middle of the handshake", false, now);
  }
  c.state = State::kDone;
}

bool Connector::step(Conversation& c, TimeMs now) {
  while (c.state != State::kDone && advance(c, now)) {
  }
  if (c.state != State::kDone && now >= c.deadline) {
    trouble(c, "the handshake took over " + std::to_string(kStrangerTimeoutMs) + " ms", false, now);
    c.state = State::kDone;
  }
  if (c.state != State::kDone) return true;
  if (c.outgoing && c.pipe) rings_bytes_ -= 2 * c.pipe->ring_bytes();  // it has become none
  if (c.fd >= 0) ::close(c.fd);
  c.fd = -1;
  return false;
}

void Connector::run(TimeMs now) {
  if (!accept_again_ || now >= *accept_again_) {
    accept_again_.reset();
    accept_some(listener_, now);
    accept_some(host_listener_, now);
  }
  for (auto it = conversations_.begin(); it != conversations_.end();) {
    it = step(*it, now) ? std::next(it) : conversations_.erase(it);
  }
  for (const Knocks::Gone& g : knocks_.run(now)) {
    if (members_) was_gone_.insert(peer_at(g.peer).incarnation);
    events_.gone(newest_, g.peer, g.evidence);
  }
  if (!members_) return;
  std::vector<std::tuple<GroupId, Rank, Status>> failed;
  for (auto& [key, w] : wishes_) {
    if (now >= w.deadline) {
      const std::string what = "cannot connect to rank " + std::to_string(w.peer.value);
      failed.emplace_back(w.group, w.peer,
                          Status(Code::kPeerLost, what + " within " + std::to_string(members_->timeout_ms) + " ms" +
                                                      (w.last_trouble.empty() ? "" : ": " + w.last_trouble)));
      w.deadline = {INT64_MAX};
      w.retry_at = {INT64_MAX};
    } else if (members_->self < w.peer && w.in_progress == 0 && now >= w.retry_at) {
      start_attempt(w, now);
    }
  }
  for (const auto& [group, peer, status] : failed) events_.failed(group, peer, status);
}

void Connector::collect_pollfds(std::vector<pollfd>& out) const {
  knocks_.collect_pollfds(out);
  for (const int listener : {listener_, host_listener_}) {
    if (listener >= 0 && !accept_again_) out.push_back({listener, POLLIN, 0});
  }
  for (const Conversation& c : conversations_) {
    switch (c.state) {
      case State::kConnecting:
      case State::kSendHello:
      case State::kSendProof:
      case State::kSendChallenge:
      case State::kSendVerdict:
      case State::kSendMemory:
      case State::kSendMapped: out.push_back({c.fd, POLLOUT, 0}); break;
      case State::kConnectOnward: out.push_back({c.onward.get(), POLLOUT, 0}); break;
      case State::kParked: break;
      default: out.push_back({c.fd, POLLIN, 0});
    }
  }
}

std::optional<TimeMs> Connector::next_deadline() const {
  std::optional<TimeMs> next = accept_again_;
  const auto sooner = [&](TimeMs t) {
    if (t.value != INT64_MAX && (!next || t < *next)) next = t;
  };
  if (const auto knock = knocks_.next_deadline()) sooner(*knock);
  for (const Conversation& c : conversations_) sooner(c.deadline);
  for (const auto& [key, w] : wishes_) {
    sooner(w.deadline);
    if (members_ && members_->self < w.peer && w.in_progress == 0) sooner(w.retry_at);
  }
  return next;
}

}  // namespace warren::worker

#include "worker/segments/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "recovery/base/limits.h"
#include "storage/files.h"
#include "storage/start_thread.h"
#include "worker/transport/same_user.h"

namespace warren::worker {
namespace {

constexpr std::int64_t kStrangerTimeoutMs = 5000;
constexpr int kAcceptPauseMs = 100;
constexpr std::size_t kHexBytes = 2 * sizeof(handshake::LinkKey);
constexpr std::size_t kMostDescriptionBytes = 256;

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Status system_failure(const std::string& what) {
  return {Code::kUnavailable, what + ": " + std::strerror(errno)};
}

// Whose segments a worker gets: those of its job on its host.
std::uint64_t scope_of(const std::string& job, const std::string& host_id) {
  return handshake::job_hash(job + '\0' + host_id);
}

}  // namespace

Result<std::unique_ptr<SegmentKeeper>> SegmentKeeper::start(std::uint32_t workers, Warn warn) {
  if (sodium_init() < 0) return Status(Code::kInternal, "libsodium does not start");
  auto listener = listen_for_segments("warren-keeper-");
  if (!listener.ok()) return listener.status();
  OwnedFd wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.open()) return system_failure("cannot make a descriptor");
  OwnedFd file(::memfd_create("warren-keeper", MFD_CLOEXEC));
  if (!file.open()) return system_failure("cannot make a file in memory");
  std::unique_ptr<SegmentKeeper> keeper(
      new SegmentKeeper(std::move(listener).value(), std::move(wake), std::move(file), workers, std::move(warn)));
  const std::string description = keeper->description();
  if (::write(keeper->file_.get(), description.data(), description.size()) !=
      static_cast<ssize_t>(description.size())) {
    return system_failure("cannot write to a file in memory");
  }
  const Status started = start_thread(keeper->thread_, [k = keeper.get()] { k->loop(); });
  if (!started.ok()) return started;
  return keeper;
}

SegmentKeeper::SegmentKeeper(SegmentListener listener, OwnedFd wake, OwnedFd file, std::uint32_t workers, Warn warn)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      file_(std::move(file)),
      most_(64 + std::size_t{4} * workers),
      most_clients_(limits::kMaxPendingHandshakes + workers),
      warn_(std::move(warn)) {
  randombytes_buf(key_.data(), key_.size());
}

SegmentKeeper::~SegmentKeeper() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }
  sodium_memzero(key_.data(), key_.size());
}

std::string SegmentKeeper::environment() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.get());
}

std::string SegmentKeeper::description() const {
  char hex[kHexBytes + 1];
  sodium_bin2hex(hex, sizeof hex, reinterpret_cast<const unsigned char*>(key_.data()), key_.size());
  return listener_.name + ":" + hex;
}

void SegmentKeeper::loop() {
  std::vector<pollfd> fds;
  bool accepting = true;
  while (true) {
    fds.assign({{wake_.get(), POLLIN, 0}});
    if (accepting) fds.push_back({listener_.fd.get(), POLLIN, 0});
    int timeout_ms = accepting ? -1 : kAcceptPauseMs;
    const std::int64_t now = now_ms();
    for (const Client& c : clients_) {
      fds.push_back(c.channel->wait_for(true));
      if (c.channel->open()) continue;
      const auto left = static_cast<int>(std::max<std::int64_t>(c.deadline_ms - now, 0));
      timeout_ms = timeout_ms < 0 ? left : std::min(timeout_ms, left);
    }
    if (::poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) {
      return warn_(std::string("cannot keep log segments any more: ") + std::strerror(errno));
    }
    if (fds[0].revents != 0) return;
    accept_some(now_ms(), accepting);
    for (auto c = clients_.begin(); c != clients_.end();) {
      serve(*c);
      const bool late = !c->channel->open() && now_ms() >= c->deadline_ms;
      c = c->channel->closed() || late ? clients_.erase(c) : std::next(c);
    }
  }
}

void SegmentKeeper::accept_some(std::int64_t now, bool& accepting) {
  for (int taken = 0; taken < kAcceptsATurn; ++taken) {
    OwnedFd fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      const int why = errno;
      accepting = why == EAGAIN || why == EWOULDBLOCK;  // else out of descriptors: a pause instead of a spin
      if (!accepting && !std::exchange(shut_told_, true)) {
        warn_(std::string("cannot take in the connection of a worker (") + std::strerror(why) +
              "), which waits, and then goes on without a log that outlives it; raise the limit of open files of this "
              "process (ulimit -n)");
      }
      return;
    }
    shut_told_ = false;
    if (!is_same_user(fd.get())) continue;
    if (clients_.size() >= most_clients_) clients_.pop_front();
    auto channel =
        SegmentChannel::accept(std::move(fd), key_, [](const auto&) { return handshake::Verdict::kWelcome; });
    clients_.push_back({std::move(channel), now + kStrangerTimeoutMs});
  }
}

void SegmentKeeper::serve(Client& client) {
  SegmentChannel& channel = *client.channel;
  channel.run();
  while (auto received = channel.receive()) {
    const std::uint64_t scope = channel.hello().job_hash;
    const SegmentMessage& m = received->message;
    if (m.kind == SegmentMessage::Kind::kForget &&
        (m.value == 0 || !was_called(scope, m.life, channel.hello().generation))) {
      forget(scope, m.life);
    }
    if (m.kind != SegmentMessage::Kind::kSegment) continue;
    for (const Segment& s : segments_) {
      if (s.scope == scope && s.life != m.life) {
        channel.send({SegmentMessage::Kind::kSegment, s.life, s.bytes, s.owner}, s.fd);
      }
    }
    keep({scope, m.owner, m.life, std::make_shared<const OwnedFd>(std::move(received->fd)), m.value});
    channel.send({SegmentMessage::Kind::kAck, m.life, 1, 0});
    channel.send({SegmentMessage::Kind::kDone, m.life, 0, 0});
  }
}

void SegmentKeeper::keep(Segment segment) {
  std::erase_if(segments_, [&](const Segment& s) { return s.scope == segment.scope && s.life == segment.life; });
  segments_.push_back(std::move(segment));
  if (segments_.size() <= most_) return;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> count;
  for (const Segment& s : segments_) ++count[{s.scope, s.owner}];
  const auto most = std::ranges::max_element(count, {}, [](const auto& c) { return c.second; })->first;
  const auto oldest =
      std::ranges::find_if(segments_, [&](const Segment& s) { return std::pair(s.scope, s.owner) == most; });
  segments_.erase(oldest);
  if (!std::exchange(full_told_, true)) {
    warn_("over " + std::to_string(most_) +
          " log segments of lost workers are kept: from now on the oldest are given up");
  }
}

void SegmentKeeper::forget(std::uint64_t scope, Incarnation life) {
  std::erase_if(segments_, [&](const Segment& s) { return s.scope == scope && s.life == life; });
}

bool SegmentKeeper::was_called(std::uint64_t scope, Incarnation life, Generation since) const {
  return std::ranges::any_of(clients_, [&](const Client& c) {
    if (!c.channel->open()) return false;
    const handshake::Hello& hello = c.channel->hello();
    return hello.job_hash == scope && hello.from_incarnation == life && hello.generation >= since;
  });
}

Result<std::unique_ptr<KeeperLink>> KeeperLink::offer(const std::string& environment, const Offer& offer,
                                                      std::int64_t timeout_ms) {
  if (sodium_init() < 0) return Status(Code::kInternal, "libsodium does not start");
  const Status no_launchers(Code::kInvalidArgument,
                            std::string(kKeeperVariable) + " is not what a launcher sets: leave it alone, or unset it");
  if (!environment.starts_with("/proc/")) return no_launchers;
  auto file = storage::read_file(environment, kMostDescriptionBytes);
  if (file.status().code() == Code::kCorrupt) return no_launchers;
  if (!file.ok()) return file.status().because_of_this("cannot reach the launcher's keeper of segments");
  if (!file.value()) {
    return Status(Code::kUnavailable, environment + " is gone, and with it the launcher's keeper of segments");
  }
  std::string& description = *file.value();
  const std::size_t colon = description.find(':');
  handshake::LinkKey key;
  std::size_t bytes = 0;
  if (colon == std::string::npos || description.size() - colon - 1 != kHexBytes ||
      sodium_hex2bin(reinterpret_cast<unsigned char*>(key.data()), key.size(), description.data() + colon + 1,
                     kHexBytes, nullptr, &bytes, nullptr) != 0 ||
      bytes != key.size()) {
    return no_launchers;
  }
  sodium_memzero(description.data() + colon, description.size() - colon);
  handshake::Hello hello;
  hello.job_hash = scope_of(offer.job, offer.host_id);
  hello.from = Rank(0);  // ranks are not known yet, and play no part
  hello.to = Rank(1);
  hello.from_incarnation = offer.self;
  hello.generation = offer.called;
  auto channel = SegmentChannel::connect(description.substr(0, colon), key, hello);
  sodium_memzero(key.data(), key.size());
  if (!channel.ok()) return channel.status();
  std::unique_ptr<KeeperLink> link(new KeeperLink(std::move(channel).value()));
  if (Status s = link->exchange(offer, timeout_ms); !s.ok()) return s;
  return link;
}

Status KeeperLink::exchange(const Offer& offer, std::int64_t timeout_ms) {
  auto own = std::make_shared<const OwnedFd>(::fcntl(offer.segment->fd(), F_DUPFD_CLOEXEC, 0));
  if (!own->open()) return system_failure("cannot make a descriptor");
  const std::int64_t deadline = now_ms() + timeout_ms;
  bool offered = false, acknowledged = false;
  while (true) {
    channel_->run();
    if (channel_->open() && !offered) {
      offered = true;
      channel_->send({SegmentMessage::Kind::kSegment, offer.self, offer.segment->bytes().size(),
                      handshake::job_hash(offer.worker_id)},
                     own);
    }
    while (auto received = channel_->receive()) {
      const SegmentMessage& m = received->message;
      if (m.kind == SegmentMessage::Kind::kSegment) kept_.push_back({m.life, std::move(received->fd), m.value});
      acknowledged = acknowledged || (m.kind == SegmentMessage::Kind::kAck && m.life == offer.self && m.value != 0);
      if (m.kind == SegmentMessage::Kind::kDone && acknowledged) return {};
    }
    if (channel_->closed()) {
      return channel_->trouble().ok() ? Status(Code::kUnavailable, "the launcher's keeper of segments has gone")
                                      : channel_->trouble().because_of_this("the launcher's keeper of segments");
    }
    const std::int64_t left = deadline - now_ms();
    if (left <= 0) {
      return {Code::kTimeout,
              "the launcher's keeper of segments has not answered within " + std::to_string(timeout_ms) + " ms"};
    }
    pollfd p = channel_->wait_for(true);
    (void)::poll(&p, 1, static_cast<int>(left));
  }
}

void KeeperLink::forget(Incarnation life) {
  if (channel_->open()) channel_->send({SegmentMessage::Kind::kForget, life, 0, 0});
}

void KeeperLink::forget_stale(Incarnation life) {
  if (channel_->open()) channel_->send({SegmentMessage::Kind::kForget, life, 1, 0});
}

}  // namespace warren::worker

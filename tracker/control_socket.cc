#include "tracker/control_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "recovery/wire/codec.h"
#include "storage/start_thread.h"
#include "storage/zeromq.h"

namespace warren::tracker {
namespace {

constexpr int kLingerMs = 500;
// A stranger that connects and never finishes the handshake is cut off after this time.
constexpr int kHandshakeMs = 10'000;
// A connection that has finished the handshake, and sends nothing, after this time.
constexpr std::int64_t kSilentMs = 20'000;
// A connection whose host vanished without a word is given up after 15 s.
constexpr int kKeepAliveS = 5, kKeepAlives = 2, kUnacknowledgedMs = 15'000;
// Of the process's descriptors these are not for workers: the journal's files, the HTTP server's, ZeroMQ's own.
constexpr std::size_t kOtherDescriptors = 128;
constexpr int kBacklog = 4096;  // a job of thousands may start at once
// Messages that may wait for one worker. They are answers, so a live one never has as many.
constexpr int kQueuedMessages = 128;
constexpr std::int64_t kLookAtUnreadMs = 1000;
// CURVE's, in each frame: the command's name, a nonce, flags, and the code that authenticates it.
constexpr std::size_t kCurveBytes = 8 + 8 + 1 + 16;
constexpr int kHandshakesAtOnce = 64;
constexpr int kIoThreads = 2;
constexpr std::size_t kZapFrames = 7;
// Of the monitor: workers' messages come between, however many strangers knock.
constexpr std::size_t kMostEventsAtOnce = 1024;
constexpr const char* kMonitor = "inproc://warren-tracker-monitor";
constexpr int kMonitored =
    ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_DISCONNECTED;

std::string zmq_text() {
  return zmq_strerror(zmq_errno());
}

class Message {
 public:
  Message() { zmq_msg_init(&message_); }
  ~Message() { zmq_msg_close(&message_); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  // False: there is none.
  bool receive(void* socket) { return zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0; }
  [[nodiscard]] bool more() const { return zmq_msg_more(&message_) != 0; }
  [[nodiscard]] std::string_view text() {
    return {static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  // The descriptor of the connection that it came over.
  [[nodiscard]] int source() { return zmq_msg_get(&message_, ZMQ_SRCFD); }
  [[nodiscard]] std::string_view property(const char* name) {
    const char* value = zmq_msg_gets(&message_, name);
    return value == nullptr ? std::string_view() : value;
  }

 private:
  zmq_msg_t message_;
};

struct Bindable {
  std::string endpoint;
  bool ipv6 = false;
};

Result<Bindable> bindable(const std::string& address, std::uint16_t port) {
  const std::string without_zone = address.substr(0, address.find('%'));
  const std::string port_text = port == 0 ? "*" : std::to_string(port);
  unsigned char parsed[16];
  if (::inet_pton(AF_INET, address.c_str(), parsed) == 1) return Bindable{"tcp://" + address + ":" + port_text, false};
  if (::inet_pton(AF_INET6, without_zone.c_str(), parsed) == 1) {
    return Bindable{"tcp://[" + address + "]:" + port_text, true};
  }
  return Status(Code::kInvalidArgument,
                "'" + address + "' is not a numeric IPv4 or IPv6 address; 0.0.0.0 and :: stand for all interfaces");
}

Status cannot_bind(const std::string& address, std::uint16_t port) {
  const std::string where = address + " port " + std::to_string(port);
  switch (zmq_errno()) {
    case EADDRINUSE:
      return {Code::kUnavailable, where +
                                      " is in use: stop the program that has it (another tracker?), or choose "
                                      "another port"};
    case EADDRNOTAVAIL:
    case ENODEV: return {Code::kUnavailable, address + " is not an address of this machine"};
    default: return {Code::kUnavailable, "cannot bind " + where + ": " + zmq_text()};
  }
}

bool set(void* socket, int option, int value) {
  return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}
bool set(void* socket, int option, const std::string& value) {
  return zmq_setsockopt(socket, option, value.data(), value.size()) == 0;
}

bool set_options(void* router, bool ipv6, const std::optional<storage::CurveKeys>& keys) {
  const auto largest = static_cast<std::int64_t>(kMaxWorkerMessageBytes);
  // Without ROUTER_HANDOVER: nobody takes over a connection by naming its routing id.
  return set(router, ZMQ_LINGER, kLingerMs) && set(router, ZMQ_IPV6, ipv6 ? 1 : 0) &&
         set(router, ZMQ_ROUTER_MANDATORY, 1) && set(router, ZMQ_ROUTER_HANDOVER, 0) &&
         set(router, ZMQ_SNDHWM, kQueuedMessages) && never_stop_reading(router) && set(router, ZMQ_BACKLOG, kBacklog) &&
         set(router, ZMQ_HANDSHAKE_IVL, kHandshakeMs) && set(router, ZMQ_TCP_KEEPALIVE, 1) &&
         set(router, ZMQ_TCP_KEEPALIVE_IDLE, kKeepAliveS) && set(router, ZMQ_TCP_KEEPALIVE_INTVL, kKeepAliveS) &&
         set(router, ZMQ_TCP_KEEPALIVE_CNT, kKeepAlives) && set(router, ZMQ_TCP_MAXRT, kUnacknowledgedMs) &&
         zmq_setsockopt(router, ZMQ_MAXMSGSIZE, &largest, sizeof largest) == 0 &&
         (!keys || (set(router, ZMQ_CURVE_SERVER, 1) && set(router, ZMQ_CURVE_SECRETKEY, keys->secret_z85) &&
                    set(router, ZMQ_ZAP_DOMAIN, "warren")));
}

// The address and the port, with a space between them. Empty: the connection is gone already.
std::string peer_of(int connection) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(connection, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return {};
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&peer), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return std::string(host) + " " + port;
}

// ZeroMQ may have closed the descriptor meanwhile, and its number may be another connection's.
void cut_off(int connection, const std::string& peer) {
  if (!peer.empty() && peer_of(connection) == peer) (void)::shutdown(connection, SHUT_RDWR);
}

std::size_t open_files_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : kOtherDescriptors;
}

}  // namespace

Result<std::unique_ptr<ControlSocket>> ControlSocket::bind(const std::string& address, std::uint16_t port,
                                                           const std::optional<storage::CurveKeys>& keys) {
  auto where = bindable(address, port);
  if (!where.ok()) return where.status();
  if (Status s = has_room_for_zeromq(kIoThreads); !s.ok()) return s;
  const SignalsBlocked here;  // ZeroMQ's calls fail when one comes
  std::unique_ptr<ControlSocket> s(new ControlSocket(keys.has_value()));
  const auto broken = [](const char* what) {
    return Status(Code::kInternal, std::string("cannot set up ZeroMQ (") + what + "): " + zmq_text());
  };
  s->context_ = zmq_ctx_new();
  if (s->context_ == nullptr) return broken("context");
  // One thread's handshakes and decryption would be all that a tracker of thousands of workers can take.
  if (zmq_ctx_set(s->context_, ZMQ_IO_THREADS, kIoThreads) != 0) return broken("threads");
  if (keys) {
    // Before the first connection can come in.
    s->zap_ = zmq_socket(s->context_, ZMQ_REP);
    if (s->zap_ == nullptr || !set(s->zap_, ZMQ_LINGER, 0) || zmq_bind(s->zap_, "inproc://zeromq.zap.01") != 0) {
      return broken("authentication");
    }
  }
  s->router_ = zmq_socket(s->context_, ZMQ_ROUTER);
  if (s->router_ == nullptr) return broken("socket");
  if (!set_options(s->router_, where.value().ipv6, keys)) return broken("options");
  // Its events find room without a limit: else threads of ZeroMQ would wait for this one, also while it waits for them
  // to end. They are taken with each turn of the loop.
  if (zmq_socket_monitor(s->router_, kMonitor, kMonitored) != 0) return broken("monitor");
  s->monitor_ = zmq_socket(s->context_, ZMQ_PAIR);
  if (s->monitor_ == nullptr || !set(s->monitor_, ZMQ_LINGER, 0) || !set(s->monitor_, ZMQ_RCVHWM, 0) ||
      zmq_connect(s->monitor_, kMonitor) != 0) {
    return broken("monitor");
  }
  if (zmq_bind(s->router_, where.value().endpoint.c_str()) != 0) return cannot_bind(address, port);
  char endpoint[256];
  std::size_t size = sizeof endpoint;
  if (zmq_getsockopt(s->router_, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0) return broken("port");
  const std::string bound(endpoint);
  s->port_ = static_cast<std::uint16_t>(std::stoul(bound.substr(bound.rfind(':') + 1)));
  return s;
}

ControlSocket::ControlSocket(bool encrypted) : unread_(kMostUnreadBytes, encrypted ? kCurveBytes : 0) {}

ControlSocket::~ControlSocket() {
  if (router_ != nullptr) {
    zmq_socket_monitor(router_, nullptr, 0);
    zmq_close(router_);
  }
  if (monitor_ != nullptr) zmq_close(monitor_);
  if (zap_ != nullptr) zmq_close(zap_);
  if (context_ != nullptr) end_zeromq(context_);
}

void ControlSocket::wait(int wake_fd, std::int64_t timeout_ms) {
  zmq_pollitem_t items[] = {{nullptr, wake_fd, ZMQ_POLLIN, 0},
                            {router_, 0, ZMQ_POLLIN, 0},
                            {monitor_, 0, ZMQ_POLLIN, 0},
                            {zap_, 0, ZMQ_POLLIN, 0}};
  // A signal is one more reason to look.
  const int rc = zmq_poll(items, zap_ == nullptr ? 3 : 4, static_cast<long>(timeout_ms));
  WARREN_CHECK(rc >= 0 || zmq_errno() == EINTR, "the sockets of a running tracker can be waited for");
}

void ControlSocket::receive(std::size_t limit,
                            const std::function<void(const Sender&, std::span<const std::byte>)>& message,
                            const std::function<void(const Sender&, std::string_view)>& malformed) {
  if (zap_ != nullptr) answer_handshakes();
  drained_ = false;
  for (std::size_t i = 0; i < limit; ++i) {
    Message connection;
    if (!connection.receive(router_)) {
      drained_ = true;
      return;
    }
    Message body;
    bool more = connection.more() && body.receive(router_);
    const int source = body.source();
    watch_.spoke(source);
    unread_.read(source, body.text().size());
    const Sender from{connection.text(), body.property("User-Id"), body.property("Peer-Address")};
    if (!more) {
      malformed(from, "it has no content");
      continue;
    }
    if (!body.more()) {
      message(from, std::as_bytes(std::span(body.text())));
      continue;
    }
    std::size_t frames = 1;
    for (more = true; more; ++frames) {
      Message rest;
      more = rest.receive(router_) && rest.more();
      unread_.read(source, rest.text().size());
    }
    malformed(from, "it has " + std::to_string(frames) + " frames, not one");
  }
}

void ControlSocket::answer_handshakes() {
  for (int i = 0; i < kHandshakesAtOnce; ++i) {
    // version, request id, domain, address, routing id, mechanism, credentials
    std::vector<std::string> frames;
    bool more = true;
    while (more) {
      Message frame;
      if (!frame.receive(zap_)) break;
      if (frames.size() < kZapFrames) frames.emplace_back(frame.text());
      more = frame.more();
    }
    if (frames.empty()) return;
    char key[41] = {};
    const bool curve = frames.size() == kZapFrames && frames[5] == "CURVE" && frames[6].size() == 32 &&
                       zmq_z85_encode(key, reinterpret_cast<const std::uint8_t*>(frames[6].data()), 32) != nullptr;
    const std::string reply[] = {
        "1.0", frames.size() > 1 ? frames[1] : "", curve ? "200" : "400", curve ? "OK" : "CURVE only", key, ""};
    for (std::size_t f = 0; f < std::size(reply); ++f) {
      const int flags = ZMQ_DONTWAIT | (f + 1 < std::size(reply) ? ZMQ_SNDMORE : 0);
      if (zmq_send(zap_, reply[f].data(), reply[f].size(), flags) < 0) break;
    }
  }
}

void ControlSocket::look_after_strangers(TimeMs now, const std::function<void(std::string_view address)>& failed) {
  read_events(now, failed);
  const std::size_t limit = open_files_limit();
  // Bytes that are still to be read may be the first message of a connection.
  const TimeMs older_than = drained_ ? now + -kSilentMs : TimeMs{std::numeric_limits<std::int64_t>::min()};
  while (const auto stranger = watch_.overdue(limit - std::min(limit, kOtherDescriptors), older_than)) {
    cut_off(stranger->descriptor, stranger->peer);
  }
  cut_off_overfull(now);
}

void ControlSocket::cut_off_overfull(TimeMs now) {
  if (now < looked_at_unread_ + kLookAtUnreadMs) return;
  looked_at_unread_ = now;
  for (const UnreadWatch::Connection& c : unread_.overfull()) cut_off(c.descriptor, c.peer);
}

void ControlSocket::read_events(TimeMs now, const std::function<void(std::string_view address)>& failed) {
  for (std::size_t taken = 0; taken < kMostEventsAtOnce; ++taken) {
    Message event;
    if (!event.receive(monitor_)) return;
    Message endpoint;  // this tracker's own
    if (event.more()) endpoint.receive(monitor_);
    std::uint16_t kind = 0;
    std::uint32_t value = 0;
    const std::string_view bytes = event.text();
    if (bytes.size() < sizeof kind + sizeof value) continue;
    std::memcpy(&kind, bytes.data(), sizeof kind);
    std::memcpy(&value, bytes.data() + sizeof kind, sizeof value);
    const int descriptor = static_cast<int>(value);
    switch (kind) {
      case ZMQ_EVENT_ACCEPTED: {
        const std::string peer = peer_of(descriptor);
        watch_.accepted(descriptor, peer, now);
        unread_.accepted(descriptor, peer);
        break;
      }
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: watch_.succeeded(); break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: watch_.given_up(); break;
      case ZMQ_EVENT_DISCONNECTED:
        unread_.closed(descriptor);
        if (const auto peer = watch_.closed(descriptor)) failed(peer->substr(0, peer->rfind(' ')));
        break;
      default: break;
    }
  }
}

SendOutcome ControlSocket::send(std::string_view connection, const std::string& bytes) {
  if (zmq_send(router_, connection.data(), connection.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
    return zmq_errno() == EAGAIN ? SendOutcome::kFull : SendOutcome::kGone;
  }
  // The connection was found and has room: the rest of the message goes to it.
  return zmq_send(router_, bytes.data(), bytes.size(), ZMQ_DONTWAIT) < 0 ? SendOutcome::kGone : SendOutcome::kSent;
}

}  // namespace warren::tracker

#include "worker/replay/fetch_service.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/fetch_codec.h"
#include "storage/secret.h"
#include "storage/start_thread.h"
#include "storage/xxh3.h"
#include "storage/zeromq.h"
#include "worker/replay/done_reader.h"
#include "worker/system/netinfo.h"

namespace warren::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Replies of one listing and four requests with data a rank and stream are under way at once, seldom more.
constexpr int kQueuedMessages =
    64;  // to be sent. Those that have come are as many as were asked for (storage/zeromq.h)
constexpr int kBacklog = 1024;
// A stranger that connects and never finishes the handshake is cut off after this time.
constexpr int kHandshakeMs = 10'000;
// A connection whose host vanished without a word is given up after 15 s. ZeroMQ's own heartbeat is off:
// tracker/control_socket.h says why.
constexpr int kKeepAliveS = 5, kKeepAlives = 2, kUnacknowledgedMs = 15'000;
// A connection that ends while an answer is waited for is made anew after this time, which doubles until an answer
// comes: ZeroMQ never connects again where bytes did not decrypt, and what was under way is lost.
constexpr auto kFirstPause = std::chrono::milliseconds(20), kMostPause = std::chrono::milliseconds(30'000);
constexpr const char* kMonitor = "inproc://warren-fetch-monitor-";
constexpr int kReconnectMs = 50, kMaxReconnectMs = 1000;
// Encryption is work: two of ZeroMQ's threads share the connections.
constexpr int kIoThreads = 2;
// Replies that were made and are not sent yet; no request is read while there is more.
constexpr std::size_t kUnsentBytes = std::size_t{256} << 20;
constexpr std::size_t kUnsentForSpares = std::size_t{32} << 20;
// Requests of generations whose plan has not come yet.
constexpr std::size_t kEarlyRequests = 4096, kEarlyBytes = std::size_t{16} << 20;
// Requests to one rank that wait for its connection.
constexpr std::size_t kUnconnectedRequests = 64;
constexpr std::size_t kCommands = 65'536;
constexpr auto kIdle = std::chrono::seconds(60);
constexpr int kLookForIdleMs = 10'000;
constexpr int kSocketsOfPeer = 3;  // its own, and both ends of its monitor's
constexpr int kMessagesAtOnce = 64;
constexpr std::size_t kZapFrames = 7;
constexpr std::size_t kSumBytes = 8;
static_assert(std::endian::native == std::endian::little, "the sum after a message is little-endian");

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
  [[nodiscard]] std::span<const std::byte> bytes() {
    return {static_cast<const std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  [[nodiscard]] std::string text() { return {static_cast<const char*>(zmq_msg_data(&message_)), bytes().size()}; }

 private:
  zmq_msg_t message_;
};

class Socket {
 public:
  Socket() = default;
  Socket(void* context, int type) : socket_(zmq_socket(context, type)) {}
  Socket(Socket&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~Socket() {
    if (socket_ != nullptr) zmq_close(socket_);
  }
  [[nodiscard]] void* get() const { return socket_; }
  bool set(int option, int value) { return zmq_setsockopt(socket_, option, &value, sizeof value) == 0; }
  bool set(int option, std::int64_t value) { return zmq_setsockopt(socket_, option, &value, sizeof value) == 0; }
  bool set(int option, const std::string& value) {
    return zmq_setsockopt(socket_, option, value.data(), value.size()) == 0;
  }
  // What both kinds of connection have in common.
  bool set_common(std::size_t largest_message) {
    return set(ZMQ_LINGER, 0) && set(ZMQ_IPV6, 1) && set(ZMQ_SNDHWM, kQueuedMessages) && never_stop_reading(socket_) &&
           set(ZMQ_HANDSHAKE_IVL, kHandshakeMs) && set(ZMQ_TCP_KEEPALIVE, 1) &&
           set(ZMQ_TCP_KEEPALIVE_IDLE, kKeepAliveS) && set(ZMQ_TCP_KEEPALIVE_INTVL, kKeepAliveS) &&
           set(ZMQ_TCP_KEEPALIVE_CNT, kKeepAlives) && set(ZMQ_TCP_MAXRT, kUnacknowledgedMs) &&
           set(ZMQ_MAXMSGSIZE, static_cast<std::int64_t>(largest_message));
  }

 private:
  void* socket_ = nullptr;
};

std::string endpoint(const std::string& address, const std::string& port) {
  return address.find(':') == std::string::npos ? "tcp://" + address + ":" + port : "tcp://[" + address + "]:" + port;
}

std::string seal(std::string message) {
  const std::uint64_t sum = xxh3(std::as_bytes(std::span(message)));
  message.append(reinterpret_cast<const char*>(&sum), kSumBytes);
  return message;
}

// The message without its sum; nothing: the sum is wrong.
std::optional<std::span<const std::byte>> unseal(std::span<const std::byte> frame) {
  if (frame.size() < kSumBytes) return std::nullopt;
  const auto message = frame.first(frame.size() - kSumBytes);
  std::uint64_t sum = 0;
  std::memcpy(&sum, frame.data() + message.size(), kSumBytes);
  if (sum != xxh3(message)) return std::nullopt;
  return message;
}

void wake(int fd) {
  const std::uint64_t one = 1;
  (void)!::write(fd, &one, sizeof one);
}

// Payloads that ZeroMQ sends from where they are.
struct Unsent {
  std::atomic<std::size_t>& bytes;
  int wake_fd;
  std::size_t size;
  std::unique_ptr<std::byte[]> payloads;

  static void sent(void* /*data*/, void* hint) {
    const std::unique_ptr<Unsent> self(static_cast<Unsent*>(hint));
    const std::size_t before = self->bytes.fetch_sub(self->size);
    if (before > kUnsentBytes && before - self->size <= kUnsentBytes) wake(self->wake_fd);
  }
};

}  // namespace

struct FetchService::Impl {
  struct Exit {};
  using Command = std::variant<wire::Plan, Replayer::Send, Exit>;

  struct Peer {
    Rank rank;
    Incarnation life;
    std::vector<std::string> endpoints;
    Socket socket;                   // none while it is not used
    std::deque<std::string> unsent;  // until there is a connection
    Clock::time_point used;
    Socket monitor;                                   // of the socket
    std::set<std::string> standing;                   // connections, by ZeroMQ's name of their other end
    std::map<std::uint64_t, std::string> unanswered;  // by the number of the request
    std::chrono::milliseconds pause = kFirstPause;
    std::optional<Clock::time_point> renew_at;
  };
  struct Early {
    std::string connection;
    wire::FetchRequest request;
    std::size_t bytes;
  };

  Impl(Incarnation life, std::unique_ptr<HostLogReader> from, OnReply reply, OnWarning warning, OnQuestion question)
      : self(life),
        reader(std::move(from)),
        on_reply(std::move(reply)),
        on_warning(std::move(warning)),
        on_question(std::move(question)) {}
  ~Impl() {
    if (thread.joinable()) {
      post(Exit{});
      thread.join();
    }
    // Sockets before their context; what is unsent goes with it, and tells the descriptor.
    peers.clear();
    router = {};
    zap = {};
    if (context != nullptr) end_zeromq(context);
    if (wake_fd >= 0) ::close(wake_fd);
  }

  const Incarnation self;
  const std::unique_ptr<HostLogReader> reader;
  const OnReply on_reply;
  const OnWarning on_warning;
  const OnQuestion on_question;

  std::mutex mutex;
  std::vector<Command> commands;

  int wake_fd = -1;
  std::atomic<std::size_t> unsent_bytes{0};
  void* context = nullptr;
  Socket router, zap;
  std::optional<storage::CurveKeys> keys;
  std::uint16_t port = 0;
  std::thread thread;

  // Of the thread.
  Generation generation;
  std::map<Rank, Peer> peers;
  std::set<std::uint64_t> members;  // lives
  std::optional<DoneReader> done;   // this life has left, and serves that alone
  std::deque<Early> early;
  std::size_t early_bytes = 0;
  Clock::time_point looked_for_idle;
  std::uint64_t warnings = 0;
  std::uint64_t connections = 0;

  // --- any thread ---

  void post(Command command) {
    {
      const std::lock_guard lock(mutex);
      // The replayer asks for so little at once that this does not happen; what is dropped it asks for again.
      if (commands.size() >= kCommands && std::holds_alternative<Replayer::Send>(command)) return;
      commands.push_back(std::move(command));
    }
    wake(wake_fd);
  }

  // --- start ---

  Status open(const Settings& settings) {
    wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake_fd < 0) return {Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno)};
    if (!settings.no_auth) {
      auto secret = storage::Secret::load(settings.secret_file);
      if (!secret.ok()) return secret.status();
      auto credentials = secret.value().for_job(settings.job);
      if (!credentials.ok()) return credentials.status();
      keys = credentials.value().fetch;
    }
    auto addresses = choose_data_addresses(settings.bind_address, settings.advertise_address, settings.tracker_host,
                                           settings.tracker_port, std::chrono::milliseconds(settings.join_timeout_ms));
    if (!addresses.ok()) return addresses.status();
    const auto broken = [](const char* what) {
      return Status(Code::kUnavailable, std::string("cannot set up ZeroMQ (") + what + "): " + zmq_text());
    };
    if (Status s = has_room_for_zeromq(kIoThreads); !s.ok()) return s;
    const SignalsBlocked here;  // ZeroMQ's calls fail when one comes
    context = zmq_ctx_new();
    if (context == nullptr || zmq_ctx_set(context, ZMQ_IO_THREADS, kIoThreads) != 0 ||
        zmq_ctx_set(context, ZMQ_MAX_SOCKETS, kSocketsOfPeer * static_cast<int>(limits::kMaxWorldSize) + 16) != 0) {
      return broken("context");
    }
    if (keys) {
      // Before the first connection can come in.
      zap = Socket(context, ZMQ_REP);
      if (zap.get() == nullptr || !zap.set(ZMQ_LINGER, 0) || zmq_bind(zap.get(), "inproc://zeromq.zap.01") != 0) {
        return broken("authentication");
      }
    }
    router = Socket(context, ZMQ_ROUTER);
    if (router.get() == nullptr) return broken("socket");
    const bool set = router.set_common(limits::kMaxFetchRequestBytes + kSumBytes) &&
                     router.set(ZMQ_ROUTER_MANDATORY, 1) && router.set(ZMQ_ROUTER_HANDOVER, 0) &&
                     router.set(ZMQ_BACKLOG, kBacklog) &&
                     (!keys || (router.set(ZMQ_CURVE_SERVER, 1) && router.set(ZMQ_CURVE_SECRETKEY, keys->secret_z85) &&
                                router.set(ZMQ_ZAP_DOMAIN, std::string("warren"))));
    if (!set) return broken("options");
    const auto bound =
        listen_in(settings.port_range, [&](std::uint16_t at) { return bind(addresses.value().bind, at); });
    if (!bound.ok()) return bound.status().because_of_this("cannot serve logged results");
    port = bound.value();
    return {};
  }

  // Port 0: any free one. kExhausted: this one is taken.
  Result<std::uint16_t> bind(const std::string& address, std::uint16_t at) {
    if (zmq_bind(router.get(), endpoint(address, at == 0 ? "*" : std::to_string(at)).c_str()) != 0) {
      return Status(zmq_errno() == EADDRINUSE ? Code::kExhausted : Code::kUnavailable,
                    "cannot listen on " + address + ": " + zmq_text());
    }
    std::array<char, 256> bound{};
    std::size_t size = bound.size();
    if (zmq_getsockopt(router.get(), ZMQ_LAST_ENDPOINT, bound.data(), &size) != 0) {
      return Status(Code::kUnavailable, "cannot set up ZeroMQ (port): " + zmq_text());
    }
    const std::string text(bound.data());
    return static_cast<std::uint16_t>(std::stoul(text.substr(text.rfind(':') + 1)));
  }

  // --- the thread ---

  void warn(const std::string& text) {
    if (!on_warning) return;
    // The first, the second, the fourth …: who sends rubbish does not fill the log.
    if (std::has_single_bit(++warnings)) {
      on_warning(text + (warnings > 1 ? " (" + std::to_string(warnings) + " warnings about fetching so far)" : ""));
    }
  }

  void loop() {
    std::vector<zmq_pollitem_t> items;
    std::vector<Rank> polled;
    while (true) {
      items.clear();
      polled.clear();
      items.push_back({nullptr, wake_fd, ZMQ_POLLIN, 0});
      if (keys) items.push_back({zap.get(), 0, ZMQ_POLLIN, 0});
      const bool reads = unsent_bytes.load() <= kUnsentBytes;
      if (reads) items.push_back({router.get(), 0, ZMQ_POLLIN, 0});
      const std::size_t fixed = items.size();
      for (const auto& [rank, peer] : peers) {
        if (peer.socket.get() == nullptr) continue;
        const short events = peer.unsent.empty() ? ZMQ_POLLIN : ZMQ_POLLIN | ZMQ_POLLOUT;
        items.push_back({peer.socket.get(), 0, events, 0});
        items.push_back({peer.monitor.get(), 0, ZMQ_POLLIN, 0});
        polled.push_back(rank);
      }
      const long wait_ms = polled.empty() ? -1 : static_cast<long>(until_next_look().count());
      if (zmq_poll(items.data(), static_cast<int>(items.size()), wait_ms) < 0) {
        WARREN_CHECK(zmq_errno() == EINTR, "the sockets of a running service can be waited for");
        continue;
      }
      if (keys) answer_handshakes();
      if (!run_commands()) return;
      if (reads) serve();
      for (std::size_t i = 0; i < polled.size(); ++i) {
        const auto peer = peers.find(polled[i]);
        const zmq_pollitem_t& of_socket = items[fixed + 2 * i];
        if (peer == peers.end() || peer->second.socket.get() != of_socket.socket) continue;
        if ((of_socket.revents & ZMQ_POLLOUT) != 0) flush(peer->second);
        if ((of_socket.revents & ZMQ_POLLIN) != 0) receive(peer->second);
        if (items[fixed + 2 * i + 1].revents != 0) take_events(peer->second);
      }
      renew_ended();
      close_idle();
    }
  }

  // False: the thread ends.
  bool run_commands() {
    std::uint64_t count = 0;
    (void)!::read(wake_fd, &count, sizeof count);
    std::vector<Command> todo;
    {
      const std::lock_guard lock(mutex);
      todo.swap(commands);
    }
    for (Command& command : todo) {
      if (std::holds_alternative<Exit>(command)) return false;
      if (auto* plan = std::get_if<wire::Plan>(&command)) {
        take_plan(*plan);
      } else {
        ask(std::get<Replayer::Send>(command));
      }
    }
    return true;
  }

  void take_plan(const wire::Plan& plan) {
    generation = Generation(plan.generation());
    members.clear();
    std::map<Rank, Peer> before = std::exchange(peers, {});
    const auto add = [&](const wire::Member& m, Rank rank) {
      Peer peer;
      peer.rank = rank;
      peer.life = Incarnation(m.incarnation());
      for (const wire::Endpoint& e : m.endpoints()) {
        peer.endpoints.push_back(endpoint(e.address(), std::to_string(m.fetch_port())));
      }
      // A connection to the same life stays; what it was asked in the older generation is not sent any more.
      if (const auto old = before.find(peer.rank); old != before.end() && old->second.life == peer.life) {
        peer.socket = std::move(old->second.socket);
        peer.monitor = std::move(old->second.monitor);
        peer.standing = std::move(old->second.standing);
        peer.renew_at = old->second.renew_at;
        peer.pause = old->second.pause;
        peer.used = old->second.used;
      }
      peers.emplace(peer.rank, std::move(peer));
    };
    for (const wire::Member& m : plan.members()) {
      if (m.absent()) continue;
      members.insert(m.incarnation());
      add(m, Rank(static_cast<std::int32_t>(m.rank())));
    }
    for (int i = 0; i < plan.servers_size(); ++i) {
      add(plan.servers(i), server_rank(plan, i));
      if (plan.servers(i).incarnation() == self.value && !done) done.emplace(*reader, plan);
    }
    early_bytes = 0;
    for (Early& e : std::exchange(early, {})) take_request(std::move(e));
  }

  // --- who asks us ---

  void answer_handshakes() {
    // version, request id, domain, address, routing id, mechanism, credentials
    for (int i = 0; i < kMessagesAtOnce; ++i) {
      std::vector<std::string> frames;
      for (bool more = true; more;) {
        Message frame;
        if (!frame.receive(zap.get())) break;
        if (frames.size() < kZapFrames) frames.push_back(frame.text());
        more = frame.more();
      }
      if (frames.empty()) return;
      std::array<char, 41> key{};
      const bool ours =
          frames.size() == kZapFrames && frames[5] == "CURVE" && frames[6].size() == 32 &&
          zmq_z85_encode(key.data(), reinterpret_cast<const std::uint8_t*>(frames[6].data()), 32) != nullptr &&
          keys->public_z85 == key.data();
      if (!ours) warn("somebody without the job's key asked for what is logged here; refused");
      const std::array<std::string, 6> reply = {
          "1.0", frames.size() > 1 ? frames[1] : "", ours ? "200" : "400", ours ? "OK" : "not this job's key", "", ""};
      for (std::size_t f = 0; f < reply.size(); ++f) {
        const int flags = ZMQ_DONTWAIT | (f + 1 < reply.size() ? ZMQ_SNDMORE : 0);
        if (zmq_send(zap.get(), reply[f].data(), reply[f].size(), flags) < 0) break;
      }
    }
  }

  void serve() {
    for (int i = 0; i < kMessagesAtOnce && unsent_bytes.load() <= kUnsentBytes; ++i) {
      Message connection, body;
      if (!connection.receive(router.get())) return;
      bool more = connection.more() && body.receive(router.get());
      if (!more || body.more()) {
        for (more = more && body.more(); more;) {
          Message rest;
          more = rest.receive(router.get()) && rest.more();
        }
        warn("a request for what is logged here has not two frames; dropped");
        continue;
      }
      const auto message = unseal(body.bytes());
      auto request = message ? decode_fetch_request(*message) : Status(Code::kCorrupt, "its checksum is wrong");
      if (!request.ok()) {
        warn("a request for what is logged here was dropped: " + request.status().describe());
        continue;
      }
      take_request({connection.text(), std::move(request).value(), body.bytes().size()});
    }
  }

  void take_request(Early e) {
    const wire::FetchRequest& r = e.request;
    if (r.receiver() != self.value) return;
    // A spare is in no plan. What is committed is the same in all of them, and whoever asks here has the job's key.
    // It gets less room than those that recover.
    if (r.follows()) return unsent_bytes.load() <= kUnsentForSpares ? answer(e) : void();
    if (r.generation() < generation.value) return;
    if (r.generation() > generation.value) {
      // Its sender has a plan that is still on its way here.
      early_bytes += e.bytes;
      early.push_back(std::move(e));
      while (early.size() > kEarlyRequests || early_bytes > kEarlyBytes) {
        early_bytes -= early.front().bytes;
        early.pop_front();
      }
      return;
    }
    if (!members.contains(r.sender())) return;
    if (r.asks()) return answer_question(e);
    answer(e);
  }

  void answer(const Early& e) {
    const wire::FetchRequest& r = e.request;
    Replayer::Answer answer = Replayer::answer_apart(r, done ? static_cast<HostLogReader&>(*done) : *reader);
    const std::string head = seal(encode(answer.reply, Payloads::kApart));
    // Who has gone, or does not read, gets nothing.
    if (zmq_send(router.get(), e.connection.data(), e.connection.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) return;
    const int more = answer.payload_bytes > 0 ? ZMQ_SNDMORE : 0;
    if (zmq_send(router.get(), head.data(), head.size(), ZMQ_DONTWAIT | more) < 0 || more == 0) return;
    std::byte* const data = answer.payloads.get();
    auto unsent =
        std::make_unique<Unsent>(Unsent{unsent_bytes, wake_fd, answer.payload_bytes, std::move(answer.payloads)});
    unsent_bytes.fetch_add(unsent->size);
    zmq_msg_t payload;
    const std::size_t size = unsent->size;
    WARREN_CHECK(zmq_msg_init_data(&payload, data, size, &Unsent::sent, unsent.release()) == 0,
                 "there is memory for a message's head");
    if (zmq_msg_send(&payload, router.get(), ZMQ_DONTWAIT) < 0) zmq_msg_close(&payload);
  }

  void answer_question(const Early& e) {
    const wire::FetchRequest& r = e.request;
    const RoundId round{Timeline(r.timeline()), GroupId(r.group()), Version(r.version()), Sequence(r.first_sequence())};
    const std::vector<std::uint64_t> sites(r.sites().begin(), r.sites().end());
    const Inquiry::Answer answer =
        on_question ? on_question(Generation(r.generation()), round, sites) : Inquiry::Answer();
    const std::string head = seal(encode(
        answer_to(r, answer.word, answer.word == RoundWord::kRound ? &answer.round : nullptr), Payloads::kApart));
    if (zmq_send(router.get(), e.connection.data(), e.connection.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) return;
    (void)zmq_send(router.get(), head.data(), head.size(), ZMQ_DONTWAIT);
  }

  // --- whom we ask ---

  void ask(const Replayer::Send& send) {
    const auto found = peers.find(send.to);
    // Of an older plan.
    if (found == peers.end() || send.request.receiver() != found->second.life.value ||
        send.request.generation() != generation.value) {
      return;
    }
    Peer& peer = found->second;
    if (peer.socket.get() == nullptr && !connect(peer)) return;
    peer.used = Clock::now();
    if (peer.unsent.size() >= kUnconnectedRequests) peer.unsent.pop_front();
    if (peer.unanswered.size() >= kUnconnectedRequests) peer.unanswered.erase(peer.unanswered.begin());
    peer.unsent.push_back(seal(encode(send.request)));
    peer.unanswered[send.request.id()] = peer.unsent.back();
    flush(peer);
  }

  bool connect(Peer& peer) {
    Socket s(context, ZMQ_DEALER);
    bool ok = s.get() != nullptr && s.set_common(limits::kMaxFetchReplyBytes + kSumBytes) &&
              s.set(ZMQ_RECONNECT_IVL, kReconnectMs) && s.set(ZMQ_RECONNECT_IVL_MAX, kMaxReconnectMs) &&
              s.set(ZMQ_IMMEDIATE, 1);
    if (keys) {
      ok = ok && s.set(ZMQ_CURVE_SERVERKEY, keys->public_z85) && s.set(ZMQ_CURVE_PUBLICKEY, keys->public_z85) &&
           s.set(ZMQ_CURVE_SECRETKEY, keys->secret_z85);
    }
    const std::string events = kMonitor + std::to_string(++connections);
    ok = ok && zmq_socket_monitor(s.get(), events.c_str(), ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) == 0;
    Socket monitor(context, ZMQ_PAIR);
    ok = ok && monitor.get() != nullptr && monitor.set(ZMQ_LINGER, 0) && monitor.set(ZMQ_RCVHWM, 0) &&
         zmq_connect(monitor.get(), events.c_str()) == 0;
    // Whichever answers; requests go to connections that stand.
    bool any = false;
    for (const std::string& e : peer.endpoints) any = (ok && zmq_connect(s.get(), e.c_str()) == 0) || any;
    if (!any) {
      warn("cannot ask rank " + std::to_string(peer.rank.value) + " what it has logged: " + zmq_text());
      return false;
    }
    peer.socket = std::move(s);
    peer.monitor = std::move(monitor);
    peer.standing.clear();
    return true;
  }

  void flush(Peer& peer) {
    while (!peer.unsent.empty()) {
      const std::string& m = peer.unsent.front();
      if (zmq_send(peer.socket.get(), m.data(), m.size(), ZMQ_DONTWAIT) < 0) return;
      peer.unsent.pop_front();
    }
  }

  void receive(Peer& peer) {
    const Rank from = peer.rank;
    for (int i = 0; i < kMessagesAtOnce; ++i) {
      Message head, payload;
      if (!head.receive(peer.socket.get())) return;
      bool more = head.more() && payload.receive(peer.socket.get());
      const bool right = !more || !payload.more();
      for (more = more && payload.more(); more;) {
        Message rest;
        more = rest.receive(peer.socket.get()) && rest.more();
      }
      peer.used = Clock::now();
      const auto message = unseal(head.bytes());
      auto reply =
          message ? decode_fetch_reply(*message, Payloads::kApart) : Status(Code::kCorrupt, "its checksum is wrong");
      if (reply.ok() && (!right || (reply.value().data() ? range_bytes(reply.value()) : 0) != payload.bytes().size())) {
        reply = Status(Code::kCorrupt, "it has not the payloads that it names");
      }
      if (!reply.ok()) {
        warn("what rank " + std::to_string(from.value) + " answered was dropped: " + reply.status().describe());
        continue;
      }
      if (reply.value().sender() != peer.life.value || reply.value().receiver() != self.value) continue;
      peer.unanswered.erase(reply.value().id());
      peer.pause = kFirstPause;
      on_reply(from, reply.value(), payload.bytes());
    }
  }

  [[nodiscard]] std::chrono::milliseconds until_next_look() const {
    const auto now = Clock::now();
    std::chrono::milliseconds wait(kLookForIdleMs);
    for (const auto& [rank, peer] : peers) {
      if (!peer.renew_at) continue;
      wait = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(*peer.renew_at - now), {}, wait);
    }
    return wait;
  }

  // Of the peer's addresses one may lead elsewhere: what fails there says nothing of a connection that stands.
  static void take_events(Peer& peer) {
    while (true) {
      Message event, address;
      if (!event.receive(peer.monitor.get()) || !event.more() || !address.receive(peer.monitor.get())) return;
      std::uint16_t kind = 0;
      if (event.bytes().size() >= sizeof kind) std::memcpy(&kind, event.bytes().data(), sizeof kind);
      if (kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        peer.standing.insert(address.text());
      } else if ((peer.standing.erase(address.text()) > 0 || peer.standing.empty()) && !peer.renew_at) {
        peer.renew_at = Clock::now() + peer.pause;
      }
    }
  }

  // Asks again, over a new connection, what went over one that has ended.
  void renew_ended() {
    const auto now = Clock::now();
    for (auto& [rank, peer] : peers) {
      if (!peer.renew_at || now < *peer.renew_at) continue;
      peer.renew_at.reset();
      if (peer.socket.get() == nullptr) continue;
      peer.pause = std::min(2 * peer.pause, kMostPause);
      peer.unsent.clear();
      if (peer.standing.empty()) peer.socket = {};
      // Where nothing is waited for, the next request makes the connection.
      if (peer.unanswered.empty() || (peer.socket.get() == nullptr && !connect(peer))) continue;
      for (const auto& [id, request] : peer.unanswered) peer.unsent.push_back(request);
    }
  }

  void close_idle() {
    const auto now = Clock::now();
    if (now - looked_for_idle < std::chrono::milliseconds(kLookForIdleMs)) return;
    looked_for_idle = now;
    for (auto& [rank, peer] : peers) {
      if (peer.socket.get() == nullptr || now - peer.used < kIdle) continue;
      peer.socket = {};
      peer.unsent.clear();
      peer.unanswered.clear();
    }
  }
};

FetchService::FetchService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FetchService::~FetchService() = default;

Result<std::unique_ptr<FetchService>> FetchService::start(const Settings& settings, Incarnation self,
                                                          std::unique_ptr<HostLogReader> reader, OnReply on_reply,
                                                          OnWarning on_warning, OnQuestion on_question) {
  auto impl = std::make_unique<Impl>(self, std::move(reader), std::move(on_reply), std::move(on_warning),
                                     std::move(on_question));
  if (Status s = impl->open(settings); !s.ok()) return s;
  if (Status s = start_thread(impl->thread, [i = impl.get()] { i->loop(); }); !s.ok()) {
    return s.because_of_this("cannot open the port at which others ask for what is logged");
  }
  return std::unique_ptr<FetchService>(new FetchService(std::move(impl)));
}

std::uint16_t FetchService::port() const {
  return impl_->port;
}

void FetchService::install(const wire::Plan& plan) {
  impl_->post(plan);
}

void FetchService::send(Replayer::Send send) {
  impl_->post(std::move(send));
}

}  // namespace warren::worker

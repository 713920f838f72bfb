#include "worker/session/tracker_socket.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "storage/zeromq.h"

namespace warren::worker {
namespace {

constexpr int kLingerMs = 500;
constexpr int kSendQueueMessages = 1000;
constexpr const char* kMonitor = "inproc://warren-control-monitor-";
// Not ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL: with it ZeroMQ 4.3.4 no longer reads a connection of which a message did not
// decrypt, and does not close it (tracker/handshake_watch.h says why).
constexpr int kMonitored = ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED;
// A tracker that answers no more is called again more and more seldom, up to this.
constexpr std::int64_t kMostPatienceMs = 60'000;
// The patience with a connection that was closed, which ZeroMQ makes again by itself where it does.
constexpr std::int64_t kClosedPatienceMs = 300;

}  // namespace

std::string zmq_text() {
  return zmq_strerror(zmq_errno());
}

TrackerSocket::TrackerSocket(std::string name, std::optional<storage::JobCredentials> credentials,
                             std::int64_t first_patience_ms)
    : name_(std::move(name)), keys_(std::move(credentials)), first_patience_ms_(first_patience_ms) {}

TrackerSocket::~TrackerSocket() {
  close();
  if (context_ != nullptr) end_zeromq(context_);  // at most kLingerMs
}

Status TrackerSocket::renew() {
  const SignalsBlocked here;  // ZeroMQ's calls fail when one comes
  close();
  socket_ = context_ == nullptr ? nullptr : zmq_socket(context_, ZMQ_DEALER);
  if (socket_ == nullptr) return {Code::kUnavailable, "cannot make a ZeroMQ socket: " + zmq_text()};
  bool ok = set(ZMQ_LINGER, kLingerMs) && set(ZMQ_IPV6, 1) && set(ZMQ_RECONNECT_IVL, 50) &&
            set(ZMQ_RECONNECT_IVL_MAX, 1000) && set(ZMQ_SNDHWM, kSendQueueMessages) && never_stop_reading(socket_) &&
            set(ZMQ_IMMEDIATE, 0);
  const auto largest = static_cast<std::int64_t>(limits::kMaxControlMessageBytes);
  ok = ok && zmq_setsockopt(socket_, ZMQ_MAXMSGSIZE, &largest, sizeof largest) == 0;
  if (keys_) {
    ok = ok && set(ZMQ_CURVE_SERVERKEY, keys_->tracker_public_z85) &&
         set(ZMQ_CURVE_PUBLICKEY, keys_->worker.public_z85) && set(ZMQ_CURVE_SECRETKEY, keys_->worker.secret_z85);
  }
  const std::string events = kMonitor + std::to_string(++connections_);
  ok = ok && zmq_socket_monitor(socket_, events.c_str(), kMonitored) == 0;
  monitor_ = ok ? zmq_socket(context_, ZMQ_PAIR) : nullptr;
  if (monitor_ != nullptr) {
    const int zero = 0;
    zmq_setsockopt(monitor_, ZMQ_LINGER, &zero, sizeof zero);
  }
  if (monitor_ == nullptr || zmq_connect(monitor_, events.c_str()) != 0) {
    return {Code::kInternal, "cannot set up the connection to the tracker: " + zmq_text()};
  }
  if (zmq_connect(socket_, ("tcp://" + name_).c_str()) != 0) {
    return {Code::kInvalidArgument, "cannot connect to a tracker at " + name_ + ": " + zmq_text()};
  }
  return {};
}

void TrackerSocket::close() {
  if (socket_ != nullptr) {
    zmq_socket_monitor(socket_, nullptr, 0);
    zmq_close(socket_);
  }
  if (monitor_ != nullptr) zmq_close(monitor_);
  socket_ = monitor_ = nullptr;
}

void TrackerSocket::collect(std::vector<zmq_pollitem_t>& items) const {
  for (void* socket : {socket_, monitor_}) {
    if (socket != nullptr) items.push_back({socket, 0, ZMQ_POLLIN, 0});
  }
}

void TrackerSocket::send(const std::string& bytes) const {
  (void)zmq_send(socket_, bytes.data(), bytes.size(), ZMQ_DONTWAIT);
}

std::optional<Result<wire::Envelope>> TrackerSocket::receive() const {
  zmq_msg_t message;
  zmq_msg_init(&message);
  if (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) < 0) {
    zmq_msg_close(&message);
    return std::nullopt;
  }
  auto envelope =
      decode_envelope({static_cast<const std::byte*>(zmq_msg_data(&message)), zmq_msg_size(&message)}, Side::kTracker);
  zmq_msg_close(&message);
  return envelope;
}

void TrackerSocket::heard(TimeMs now) {
  silent_since_ = now;
  patience_ms_ = first_patience_ms_;
}

Status TrackerSocket::renew_silent(TimeMs now) {
  silent_since_ = now;
  patience_ms_ = std::min(2 * patience_ms_, kMostPatienceMs);
  last_event_ = 0;
  return renew();
}

std::optional<std::uint16_t> TrackerSocket::next_event() const {
  zmq_msg_t message;
  zmq_msg_init(&message);
  if (zmq_msg_recv(&message, monitor_, ZMQ_DONTWAIT) < 0) {
    zmq_msg_close(&message);
    return std::nullopt;
  }
  std::uint16_t event = 0;
  if (zmq_msg_size(&message) >= sizeof event) std::memcpy(&event, zmq_msg_data(&message), sizeof event);
  const bool more = zmq_msg_more(&message) != 0;
  zmq_msg_close(&message);
  if (more) {
    zmq_msg_init(&message);
    (void)zmq_msg_recv(&message, monitor_, ZMQ_DONTWAIT);  // the address, which we know
    zmq_msg_close(&message);
  }
  return event;
}

std::optional<std::string> TrackerSocket::next_trouble(TimeMs now) {
  while (const std::optional<std::uint16_t> event = next_event()) {
    const std::uint16_t before = std::exchange(last_event_, *event);
    switch (*event) {
      case ZMQ_EVENT_CONNECT_RETRIED:
        // The connection that ended was told already.
        if (before == ZMQ_EVENT_DISCONNECTED) continue;
        return "nobody answers at " + name_;
      case ZMQ_EVENT_DISCONNECTED:
        if (before == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
          // ZeroMQ does not make it again if bytes did not decrypt.
          silent_since_ = now;
          patience_ms_ = kClosedPatienceMs;
          return "the connection to " + name_ + " was closed";
        }
        return "the tracker at " + name_ +
               " does not accept this worker's key, or ended the connection before it could: is the secret file made "
               "for this tracker, and do both ends use authentication?";
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        heard(now);  // a new connection has as long as the first one
        continue;
      default: continue;
    }
  }
  return std::nullopt;
}

}  // namespace warren::worker

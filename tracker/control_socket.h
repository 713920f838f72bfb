// The tracker's ZeroMQ sockets: a ROUTER for workers, and the ZAP socket that lets their keys in.
//
// CURVE proves that a connection has a key; ZAP here accepts every key and hands it on with each message as its user
// id. Whether it is the key of the job that a message names is for the job table to say: jobs come and go, and an
// answer says more than a handshake that fails.
//
// With another tracker's secret a connection fails in CURVE's handshake, within ZeroMQ: the monitor of the ROUTER tells
// what HandshakeWatch infers that from.
//
// ZeroMQ's own heartbeat is off, as TCP finds a host that has vanished. In ZeroMQ 4.3.4 a heartbeat ends the process
// (an assertion in a thread of ZeroMQ's) where it falls due on a connection whose queue was full, or whose last message
// did not decrypt, when its other end went away. So does a heartbeat that a worker sends. Hence no queue of messages
// from workers is ever full (storage/zeromq.h): a connection of which too much waits is cut off instead.
//
// Made in one thread and then used from one other, as ZeroMQ allows.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "recovery/base/result.h"
#include "recovery/wire/codec.h"
#include "storage/secret.h"
#include "tracker/handshake_watch.h"
#include "tracker/job_table.h"
#include "tracker/unread_watch.h"

namespace warren::tracker {

class ControlSocket {
 public:
  // Of one connection: as many as 128 of the largest messages take.
  static constexpr std::uint64_t kMostUnreadBytes = std::uint64_t{128} * kMaxWorkerMessageBytes;

  // `keys`: none means that nobody is authenticated. Errors as for Tracker::start().
  static Result<std::unique_ptr<ControlSocket>> bind(const std::string& address, std::uint16_t port,
                                                     const std::optional<storage::CurveKeys>& keys);
  // Waits at most half a second for what was sent.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }

  // Until a message, a handshake, something to read on `wake_fd`, or the end of the time (negative: no end).
  void wait(int wake_fd, std::int64_t timeout_ms);

  // Handles up to `limit` messages that are there, and handshakes. `malformed` says what is wrong with the frames of
  // one.
  void receive(std::size_t limit, const std::function<void(const Sender&, std::span<const std::byte>)>& message,
               const std::function<void(const Sender&, std::string_view)>& malformed);

  // Looks after connections: calls `failed` for each that has failed in its handshake since the last call, with the
  // address that it came from (empty where that is not known). Those that only knock are not told. Cuts off strangers
  // that are too many or too old, and, once a second, connections of which more waits than kMostUnreadBytes.
  void look_after_strangers(TimeMs now, const std::function<void(std::string_view address)>& failed);

  // Never waits.
  SendOutcome send(std::string_view connection, const std::string& bytes);

 private:
  explicit ControlSocket(bool encrypted);
  void cut_off_overfull(TimeMs now);
  void answer_handshakes();
  void read_events(TimeMs now, const std::function<void(std::string_view address)>& failed);

  void* context_ = nullptr;
  void* router_ = nullptr;
  void* zap_ = nullptr;      // null: insecure
  void* monitor_ = nullptr;  // of router_
  HandshakeWatch watch_;
  UnreadWatch unread_;
  TimeMs looked_at_unread_{std::numeric_limits<std::int64_t>::min()};
  bool drained_ = true;  // the last receive() has left no message
  std::uint16_t port_ = 0;
};

}  // namespace warren::tracker

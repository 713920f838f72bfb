// A worker's connection to the tracker over ZeroMQ: made, watched, and made anew when the tracker falls silent.
//
// ZeroMQ makes the connection again when it breaks, but not always: after some failures of a handshake it never tries
// again. Hence renew().
//
// Threads: one at a time, but for the constructor's.
#pragma once

#include <zmq.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "storage/secret.h"

namespace warren::worker {

// ZeroMQ's text for its last failure.
[[nodiscard]] std::string zmq_text();

class TrackerSocket {
 public:
  // `name`: "host:port" of the tracker. `credentials`: none, if the job uses no authentication. Without a word from the
  // tracker for `first_patience_ms`, or some time more, the connection is made anew.
  TrackerSocket(std::string name, std::optional<storage::JobCredentials> credentials, std::int64_t first_patience_ms);
  TrackerSocket(const TrackerSocket&) = delete;
  TrackerSocket& operator=(const TrackerSocket&) = delete;
  // Messages that were sent still go out, within half a second.
  ~TrackerSocket();

  // Makes a new connection instead of the one there is. Messages that were sent over that one and not heard are lost.
  // kUnavailable, kInternal, kInvalidArgument: as what failed.
  [[nodiscard]] Status renew();
  // The descriptors to wait for.
  void collect(std::vector<zmq_pollitem_t>& items) const;

  // A full queue loses the message.
  void send(const std::string& bytes) const;
  // The next message that has come, if it is valid; nullopt: none has come.
  [[nodiscard]] std::optional<Result<wire::Envelope>> receive() const;

  // The tracker has said something, or accepted a connection: it has as long as at first for its next word.
  void heard(TimeMs now);
  // The tracker has not said a word for too long.
  [[nodiscard]] bool is_silent(TimeMs now) const { return now - silent_since_ >= patience_ms_; }
  // Makes the connection anew, and waits longer for the next word.
  [[nodiscard]] Status renew_silent(TimeMs now);
  // The next trouble of the connection that was seen, for people; nullopt: none.
  [[nodiscard]] std::optional<std::string> next_trouble(TimeMs now);

 private:
  void close();
  bool set(int option, int value) const { return zmq_setsockopt(socket_, option, &value, sizeof value) == 0; }
  bool set(int option, const std::string& value) const {
    return zmq_setsockopt(socket_, option, value.data(), value.size()) == 0;
  }
  // The next event of the monitor; nullopt: none has come.
  [[nodiscard]] std::optional<std::uint16_t> next_event() const;

  const std::string name_;
  const std::optional<storage::JobCredentials> keys_;
  const std::int64_t first_patience_ms_;
  void* const context_ = zmq_ctx_new();
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
  std::uint64_t connections_ = 0;
  std::uint16_t last_event_ = 0;
  TimeMs silent_since_;
  std::int64_t patience_ms_ = 0;
};

}  // namespace warren::worker

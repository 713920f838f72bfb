// Follows the tracker's connections from what ZeroMQ tells of them: which of them fail in CURVE's handshake, and which
// have been strangers for too long.
//
// ZeroMQ 4.3.4 has an event for a handshake that fails, ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL, which must stay off. The
// same event comes when a message of a connection that stands does not decrypt, and telling it overwrites errno: ZeroMQ
// then neither reads nor closes that connection any more. So failures are inferred: the connection was closed, has
// never spoken, and ZeroMQ did not say that the other side ended it.
//
// A stranger is a connection from which no message has come: only a key of the tracker gets one through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "recovery/base/machine.h"

namespace warren::tracker {

class HandshakeWatch {
 public:
  struct Stranger {
    int descriptor = -1;
    std::string peer;  // its address, as given to accepted()
  };

  void accepted(int descriptor, std::string peer, TimeMs now);
  // Some handshake has succeeded; ZeroMQ does not say whose.
  void succeeded();
  // Some connection was ended by its other side, or by time, within its handshake. Its closed() comes next.
  void given_up();
  // A message has come over this connection.
  void spoke(int descriptor);
  // The peer, if the connection has failed in its handshake.
  std::optional<std::string> closed(int descriptor);

  // A stranger to be cut off, and never the same twice: the oldest, if it has been one since before `older_than`, or if
  // strangers take more than half of the descriptors that connections from which messages came leave of `descriptors`.
  std::optional<Stranger> overdue(std::size_t descriptors, TimeMs older_than);

 private:
  struct Connection {
    std::string peer;
    TimeMs since;
    std::uint64_t order = 0;
    bool spoken = false;
  };
  void forget(std::map<int, Connection>::iterator at);

  std::map<int, Connection> connections_;   // by descriptor
  std::map<std::uint64_t, int> strangers_;  // those that are not cut off yet, the oldest first
  std::uint64_t last_order_ = 0;
  std::size_t spoken_ = 0;     // connections
  std::int64_t given_up_ = 0;  // and not closed yet
  std::int64_t silent_ = 0;    // handshakes that have succeeded, whose connections have neither spoken nor closed
};

}  // namespace warren::tracker

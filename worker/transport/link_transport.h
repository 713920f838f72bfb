// Frames over connections: one or several a link, chunks striped over them in turn. Within a host a connection has a
// pipe of shared memory (worker/transport/host_pipe.h), which carries the bytes; its socket then wakes who sleeps, and
// tells that the other end has gone.
//
// Connections are made and authenticated elsewhere (worker/transport/connector.h) and handed over by adopt(). All
// members are called under the owner's lock, from one thread at a time. Descriptors are non-blocking; partial reads and
// writes, EINTR and closed peers are expected.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/transport/host_pipe.h"
#include "worker/transport/ring_queue.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class LinkTransport final : public Transport {
 public:
  // Called (under the owner's lock) when a link is used for the first time and has to be connected or accepted.
  using WantLink = std::function<void(GroupId, Rank)>;

  explicit LinkTransport(WantLink want) : want_(std::move(want)) {}
  ~LinkTransport() override { close_all(); }
  LinkTransport(const LinkTransport&) = delete;
  LinkTransport& operator=(const LinkTransport&) = delete;

  // Begins an epoch after close_all() (or construction).
  void open(Epoch epoch, std::uint32_t streams, bool checksums);
  [[nodiscard]] Epoch epoch() const { return epoch_; }

  // Takes the descriptor of an authenticated connection, and its pipe if it has one; both are closed with the epoch.
  // What goes through a pipe has no checksums. kRefused: not the epoch in force, the stream is there already, or the
  // number of links is over its limit; the descriptor is closed then.
  Status adopt(Epoch epoch, GroupId group, Rank peer, std::uint16_t stream, int fd,
               std::unique_ptr<HostPipe> pipe = nullptr);
  // The link cannot be brought up: what is posted on it fails with `why`.
  void fail_link(GroupId group, Rank peer, const Status& why);

  LinkId link(GroupId group, Rank peer) override;
  void post_send(LinkId link, const FrameHeader& header, std::span<const std::byte> payload, Token token) override;
  void post_recv(LinkId link, const FrameHeader& expected, std::span<std::byte> payload, Token token) override;
  std::size_t poll(std::span<Completion> out) override;
  void collect_pollfds(std::vector<pollfd>& out) override;
  void close_all() override;
  // Who has slept on collect_pollfds() does so no longer. Until then other threads may call poll().
  void woken() { sleepers_--; }

  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Outgoing {
    FrameHeader header;
    std::span<const std::byte> payload;
    Token token = 0;
  };
  struct Incoming {
    FrameHeader expected;
    std::span<std::byte> payload;
    Token token = 0;
  };
  struct Stream {
    int fd = -1;
    std::unique_ptr<HostPipe> pipe;
    bool slept = false;  // with a pipe: the socket may have bytes that say "wake up", or its end
    std::string ended;   // with a pipe: how; what has come before is still to be read
    std::uint16_t index = 0;
    LinkId link = 0;
    bool active = false;  // listed in active_
    RingQueue<Outgoing> sends;
    RingQueue<Incoming> recvs;
    std::size_t sent = 0;      // of the frame in front, header included
    std::size_t received = 0;  // likewise
    FrameBytes send_header{}, recv_header{};
  };
  struct Link {
    GroupId group;
    Rank peer;
    std::vector<std::unique_ptr<Stream>> streams;
    std::uint64_t frames_sent = 0, frames_received = 0;  // posted; chooses the stream
    Status broken;
  };

  Link& at(LinkId link);
  LinkId make_link(GroupId group, Rank peer);
  void activate(Stream& stream);
  void complete(Token token, Status status);
  void break_link(Link& link, const Status& why);
  // Bytes that moved, 0: none can at present; nullopt: the connection is over, and `why` says how.
  std::optional<std::size_t> put(Stream& stream, std::span<const std::byte> header, std::span<const std::byte> payload,
                                 std::string& why);
  std::optional<std::size_t> take(Stream& stream, std::span<std::byte> header, std::span<std::byte> payload,
                                  std::string& why);
  void wake(Stream& stream);
  // After a sleep on a connection with a pipe.
  void hear(Stream& stream);
  // Both return whether something moved.
  bool pump_send(Stream& stream);
  bool pump_recv(Stream& stream, std::size_t budget);

  WantLink want_;
  Epoch epoch_;
  std::uint32_t streams_ = 1;
  bool checksums_ = true;
  int sleepers_ = 0;
  std::map<std::pair<GroupId, Rank>, LinkId> by_name_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Stream*> active_;
  RingQueue<Completion> completed_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace warren::worker

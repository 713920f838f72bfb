// Frames over connections: one or several a link, chunks striped over them in turn. Within a host a connection has a
// pipe of shared memory (worker/transport/frame_pipe.h), which carries the bytes; its socket then wakes who sleeps, and
// tells that the other end has gone.
//
// Connections are made and authenticated elsewhere (worker/transport/connector.h) and handed over by adopt(). All
// members are called under the owner's lock, from one thread at a time. Descriptors are non-blocking; partial reads and
// writes, EINTR and closed peers are expected.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/transport/frame_pipe.h"
#include "worker/transport/host_memory.h"
#include "worker/transport/host_pipe.h"
#include "worker/transport/posted_frame.h"
#include "worker/transport/ring_queue.h"
#include "worker/transport/round_transport.h"

namespace warren::worker {

class LinkTransport final : public RoundTransport {
 public:
  // Called (under the owner's lock) when a link is used for the first time and has to be connected or accepted.
  using WantLink = std::function<void(GroupId, Rank)>;

  // The log segment of a rank of this host that others of the host can read; null if there is none.
  using FindLog = std::function<std::shared_ptr<const SegmentView>(Rank)>;

  // `memory`: what this life lends to the ranks of its host, and they to it; null: nothing.
  explicit LinkTransport(WantLink want, FindLog find_log = nullptr, const HostMemory* memory = nullptr)
      : want_(std::move(want)), find_log_(std::move(find_log)), memory_(memory) {}
  ~LinkTransport() override { close_all(); }
  LinkTransport(const LinkTransport&) = delete;
  LinkTransport& operator=(const LinkTransport&) = delete;

  // Begins a generation after close_all() (or construction). `streams_to`, by rank: how many streams a link has;
  // `streams` where it says nothing of the rank.
  void open(Generation generation, std::uint32_t streams, bool checksums, std::vector<std::uint32_t> streams_to = {});
  [[nodiscard]] Generation generation() const { return generation_; }

  // Takes the descriptor of an authenticated connection, and its pipe if it has one; both are closed with the
  // generation. What goes through a pipe has no checksums. kRefused: not the generation in force, the stream is there
  // already, or the number of links is over its limit; the descriptor is closed then.
  Status adopt(Generation generation, GroupId group, Rank peer, std::uint16_t stream, int fd,
               std::unique_ptr<HostPipe> pipe = nullptr);
  // The link cannot be brought up: what is posted on it fails with `why`.
  void fail_link(GroupId group, Rank peer, const Status& why);

  LinkId link(GroupId group, Rank peer) override;
  void post_send(LinkId link, const FrameHeader& header, const Payload& payload, Token token) override;
  void post_recv(LinkId link, const FrameHeader& expected, std::span<std::byte> payload, Token token) override;
  [[nodiscard]] bool lends(GroupId group, Rank peer, const std::byte* at) const override;
  void post_recv_in_place(LinkId link, const FrameHeader& expected, std::span<std::byte> payload, Token token) override;
  void release(LinkId link, const View& view) override;
  Now send_now(LinkId link, FrameHeader& header, std::span<const std::byte> payload, Token token) override;
  Now recv_now(LinkId link, FrameHeader& expected, std::span<std::byte> payload) override;
  void move_payloads(LinkId link, Token token, std::span<const std::byte> from, const std::byte* to) override;
  std::size_t poll(std::span<Completion> out) override;
  void collect_pollfds(std::vector<pollfd>& out) override;
  void close_all() override;
  // Who has slept on collect_pollfds() does so no longer. Until then other threads may call poll().
  void woken() { sleepers_--; }

  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Stream {
    int fd = -1;
    int wakes_at = 1;                   // bytes: SO_RCVLOWAT
    std::unique_ptr<FramePipe> frames;  // null: the socket carries them
    std::uint16_t index = 0;
    LinkId link = 0;
    bool active = false;  // listed in active_
    RingQueue<Outgoing> sends;
    RingQueue<Incoming> recvs;
    // With a pipe.
    bool slept = false;  // the socket may have bytes that say "wake up", or its end
    std::string ended;   // how; what has come before is still to be read
    // Without a pipe.
    std::size_t sent = 0;      // of the frame in front, header included
    std::size_t received = 0;  // likewise
    FrameBytes send_header{}, recv_header{};
  };
  struct Link {
    GroupId group;
    Rank peer;
    std::vector<std::unique_ptr<Stream>> streams;
    std::uint64_t frames_sent = 0, frames_received = 0;  // posted; chooses the stream
    std::shared_ptr<const SegmentView> log;              // of the peer, once it was asked for
    Status broken;
  };

  Link& at(LinkId link);
  // The one that a link's frame of this number goes through.
  static Stream& stream_of(Link& link, std::uint64_t frame) {
    return *link.streams[link.streams.size() == 1 ? 0 : frame % link.streams.size()];
  }
  [[nodiscard]] std::uint32_t streams_to(Rank peer) const;
  LinkId make_link(GroupId group, Rank peer);
  void activate(Stream& stream);
  static void wake_late(Stream& stream);
  void complete(Token token, Status status, const View& view = {});
  void break_link(Link& link, const Status& broken);
  // Over a socket. Bytes that moved, 0: none can at present; nullopt: the connection is over, and `why` says how.
  std::optional<std::size_t> put(Stream& stream, std::span<const std::byte> header, std::span<const std::byte> payload,
                                 std::string& why);
  std::optional<std::size_t> take(Stream& stream, std::span<std::byte> header, std::span<std::byte> payload,
                                  std::string& why);
  void wake(Stream& stream);
  // After pipes have been told that this end will wait.
  void fence_pipes();
  // After a sleep on a connection with a pipe.
  void hear(Stream& stream);
  // Both return whether something moved.
  bool pump_send(Stream& stream);
  bool pump_recv(Stream& stream, std::size_t budget);
  bool pump_send_pipe(Stream& stream);
  bool pump_recv_pipe(Stream& stream, std::size_t budget);
  // The payload of the frame in front, whose sender has told its place; nullopt: it is not there.
  [[nodiscard]] std::optional<View> find_told(const Stream& stream, Link& link, const Incoming& in) const;
  // A place in memory of this life that the peer is told instead of the payload, or beside its place in the log.
  [[nodiscard]] MemoryPlace place_told(Rank peer, const Payload& payload) const;
  void expect(LinkId link, const FrameHeader& expected, std::span<std::byte> payload, bool in_place, Token token);
  // The payload of a frame that names a place in the peer's log.
  [[nodiscard]] std::optional<View> find_logged(Link& link, const LogPlace& place, const Incoming& in) const;
  // Of one that names a place in memory that the peer lends.
  [[nodiscard]] std::optional<View> find_lent(const Stream& stream, const Link& link, const MemoryPlace& place,
                                              const Incoming& in) const;

  WantLink want_;
  FindLog find_log_;
  const HostMemory* memory_ = nullptr;
  Generation generation_;
  std::uint32_t streams_ = 1;
  std::vector<std::uint32_t> streams_to_;  // by rank, as far as they are not streams_
  bool checksums_ = true;
  int sleepers_ = 0;
  std::map<std::pair<GroupId, Rank>, LinkId> by_name_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Stream*> active_;
  RingQueue<Completion> completed_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace warren::worker

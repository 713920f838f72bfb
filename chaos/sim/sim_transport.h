// The data plane in virtual time: every link of every pair of lives, frame by frame.
//
// What it keeps of TCP: one or several streams a link, each first in, first out; a window of bytes that the receiver
// has not taken, beyond which a sender is blocked; a chunk that arrives in pieces; the end of file behind what was sent
// before it; a reset that overtakes it. A payload is read only in the moment in which its send completes, so that who
// uses a buffer too early is found out. Headers are really encoded, decoded and matched.
//
// What it keeps of links within a host: a final is read in its sender's log, and any other payload may be read where it
// lies, until it is released or moved to the buffer that was posted; what is read later is found out. Some inputs that
// are lent are read in their sender's own buffer, which changes as soon as the sender has left the generation, unless
// it was killed.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "chaos/sim/data_network.h"
#include "chaos/sim/world.h"
#include "worker/transport/round_transport.h"

namespace warren::chaos {

class SimShares;

class SimTransport final : public worker::RoundTransport {
 public:
  // The life that owns a transport.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Completions wait to be polled.
    virtual void data_moved() = 0;
    // What the control thread's watch over links sees: the other end has gone.
    virtual void link_closed(Rank peer, const std::string& evidence) = 0;
    // What worker/transport/knocks.h finds, of a link that is not up.
    virtual void process_gone(Rank peer) = 0;
    // Its process stands still until then: it accepts no connection.
    [[nodiscard]] virtual Micros stands_still_until_us() const = 0;
    // True: its process dies at this very moment; nothing more of it goes out.
    [[nodiscard]] virtual bool dies_at_completion() = 0;
    [[nodiscard]] virtual bool dies_at_send() = 0;
    // The log of a rank that this life has mapped, of its own host; else null.
    [[nodiscard]] virtual std::shared_ptr<const SegmentView> log_of(Rank rank) = 0;
    // What this life shares of its GPU; null: it has none.
    [[nodiscard]] virtual SimShares* shares() = 0;
  };

  SimTransport(DataNetwork& network, Owner& owner, Incarnation self);
  ~SimTransport() override;
  SimTransport(const SimTransport&) = delete;
  SimTransport& operator=(const SimTransport&) = delete;

  struct Membership {
    Generation generation;
    Rank self;
    std::vector<Incarnation> lives;  // by rank
    std::uint32_t streams = 1;
    bool checksums = true;
    std::int64_t timeout_ms = 0;
    // By way of whom the streams of a link go, by its ends; of those that go straight nothing.
    std::map<std::pair<Rank, Rank>, std::vector<Rank>> relays;
  };
  void open(Membership membership);
  [[nodiscard]] Generation generation() const { return members_ ? members_->generation : Generation(); }
  [[nodiscard]] std::vector<Incarnation> lives() const {
    return members_ ? members_->lives : std::vector<Incarnation>();
  }
  // To whom this rank has links in the generation in force, up or not.
  [[nodiscard]] std::set<Rank> linked() const;
  [[nodiscard]] bool refused_by(Incarnation life) const { return network_.refuses(life); }
  // This end of a connection is reset, once that has travelled.
  void reset_later(worker::LinkId link);
  // The process is gone. Silently: its peers hear nothing (a lost machine), else their kernels are told.
  void vanish(bool silently);

  worker::LinkId link(GroupId group, Rank peer) override;
  void post_send(worker::LinkId link, const FrameHeader& header, const worker::Payload& payload,
                 worker::Token token) override;
  void post_recv(worker::LinkId link, const FrameHeader& expected, std::span<std::byte> payload,
                 worker::Token token) override;
  [[nodiscard]] bool lends(GroupId group, Rank peer, const std::byte* at) const override;
  void post_recv_in_place(worker::LinkId link, const FrameHeader& expected, std::span<std::byte> payload,
                          worker::Token token) override;
  void release(worker::LinkId link, const worker::View& view) override;
  Now send_now(worker::LinkId link, FrameHeader& header, std::span<const std::byte> payload,
               worker::Token token) override;
  Now recv_now(worker::LinkId link, FrameHeader& expected, std::span<std::byte> payload) override;
  void move_payloads(worker::LinkId link, worker::Token token, std::span<const std::byte> from,
                     const std::byte* to) override;
  std::size_t poll(std::span<worker::Completion> out) override;
  void collect_pollfds(std::vector<pollfd>&) override {}
  void close_all() override;

 private:
  struct Outgoing {
    FrameHeader header;
    std::span<const std::byte> payload;
    worker::Token token = 0;
    std::uint64_t fingerprint = 0;  // of the payload as it was posted
    bool completed = false;         // Mutant::send_completes_early
    LogPlace place;
    bool lent = false;
    std::shared_ptr<const worker::FinalOnGpu> beside;
  };
  struct Incoming {
    FrameHeader expected;
    std::span<std::byte> payload;
    worker::Token token = 0;
    bool in_place = false;
  };
  // A payload that is read where it lies. Kept, without bytes, until the generation ends.
  struct Held {
    const std::byte* payload = nullptr;
    std::vector<std::byte> bytes;
    std::span<std::byte> buffer;
  };
  struct Stream {
    std::deque<Outgoing> sends;
    std::deque<Incoming> recvs;
    bool sending = false;
    bool looked = false;     // recv_now() has found nothing
    bool receiving = false;  // a part of the frame in front has been written
  };
  struct Link {
    GroupId group;
    Rank peer;
    std::vector<Stream> streams;
    std::uint64_t frames_sent = 0, frames_received = 0;
    std::shared_ptr<Wire> wire;  // null: not up
    int side = 0;
    bool wanted = false, closed_by_peer = false;
    Status broken;
  };

  Link& at(worker::LinkId link) { return *links_[link]; }
  worker::LinkId find_or_make(GroupId group, Rank peer);
  // By way of whom this link goes, in its order of streams; null: it goes straight.
  [[nodiscard]] const std::vector<Rank>* relays_to(Rank peer) const;
  // This life takes part in that generation, and takes connections.
  [[nodiscard]] bool ready_in(Generation generation) const;
  [[nodiscard]] Micros drag_us(const Link& link, std::size_t stream) const;
  void try_connect(worker::LinkId link, Micros deadline_us);
  void knock(worker::LinkId link, Micros until_us);
  void come_up(worker::LinkId link, const std::shared_ptr<Wire>& wire, int side);
  void post(worker::LinkId link, const FrameHeader& header, std::span<const std::byte> payload, const LogPlace& place,
            bool lent, worker::Token token, std::shared_ptr<const worker::FinalOnGpu> beside = nullptr);
  // On this host, and has what is shared of this life's GPU mapped; who shares nothing has mapped nothing.
  [[nodiscard]] bool reads_on_gpu(const Link& link) const;
  // What this life lends is its own again. `alive`: its program goes on, and changes it.
  void end_loans(bool alive);
  void expect(worker::LinkId link, const FrameHeader& expected, std::span<std::byte> payload, bool in_place,
              worker::Token token);
  // Where the payload of this frame is to be read; of none if it could not be where its sender said.
  [[nodiscard]] std::optional<worker::View> view_of(const Link& link, const Incoming& in, Frame frame);
  void complete(worker::Token token, Status status, const worker::View& view = {});
  void break_link(Link& link, const Status& why);
  void try_send(worker::LinkId link, std::size_t stream);
  static void arrive(World& world, const std::shared_ptr<Wire>& wire, int side, std::size_t stream);
  void finish_send(worker::LinkId link, std::size_t stream);
  void fly(Link& link, std::size_t stream, const Outgoing& out);
  void deliver(worker::LinkId link, std::size_t stream);
  void take_front(worker::LinkId link, std::size_t stream);
  void on_closed_by_peer(worker::LinkId link);
  void on_reset(worker::LinkId link);
  [[nodiscard]] bool has_room(const Link& link, std::size_t stream, std::size_t bytes) const;
  // Runs `what` later unless the generation has ended by then.
  template <class What>
  void later(Micros delay_us, What what);

  DataNetwork& network_;
  World& world_;
  Owner& owner_;
  Incarnation self_;
  std::optional<Membership> members_;
  std::uint64_t use_ = 0;
  std::vector<std::unique_ptr<Link>> links_;
  std::map<std::pair<GroupId, Rank>, worker::LinkId> by_name_;
  std::deque<worker::Completion> completed_;
  std::deque<Held> held_;           // whose places stay as it grows
  std::size_t held_looked_at_ = 0;  // of them
  std::vector<std::weak_ptr<Loan>> loans_;
};

}  // namespace warren::chaos

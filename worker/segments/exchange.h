// Makes the ranks of one host map each other's log segments, and those of the host's dead lives, before their rounds
// run (docs/invariants.md, "Copies": a host's copy counts because other processes of the host have it mapped).
//
// Each life listens on a socket of its own, whose name the plan carries. Of two ranks the lower one connects; both
// prove that they hold the job's key; each sends its segment and those of the dead lives that it keeps, and says for
// each that it receives whether it has mapped it. That is done for a generation when every mate of its plan has mapped
// this life's segment, and has sent all that it held when it took the plan: nothing that the host holds is missed, and
// nothing that is published from then on is lost with this process.
//
// Memory that this life's program has allocated with us goes the same way, to the living alone, at any time: whoever
// has mapped it is told places in it (worker/transport/host_memory.h). Nothing waits for that. So does memory of a GPU,
// which only who uses a GPU itself can map, and not here: it is handed on, and answered when that is decided.
//
// Non-blocking; driven by the control thread alone. Connections stay for the plans in which both ends are members: only
// what is missing is exchanged again.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "storage/segment_memory.h"
#include "worker/segments/channel.h"

namespace warren::worker {

class SegmentExchange {
 public:
  struct Mate {
    Rank rank;
    Incarnation life;
    std::string socket;
  };
  struct Membership {
    Generation generation;
    Rank self;
    std::vector<Mate> mates;      // the other ranks of this host
    std::int64_t timeout_ms = 0;  // until a mate that has not mapped our segment is reported
  };
  struct Events {
    // A segment to be read from now on. A failure is told to the mate that has sent it.
    std::function<Status(Incarnation, MappedSegment)> attached;
    // Rounds of this generation may run. At most once a generation; also from within begin_generation().
    std::function<void(Generation)> complete;
    // At most once for each mate in a generation.
    std::function<void(Generation, Rank, const Status&)> failed;
    // Memory number `memory` of a mate's program: to be read from now on, or no more.
    std::function<void(Incarnation, std::uint32_t memory, MappedSegment)> borrowed = {};
    std::function<void(Incarnation, std::uint32_t memory)> returned = {};
    // The same of a GPU, of `bytes`, which are to be mapped, or not: answer(). Not set: they are not.
    std::function<void(Incarnation, std::uint32_t memory, OwnedFd, std::uint64_t bytes)> offered = {};
    // A mate has mapped memory that this life lends.
    std::function<void(Incarnation, std::uint32_t memory)> lent = {};
    // Something that people should know: strangers, rubbish. At most a few a second.
    std::function<void(const std::string&)> warning;
  };

  // `segment` is this life's own. kUnavailable: no socket or descriptor.
  static Result<std::unique_ptr<SegmentExchange>> create(const std::string& job, const handshake::LinkKey& link_key,
                                                         Incarnation self, const std::shared_ptr<MemfdSegment>& segment,
                                                         Events events);
  ~SegmentExchange();
  SegmentExchange(const SegmentExchange&) = delete;
  SegmentExchange& operator=(const SegmentExchange&) = delete;

  // What Join.segment_socket tells the others.
  [[nodiscard]] const std::string& socket() const { return listener_.name; }

  // A segment that somebody else kept (KeeperLink): maps it, reports it as attached, and keeps it for mates. It is no
  // error if it is known already or was forgotten.
  [[nodiscard]] Status add(Incarnation life, OwnedFd fd, std::uint64_t bytes);

  void begin_generation(Membership membership, TimeMs now);
  // Nothing is reported until the next one begins.
  void end_generation();
  // A life's segment serves nobody any more: it is closed here, and not taken again unless a plan makes it a mate's.
  void forget(Incarnation life);
  // Mates may read this memory of `bytes`; it is no more. Numbers are not used again.
  void lend(std::uint32_t memory, std::shared_ptr<const OwnedFd> fd, std::uint64_t bytes, bool on_gpu = false);
  void take_back(std::uint32_t memory);
  // Whether memory of a GPU that was offered is mapped.
  void answer(Incarnation life, std::uint32_t memory, bool mapped);
  // Lives whose segments are kept, without this one's own.
  [[nodiscard]] std::vector<Incarnation> kept() const;

  void collect_pollfds(std::vector<pollfd>& out) const;
  // Moves everything as far as it goes.
  void run(TimeMs now);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

 private:
  struct Kept {
    std::shared_ptr<const OwnedFd> fd;
    std::uint64_t bytes = 0;
    bool on_gpu = false;
  };
  struct Arrival {
    std::unique_ptr<SegmentChannel> channel;
    TimeMs deadline;
  };
  struct Friend {
    Mate mate;
    std::unique_ptr<SegmentChannel> channel;
    std::set<Incarnation> has;   // what it has mapped, or was its own
    std::set<Incarnation> sent;  // over this channel
    Generation told, heard;      // the newest generation of a kDone, to it and from it
    // Of this life's memory: what it has mapped; what it was ever offered, and may have; what it is to let go of, and
    // has not said that it has.
    std::set<std::uint32_t> reads, offered, gone;
    // Over this channel: what was offered, and has not been answered; what was told to be gone.
    std::set<std::uint32_t> offered_here, unanswered, told_gone;
    std::set<std::uint32_t> lends;  // of its own, mapped here
    std::set<std::uint32_t> asks;   // likewise, whether it is mapped is still to be answered
    Status refused;                 // it could not map our own
    Status cannot;                  // we could not map its own
    bool failed = false;            // reported in this generation
    TimeMs retry_at;
    std::int64_t backoff_ms = 0;
    std::string last_trouble;
  };

  SegmentExchange(const std::string& job, const handshake::LinkKey& link_key, Incarnation self, Kept own,
                  SegmentListener listener, Events events);
  [[nodiscard]] handshake::Verdict judge(const handshake::Hello& hello) const;
  [[nodiscard]] bool connects_to(const Mate& mate) const { return members_->self < mate.rank; }
  void accept_some(TimeMs now);
  void sort_arrivals(TimeMs now);
  void connect(Friend& f, TimeMs now);
  void adopt(Friend& f, std::unique_ptr<SegmentChannel> channel);
  void give(Friend& f);
  void give_memory(Friend& f);
  void on_memory(Friend& f, SegmentChannel::Received received);
  void pump(Friend& f, TimeMs now);
  void on_message(Friend& f, SegmentChannel::Received received);
  void look(TimeMs now);
  void warn(const std::string& text, TimeMs now);

  const std::uint64_t job_hash_;
  handshake::LinkKey key_;
  const Incarnation self_;
  const Kept own_;
  const SegmentListener listener_;
  const Events events_;

  std::map<Incarnation, Kept> kept_;
  std::deque<Incarnation> forgotten_;
  std::map<std::uint32_t, Kept> memory_;  // that this life lends
  std::optional<Membership> members_;
  bool complete_ = false;  // reported in this generation
  TimeMs deadline_;
  std::size_t populate_left_ = 0;          // in this run()
  std::map<Incarnation, Friend> friends_;  // by life: the mates of the newest plan
  std::list<Arrival> arrivals_;            // connections that are no friend's yet
  std::optional<TimeMs> accept_again_;     // out of descriptors: a pause instead of a spin
  TimeMs warnings_since_;
  int warnings_ = 0;
};

}  // namespace warren::worker

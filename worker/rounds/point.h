// Point-to-point messages of one group. Each pair of ranks has a link of its own for them, apart from the collectives.
//
// A message is an announcement frame (tag, type, count, call site) and then its chunks. A small message is a part of
// its announcement: 64 bytes came back in 7.6 us instead of 8.2, under load. The receiver reads a link only while a
// receive from that peer is posted: a big send waits for its receive, a small one rests in the kernel's buffers. A
// message whose tag nobody has asked for yet, while another is, is kept aside within limits::kMaxUnexpectedBytes.
//
// Recovery: messages from one rank to another are numbered in each version. A message is in the sender's log before it
// is sent. In a generation that some lives have come to from an earlier one, the two ends of a link first tell each
// other which numbers they have received; the sender then sends what is missing from its log, and what a new life sends
// again is passed over where it had arrived. So nothing of a message is fetched, and a lost sender's messages come
// again from its new life. A message does not cross a checkpoint.
//
// Both directions of a pair are one class, because what one end has received decides what the other one sends again,
// and both ends of a link break and depart together.
//
// A group that is destroyed here receives nothing any more: it departs. What it sent is still sent, also again to a new
// life, until no life can ask for it (obsolete()); what comes is taken and dropped, so that no sender waits for it. Its
// last word on each link is an announcement of the end; when that of the other end has come too, the link is clean and
// may carry another group's messages (the engine keeps the group's channel until then).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "recovery/wire/frame.h"
#include "worker/rounds/call.h"
#include "worker/rounds/point_frames.h"
#include "worker/rounds/recall.h"
#include "worker/rounds/round_board.h"
#include "worker/rounds/scratch.h"
#include "worker/transport/frames_at_once.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class PointChannels {
 public:
  // `channel` as in Engine::add_group; `self` is the group rank. `recall` null: nothing is logged. `board`
  // counts what each link moves.
  PointChannels(Transport& transport, FramesAtOnce& frames, GroupId group, std::uint32_t channel,
                std::vector<Rank> members, std::int32_t self, std::uint32_t slot, std::uint64_t chunk_bytes,
                Recall* recall, Version version, RoundBoard& board);

  // A generation begins; calls that are there go on. `greets`: some lives have come from an earlier generation.
  void open(Generation generation, Timeline timeline, bool greets);
  // After Transport::close_all(): the generation is over, and calls stay for the next.
  void suspend();
  // No call is outstanding. kDesync: a message of the version that ends was not received.
  [[nodiscard]] Status begin_version(Version version);
  // What was sent in older versions is obsolete.
  void committed(Version version);
  // The group is destroyed; no call is outstanding. What came and was not received is dropped.
  void depart();
  // After depart(): nothing is on its way on its links, in either direction.
  [[nodiscard]] bool clean() const;
  // After depart(): no life can ask for its messages again.
  [[nodiscard]] bool obsolete() const;
  // Something moves, or is due from another rank, that no call waits for.
  [[nodiscard]] bool unsettled() const { return unsettled_peers_ != 0; }
  // Grows with whatever moves: who waits and sees it stand still waits in vain.
  [[nodiscard]] std::uint64_t moves() const { return moves_; }
  // A message that is sent from the log, and has not been sent.
  [[nodiscard]] bool owes(const RecordKey& record) const;
  // A message that should be in the log is not: why. Once.
  [[nodiscard]] std::optional<std::string> take_gap() { return std::exchange(gap_, std::nullopt); }

  // kInvalidArgument: more chunks than can be counted (raise chunk_bytes); kExhausted: the log is full. Nothing was
  // sent.
  [[nodiscard]] Status send(Call& call);
  void recv(Call& call);
  // Sends or receives a small message without a Call, where no other message is under way with this peer. A receive
  // looks for its frame `looks` times more. Of a round trip of 64 bytes within a host, the books of calls were 40 % of
  // the instructions (callgrind, 500 messages). False: the caller submits the same call next. That call continues what
  // this one began.
  [[nodiscard]] bool run_at_once(const CallSpec& spec, int looks);
  void on_completion(Token token, const Status& status);

  // Ends the calls of messages that have waited since this was last called without anything of this group's moving: the
  // log has them, and they are still sent. So ranks that send to each other before they receive wait for no more than
  // that. The ranks that they go to; nothing where nothing is logged.
  [[nodiscard]] std::vector<Rank> end_waiting_sends();

  // Calls that have finished, with their results, in order. The owner takes them.
  struct Finished {
    Call* call = nullptr;
    Status status;
  };
  [[nodiscard]] std::vector<Finished>& finished() { return finished_; }
  // The first failure of a link, with its peer.
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] Rank failed_peer() const { return failed_peer_; }

  // After Transport::close_all(): every call that has not finished.
  [[nodiscard]] std::vector<Call*> abandon();
  // A call has not finished.
  [[nodiscard]] bool busy() const;
  // Adds receives that wait and what has been sent (wire::Blocked). False: a call of these may end by itself, as its
  // message is on its way, or there is more to be told than a heartbeat holds.
  [[nodiscard]] bool describe_blocked(GroupId group, wire::Blocked& blocked) const;
  // Ranks of the job from which a message is due, and those that have not taken all of one.
  [[nodiscard]] std::vector<Rank> senders() const;
  [[nodiscard]] std::vector<Rank> receivers() const;

 private:
  static constexpr std::uint32_t kWindow = 4;  // chunks asked for at once; twice as many are sent ahead
  static constexpr std::uint64_t kMaxChunks = std::uint64_t{1} << 31;

  struct Announcement {
    std::uint32_t tag = 0;
    DataType type{};
    std::uint64_t count = 0, bytes = 0, site = 0;
    Version version;
    std::uint64_t number = 0;
  };
  struct Sending {
    // Null: the call has returned, and the log has the message, or `announcement` what is left of it; or it is the end.
    Call* call = nullptr;
    bool end = false;  // no message: the group has departed
    Version version;
    std::uint64_t number = 0;
    std::vector<std::byte> logged;  // from the log, while it is being sent
    std::uint64_t sequence = 0;     // on the link, in this generation
    std::uint64_t bytes = 0;
    bool announced = false;
    std::uint32_t chunks = 0, posted = 0;  // posted: of its chunks
    std::uint32_t done = 0;                // frames, with the announcement
    std::array<std::byte, sizeof(WireAnnouncement)> announcement{};
  };
  // A message on its way in, or kept aside.
  struct Arriving {
    Announcement what;
    Call* call = nullptr;          // null: nobody has asked for it yet
    std::uint64_t order = 0;       // of the call
    bool admitted = false;         // its version has begun here
    std::vector<std::byte> aside;  // its payload then
    std::uint32_t chunks_posted = 0;
    std::uint32_t chunks_done = 0;      // all before this one; over several streams they finish in any order
    std::array<bool, kWindow> ahead{};  // done beyond it, by chunk modulo window
  };
  // Messages of one version.
  struct Numbers {
    std::uint64_t sent = 0;
    // From here on no earlier life of this rank has logged a message: as found out with the first one that is sent.
    std::optional<std::uint64_t> first_unlogged;
    Ranges received;  // by a call that has finished
  };
  struct Peer {
    std::optional<LinkId> link;
    std::uint64_t sent = 0, received = 0;  // messages on the link in this generation, for their sequence numbers
    std::map<Version, Numbers> numbers;
    // Greetings of this generation.
    bool knows = false;  // which of our messages have arrived there: below their version all, in it `theirs`
    Version their_version;
    Ranges theirs;
    std::vector<std::byte> greeting, greeting_ranges, their_greeting, their_ranges;
    std::list<Sending> sending;             // by (version, number); an entry stays where it is while it is being sent
    std::map<std::uint64_t, Call*> wanted;  // receives without a message, in the order of issue
    std::deque<std::unique_ptr<Arriving>> aside;
    std::unique_ptr<Arriving> arriving;
    bool announcement_posted = false;
    bool announcement_taken = false;  // by run_at_once(), and not looked at: the next recv() does so
    bool ended = false;               // in this generation: the other end has departed
    bool unsettled = false;           // counted
    std::array<std::byte, sizeof(WireAnnouncement)> announcement{};
    Scratch chunks;
    std::uint64_t aside_bytes = 0;
  };

  [[nodiscard]] bool send_at_once(const CallSpec& spec, std::uint64_t bytes, Peer& peer);
  [[nodiscard]] bool recv_at_once(const CallSpec& spec, std::uint64_t bytes, Peer& peer, int looks);
  void link_to(std::int32_t peer);
  void greet(std::int32_t peer);
  void on_greeting(std::int32_t peer, bool ranges);
  void heard(std::int32_t peer);
  [[nodiscard]] static bool arrived(const Peer& peer, const Sending& message);
  bool load(std::int32_t peer, Sending& message);
  [[nodiscard]] std::uint64_t first_unlogged(std::int32_t peer) const;
  [[nodiscard]] RecordKey key_of(std::int32_t from, std::int32_t to, Version version, std::uint64_t number) const;
  void admit(std::int32_t peer);
  void take(std::int32_t peer, Token token, const Status& status);
  void end(std::int32_t peer);
  void settle(std::int32_t peer);
  void post_sends(std::int32_t peer);
  [[nodiscard]] FrameHeader header(std::uint64_t sequence, std::uint32_t message) const;
  void listen(std::int32_t peer);
  void on_announcement(std::int32_t peer);
  void post_chunks(std::int32_t peer);
  void on_chunk(std::int32_t peer, std::uint32_t chunk);
  void deliver_aside(std::int32_t peer, Arriving& message, Call& call);
  [[nodiscard]] Status agree(std::int32_t peer, const Announcement& what, const Call& call) const;
  void fail(std::int32_t peer, const Status& status);
  [[nodiscard]] std::uint64_t chunk_size(std::uint64_t bytes, std::uint32_t chunk) const;
  [[nodiscard]] std::uint32_t chunks_of(std::uint64_t bytes) const;  // beside the announcement
  [[nodiscard]] std::span<const std::byte> inline_payload(const Peer& peer, const Announcement& what) const;

  // Tokens: slot (32 bits), kind (2), peer (14), low bits of the chunk or, for a send, of the message's sequence (16).
  enum class Kind : std::uint8_t { kSend = 0, kAnnouncement = 1, kChunk = 2, kGreeting = 3 };
  [[nodiscard]] Token token(Kind kind, std::int32_t peer, std::uint32_t low) const;
  [[nodiscard]] Token send_token(std::int32_t peer, const Sending& message) const;  // of all its frames

  Transport& transport_;
  FramesAtOnce& frames_;
  GroupId group_;       // in frames
  GroupId link_group_;  // the name of the links
  std::vector<Rank> members_;
  std::int32_t self_;
  std::uint32_t slot_;
  std::uint64_t chunk_bytes_;
  Recall* recall_;
  RoundBoard& board_;
  Version version_;
  Generation generation_;
  Timeline timeline_;
  bool open_ = false, greets_ = false, departed_ = false;
  std::uint64_t orders_ = 0, moves_ = 0;
  std::uint64_t moves_looked_at_ = UINT64_MAX;  // moves_ when end_waiting_sends() was last called
  std::size_t unsettled_peers_ = 0;
  std::optional<std::string> gap_;
  std::map<std::int32_t, Peer> peers_;
  std::vector<Finished> finished_;
  Status status_;
  Rank failed_peer_ = kNoRank;
};

}  // namespace warren::worker

// Point-to-point messages of one group. Each pair of ranks has a link of its own for them, apart from the collectives.
//
// A message is an announcement frame (tag, type, count, call site) and then its chunks. The receiver reads a link only
// while a receive from that peer is posted: a big send waits for its receive, a small one rests in the kernel's
// buffers. A message whose tag nobody has asked for yet, while another is, is kept aside within
// limits::kMaxUnexpectedBytes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "recovery/frame.h"
#include "recovery/ids.h"
#include "worker/call.h"
#include "worker/executor.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class PointChannels {
 public:
  // `channel` as in Engine::add_group.
  PointChannels(Transport& transport, GroupId group, std::uint32_t channel, std::vector<Rank> members,
                std::uint32_t slot, Epoch epoch, std::uint64_t chunk_bytes);

  // kInvalidArgument: more chunks than can be counted (raise chunk_bytes); nothing was sent.
  [[nodiscard]] Status send(Call& call);
  void recv(Call& call);
  void on_completion(Token token, const Status& status);

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
  // Ranks of the job from which a message is due, and those that have not taken all of one.
  [[nodiscard]] std::vector<Rank> senders() const;
  [[nodiscard]] std::vector<Rank> receivers() const;

 private:
  static constexpr std::size_t kAnnouncementBytes = 40;
  static constexpr std::uint32_t kWindow = 4;  // chunks asked for at once; twice as many are sent ahead
  static constexpr std::uint64_t kMaxChunks = std::uint64_t{1} << 31;

  struct Announcement {
    std::uint32_t tag = 0;
    DataType type{};
    std::uint64_t count = 0, bytes = 0, site = 0;
  };
  struct Sending {
    Call* call = nullptr;
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    bool announced = false;
    std::uint32_t chunks = 0, posted = 0;  // posted: of its chunks
    std::uint32_t done = 0;                // frames, with the announcement
    std::array<std::byte, kAnnouncementBytes> announcement{};
  };
  // A message on its way in, or kept aside.
  struct Arriving {
    Announcement what;
    Call* call = nullptr;          // null: nobody has asked for it yet
    std::vector<std::byte> aside;  // its payload then
    std::uint32_t chunks_posted = 0;
    std::uint32_t chunks_done = 0;      // all before this one; over several streams they finish in any order
    std::array<bool, kWindow> ahead{};  // done beyond it, by chunk modulo window
  };
  struct Peer {
    std::optional<LinkId> link;
    std::uint64_t sent = 0, received = 0;  // messages, for their sequence numbers
    std::list<Sending> sending;            // stays where it is: its announcement is being sent from here
    std::deque<Call*> wanted;              // receives without a message
    std::deque<std::unique_ptr<Arriving>> aside;
    std::unique_ptr<Arriving> arriving;
    bool announcement_posted = false;
    std::array<std::byte, kAnnouncementBytes> announcement{};
    Scratch chunks;
    std::uint64_t aside_bytes = 0;
  };

  LinkId link_to(std::int32_t peer);
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
  [[nodiscard]] std::uint32_t chunks_of(std::uint64_t bytes) const;

  // Tokens: slot (32 bits), kind (2), peer (14), low bits of the chunk or, for a send, of the message's number (16).
  enum class Kind : std::uint8_t { kSend = 0, kAnnouncement = 1, kChunk = 2 };
  [[nodiscard]] Token token(Kind kind, std::int32_t peer, std::uint32_t low) const;

  Transport& transport_;
  GroupId group_;       // in frames
  GroupId link_group_;  // the name of the links
  std::vector<Rank> members_;
  std::uint32_t slot_;
  Epoch epoch_;
  std::uint64_t chunk_bytes_;
  std::map<std::int32_t, Peer> peers_;
  std::vector<Finished> finished_;
  Status status_;
  Rank failed_peer_ = kNoRank;
};

}  // namespace warren::worker

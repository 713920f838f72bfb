// Fetches what others have logged: results that this rank has missed, finals of a round that is resumed, checkpoints.
//
// A pure machine: wants and replies in, requests and results out. It looks at the own host first; for what is missing
// there it asks one rank of every other host what they hold (a listing of many rounds at once; once a gap was seen also
// the other ranks of its own host, whose disks it does not read; of a local state that is to be copied its rank's host
// alone, at first), then requests the
// bytes, striped over the holders, several requests in flight each, ahead of what is wanted within a window. Every byte
// is checked against its checksum and the round's fingerprint before it is written to the program's buffer.
//
// Bounded: requests and bytes in flight, the cache of what was fetched ahead (fetch_window.cc), and what is kept of
// listings (listings.cc). A rank that does not answer within the plan's time is asked no more, another rank of its host
// is; once a host has no other rank, all of them are tried again at intervals. Every wait has a deadline.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/machine.h"
#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"

namespace warren::worker {

class Replayer {
 public:
  struct Peer {
    Rank rank;
    Incarnation life;
    std::string host_id, domain_id;
    bool fresh = false;  // a new life, which may not have mapped all segments of its host yet: asked last
    Generation since{};  // of the first plan that this life is in
    // It has left its rank, and serves what its host has logged for a while: it is asked, counts as no copy, and is not
    // waited for when it does not answer. Its rank is beyond the world's.
    bool server = false;
  };
  struct Plan {
    Generation generation;
    Rank self;
    std::vector<Peer> peers;  // by rank of the job, this one included; then those that serve
    std::uint32_t replicas = 1;
    std::int64_t timeout_ms = 0;  // a holder that has not answered for so long is asked no more in this generation
    // This life is a spare, which has no rank: it wants global states, and stands among the peers like one that serves.
    bool follows = false;
  };

  // What is to be had. Bytes are those of the whole result.
  struct Want {
    RecordKey key;
    // What the caller calls; a record that disagrees ends the want with kDesync. Not set: any (a checkpoint).
    std::optional<Fingerprint> fingerprint;
    // nullopt: the caller does not know how long the result is; all of it is fetched into Done::bytes (kCorrupt: over
    // limits::kMaxStateBytes).
    std::optional<std::uint64_t> total_bytes;
    Ranges bytes;               // which; ignored without total_bytes
    std::byte* base = nullptr;  // where byte `base_at` of the whole result goes
    std::uint64_t base_at = 0;
    // A result of which ranks receive parts: what too few domains hold of the others', and not this one, is fetched
    // too, as far as somebody has it. `bytes` may be empty.
    bool refill = false;
    bool wait = false;  // nobody holds it yet: ask again until somebody does (local states to be copied)
  };
  struct Done {
    std::uint64_t id = 0;
    Generation generation{};  // whose hosts were asked last
    // kDesync: other calls stand in the log. kUnavailable: every host has answered, more than once, and the log has a
    // gap: the message names the round and the bytes that are missing. A host that does not answer is no gap: its loss
    // will be noticed and ends the generation.
    Status status;
    Ranges written;                // as cancel() says
    std::vector<std::byte> bytes;  // wants without total_bytes
    std::optional<RecordInfo> info;
    // What should be logged here, because fewer than min(replicas, domains) domains hold it (or only segments of dead
    // lives do). Within the bytes that were wanted.
    Ranges log_again;
    // Wants with `refill`: what should be logged here beside them.
    struct Piece {
      std::uint64_t begin = 0;
      std::vector<std::byte> bytes;
    };
    std::vector<Piece> refill;
  };
  // To the rank's fetch service.
  struct Send {
    Rank to;
    wire::FetchRequest request;
  };

  explicit Replayer(HostLogReader& own_host);
  ~Replayer();
  Replayer(const Replayer&) = delete;
  Replayer& operator=(const Replayer&) = delete;

  // A new generation: requests of older ones are forgotten and made again.
  void install(const Plan& plan, TimeMs now, std::vector<Send>& out);
  // The generation is over: nothing is sent or taken until the next install(). Wants stay.
  void suspend();

  // Returns the want's id. The buffer stays until its Done was taken or it was cancelled.
  std::uint64_t want(Want want, TimeMs now, std::vector<Send>& out);
  // Ends a want; nothing is written to its buffer any more. Returns the bytes that have been written there: they are
  // final (the engine publishes them before it lets go of the buffer). Also of one that has ended and whose Done was
  // not taken, which nobody gets then.
  Ranges cancel(std::uint64_t id);
  // A validated reply (validate(FetchReply)) with its payloads in the entries.
  void on_reply(Rank from, const wire::FetchReply& reply, TimeMs now, std::vector<Send>& out);
  // The same with the payloads apart, one after the other in the order of the entries.
  void on_reply(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads, TimeMs now,
                std::vector<Send>& out);
  void on_tick(TimeMs now, std::vector<Send>& out);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  // Wants that have ended since the last look, in any order.
  [[nodiscard]] bool has_done() const;
  [[nodiscard]] std::vector<Done> take_done();
  [[nodiscard]] bool idle() const;
  // This life is the newest of these ranks on its host, or the first of several: it is the one that fills up the
  // copies of other ranks' parts that the host may have lost. It goes through all rounds from the beginning, however
  // often it is interrupted on its way.
  [[nodiscard]] bool refills(std::span<const Rank> members) const;
  // The lives of the newest plan on this host, this one among them.
  [[nodiscard]] std::span<const Incarnation> host_lives() const;
  // What the log of the process should say since the last look: bytes that arrived damaged, hosts that do not answer.
  // Bounded; what is too much is counted in the last line.
  [[nodiscard]] std::vector<std::string> take_warnings();
  // "replays round 3.17 from ranks 2, 5", for people; empty when idle.
  [[nodiscard]] std::string describe() const;

  // The other side: what this host answers. Pure as well; runs in the thread that serves. Never more than
  // limits::kMaxFetchReplyBytes. The request is valid (validate(FetchRequest)).
  [[nodiscard]] static wire::FetchReply answer(const wire::FetchRequest& request, HostLogReader& reader);
  // The same with the payloads apart, copied once.
  struct Answer {
    wire::FetchReply reply;
    std::unique_ptr<std::byte[]> payloads;  // null: none
    std::size_t payload_bytes = 0;
  };
  [[nodiscard]] static Answer answer_apart(const wire::FetchRequest& request, HostLogReader& reader);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace warren::worker

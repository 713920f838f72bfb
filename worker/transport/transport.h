// What the executor needs of a transport: links, posts, a poll. No waits, no timeouts, no threads of its own: whoever
// owns the transport calls it from one thread at a time and decides when to wait.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "storage/host_log.h"

namespace warren::worker {

// What was made on a life's GPU, in memory there that peers may have mapped: it has a number among all that was made,
// and stands until the memory is used again, which its owner says before (worker/device/device_shares.h).
struct MadeOnGpu {
  const std::byte* at = nullptr;  // null: it was not made there
  std::uint64_t number = 0;
};

// The same of a peer's, as far as this life can read it.
struct FinalOnGpu {
  const std::byte* at = nullptr;  // at addresses of the GPU
  std::uint64_t number = 0;
  const std::uint64_t* first = nullptr;                          // the first number that stands, as its owner says
  std::shared_ptr<const void> memory = nullptr, says = nullptr;  // keep both mapped
  // After reading: what was read counts.
  [[nodiscard]] bool stands() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return std::atomic_ref(*const_cast<std::uint64_t*>(first)).load(std::memory_order_relaxed) <= number;
  }
};

// A link to one peer for one group, valid until close_all(). Small and dense, so that it can index arrays.
using LinkId = std::uint32_t;
using Token = std::uint64_t;

// What a receive has brought, where it is to be read in place: in the link's memory, in the sender's log, or in memory
// that the sender lends.
struct View {
  // In the link's memory, until release(). Looked up at each read: the transport moves the bytes to the buffer that was
  // posted when others need the room.
  const std::byte* const* held = nullptr;
  const std::byte* there = nullptr;      // in memory of the sender
  const std::uint64_t* stamp = nullptr;  // of that
  std::uint64_t expected = 0;
  std::shared_ptr<const void> lent = nullptr;  // keeps it mapped, where it is lent
  bool on_gpu = false;                         // and only a GPU can read it
  // Of what is in the sender's log: where it lies on its GPU, too. Null: nowhere.
  std::shared_ptr<const FinalOnGpu> beside = nullptr;
  // False: the bytes are in the buffer that was posted.
  [[nodiscard]] bool in_place() const { return held != nullptr || there != nullptr; }
  [[nodiscard]] const std::byte* bytes() const { return held != nullptr ? *held : there; }
  // After reading from the sender's memory: what was read counts.
  [[nodiscard]] bool stands() const {
    if (stamp == nullptr) return true;
    std::atomic_thread_fence(std::memory_order_acquire);
    // C++20 has no atomic_ref of const; the memory is mapped read-only.
    return std::atomic_ref(*const_cast<std::uint64_t*>(stamp)).load(std::memory_order_relaxed) == expected;
  }
};

struct Completion {
  Token token = 0;
  Status status;
  View view = {};
};

class Transport {
 public:
  virtual ~Transport() = default;

  // The link to `peer` (a rank of the job) for `group`: made on first use, then always the same one. The connection
  // comes up behind it; posts are taken at once and wait for it.
  virtual LinkId link(GroupId group, Rank peer) = 0;

  // Sends header and payload. Both keep their order on the link. The payload stays untouched until the completion is
  // polled, which says that the bytes have left this buffer, not that they arrived. The transport fills in
  // header.stream, header.checksum and header.payload_bytes.
  virtual void post_send(LinkId link, const FrameHeader& header, std::span<const std::byte> payload, Token token) = 0;

  // Receives the next frame of the link, which must be the one that `expected` describes (match() in
  // recovery/wire/frame.h; expected.payload_bytes is taken from `payload`). Completes with success only when the whole
  // payload has arrived and its checksum was right; otherwise with the reason, and the link is broken from then on.
  virtual void post_recv(LinkId link, const FrameHeader& expected, std::span<std::byte> payload, Token token) = 0;

  // As post_send(), of a payload that stands published at `place` of this life's log: a peer that has the log mapped is
  // told the place instead.
  virtual void post_send_logged(LinkId link, const FrameHeader& header, std::span<const std::byte> payload,
                                const LogPlace& place, Token token) {
    (void)place;
    post_send(link, header, payload, token);
  }

  // As post_send_logged(), of what also lies on this life's GPU: a peer that can read it there is told that place, too.
  virtual void post_send_made(LinkId link, const FrameHeader& header, std::span<const std::byte> payload,
                              const LogPlace& place, const MadeOnGpu& made, Token token) {
    (void)made;
    post_send_logged(link, header, payload, place, token);
  }

  // As post_send(), of a payload that also stays untouched until the receiver has read it, in this generation, which
  // the caller learns from what it receives later. A peer that has the payload's memory mapped may be told where it
  // lies.
  virtual void post_send_lent(LinkId link, const FrameHeader& header, std::span<const std::byte> payload, Token token) {
    post_send(link, header, payload, token);
  }

  // Whether post_send_lent() tells that peer places in the memory that `at` lies in, which may be a GPU's, instead of
  // reading it, for as long as this generation lasts.
  [[nodiscard]] virtual bool lends(GroupId group, Rank peer, const std::byte* at) const {
    (void)group, (void)peer, (void)at;
    return false;
  }

  // As post_recv(), but the completion may carry a view instead of filling the buffer.
  virtual void post_recv_in_place(LinkId link, const FrameHeader& expected, std::span<std::byte> payload, Token token) {
    post_recv(link, expected, payload, token);
  }
  // What this view of this link holds is no longer read. In any order.
  virtual void release(LinkId link, const View& view) {
    (void)link;
    (void)view;
  }

  // Small frames, at once or not at all: for who has nothing posted on the link and carries out one step after the
  // other (worker/rounds/light_round.h). No completion follows, but of kPosted.
  enum class Now : std::uint8_t {
    kDone,   // as a completed post
    kLater,  // recv_now: nothing is wrong, and not all of it has come; the same again, with the same buffer, or post it
    kPosted,  // send_now: a part has left, and the rest is under way as after post_send()
    kPost,    // nothing has moved: post it. A link that is not up, is broken or has frames queued; a frame that is not
              // due
  };
  // As post_send(), which `token` is for.
  virtual Now send_now(LinkId link, FrameHeader& header, std::span<const std::byte> payload, Token token) {
    (void)link, (void)header, (void)payload, (void)token;
    return Now::kPost;
  }
  // As post_recv().
  virtual Now recv_now(LinkId link, FrameHeader& expected, std::span<std::byte> payload) {
    (void)link, (void)expected, (void)payload;
    return Now::kPost;
  }

  // The memory at `from` may go: payloads that are posted on the link with this token, and lie there, are read at `to`
  // from here on, where the same bytes are. Not of what was lent, logged or made. Others may be sent from there, too,
  // and outlive `to`.
  virtual void move_payloads(LinkId link, Token token, std::span<const std::byte> from, const std::byte* to) = 0;

  // Moves what can be moved without waiting; writes up to out.size() completions and returns how many.
  virtual std::size_t poll(std::span<Completion> out) = 0;

  // Appends what to wait for when poll() has nothing: readable (and, for blocked sends, writable) descriptors.
  virtual void collect_pollfds(std::vector<pollfd>& out) = 0;

  // Forgets all posts without completing them and closes all links: the generation is over. Nothing of it is sent,
  // taken or written to a posted buffer afterwards.
  virtual void close_all() = 0;
};

}  // namespace warren::worker

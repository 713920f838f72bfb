// A transport, as far as all rounds need one: connect, post, poll, close. It has no waits, no timeouts and no threads
// of its own: whoever owns the transport calls it from one thread at a time and decides when to wait. What only some
// transports do stands in frames_at_once.h and reads_in_place.h.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "storage/host_log.h"
#include "worker/transport/view.h"

namespace warren::worker {

// A link to one peer for one group, valid until close_all(). Small and dense, so that it can index arrays.
using LinkId = std::uint32_t;
using Token = std::uint64_t;

// The bytes of a frame, and places of this life where a peer that has them mapped may read the same bytes. A transport
// that shares no memory sends the bytes.
struct Payload {
  std::span<const std::byte> bytes;
  LogPlace logged = {};  // known: they stand published there in this life's log
  MadeOnGpu made = {};   // then: where they lie on this life's GPU, too
  // The bytes stay untouched until the receiver has read them, in this generation. The caller learns of that from what
  // it receives later.
  bool lent = false;
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
  virtual void post_send(LinkId link, const FrameHeader& header, const Payload& payload, Token token) = 0;

  // Receives the next frame of the link, which must be the one that `expected` describes (match() in
  // recovery/wire/frame.h; expected.payload_bytes is taken from `payload`). Completes with success only when the whole
  // payload has arrived and its checksum was right; otherwise with the reason, and the link is broken from then on.
  virtual void post_recv(LinkId link, const FrameHeader& expected, std::span<std::byte> payload, Token token) = 0;

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

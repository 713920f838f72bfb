// What the executor needs of a transport: links, posts, a poll. No waits, no timeouts, no threads of its own: whoever
// owns the transport calls it from one thread at a time and decides when to wait.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "recovery/frame.h"
#include "recovery/ids.h"
#include "recovery/result.h"

namespace warren::worker {

// A link to one peer for one group, valid until close_all(). Small and dense, so that it can index arrays.
using LinkId = std::uint32_t;
using Token = std::uint64_t;

struct Completion {
  Token token = 0;
  Status status;
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

  // Receives the next frame of the link, which must be the one that `expected` describes (match() in recovery/frame.h;
  // expected.payload_bytes is taken from `payload`). Completes with success only when the whole payload has arrived and
  // its checksum was right; otherwise with the reason, and the link is broken from then on.
  virtual void post_recv(LinkId link, const FrameHeader& expected, std::span<std::byte> payload, Token token) = 0;

  // Moves what can be moved without waiting; writes up to out.size() completions and returns how many.
  virtual std::size_t poll(std::span<Completion> out) = 0;

  // Appends what to wait for when poll() has nothing: readable (and, for blocked sends, writable) descriptors.
  virtual void collect_pollfds(std::vector<pollfd>& out) = 0;

  // Forgets all posts without completing them and closes all links: the epoch is over. Nothing of it is sent, taken or
  // written to a posted buffer afterwards.
  virtual void close_all() = 0;
};

}  // namespace warren::worker

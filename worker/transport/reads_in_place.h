// Payloads that a transport lets their receiver read where they lie, in memory of the host that both ends have mapped.
#pragma once

#include <cstddef>
#include <span>

#include "recovery/base/ids.h"
#include "recovery/wire/frame.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class ReadsInPlace {
 public:
  virtual ~ReadsInPlace() = default;

  // As Transport::post_recv(), but the completion may carry a view instead of filling the buffer.
  virtual void post_recv_in_place(LinkId link, const FrameHeader& expected, std::span<std::byte> payload,
                                  Token token) = 0;
  // The view, which is of this link and holds memory of it, is no longer read. In any order.
  virtual void release(LinkId link, const View& view) = 0;
  // Whether a lent payload at `at`, which may be a GPU's memory, is told that peer by its place instead of being read
  // here, for as long as this generation lasts.
  [[nodiscard]] virtual bool lends(GroupId group, Rank peer, const std::byte* at) const = 0;
};

}  // namespace warren::worker

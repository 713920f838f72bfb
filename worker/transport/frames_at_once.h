// Small frames that a transport sends and receives at once or not at all: for a caller that has nothing posted on the
// link and carries out one step after the other (worker/rounds/light_round.h, worker/rounds/point.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "recovery/wire/frame.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class FramesAtOnce {
 public:
  virtual ~FramesAtOnce() = default;

  enum class Now : std::uint8_t {
    kDone,    // as a completed post; no completion follows
    kLater,   // recv_now: nothing is wrong, and a part is still to come; the same again, with the same buffer, or post
              // it
    kPosted,  // send_now: a part has left, and the rest is under way as after post_send()
    kPost,    // nothing has moved: post it. A link that is not up, is broken or has frames queued; a frame that is not
              // due
  };
  // As Transport::post_send(), which `token` is for.
  virtual Now send_now(LinkId link, FrameHeader& header, std::span<const std::byte> payload, Token token) = 0;
  // As Transport::post_recv().
  virtual Now recv_now(LinkId link, FrameHeader& expected, std::span<std::byte> payload) = 0;
};

}  // namespace warren::worker

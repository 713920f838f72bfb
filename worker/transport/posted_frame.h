// Frames that are posted on a stream, and wait there for their turn.
#pragma once

#include <cstddef>
#include <span>

#include "recovery/wire/frame.h"
#include "storage/host_log.h"
#include "worker/transport/host_memory.h"
#include "worker/transport/transport.h"

namespace warren::worker {

struct Outgoing {
  FrameHeader header;
  std::span<const std::byte> payload;
  LogPlace logged;   // known: this place is told instead of the payload
  MemoryPlace lent;  // known: this one is; beside `logged`, where the bytes lie on a GPU, too
  Token token = 0;
};

struct Incoming {
  FrameHeader expected;
  std::span<std::byte> payload;
  bool in_place = false;
  Token token = 0;
};

}  // namespace warren::worker

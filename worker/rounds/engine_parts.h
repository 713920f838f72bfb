// Functions that the sources of Engine share.
#pragma once

#include "worker/rounds/engine.h"

namespace warren::worker {

inline wire::Setup done_setup(const RoundId& round) {
  wire::Setup s;
  s.set_group(round.group.value);
  s.set_name(round.sequence.value);
  s.set_timeline(round.timeline.value);
  s.set_done(true);
  return s;
}

inline BufferStream* stream_of(const Call& call) {
  return call.buffers == nullptr ? nullptr : call.buffers->stream();
}

}  // namespace warren::worker

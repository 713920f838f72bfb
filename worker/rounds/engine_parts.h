// Functions that the sources of Engine share.
#pragma once

#include "worker/rounds/engine.h"

namespace warren::worker {

inline BufferStream* stream_of(const Call& call) {
  return call.buffers == nullptr ? nullptr : call.buffers->stream();
}

}  // namespace warren::worker

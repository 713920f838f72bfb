// A transport that does all that rounds can use.
#pragma once

#include "worker/transport/frames_at_once.h"
#include "worker/transport/reads_in_place.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class RoundTransport : public Transport, public FramesAtOnce, public ReadsInPlace {};

}  // namespace warren::worker

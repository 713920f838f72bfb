// Who is slow in a run, on purpose: a rank or a link, all the time or now and then. The judge holds the tracker's
// verdicts against it.
#pragma once

#include <cstdint>

#include "recovery/base/ids.h"

namespace warren::chaos {

struct Straggler {
  enum class What : std::uint8_t {
    kNobody,    // all are equally slow
    kProgram,   // a rank computes for longer than the others between its calls
    kDataPath,  // a rank takes long to go on when something has moved
    kLink,      // what `rank` sends to `peer`
    kHung,      // a rank's process stands still now and then
  };
  What what = What::kNobody;
  Rank rank, peer = kNoRank;
  std::int64_t drag_us = 0;            // each time
  std::int64_t on_us = 0, off_us = 0;  // flapping; 0: it is always slow
  bool judged = true;                  // verdicts are; not where other faults make others slow
  bool goes = false;                   // with the worker that has the rank first: whoever takes its place is not slow
};

}  // namespace warren::chaos

// A fault of the program: ranks wait for each other in calls that cannot end.
#pragma once

#include <cstdint>

namespace warren::chaos {

struct Deadlock {
  enum class What : std::uint8_t {
    kReceives,         // ranks 0 and 1 receive from each other
    kReceiveAndRound,  // rank 0 receives from rank 1, which enters the next round of the world
    kFinalizes,        // rank 0 is in finalize, and the others take a checkpoint
  };
  What what = What::kReceives;
  // Before the blocking round of the world of this number (from 0) that needs all ranks; of kFinalizes, before the
  // checkpoint of this number.
  std::uint64_t round = 0;
};

}  // namespace warren::chaos

// What the engine tells of calls and rounds to whoever draws them (worker/session/trace_file.h). The engine has no
// clock: who hears of something looks at one.
#pragma once

#include <cstdint>

#include "worker/rounds/call.h"

namespace warren::worker {

// Called under the lock of the engine's owner; must not wait.
class Trace {
 public:
  // What a round does between its begin and its end.
  enum class Stage : std::uint8_t {
    kPrepares,  // waits for its prepare function
    kReplays,   // takes its result, or a part of it, from the log
    kRuns,
    kWaits  // for the next generation
  };

  virtual ~Trace() = default;
  // Of a call that was accepted, and its end, with its status.
  virtual void issued(const Call& call) = 0;
  virtual void ended(const Call& call) = 0;
  // Of the rounds of a group, which follow each other in one lane; groups at the same time have different ones. A stage
  // ends with the next one, or with the round.
  virtual void round_began(std::uint32_t lane, const Call& call) = 0;
  virtual void round_does(std::uint32_t lane, Stage stage) = 0;
  virtual void round_ended(std::uint32_t lane) = 0;
};

}  // namespace warren::worker

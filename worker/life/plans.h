// What a plan of the tracker says to one of its members' engine and replayer. The plan has been validated.
#pragma once

#include <cstdint>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"
#include "worker/replay/replayer.h"
#include "worker/rounds/engine.h"

namespace warren::worker {

[[nodiscard]] Engine::Plan engine_plan(const wire::Plan& plan, Rank self);
[[nodiscard]] Replayer::Plan replay_plan(const wire::Plan& plan, Rank self);
// What it says to a spare, which asks its members for checkpoints.
[[nodiscard]] Replayer::Plan follow_plan(const wire::Plan& plan, Incarnation self);

// How a link goes.
struct Way {
  bool within_host = false;
  std::uint32_t streams = 1;
  std::vector<Rank> relays;  // by stream; none: directly
};
// By rank, of the links that this rank may have to those that are present.
[[nodiscard]] std::vector<Way> ways_of(const wire::Plan& plan, Rank self);

}  // namespace warren::worker

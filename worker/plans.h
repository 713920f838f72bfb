// What a plan of the tracker says to one of its members' engine and replayer. The plan has been validated.
#pragma once

#include "recovery/ids.h"
#include "recovery/messages.pb.h"
#include "worker/engine.h"
#include "worker/replay/replayer.h"

namespace warren::worker {

[[nodiscard]] Engine::Plan engine_plan(const wire::Plan& plan, Rank self);
[[nodiscard]] Replayer::Plan replay_plan(const wire::Plan& plan, Rank self);

}  // namespace warren::worker

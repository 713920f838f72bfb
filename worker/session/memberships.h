// The parts of a plan for this rank's connector and for its exchange of segments.
#pragma once

#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"
#include "worker/segments/exchange.h"
#include "worker/transport/connector.h"

namespace warren::worker {

// `self`: a member of the plan.
[[nodiscard]] Connector::Membership links_of(const wire::Plan& plan, Incarnation self);
[[nodiscard]] SegmentExchange::Membership mates_of(const wire::Plan& plan, Incarnation self);

}  // namespace warren::worker

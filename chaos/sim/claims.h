// Whether what a message says of its sender is true; a violation of I6 otherwise.
#pragma once

#include "chaos/sim/launchers.h"
#include "chaos/sim/run.h"
#include "recovery/wire/messages.pb.h"

namespace warren::chaos {

void check_claim(Run& run, const Launchers& launchers, const wire::Envelope& e);

}  // namespace warren::chaos

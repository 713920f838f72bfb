// Calls that wait for each other and can never end, from what the heartbeats of one generation's members say together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "recovery/decide/waits.h"

namespace warren {

// Names ranks whose calls wait for each other in a circle, if there are such ranks, each with its call and whom that
// waits for.
//
// A rank counts only if it has said for the whole round timeout that it is blocked (wire::Blocked): nothing of its
// calls moves, and its program makes no other call before one of them ends. Each of its calls waits for something that
// only a rank of the same kind could begin, and has not begun: a round, or a message. As all of them were blocked at
// one moment, and nothing was on its way between them, none of them ever moves again. A rank that computes, replays,
// waits for its disk, has a send under way or has not been heard is never counted, and none that needs it is.
//
// `reports` by rank, all of them. A message's network delay counts as shorter than the round timeout: a rank that is
// silent for longer is lost.
[[nodiscard]] std::optional<std::string> find_deadlock(std::span<const RankReport> reports,
                                                       std::int64_t round_timeout_ms, const RankName& name);

}  // namespace warren

// The part of a worker's settings that all workers of the job have to agree on, as the tracker compares it.
#pragma once

#include <cstdint>
#include <string>

#include "recovery/wire/messages.pb.h"
#include "worker/settings/settings.h"

namespace warren::worker {

// `costs`: the text of the costs that this life chooses algorithms by. `nccl`: the version that moves its bytes; 0:
// none does.
[[nodiscard]] wire::JobSettings agreed_settings(const Settings& settings, const std::string& costs, std::uint32_t nccl);

}  // namespace warren::worker

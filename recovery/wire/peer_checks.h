// Checks of how a worker is named, and where its peers reach it: parts of a join, and of a plan's members.
#pragma once

#include <cstdint>
#include <string>

#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"

namespace warren::checks {

[[nodiscard]] Status validate_endpoints(const google::protobuf::RepeatedPtrField<wire::Endpoint>& endpoints);
[[nodiscard]] Status validate_identity(const std::string& worker_id, const std::string& host_id,
                                       const std::string& domain_id);
// `replicas`: of the job; 0: nothing is logged.
[[nodiscard]] Status validate_log_addresses(std::uint32_t fetch_port, const std::string& segment_socket,
                                            std::uint32_t replicas);
[[nodiscard]] Status validate_traits(const wire::Traits& traits);
// Without what this build does not know, which protobuf would keep: one worker's traits go to all.
[[nodiscard]] wire::Traits known_fields(const wire::Traits& traits);

}  // namespace warren::checks

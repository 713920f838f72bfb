// How a function of the C interface issues its call.
#pragma once

#include <cstdint>
#include <string>

#include "recovery/base/result.h"
#include "warren/c_api.h"
#include "worker/api/handles.h"

namespace warren::api {

// The options of a call that its spec does not hold.
struct Said {
  std::string setup;            // the name of a set-up round; empty: it is none
  std::int64_t timeout_ms = 0;  // 0: none
};

// Puts the options of a call into its spec.
Result<Said> say(const warren_comm& comm, const warren_call_options& given, CallSpec& spec);

// Of a group that is made only the place of the call is said.
Status say_of_group(const warren_comm& comm, const warren_call_options& given, CallSpec& spec);

// Runs a call, where `handle` is null, or hands it over. The caller has entered the communicator.
Status issue(warren_comm& comm, CallSpec& spec, Said said, warren_handle** handle);

// Enters the communicator and issues the call.
warren_code start(warren_comm* comm, CallSpec& spec, const warren_call_options* options, warren_handle** handle);

}  // namespace warren::api

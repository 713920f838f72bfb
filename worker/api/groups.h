// What a new communicator knows of its host.
#pragma once

#include "worker/api/handles.h"

namespace warren::api {

// Sets a communicator's rank and size among its members on this host.
void find_local(warren_comm& comm);

}  // namespace warren::api

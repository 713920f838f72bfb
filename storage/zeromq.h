// What every user of ZeroMQ here needs.
#pragma once

#include <zmq.h>

#include <cerrno>

namespace warren {

// Ends a context whose sockets are closed, and waits for what they linger for. A signal handler that runs meanwhile
// interrupts the wait: given up there, the context stays, with its threads and descriptors.
inline void end_zeromq(void* context) {
  while (zmq_ctx_term(context) != 0 && zmq_errno() == EINTR) continue;
}

}  // namespace warren

// Helpers for every user of ZeroMQ here.
#pragma once

#include <zmq.h>

#include <cerrno>
#include <latch>
#include <thread>
#include <vector>

#include "recovery/base/result.h"
#include "storage/start_thread.h"

namespace warren {

// Whether the system allows the threads that a context with `io_threads` starts with its first socket. ZeroMQ aborts
// the process where it does not. kUnavailable: it does not; the error says what to raise.
[[nodiscard]] inline Status has_room_for_zeromq(int io_threads) {
  std::latch all_started(1);
  std::vector<std::thread> threads(static_cast<std::size_t>(io_threads) + 1);  // one collects closed sockets
  Status status;
  for (std::thread& thread : threads) {
    status = start_thread(thread, [&] { all_started.wait(); });
    if (!status.ok()) break;
  }
  all_started.count_down();
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  return status;
}

// Ends a context whose sockets are closed, and waits for what they linger for. A signal handler that runs meanwhile
// interrupts the wait: given up there, the context stays, with its threads and descriptors.
inline void end_zeromq(void* context) {
  while (zmq_ctx_term(context) != 0 && zmq_errno() == EINTR) continue;
}

// Lets ZeroMQ read from a socket's connections however many messages wait there to be received. With a limit it stops
// reading, and in ZeroMQ 4.3.4 a peer can then end this process: by a PING behind the last message that was read, and a
// reset of the connection (an assertion in a thread of ZeroMQ's, once messages are received again). How many messages
// may wait is for the protocol, or for the user of the socket, to bound.
[[nodiscard]] inline bool never_stop_reading(void* socket) {
  constexpr int kNoLimit = 0;
  return zmq_setsockopt(socket, ZMQ_RCVHWM, &kNoLimit, sizeof kNoLimit) == 0;
}

}  // namespace warren

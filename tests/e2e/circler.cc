// A worker of two whose calls wait for each other, or seem to; `warren run` says where its job is.
//   circler HOW
// Ends with the code of the error that it gets; 0: none.
//   receives  both receive from the other
//   groups    they call two groups in opposite order
//   hangs     the first life of rank 1 never makes its second call
//   late      rank 0 receives; rank 1 sends after a while
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "warren/warren.h"

namespace {

using warren::Communicator;

void receive_from_the_other(Communicator& comm) {
  std::vector<float> v(10);
  comm.recv(std::span(v), 1 - comm.rank());
}

void call_groups(Communicator& comm) {
  auto a = comm.split(0), b = comm.split(0);
  std::vector<float> v(10);
  (comm.rank() == 0 ? a : b)->allreduce(std::span(v));
  (comm.rank() == 0 ? b : a)->allreduce(std::span(v));
}

void hang(Communicator& comm) {
  (void)comm.load_checkpoint();
  comm.barrier();
  const char* const attempt = std::getenv("WARREN_ATTEMPT");
  while (comm.rank() == 1 && attempt != nullptr && std::string(attempt) == "0") pause();
  comm.barrier();
}

void send_late(Communicator& comm, std::chrono::milliseconds after) {
  if (comm.rank() == 0) return receive_from_the_other(comm);
  std::this_thread::sleep_for(after);
  comm.send(std::vector<float>(10), 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string how = argv[1];
  constexpr std::chrono::milliseconds kRoundTimeout(500);
  warren::Options options;
  options.round_timeout_ms = kRoundTimeout;
  try {
    Communicator comm = Communicator::create(options);
    if (how == "receives") receive_from_the_other(comm);
    if (how == "groups") call_groups(comm);
    if (how == "hangs") hang(comm);
    if (how == "late") send_late(comm, 6 * kRoundTimeout);
    comm.finalize();
  } catch (const warren::Error& e) {
    return static_cast<int>(e.code());
  }
  return 0;
}

// The time of a blocking allreduce of one float in place: rank 0 prints the nanoseconds of a call, the least of several
// batches. Started by bench/python.py beside the same program in Python.
//   small_calls CALLS BATCHES
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "warren/warren.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const long calls = std::strtol(argv[1], nullptr, 10), batches = std::strtol(argv[2], nullptr, 10);
  warren::Communicator comm = warren::Communicator::create();
  (void)comm.load_checkpoint();
  float x = 0;
  double least_ns = std::numeric_limits<double>::max();
  for (long batch = 0; batch < batches; ++batch) {
    const auto begin = std::chrono::steady_clock::now();
    for (long i = 0; i < calls; ++i) comm.allreduce(std::span<float>(&x, 1));
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    least_ns = std::min(least_ns, took.count() / static_cast<double>(calls));
    comm.checkpoint(std::span<const std::byte>());  // the log is empty again
  }
  if (comm.rank() == 0) std::printf("least %.0f\n", least_ns);
  comm.finalize();
  return 0;
}

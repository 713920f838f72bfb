// A worker for tests about stragglers: so much work of its own, then a sum, until it is killed.
//   pacer TRACKER SECRET_FILE WORKER_ID WORLD_SIZE HOST_ID ALGORITHM ELEMENTS WORK_US [ROUNDS]
// WORK_US is CPU time: who gets less of the CPU takes longer. Prints "failed …" if a call fails. With ROUNDS results
// are logged, and it ends with 0 after so many that were right.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/e2e/program.h"
#include "warren/warren.h"

namespace {

std::int64_t cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9 && argc != 10) return 2;
  const long rounds = argc == 10 ? std::atol(argv[9]) : 0;
  warren::Options options =
      warren::testing::options_of(argv, "pace", std::chrono::milliseconds(rounds == 0 ? 10'000 : 4'000));
  options.host_id = options.domain_id = argv[5];
  options.algorithm = argv[6];
  options.replicas = rounds == 0 ? 0 : 2;
  const std::int64_t work_us = std::atol(argv[8]);
  try {
    auto comm = warren::Communicator::create(options);
    std::vector<float> v(static_cast<std::size_t>(std::atol(argv[7])), 1.0f);
    if (rounds != 0) (void)comm.load_checkpoint();
    for (long round = 0; rounds == 0 || round < rounds; ++round) {
      for (const std::int64_t end = cpu_us() + work_us; cpu_us() < end;) {
      }
      comm.allreduce(std::span(v), warren::Op::max);
      if (rounds == 0) continue;
      for (std::size_t i = 0; i < v.size(); ++i) {
        if (v[i] != 1.0f + static_cast<float>(round)) throw std::runtime_error("a wrong result");
        v[i] += 1.0f;
      }
      if (round % 8 == 7) comm.checkpoint({});
    }
    comm.finalize();
    return 0;
  } catch (const warren::Error& e) {
    std::printf("failed %d %s\n", static_cast<int>(e.code()), e.what());
  }
  return 1;
}

// A worker for tests that kill and stop processes: sums until something fails, then says what.
//   looper TRACKER SECRET_FILE WORKER_ID WORLD_SIZE ELEMENTS [ROUND_TIMEOUT_MS [forks|logs]]
// Prints "joined RANK", then at the end "failed CODE TEXT". `forks`: after its first sum it has a child that does
// nothing, and prints "forked PID". `logs`: results are logged.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/program.h"
#include "warren/warren.h"

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  warren::Options options =
      warren::testing::options_of(argv, "loop", std::chrono::milliseconds(argc > 6 ? std::atol(argv[6]) : 1000));
  const std::string how = argc > 7 ? argv[7] : "";
  options.replicas = how == "logs" ? 1 : 0;  // 0: what a failure does where nothing is logged
  try {
    auto comm = warren::Communicator::create(options);
    std::printf("joined %d\n", comm.rank());
    std::fflush(stdout);
    bool forks = how == "forks";
    std::vector<float> v(static_cast<std::size_t>(std::atol(argv[5])));
    while (true) {
      for (float& x : v) x = 1.0f;
      comm.allreduce(std::span(v));
      for (const float x : v) {
        if (x != static_cast<float>(comm.world_size())) {
          std::printf("wrong sum\n");
          return 3;
        }
      }
      if (!std::exchange(forks, false)) continue;
      const pid_t child = fork();
      if (child == 0) {
        while (true) pause();
      }
      std::printf("forked %d\n", static_cast<int>(child));
      std::fflush(stdout);
    }
  } catch (const warren::Error& e) {
    std::printf("failed %d %s\n", static_cast<int>(e.code()), e.what());
  }
  return 0;
}

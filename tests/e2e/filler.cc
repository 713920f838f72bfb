// A worker for tests of full logs, of two ranks: it adds up in a loop, and takes one checkpoint at most.
//   filler STEPS ELEMENTS CHECKPOINT_AFTER DIE_AFTER
// After CHECKPOINT_AFTER steps all take a checkpoint, twice: the second call waits until the first is committed. After
// DIE_AFTER steps rank 1 kills itself in its first life. 0: never. Without a checkpoint it loads none either, as
// programs do that know nothing of them. Prints "begins STEP", and "ends TOTAL" if each result was right. Errors end it
// as they end a program that expects none.
#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "warren/warren.h"

namespace {

struct Sums {
  std::uint64_t steps = 0;
  std::int64_t total = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::uint64_t steps = std::strtoull(argv[1], nullptr, 10), elements = std::strtoull(argv[2], nullptr, 10),
                      checkpoint_after = std::strtoull(argv[3], nullptr, 10),
                      die_after = std::strtoull(argv[4], nullptr, 10);
  const char* const attempt = std::getenv("WARREN_ATTEMPT");
  auto comm = warren::Communicator::create();
  Sums sums;
  if (checkpoint_after != 0) {
    const auto loaded = comm.load_checkpoint();
    if (loaded.version != 0) sums = loaded.global_as<Sums>().at(0);
  }
  std::printf("begins %llu\n", static_cast<unsigned long long>(sums.steps));
  std::fflush(stdout);
  std::vector<std::int64_t> values(elements);
  while (sums.steps < steps) {
    for (std::uint64_t i = 0; i < elements; ++i) {
      values[i] = static_cast<std::int64_t>(sums.steps * 1'000'003 + i) * (comm.rank() + 1);
    }
    comm.allreduce(std::span(values));
    for (std::uint64_t i = 0; i < elements; ++i) {
      if (values[i] == static_cast<std::int64_t>(sums.steps * 1'000'003 + i) * 3) continue;
      std::printf("step %llu is wrong\n", static_cast<unsigned long long>(sums.steps));
      return 3;
    }
    sums.total += values.back();
    ++sums.steps;
    for (int times = sums.steps == checkpoint_after ? 2 : 0; times > 0; --times) comm.checkpoint(std::span(&sums, 1));
    const bool first = attempt == nullptr || std::string(attempt) == "0";
    if (sums.steps == die_after && comm.rank() == 1 && first) raise(SIGKILL);
  }
  comm.finalize();
  std::printf("ends %lld\n", static_cast<long long>(sums.total));
  return 0;
}

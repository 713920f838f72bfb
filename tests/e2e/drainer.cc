// A worker that may be preempted: asynchronous sums of 1 MiB, a checkpoint now and then, every result compared.
//   drainer TRACKER SECRET_FILE WORKER_ID WORLD_SIZE STOP_FILE
// With DRAINER_VERSIONS=N it takes no checkpoint after the N-th, but for the last; prints "followed" when it loads what
// it has fetched as a spare.
// Prints "joined RANK VERSION", and "done VERSION" some time after there is a STOP_FILE; "failed …" if a call fails,
// which none should.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/e2e/program.h"
#include "warren/warren.h"

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  warren::Options options = warren::testing::options_of(argv, "drain", std::chrono::milliseconds(3000));
  options.replicas = 2;
  const char* versions = std::getenv("DRAINER_VERSIONS");
  const int most_versions = versions == nullptr ? 1 << 30 : std::atoi(versions);
  if (versions != nullptr) {
    options.log_level = warren::LogLevel::info;
    options.log_sink = [](warren::LogLevel, std::string_view text) {
      if (text.find("has fetched while it was a spare") == std::string_view::npos) return;
      std::printf("followed\n");
      std::fflush(stdout);
    };
  }
  constexpr std::size_t kElements = (std::size_t{1} << 20) / sizeof(float);
  try {
    auto comm = warren::Communicator::create(options);
    warren::testing::State state = warren::testing::load_state(comm);
    std::array<std::vector<float>, 3> buffers;
    while (state.stop == 0) {
      for (int round = 0; round < 5; round++) {
        std::vector<warren::Handle> handles;
        for (std::size_t b = 0; b < buffers.size(); b++) {
          buffers[b].assign(kElements, static_cast<float>(state.version % 1000 + round + static_cast<int>(b)));
          handles.push_back(comm.allreduce_async(std::span(buffers[b])));
        }
        for (auto& h : handles) h.wait();
        for (std::size_t b = 0; b < buffers.size(); b++) {
          const auto expected =
              static_cast<float>(comm.world_size() * (state.version % 1000 + round + static_cast<int>(b)));
          for (const float x : buffers[b]) {
            if (x == expected) continue;
            std::printf("failed: wrong sum\n");
            return 3;
          }
        }
      }
      // Read from outside, and the same in each life once it is agreed on.
      std::array<int, 1> stop = {access(argv[5], F_OK) == 0 ? 1 : 0};
      comm.allreduce(std::span(stop), warren::Op::max);
      if (state.version >= most_versions && stop[0] == 0) continue;
      state.version++;
      state.stop = stop[0];
      comm.checkpoint(std::as_bytes(std::span(&state, 1)));
    }
    comm.finalize();
    std::printf("done %d\n", state.version);
  } catch (const warren::Error& e) {
    std::printf("failed %d %s\n", static_cast<int>(e.code()), e.what());
    std::fflush(stdout);
    return 4;
  }
  return 0;
}

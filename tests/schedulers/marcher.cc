// A worker that is disturbed from outside while it sums; all settings come from the environment.
//   marcher STOP_FILE RESULT_FILE   until there is a STOP_FILE
//   marcher STEPS RESULT_FILE       so many steps
// Each step sums numbers whose sum depends on the order of summation, and takes a checkpoint. Rank 0 writes the state
// at the end to RESULT_FILE: the number of steps first. Prints "RANK begins after step STEPS in process PID".
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "warren/warren.h"

namespace {

constexpr std::size_t kElements = std::size_t{1} << 16;
constexpr std::size_t kKept = 4096;

struct State {
  std::int64_t steps = 0;
  std::int64_t stop = 0;
  std::array<float, kKept> mean{};
};

float value(std::uint64_t rank, std::uint64_t step, std::uint64_t buffer, std::uint64_t i) {
  std::uint64_t x = (rank << 48) ^ (step << 24) ^ (buffer << 20) ^ i;
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return static_cast<float>(x >> 20) * 1e-9F;
}

void run(const std::string& until, const std::string& result_file) {
  std::int64_t steps = 0;
  const auto [end, error] = std::from_chars(until.data(), until.data() + until.size(), steps);
  const bool counted = error == std::errc() && end == until.data() + until.size();
  auto comm = warren::Communicator::create();
  State state;
  const auto loaded = comm.load_checkpoint();
  if (loaded.version > 0) std::memcpy(&state, loaded.global.data(), sizeof state);
  std::printf("%d begins after step %lld in process %d\n", comm.rank(), static_cast<long long>(state.steps), getpid());
  std::fflush(stdout);
  std::array<std::vector<float>, 3> buffers;
  while (state.stop == 0) {
    std::vector<warren::Handle> handles;
    for (std::size_t b = 0; b < buffers.size(); b++) {
      buffers[b].resize(kElements);
      for (std::size_t i = 0; i < kElements; i++) {
        buffers[b][i] = value(static_cast<std::uint64_t>(comm.rank()), static_cast<std::uint64_t>(state.steps), b, i);
      }
      handles.push_back(comm.allreduce_async(std::span(buffers[b])));
    }
    for (auto& handle : handles) handle.wait();
    for (std::size_t b = 0; b < buffers.size(); b++) {
      for (std::size_t i = 0; i < kKept; i++)
        state.mean[i] = 0.5F * (state.mean[i] + buffers[b][i * (kElements / kKept)]);
    }
    state.steps++;
    // Read from outside, and the same in each life once it is agreed on.
    std::array<int, 1> stop = {(counted ? state.steps >= steps : access(until.c_str(), F_OK) == 0) ? 1 : 0};
    comm.allreduce(std::span(stop), warren::Op::max);
    state.stop = stop[0];
    comm.checkpoint(std::as_bytes(std::span(&state, 1)));
  }
  if (comm.rank() == 0) {
    std::ofstream(result_file, std::ios::binary).write(reinterpret_cast<const char*>(&state), sizeof state);
  }
  comm.finalize();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    run(argv[1], argv[2]);
  } catch (const warren::Error& e) {
    std::printf("failed %d %s\n", static_cast<int>(e.code()), e.what());
    return 1;
  }
  return 0;
}

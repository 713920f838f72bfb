// What cli_test starts with `warren run`, under several world sizes: a job of 9 versions whose state says which ranks
// computed it, with a local state that says whose it is.
//   resize_worker UNTIL [MIB]   in version UNTIL the program fails, unless that is the end; before its first checkpoint
//                               it logs so many MiB, one a round
#include <warren/warren.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  constexpr std::uint64_t kVersions = 9;
  const std::uint64_t until = std::strtoull(argv[1], nullptr, 10);
  auto comm = warren::Communicator::create();
  const auto rank = static_cast<std::uint64_t>(comm.rank());
  const auto loaded = comm.load_checkpoint();
  // The state: a number for each version, the sum of what its ranks gave.
  std::vector<std::uint64_t> state = loaded.global_as<std::uint64_t>();
  std::uint64_t local = 0;
  if (!loaded.local.empty()) std::memcpy(&local, loaded.local.data(), sizeof local);
  std::printf("loaded version %llu of %u ranks, local state %llu\n", static_cast<unsigned long long>(loaded.version),
              loaded.world_size, static_cast<unsigned long long>(local));
  std::fflush(stdout);
  std::vector<std::uint8_t> mebibyte(std::size_t{1} << 20);
  for (std::uint64_t left = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0; left != 0; --left) {
    comm.allreduce(std::span(mebibyte));
  }
  for (std::uint64_t version = loaded.version; version < kVersions; ++version) {
    if (version == until) return 4;
    const auto ranks = comm.once("ranks").allreduce(std::vector<std::uint64_t>{1});  // of this world
    const auto sum = comm.allreduce(std::vector<std::uint64_t>(1000, (rank + 1) * (version + 1)));
    if (ranks[0] != static_cast<std::uint64_t>(comm.world_size()) || sum.front() != sum.back()) return 5;
    state.push_back(sum[0]);
    local = 100 + rank;
    comm.checkpoint(std::as_bytes(std::span(state)), std::as_bytes(std::span(&local, 1)));
  }
  for (const std::uint64_t value : state) std::printf("%llu ", static_cast<unsigned long long>(value));
  std::printf("\n");
  comm.finalize();
  return 0;
}

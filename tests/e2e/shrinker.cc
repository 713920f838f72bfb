// A worker of a job in mode shrink: sums from which each shows whose inputs are in it, a checkpoint now and then.
//   shrinker TRACKER SECRET_FILE WORKER_ID WORLD_SIZE STOP_FILE
// Prints "joined RANK VERSION"; "with RANK…" for the first contributors that it sees, and whenever they change; and
// "done VERSION" some time after there is a STOP_FILE; "failed …" if a call fails, which none should, or a result is
// not exactly that of its contributors.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/e2e/program.h"
#include "warren/warren.h"

namespace {

constexpr std::size_t kElements = (std::size_t{1} << 20) / sizeof(std::uint64_t);

class Contributors {
 public:
  explicit Contributors(const warren::Communicator& comm) : min_workers_(comm.min_workers()) {}

  // A bit for each.
  std::uint64_t see(const std::vector<int>& ranks) {
    if (static_cast<int>(ranks.size()) < min_workers_) throw std::runtime_error("fewer than min_workers contribute");
    if (ranks != last_) {
      last_ = ranks;
      std::string line = "with";
      for (const int rank : ranks) line += " " + std::to_string(rank);
      std::puts(line.c_str());
      std::fflush(stdout);
    }
    std::uint64_t mask = 0;
    for (const int rank : ranks) mask |= std::uint64_t{1} << rank;
    return mask;
  }

 private:
  const int min_workers_;
  std::vector<int> last_;
};

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Of element i; the same on all ranks.
std::uint64_t factor(std::size_t i, int version, int round) {
  return 1 + (i + static_cast<std::size_t>(7 * version + round)) % 1000;
}

// Large sums with handles, in place and from one buffer to another.
void sum_many(warren::Communicator& comm, Contributors& contributors, int version) {
  const std::uint64_t bit = std::uint64_t{1} << comm.rank();
  std::array<std::vector<std::uint64_t>, 4> in, out;
  std::vector<warren::Handle> handles;
  for (int r = 0; r < 4; r++) {
    auto& from = in[static_cast<std::size_t>(r)];
    auto& to = out[static_cast<std::size_t>(r)];
    from.resize(kElements);
    for (std::size_t i = 0; i < kElements; i++) from[i] = bit * factor(i, version, r);
    if (r % 2 == 0) {
      handles.push_back(comm.allreduce_async(std::span(from)));
    } else {
      to.resize(kElements);
      handles.push_back(comm.allreduce_async(from, to));
    }
  }
  for (int r = 0; r < 4; r++) {
    const auto at = static_cast<std::size_t>(r);
    handles[at].wait();
    const std::uint64_t mask = contributors.see(handles[at].contributors());
    require(comm.contributors() == handles[at].contributors(), "the newest call is another one");
    const auto& sums = r % 2 == 0 ? in[at] : out[at];
    for (std::size_t i = 0; i < kElements; i++) require(sums[i] == mask * factor(i, version, r), "wrong large sum");
  }
}

void sum_one(warren::Communicator& comm, Contributors& contributors) {
  const std::uint64_t sum = comm.allreduce(std::uint64_t{1} << comm.rank());
  require(sum == contributors.see(comm.contributors()), "wrong small sum");
  const double average = comm.allreduce(static_cast<double>(comm.rank()), warren::Op::average);
  const std::vector<int> ranks = comm.contributors();
  contributors.see(ranks);
  double total = 0;
  for (const int rank : ranks) total += rank;
  require(average == total / static_cast<double>(ranks.size()), "wrong average");
  comm.barrier();
  contributors.see(comm.contributors());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  warren::Options options = warren::testing::options_of(argv, "shrink", std::chrono::milliseconds(3000));
  options.mode = "shrink";
  try {
    auto comm = warren::Communicator::create(options);
    warren::testing::State state = warren::testing::load_state(comm);
    Contributors contributors(comm);
    while (state.stop == 0) {
      for (int i = 0; i < 3; i++) sum_one(comm, contributors);
      sum_many(comm, contributors, state.version);
      // Read from outside, and the same in each life once it is agreed on.
      const int stop = comm.allreduce(access(argv[5], F_OK) == 0 ? 1 : 0, warren::Op::max);
      contributors.see(comm.contributors());
      state.version++;
      state.stop = stop;
      comm.checkpoint(std::as_bytes(std::span(&state, 1)));
    }
    comm.finalize();
    std::printf("done %d\n", state.version);
  } catch (const std::exception& e) {
    std::printf("failed: %s\n", e.what());
    std::fflush(stdout);
    return 4;
  }
  return 0;
}

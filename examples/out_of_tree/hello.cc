// Two workers add up what they have: [1,2,3] and [1,0,1] make [2,2,4] on both.
#include <warren/warren.h>

#include <cstdio>
#include <exception>
#include <vector>

int main() {
  try {
    warren::Communicator comm = warren::Communicator::create();
    const std::vector<int> mine = comm.rank() == 0 ? std::vector{1, 2, 3} : std::vector{1, 0, 1};
    const std::vector<int> sum = comm.allreduce(mine);
    comm.finalize();
    std::printf("rank %d: [%d,%d,%d]\n", comm.rank(), sum[0], sum[1], sum[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

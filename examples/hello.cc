// The shortest program: two workers add [1,2,3] and [1,0,1], and both print [2,2,4].
//
//   warren run -n 2 -- hello
#include <warren/warren.h>

#include <cstdio>

int main() {
  auto comm = warren::Communicator::create();
  const auto mine = comm.rank() == 0 ? std::vector<int>{1, 2, 3} : std::vector<int>{1, 0, 1};
  const auto sum = comm.allreduce(mine);
  std::printf("rank %d of %d: [%d,%d,%d]\n", comm.rank(), comm.world_size(), sum[0], sum[1], sum[2]);
  comm.finalize();
}

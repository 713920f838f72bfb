// The first program of rabit's guide: a maximum and a sum, each with a prepare function.
#include <rabit/rabit.h>

#include "common.h"

using namespace rabit;

int main(int argc, char* argv[]) {
  if (!Init(argc, argv)) std::printf("init failed\n");
  std::fflush(stdout);
  const int N = 3;
  int a[N];
  std::fill(a, a + N, 0);
  Allreduce<op::Max>(&a[0], N, [&]() {
    for (int i = 0; i < N; ++i) a[i] = GetRank() + i;
  });
  utils::Printf("@node[%d] after-allreduce-max: a={%d, %d, %d}\n", GetRank(), a[0], a[1], a[2]);
  Allreduce<op::Sum>(&a[0], N);
  utils::Printf("@node[%d] after-allreduce-sum: a={%d, %d, %d}\n", GetRank(), a[0], a[1], a[2]);
  TrackerPrintf("rank %d of %d distributed=%d previous=%d on %s\n", GetRank(), GetWorldSize(), IsDistributed() ? 1 : 0,
                GetRingPrevRank(), GetProcessorName().empty() ? "nothing" : "a machine");
  programs::write_result(argc, argv, std::vector<int>(a, a + N));
  Finalize();
  return 0;
}

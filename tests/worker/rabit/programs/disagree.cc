// Rank 0 makes another call than the others.
#include <rabit/rabit.h>

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  int value = 1;
  if (rabit::GetRank() == 0) {
    rabit::Allreduce<rabit::op::Max>(&value, 1);
  } else {
    rabit::Allreduce<rabit::op::Sum>(&value, 1);
  }
  rabit::utils::Printf("got %d\n", value);
  rabit::Finalize();
  return 0;
}

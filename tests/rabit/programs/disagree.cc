// Rank 0 makes another call than the others: disagree call=allreduce|broadcast|allgather|reducer. A test finds the
// lines by the words at their ends.
#include <rabit/rabit.h>

#include "common.h"

namespace {

template <typename T>
void add(T& dst, const T& src) {
  dst = static_cast<T>(dst + src);
}

}  // namespace

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  const std::string call = programs::argument(argc, argv, "call", "allreduce");
  const bool first = rabit::GetRank() == 0;
  int value = 1;
  double number = 1;
  std::vector<int> values(2);
  const size_t rank = static_cast<size_t>(rabit::GetRank());
  rabit::Reducer<int, add<int> > ints;
  rabit::Reducer<double, add<double> > doubles;
  if (call == "allreduce" && first) rabit::Allreduce<rabit::op::Max>(&value, 1);   // allreduce
  if (call == "allreduce" && !first) rabit::Allreduce<rabit::op::Sum>(&value, 1);  // allreduce
  if (call == "broadcast" && first) rabit::Broadcast(&values, 0);                  // broadcast
  if (call == "broadcast" && !first) rabit::Broadcast(&values, 1);                 // broadcast
  if (call == "allgather" && first) rabit::Allgather(&values[0], 2, rank, 1, 1);   // allgather
  if (call == "allgather" && !first) rabit::Broadcast(&value, sizeof value, 1);    // allgather
  if (call == "reducer" && first) ints.Allreduce(&value, 1);                       // reducer
  if (call == "reducer" && !first) doubles.Allreduce(&number, 1);                  // reducer
  rabit::Allreduce<rabit::op::Sum>(&value, 1);  // Roots only send: whoever receives next finds what is not due.
  rabit::utils::Printf("got %d\n", value);
  rabit::Finalize();
  return 0;
}

// Every form of Broadcast, every operation on every type, Allgather, and a program's own reductions.
#include <rabit.h>
#include <rabit/internal/timer.h>

#include "common.h"

struct Last {  // the value of the highest rank that has one
  static const rabit::engine::mpi::OpType kType = rabit::engine::mpi::kMax;
  template <typename DType>
  static void Reduce(DType& dst, const DType& src) {
    if (src > dst) dst = src;
  }
};

namespace {

struct Extent {
  double least, most;
  char tag;
};
void widen(Extent& dst, const Extent& src) {
  if (src.least < dst.least) dst.least = src.least;
  if (src.most > dst.most) dst.most = src.most;
  if (src.tag > dst.tag) dst.tag = src.tag;
}

template <typename DType>
void check_type() {
  const int rank = rabit::GetRank(), size = rabit::GetWorldSize();
  std::vector<DType> most(100), least(100), sum(100);
  for (int i = 0; i < 100; ++i) {
    most[static_cast<size_t>(i)] = least[static_cast<size_t>(i)] = static_cast<DType>((i + rank) % 7);
    sum[static_cast<size_t>(i)] = static_cast<DType>((i % 5) + rank);
  }
  rabit::Allreduce<rabit::op::Max>(&most[0], most.size());
  rabit::Allreduce<rabit::op::Min>(&least[0], least.size());
  rabit::Allreduce<rabit::op::Sum>(&sum[0], sum.size());
  for (int i = 0; i < 100; ++i) {
    int high = 0, low = 7, total = 0;
    for (int r = 0; r < size; ++r) {
      high = std::max(high, (i + r) % 7);
      low = std::min(low, (i + r) % 7);
      total += (i % 5) + r;
    }
    const size_t at = static_cast<size_t>(i);
    rabit::utils::Check(most[at] == static_cast<DType>(high) && least[at] == static_cast<DType>(low) &&
                            sum[at] == static_cast<DType>(total),
                        "element %d of a type of %d bytes is wrong", i, static_cast<int>(sizeof(DType)));
  }
}
template <typename DType>
void check_bits() {
  DType bits = static_cast<DType>(DType(1) << rabit::GetRank());
  rabit::Allreduce<rabit::op::BitOR>(&bits, 1);
  rabit::utils::Check(bits == static_cast<DType>((1 << rabit::GetWorldSize()) - 1), "bits are wrong");
}

void fill_with_rank(void* buffer) {
  *static_cast<int*>(buffer) = rabit::GetRank();
}

// Slices of 1, 2, 3, … elements; the first one at `rotated`.
void check_allgather(size_t rotated) {
  const size_t size = static_cast<size_t>(rabit::GetWorldSize()), rank = static_cast<size_t>(rabit::GetRank());
  const size_t unit = 1000, total = unit * size * (size + 1) / 2;
  std::vector<size_t> first(size);
  size_t at = 0;
  // The slice of rank `rotated` lies at the beginning.
  for (size_t i = 0; i < size; ++i) {
    const size_t r = (rotated + i) % size;
    first[r] = at;
    at += unit * (r + 1);
  }
  std::vector<float> values(total, -1.0f);
  for (size_t i = 0; i < unit * (rank + 1); ++i) values[first[rank] + i] = static_cast<float>(rank * 100000 + i);
  const size_t previous = static_cast<size_t>(rabit::GetRingPrevRank());
  rabit::Allgather(&values[0], total, first[rank], unit * (rank + 1), unit * (previous + 1));
  for (size_t r = 0; r < size; ++r) {
    for (size_t i = 0; i < unit * (r + 1); ++i) {
      rabit::utils::Check(values[first[r] + i] == static_cast<float>(r * 100000 + i), "slice %d is wrong",
                          static_cast<int>(r));
    }
  }
}

struct Model : public rabit::Serializable {
  std::vector<double> data;
  void Load(rabit::Stream* from) override { rabit::utils::Check(from->Read(&data), "the model is cut"); }
  void Save(rabit::Stream* to) const override { to->Write(data); }
};

double broadcasts() {
  const int rank = rabit::GetRank(), size = rabit::GetWorldSize();
  double sum = 0;
  for (int root = 0; root < size; ++root) {
    std::string text = rank == root ? "hello from " + std::to_string(root) : "something longer than the root's text";
    rabit::Broadcast(&text, root);
    rabit::utils::Check(text == "hello from " + std::to_string(root), "a string is wrong");
    std::string empty = rank == root ? "" : "full";
    rabit::Broadcast(&empty, root);
    rabit::utils::Check(empty.empty(), "an empty string is wrong");
    std::vector<double> values(rank == root ? 3u : 0u, 0.5);
    rabit::Broadcast(&values, root);
    rabit::utils::Check(values == std::vector<double>(3, 0.5), "a vector is wrong");
    std::vector<double> none(rank == root ? 0u : 2u, 0.5);
    rabit::Broadcast(&none, root);
    rabit::utils::Check(none.empty(), "an empty vector is wrong");
    long number = rank == root ? 42 + root : 0;
    rabit::Broadcast(&number, sizeof(number), root);
    rabit::utils::Check(number == 42 + root, "a number is wrong");
    sum += static_cast<double>(number);
  }
  return sum;
}

double types() {
  check_type<char>();
  check_type<unsigned char>();
  check_type<int>();
  check_type<unsigned int>();
  check_type<long>();
  check_type<unsigned long>();
  check_type<long long>();
  check_type<unsigned long long>();
  check_type<float>();
  check_type<double>();
  check_bits<unsigned char>();
  check_bits<int>();
  check_bits<unsigned long>();
  return 1;
}

double reductions_and_slices() {
  const int rank = rabit::GetRank(), size = rabit::GetWorldSize();
  int prepared = -1;
  rabit::Allreduce<rabit::op::Sum>(&prepared, 1, fill_with_rank, &prepared);
  rabit::utils::Check(prepared == size * (size - 1) / 2, "a C prepare function is not called");
  float last = static_cast<float>(rank);
  rabit::Allreduce<Last>(&last, 1);
  rabit::utils::Check(last == static_cast<float>(size - 1), "an operation of one's own is wrong");
  Extent extent = {-1.0 * rank, 10.0 * rank, static_cast<char>('a' + rank)};
  rabit::Reducer<Extent, widen> reducer;
  reducer.Allreduce(&extent, 1);
  rabit::utils::Check(
      extent.least == -1.0 * (size - 1) && extent.most == 10.0 * (size - 1) && extent.tag == 'a' + size - 1,
      "a Reducer is wrong");
  for (size_t rotated = 0; rotated < static_cast<size_t>(size); ++rotated) check_allgather(rotated);
  return extent.most - extent.least;
}

}  // namespace

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  const double began = rabit::utils::GetTime();
  Model model;
  for (int version = rabit::LoadCheckPoint(&model); version < 3; ++version) {
    model.data.push_back(version == 0 ? broadcasts() : version == 1 ? types() : reductions_and_slices());
    rabit::CheckPoint(&model);
  }
  rabit::utils::Check(rabit::utils::GetTime() >= began, "time runs backwards");
  programs::write_result(argc, argv, model.data);
  rabit::Finalize();
  return 0;
}

// Large rounds, by ring, which a test interrupts: prints its process before each of them and, once it is over, after
// it.
//   large elements=400000 versions=4
#include <rabit/rabit.h>
#include <unistd.h>

#include "common.h"

namespace {

struct Model : public rabit::Serializable {
  std::vector<double> data;
  void Load(rabit::Stream* from) override { rabit::utils::Check(from->Read(&data), "the model is cut"); }
  void Save(rabit::Stream* to) const override { to->Write(data); }
};

// An element of 800 KB, which is reduced as a whole.
struct Block {
  std::vector<double> values;
  template <typename TStream>
  void Save(TStream& to) const {
    to.Write(values);
  }
  template <typename TStream>
  void Load(TStream& from) {
    rabit::utils::Check(from.Read(&values), "a block is cut");
  }
  void Reduce(const Block& other, size_t /*max_nbyte*/) {
    for (size_t i = 0; i < values.size(); ++i) values[i] += other.values[i];
  }
};

void say(const char* what, int version) {
  rabit::utils::Printf("pid %d rank %d version %d %s\n", static_cast<int>(getpid()), rabit::GetRank(), version, what);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  const size_t size = static_cast<size_t>(rabit::GetWorldSize()), rank = static_cast<size_t>(rabit::GetRank());
  const size_t n = static_cast<size_t>(programs::number(argc, argv, "elements", 400000)) / size * size;
  const int versions = programs::number(argc, argv, "versions", 4);
  Model model;
  const int loaded = rabit::LoadCheckPoint(&model);
  if (loaded == 0) model.data.assign(n, 0.25);
  for (int version = loaded; version < versions; ++version) {
    std::vector<double> values(n);
    say("allreduce", version);
    rabit::Allreduce<rabit::op::Sum>(&values[0], n, [&]() {
      for (size_t i = 0; i < n; ++i) values[i] = model.data[i] * 0.1 + 1.0 / static_cast<double>(i + 3 * rank + 1);
    });
    say("done: allreduce", version);
    const size_t share = n / size;
    for (size_t i = 0; i < share; ++i) values[rank * share + i] = values[rank * share + i] * 1.0001 - 0.5;
    say("allgather", version);
    rabit::Allgather(&values[0], n, rank * share, share, share);
    say("done: allgather", version);
    std::vector<Block> blocks(3);
    say("objects", version);
    rabit::SerializeReducer<Block> reducer;
    reducer.Allreduce(&blocks[0], 800000 + sizeof(uint64_t), blocks.size(), [&]() {
      for (size_t b = 0; b < blocks.size(); ++b) {
        blocks[b].values.resize(100000);
        for (size_t i = 0; i < blocks[b].values.size(); ++i) {
          blocks[b].values[i] = values[(i * 3 + b) % n] / static_cast<double>(rank + 1);
        }
      }
    });
    for (size_t i = 0; i < n; ++i) values[i] += blocks[i % 3].values[i % 100000] * 1e-3;
    model.data = values;
    rabit::CheckPoint(&model);
  }
  programs::write_result(argc, argv, model.data);
  rabit::Finalize();
  return 0;
}

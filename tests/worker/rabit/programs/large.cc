// Large rounds, by ring, which a test interrupts at random: prints its process before each of them.
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

void say(const char* what, int version) {
  rabit::utils::Printf("pid %d version %d %s\n", static_cast<int>(getpid()), version, what);
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
    const size_t share = n / size;
    for (size_t i = 0; i < share; ++i) values[rank * share + i] = values[rank * share + i] * 1.0001 - 0.5;
    say("allgather", version);
    rabit::Allgather(&values[0], n, rank * share, share, share);
    model.data = values;
    rabit::CheckPoint(&model);
  }
  programs::write_result(argc, argv, model.data);
  rabit::Finalize();
  return 0;
}

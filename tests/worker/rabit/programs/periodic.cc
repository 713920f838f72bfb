// A round in every third version, the first one included: it looks like a set-up round until the fourth has ended.
#include <rabit/rabit.h>

#include "common.h"

namespace {

struct Model : public rabit::Serializable {
  std::vector<double> data;
  void Load(rabit::Stream* from) override { rabit::utils::Check(from->Read(&data), "the model is cut"); }
  void Save(rabit::Stream* to) const override { to->Write(data); }
};

}  // namespace

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  Model model;
  const int loaded = rabit::LoadCheckPoint(&model);
  if (loaded == 0) model.data.assign(4, 1.0);
  for (int version = loaded; version < 8; ++version) {
    if (version % 3 == 0) {
      double loss = version + rabit::GetRank();
      rabit::Allreduce<rabit::op::Sum>(&loss, 1);
      model.data[0] += loss;
    }
    double step = model.data[0] * 0.5 + rabit::GetRank();
    rabit::Allreduce<rabit::op::Sum>(&step, 1);
    model.data[static_cast<size_t>(version) % 4] += step;
    rabit::CheckPoint(&model);
  }
  programs::write_result(argc, argv, model.data);
  rabit::Finalize();
  return 0;
}

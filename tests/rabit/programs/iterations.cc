// Iterations of several versions, as XGBoost's, which has one for the update and one for the evaluation. Rounds that a
// process makes once are in one of them: in the first such version that it goes through.
//   iterations versions=2 setup_in=0     setup_in >= versions: the job's first iteration has none yet
//   iterations ... seen=1                what those rounds give depends on the version that makes them
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
  const int versions = programs::number(argc, argv, "versions", 2);
  const int setup_in = programs::number(argc, argv, "setup_in", 0);
  const bool seen = programs::number(argc, argv, "seen", 0) != 0;
  Model model;
  const int loaded = rabit::LoadCheckPoint(&model);
  if (loaded == 0) model.data.assign(3, 1.0);
  bool has = false;
  double scale = 1.0;
  std::string edges;
  for (int version = loaded; version < 4 * versions + 2; ++version) {
    const int part = version % versions;
    if (!has && version >= setup_in && part == setup_in % versions) {
      has = true;
      scale = 1.0 + rabit::GetRank() + (seen ? version : 0);
      rabit::Allreduce<rabit::op::Max>(&scale, 1);
      // Its length, and it: two rounds of one line, and the second is of the root's and the others'.
      if (rabit::GetRank() == 2) edges = std::string(2000, 'e');  // more than is kept in checkpoints
      rabit::Broadcast(&edges, 2);
    }
    // Only the versions that have these rounds know what they gave.
    const bool uses = version >= setup_in && part == setup_in % versions;
    double step = model.data[0] * 0.5 + rabit::GetRank();
    if (uses) step = step * scale + static_cast<double>(edges.size());
    if (part == 0) {
      rabit::Allreduce<rabit::op::Sum>(&step, 1);
      model.data[0] += step;
    } else if (part == 1) {
      rabit::Allreduce<rabit::op::Sum>(&step, 1);
      model.data[1] += step;
    } else {
      rabit::Allreduce<rabit::op::Max>(&step, 1);
      model.data[2] += step;
    }
    if (version % 5 == 0) {
      double now_and_then = version + rabit::GetRank();
      rabit::Allreduce<rabit::op::Sum>(&now_and_then, 1);
      model.data[2] += now_and_then;
    }
    if (version % 2 == 0) {
      rabit::LazyCheckPoint(&model);
    } else {
      rabit::CheckPoint(&model);
    }
  }
  programs::write_result(argc, argv, model.data);
  rabit::Finalize();
  return 0;
}

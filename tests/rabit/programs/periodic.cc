// Rounds that a process makes once, at the beginning and at the end of the first iteration that it goes through, beside
// rounds that recur in every second and every third version, the first one included: until the second version has ended
// they look alike.
//   periodic              each from a line of its own
//   periodic mixed=1      one line makes both kinds
#include <rabit/rabit.h>

#include "common.h"

namespace {

struct Model : public rabit::Serializable {
  std::vector<double> data;
  void Load(rabit::Stream* from) override { rabit::utils::Check(from->Read(&data), "the model is cut"); }
  void Save(rabit::Stream* to) const override { to->Write(data); }
};

double sum(double value) {
  rabit::Allreduce<rabit::op::Sum>(&value, 1);
  return value;
}

}  // namespace

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  const bool mixed = programs::number(argc, argv, "mixed", 0) != 0;
  Model model;
  const int loaded = rabit::LoadCheckPoint(&model);
  if (loaded == 0) model.data.assign(4, 1.0);
  double scale = 0.0, tail = 0.0;
  std::vector<double> edges(3);
  for (int version = loaded; version < 8; ++version) {
    if (version == loaded) {
      if (mixed) {
        scale = sum(rabit::GetRank() + 3.0);
      } else {
        scale = rabit::GetRank() + 3.0;
        rabit::Allreduce<rabit::op::Sum>(&scale, 1);
        for (size_t i = 0; i < edges.size(); ++i) {
          edges[i] = static_cast<double>(i) + rabit::GetRank();
          rabit::Allreduce<rabit::op::Max>(&edges[i], 1);
        }
      }
    }
    if (version % 3 == 0) {
      double loss = version + rabit::GetRank();
      if (mixed) {
        loss = sum(loss);
      } else {
        rabit::Allreduce<rabit::op::Sum>(&loss, 1);
      }
      model.data[0] += loss * scale;
    }
    double step = model.data[0] * 0.5 + rabit::GetRank() + edges[1];
    rabit::Allreduce<rabit::op::Sum>(&step, 1);
    model.data[static_cast<size_t>(version) % 4] += step;
    if (version % 2 == 0 && !mixed) {
      for (int i = 0; i < 2; ++i) {
        double error = step + i * rabit::GetRank();
        rabit::Allreduce<rabit::op::Sum>(&error, 1);
        model.data[3] += error;
      }
    }
    if (version == loaded && !mixed) {
      // From two lines: that of the root, and that of the others.
      std::string name = "the tail";
      if (rabit::GetRank() == 1) {
        rabit::Broadcast(&name, 1);
      } else {
        name.clear();
        rabit::Broadcast(&name, 1);
      }
      tail = static_cast<double>(name.size());
    }
    rabit::CheckPoint(&model);
  }
  model.data.push_back(scale);
  model.data.push_back(tail);
  model.data.insert(model.data.end(), edges.begin(), edges.end());
  programs::write_result(argc, argv, model.data);
  rabit::Finalize();
  return 0;
}

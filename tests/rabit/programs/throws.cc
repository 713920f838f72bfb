// Functions of the program's that throw, once: a process that is started again goes through.
//   throws where=prepare|save|eager|reduce caught=0|1
//   throws where=root     a call that cannot be done, which throws where DMLC_WORKER_STOP_PROCESS_ON_ERROR=false
#include <rabit/rabit.h>

#include "common.h"

namespace {

struct Model : public rabit::Serializable {
  std::vector<double> data;
  bool throws = false;
  void Load(rabit::Stream* from) override { rabit::utils::Check(from->Read(&data), "the model is cut"); }
  void Save(rabit::Stream* to) const override {
    if (throws) throw std::runtime_error("no model");
    to->Write(data);
  }
};

bool reduction_throws = false;
void add(double& dst, const double& src) {
  if (reduction_throws) throw std::runtime_error("no sum");
  dst += src;
}

}  // namespace

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  const std::string where = programs::argument(argc, argv, "where", "prepare");
  const bool caught = programs::number(argc, argv, "caught", 1) != 0;
  const char* const attempt = std::getenv("WARREN_ATTEMPT");
  const bool first_life = attempt == nullptr || std::atoi(attempt) == 0;
  const int rank = rabit::GetRank();
  Model model;
  const auto say_caught = [](const std::exception& e) {
    rabit::utils::Printf("rank %d of %d has caught: %s\n", rabit::GetRank(), rabit::GetWorldSize(), e.what());
    std::fflush(stdout);
  };
  const int loaded = rabit::LoadCheckPoint(&model);
  if (loaded == 0) model.data.assign(100, 1.0);
  rabit::Reducer<double, add> reducer;
  for (int version = loaded; version < 4; ++version) {
    const bool here = first_life && version == 1;
    std::vector<double> values(model.data.size());
    const auto fill = [&]() {
      if (here && rank == 1 && where == "prepare") throw std::runtime_error("row 7");
      for (size_t i = 0; i < values.size(); ++i) values[i] = model.data[i] * 0.5 + static_cast<double>(i) * rank;
    };
    try {
      if (here && rank == 1 && where == "root") rabit::Broadcast(&values[0], sizeof(double), 99);
      rabit::Allreduce<rabit::op::Sum>(&values[0], values.size(), fill);
    } catch (const std::runtime_error& e) {
      if (!caught) throw;
      say_caught(e);
      rabit::Allreduce<rabit::op::Sum>(&values[0], values.size());
      rabit::utils::Printf("rank %d went on\n", rank);
    }
    reduction_throws = here && where == "reduce";
    reducer.Allreduce(&values[0], values.size());
    model.data = values;
    model.throws = here && rank == 1 && (where == "save" || where == "eager");
    const auto checkpoint = [&]() {
      if (where == "eager") {
        rabit::CheckPoint(&model);
      } else {
        rabit::LazyCheckPoint(&model);
      }
    };
    try {
      checkpoint();
    } catch (const std::runtime_error& e) {
      say_caught(e);
      model.throws = false;
      checkpoint();
      rabit::utils::Printf("rank %d went on\n", rank);
    }
  }
  programs::write_result(argc, argv, model.data);
  rabit::Finalize();
  return 0;
}

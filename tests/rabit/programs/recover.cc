// As rabit's tests model_recover, local_recover and lazy_recover: each round of each version is checked against what it
// must give, so that a process that was killed finds out at once if it was given something else.
//   recover kind=model|local|lazy size=10000 versions=4
//   recover kind=unused     a local model that is asked for, and never checkpointed
//   recover kind=mixed      one that is checkpointed now and then: an error
#include <rabit/rabit.h>

#include "common.h"

using namespace rabit;

namespace {

struct Model : public Serializable {
  std::vector<float> data;
  int loaded_as = 0;  // how many were loaded with it
  static int loads;
  static bool may_be_saved;  // within the call that takes the checkpoint: a program may free its model after it
  void Load(Stream* from) override {
    utils::Check(from->Read(&data), "the model is cut");
    loaded_as = ++loads;
  }
  void Save(Stream* to) const override {
    utils::Check(may_be_saved, "the model is read after its checkpoint");
    to->Write(data);
  }
};

int Model::loads = 0;
bool Model::may_be_saved = false;

const int kModulo = 7;

void test_max(Model* model, int version, int round) {
  const int rank = GetRank(), size = GetWorldSize(), z = version + 111 + round;
  std::vector<float> values(model->data.size());
  const auto at = [&](int r, size_t i) {
    return static_cast<float>((static_cast<int>(i) * (r + 1)) % z) + model->data[i];
  };
  Allreduce<op::Max>(&values[0], values.size(), [&]() {
    utils::Printf("prepared rank %d version %d\n", rank, version);
    std::fflush(stdout);
    for (size_t i = 0; i < values.size(); ++i) values[i] = at(rank, i);
  });
  for (size_t i = 0; i < values.size(); ++i) {
    float most = at(0, i);
    for (int r = 1; r < size; ++r) most = std::max(most, at(r, i));
    utils::Check(values[i] == most, "[%d] Max: element %d of round %d in version %d", rank, static_cast<int>(i), round,
                 version);
  }
  model->data = values;
}

void test_sum(Model* model, Model* local, int version, int round) {
  const int rank = GetRank(), size = GetWorldSize(), z = version + 131 + round;
  std::vector<float> values(model->data.size());
  const auto at = [&](int r, size_t i) { return static_cast<float>((static_cast<int>(i) * (r + 1)) % z); };
  Allreduce<op::Sum>(&values[0], values.size(), [&]() {
    // A local model that was lost or mixed up shows here.
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = at(rank, i) + (local == nullptr ? 0.0f : local->data[i] - static_cast<float>(rank + version));
    }
  });
  for (size_t i = 0; i < values.size(); ++i) {
    float total = 0.0f;
    for (int r = 0; r < size; ++r) total += at(r, i);
    utils::Check(values[i] == total, "[%d] Sum: element %d of round %d in version %d", rank, static_cast<int>(i), round,
                 version);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    model->data[i] = static_cast<float>(static_cast<int>(model->data[i] + values[i]) % (kModulo * 1000));
  }
}

void test_broadcast(size_t size, int root, int version) {
  const int rank = GetRank();
  std::string text;
  if (rank == root) {
    text.resize(size);
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>((static_cast<int>(i) + version) % 128);
  }
  Broadcast(&text, root);
  utils::Check(text.size() == size, "[%d] Broadcast: size in version %d", rank, version);
  for (size_t i = 0; i < size; ++i) {
    utils::Check(text[i] == static_cast<char>((static_cast<int>(i) + version) % 128), "[%d] Broadcast: byte %d", rank,
                 static_cast<int>(i));
  }
}

}  // namespace

int main(int argc, char* argv[]) {
  Init(argc, argv);
  const std::string kind = programs::argument(argc, argv, "kind", "model");
  const size_t size = static_cast<size_t>(programs::number(argc, argv, "size", 10000));
  const int versions = programs::number(argc, argv, "versions", 4);
  Model model, local;
  // What stands before the load is made by every life.
  int before = GetRank();
  Allreduce<op::Max>(&before, 1);
  utils::Check(before == GetWorldSize() - 1, "what comes before the load is wrong");
  Model* const local_model = kind == "local" ? &local : nullptr;
  Model* const asked_for = kind == "unused" ? &local : local_model;
  int version = LoadCheckPoint(&model, asked_for);
  if (kind == "local" && version != 0) {
    utils::Check(local.loaded_as == 1 && model.loaded_as == 2, "the local model is loaded first");
  }
  utils::Check(version == VersionNumber(), "the version is wrong");
  if (version == 0) {
    model.data.assign(size, 1.0f);
    local.data.assign(size, static_cast<float>(GetRank()));
  }
  for (; version < versions; ++version) {
    test_max(&model, version, 0);
    test_broadcast(size / 2 + 1, version % GetWorldSize(), version);
    test_sum(&model, local_model, version, 1);
    for (size_t i = 0; i < local.data.size(); ++i) local.data[i] += 1.0f;
    Model::may_be_saved = true;
    if (kind == "lazy") {
      LazyCheckPoint(&model);
    } else {
      CheckPoint(&model, kind == "mixed" && version % 2 == 1 ? &local : local_model);
    }
    Model::may_be_saved = false;
    utils::Check(VersionNumber() == version + 1, "the version does not count");
  }
  if (IsDistributed()) {
    // Again in the same life: the newest checkpoint.
    Model again, local_again;
    utils::Check(LoadCheckPoint(&again, asked_for != nullptr ? &local_again : nullptr) == versions, "loaded again");
    utils::Check(again.data == model.data && (local_model == nullptr || local_again.data == local.data),
                 "what is loaded again is wrong");
  }
  programs::write_result(argc, argv, model.data);
  Finalize();
  return 0;
}

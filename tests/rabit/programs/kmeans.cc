// k-means, as in rabit's guide, with two set-up rounds: a process needs the features' scale and a sketch of the data
// once, in the first iteration that it makes.
//   kmeans data=FILE k=10 iterations=5
#include <rabit/rabit.h>

#include "common.h"

using namespace rabit;

namespace {

struct Model : public Serializable {
  std::vector<std::vector<float> > centroids;
  void Load(Stream* from) override { utils::Check(from->Read(&centroids), "the model is cut"); }
  void Save(Stream* to) const override { to->Write(centroids); }
};

// The largest values of one feature, in order.
struct Sketch {
  std::vector<float> values;
  template <typename TStream>
  void Save(TStream& to) const {
    to.Write(values);
  }
  template <typename TStream>
  void Load(TStream& from) {
    utils::Check(from.Read(&values), "a sketch is cut");
  }
  void Reduce(const Sketch& other, size_t max_nbyte) {
    values.insert(values.end(), other.values.begin(), other.values.end());
    std::sort(values.begin(), values.end());
    const size_t most = (max_nbyte - sizeof(uint64_t)) / sizeof(float);
    if (values.size() > most) values.erase(values.begin(), values.end() - static_cast<std::ptrdiff_t>(most));
  }
};

size_t nearest(const Model& model, const std::vector<float>& row) {
  size_t best = 0;
  float least = 0.0f;
  for (size_t c = 0; c < model.centroids.size(); ++c) {
    float distance = 0.0f;
    for (size_t i = 0; i < row.size(); ++i) {
      const float d = row[i] - model.centroids[c][i];
      distance += d * d;
    }
    if (c == 0 || distance < least) {
      best = c;
      least = distance;
    }
  }
  return best;
}

}  // namespace

int main(int argc, char* argv[]) {
  Init(argc, argv);
  programs::Data data = programs::load_share(programs::argument(argc, argv, "data", ""));
  const size_t k = static_cast<size_t>(programs::number(argc, argv, "k", 10));
  const int iterations = programs::number(argc, argv, "iterations", 5);
  size_t features = data.rows[0].size();
  Model model;
  const int version = LoadCheckPoint(&model);
  if (version == 0) {
    model.centroids.assign(k, std::vector<float>(features));
    for (size_t c = 0; c < k; ++c) {
      const int root = static_cast<int>(c) % GetWorldSize();
      if (GetRank() == root) model.centroids[c] = data.rows[c];
      Broadcast(&model.centroids[c], root);
    }
  }
  bool ready = false;
  std::vector<float> scale;
  std::vector<Sketch> sketches(4);
  for (int iteration = version; iteration < iterations; ++iteration) {
    if (!ready) {
      scale.assign(features, 0.0f);
      Allreduce<op::Max>(&scale[0], scale.size(), [&]() {
        for (const auto& row : data.rows) {
          for (size_t i = 0; i < features; ++i) scale[i] = std::max(scale[i], row[i]);
        }
      });
      SerializeReducer<Sketch> reducer;
      const size_t room = sizeof(uint64_t) + 3000 * sizeof(float);
      reducer.Allreduce(&sketches[0], room, sketches.size(), [&]() {
        for (size_t f = 0; f < sketches.size(); ++f) {
          sketches[f].values.clear();
          for (const auto& row : data.rows) sketches[f].values.push_back(row[20 + f]);
          std::sort(sketches[f].values.begin(), sketches[f].values.end());
        }
      });
      ready = true;
    }
    const size_t width = features + 1;
    std::vector<double> sums(k * width);
    Allreduce<op::Sum>(&sums[0], sums.size(), [&]() {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (const auto& row : data.rows) {
        const size_t c = nearest(model, row);
        for (size_t i = 0; i < features; ++i) {
          sums[c * width + i] += scale[i] > 0.0f ? static_cast<double>(row[i] / scale[i]) : 0.0;
        }
        sums[c * width + features] += 1.0;
      }
    });
    for (size_t c = 0; c < k; ++c) {
      for (size_t i = 0; i < features; ++i) {
        if (sums[c * width + features] > 0.0) {
          model.centroids[c][i] = static_cast<float>(sums[c * width + i] / sums[c * width + features]) * scale[i];
        }
      }
    }
    // What a process took from its sketches goes into the model, so that a wrong one shows.
    for (size_t f = 0; f < sketches.size(); ++f) model.centroids[f][f] += 1e-3f * sketches[f].values[7];
    CheckPoint(&model);
  }
  std::vector<float> result;
  for (const auto& centroid : model.centroids) result.insert(result.end(), centroid.begin(), centroid.end());
  for (const auto& sketch : sketches) {
    if (ready) result.insert(result.end(), sketch.values.begin(), sketch.values.end());
  }
  programs::write_result(argc, argv, result);
  Finalize();
  return 0;
}

// Logistic regression by L-BFGS, as rabit-learn has it: the history of steps is divided over the ranks, each of which
// keeps its slice as its local model.
//   logistic data=FILE iterations=6
#include <rabit/rabit.h>

#include <cmath>

#include "common.h"

using namespace rabit;

namespace {

const size_t kMemory = 4;

struct Global : public Serializable {
  std::vector<double> weights;
  double loss = 0.0;
  void Load(Stream* from) override { utils::Check(from->Read(&weights) && from->Read(&loss), "the model is cut"); }
  void Save(Stream* to) const override {
    to->Write(weights);
    to->Write(loss);
  }
};

// This rank's slice of the last steps and of the changes of the gradient, and of the newest gradient.
struct Local : public Serializable {
  std::vector<std::vector<double> > steps, changes;
  std::vector<double> gradient;
  void Load(Stream* from) override {
    utils::Check(from->Read(&steps) && from->Read(&changes) && from->Read(&gradient), "the local model is cut");
  }
  void Save(Stream* to) const override {
    to->Write(steps);
    to->Write(changes);
    to->Write(gradient);
  }
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The loss and its gradient over all ranks' data.
double evaluate(const programs::Data& data, const std::vector<double>& weights, std::vector<double>* gradient) {
  std::vector<double> sums(weights.size() + 1);
  Allreduce<op::Sum>(&sums[0], sums.size(), [&]() {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (size_t r = 0; r < data.rows.size(); ++r) {
      double margin = weights.back();
      for (size_t i = 0; i < data.rows[r].size(); ++i) margin += weights[i] * static_cast<double>(data.rows[r][i]) / 16;
      const double label = data.labels[r] >= 5 ? 1.0 : 0.0;
      const double p = 1.0 / (1.0 + std::exp(-margin));
      for (size_t i = 0; i < data.rows[r].size(); ++i) {
        sums[i] += (p - label) * static_cast<double>(data.rows[r][i]) / 16;
      }
      sums[weights.size() - 1] += p - label;
      sums.back() -= label > 0.5 ? std::log(p + 1e-12) : std::log(1.0 - p + 1e-12);
    }
  });
  gradient->assign(sums.begin(), sums.end() - 1);
  for (size_t i = 0; i < weights.size(); ++i) (*gradient)[i] += weights[i];
  return sums.back() + 0.5 * dot(weights, weights);
}

}  // namespace

int main(int argc, char* argv[]) {
  Init(argc, argv);
  const programs::Data data = programs::load_share(programs::argument(argc, argv, "data", ""));
  const int iterations = programs::number(argc, argv, "iterations", 6);
  const size_t n = data.rows[0].size() + 1, ranks = static_cast<size_t>(GetWorldSize());
  const size_t rank = static_cast<size_t>(GetRank()), before = static_cast<size_t>(GetRingPrevRank());
  const auto first_of = [&](size_t r) { return n * r / ranks; };
  const size_t first = first_of(rank), count = first_of(rank + 1) - first;
  Global model;
  Local local;
  const int version = LoadCheckPoint(&model, &local);
  if (version == 0) model.weights.assign(n, 0.0);
  for (int iteration = version; iteration < iterations; ++iteration) {
    std::vector<double> gradient;
    model.loss = evaluate(data, model.weights, &gradient);
    const std::vector<double> slice(gradient.begin() + static_cast<std::ptrdiff_t>(first),
                                    gradient.begin() + static_cast<std::ptrdiff_t>(first + count));
    if (!local.gradient.empty()) {
      std::vector<double> change(count);
      for (size_t i = 0; i < count; ++i) change[i] = slice[i] - local.gradient[i];
      local.changes.push_back(change);
    }
    local.gradient = slice;
    // All products that the two loops need, in one round.
    const size_t m = local.changes.size(), width = 2 * m + 1;
    std::vector<std::vector<double> > basis;
    basis.insert(basis.end(), local.steps.begin(), local.steps.end());
    basis.insert(basis.end(), local.changes.begin(), local.changes.end());
    basis.push_back(slice);
    std::vector<double> products(width * width);
    for (size_t i = 0; i < width; ++i) {
      for (size_t j = 0; j < width; ++j) products[i * width + j] = dot(basis[i], basis[j]);
    }
    Allreduce<op::Sum>(&products[0], products.size());
    const auto product = [&](size_t i, size_t j) { return products[i * width + j]; };
    std::vector<double> weights_of(width, 0.0), alpha(m);  // of the direction, over the basis
    weights_of[2 * m] = -1.0;
    const auto along = [&](size_t j) {
      double sum = 0.0;
      for (size_t i = 0; i < width; ++i) sum += weights_of[i] * product(i, j);
      return sum;
    };
    for (size_t i = m; i-- > 0;) {
      alpha[i] = along(i) / product(i, m + i);
      weights_of[m + i] -= alpha[i];
    }
    if (m > 0) {
      const double scale = product(m - 1, 2 * m - 1) / product(2 * m - 1, 2 * m - 1);
      for (double& w : weights_of) w *= scale;
    }
    for (size_t i = 0; i < m; ++i) weights_of[i] += alpha[i] - along(m + i) / product(i, m + i);
    std::vector<double> direction(n);
    for (size_t b = 0; b < width; ++b) {
      for (size_t i = 0; i < count; ++i) direction[first + i] += weights_of[b] * basis[b][i];
    }
    Allgather(&direction[0], n, first, count, first_of(before + 1) - first_of(before));
    // Halve the step until the loss falls: as many rounds as it takes, the same on all ranks.
    double step = iteration == 0 ? 1e-3 : 1.0;
    std::vector<double> trial(n), unused;
    for (int tries = 0; tries < 20; ++tries, step /= 2) {
      for (size_t i = 0; i < n; ++i) trial[i] = model.weights[i] + step * direction[i];
      if (evaluate(data, trial, &unused) < model.loss) break;
    }
    std::vector<double> taken(count);
    for (size_t i = 0; i < count; ++i) taken[i] = trial[first + i] - model.weights[first + i];
    local.steps.push_back(taken);
    if (local.steps.size() > kMemory) {
      local.steps.erase(local.steps.begin());
      if (!local.changes.empty()) local.changes.erase(local.changes.begin());
    }
    model.weights = trial;
    CheckPoint(&model, &local);
  }
  std::vector<double> result = model.weights;
  result.push_back(model.loss);
  programs::write_result(argc, argv, result);
  Finalize();
  return 0;
}

#include "examples/softmax.h"

#include <algorithm>
#include <cmath>

namespace digits {
namespace {

constexpr std::size_t kStride = kPixels + 1;

std::array<double, kClasses> scores(const Weights& weights, const Image& image) {
  std::array<double, kClasses> out{};
  for (std::size_t c = 0; c < kClasses; ++c) {
    const double* w = weights.data() + c * kStride;
    double sum = w[kPixels];
    for (std::size_t p = 0; p < kPixels; ++p) sum += w[p] * image.pixels[p];
    out[c] = sum;
  }
  return out;
}

std::size_t index_of_largest(const std::array<double, kClasses>& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

void accumulate(const Weights& weights, const Image& image, BatchSums& sums) {
  std::array<double, kClasses> p = scores(weights, image);
  const std::size_t guess = index_of_largest(p);
  const double largest = p[guess], own = p[image.label];
  double total = 0;
  for (double& v : p) total += v = std::exp(v - largest);
  for (std::size_t c = 0; c < kClasses; ++c) {
    const double slope = p[c] / total - (c == image.label ? 1.0 : 0.0);
    double* g = sums.values.data() + c * kStride;
    for (std::size_t i = 0; i < kPixels; ++i) g[i] += slope * image.pixels[i];
    g[kPixels] += slope;
  }
  sums.values[kWeights] += std::log(total) + largest - own;
  sums.values[kWeights + 1] += guess == image.label ? 1.0 : 0.0;
}

std::size_t predict(const Weights& weights, const Image& image) {
  return index_of_largest(scores(weights, image));
}

double accuracy(const Weights& weights, const std::vector<Image>& images) {
  const auto right = std::count_if(images.begin(), images.end(),
                                   [&](const Image& image) { return predict(weights, image) == image.label; });
  return images.empty() ? 0.0 : static_cast<double>(right) / static_cast<double>(images.size());
}

double max_relative_difference(const Weights& a, const Weights& b) {
  double worst = 0;
  for (std::size_t i = 0; i < kWeights; ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::fabs(a[i] - b[i]) / std::max(std::fabs(a[i]), std::fabs(b[i]));
    if (std::isnan(difference)) return difference;
    worst = std::max(worst, difference);
  }
  return worst;
}

void train(Training& training, const Shard& shard, const Plan& plan, const SumOverRanks& sum_over_ranks,
           const std::function<void(const Epoch&)>& after_epoch) {
  Weights &weights = training.weights, &velocity = training.velocity;
  while (training.epochs < plan.epochs) {
    const std::vector<std::size_t> order = permutation(shard.total(), plan.seed + training.epochs);
    double loss = 0, correct = 0;
    for (std::size_t begin = 0; begin < order.size(); begin += plan.batch) {
      const std::size_t end = std::min(begin + plan.batch, order.size());
      BatchSums sums;
      for (std::size_t i = begin; i < end; ++i) {
        if (const Image* image = shard.find(order[i])) accumulate(weights, *image, sums);
      }
      sum_over_ranks(sums.values);
      const double scale = plan.learning_rate / static_cast<double>(end - begin);
      for (std::size_t i = 0; i < kWeights; ++i) {
        velocity[i] = plan.momentum * velocity[i] - scale * sums.gradient()[i];
        weights[i] += velocity[i];
      }
      loss += sums.loss();
      correct += sums.correct();
      ++training.rounds;
    }
    ++training.epochs;
    const auto images = static_cast<double>(shard.total());
    after_epoch({training.epochs, loss / images, correct / images, training.rounds});
  }
}

}  // namespace digits

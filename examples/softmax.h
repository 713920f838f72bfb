// Softmax regression, trained by synchronous minibatch SGD with momentum. What joins the ranks is one function that
// sums an array over them: nothing here knows of Warren.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "examples/digits_data.h"

namespace digits {

// For each class a weight a pixel, then a bias.
inline constexpr std::size_t kWeights = kClasses * (kPixels + 1);
using Weights = std::array<double, kWeights>;

// What a minibatch adds up to: the gradient of the loss, and figures for people. One array, so that one allreduce sums
// it.
struct BatchSums {
  std::array<double, kWeights + 2> values{};
  [[nodiscard]] std::span<const double, kWeights> gradient() const { return std::span(values).first<kWeights>(); }
  [[nodiscard]] double loss() const { return values[kWeights]; }
  [[nodiscard]] double correct() const { return values[kWeights + 1]; }
};

// Adds one image's cross-entropy loss, its gradient, and whether the model has it right.
void accumulate(const Weights& weights, const Image& image, BatchSums& sums);
[[nodiscard]] std::size_t predict(const Weights& weights, const Image& image);
// Share of the images that the model has right.
[[nodiscard]] double accuracy(const Weights& weights, const std::vector<Image>& images);
// max over all weights of |a − b| / max(|a|, |b|); 0 where both are equal, NaN if a weight is NaN.
[[nodiscard]] double max_relative_difference(const Weights& a, const Weights& b);

struct Plan {
  std::size_t epochs = 40;
  std::size_t batch = 64;  // images a minibatch, over all ranks
  double learning_rate = 0.1;
  double momentum = 0.9;
  std::uint64_t seed = 7;
};

struct Epoch {
  std::size_t number = 0;  // from 1
  double loss = 0;         // mean over the training images
  double accuracy = 0;     // on the training images, while the model changed
  std::size_t rounds = 0;  // minibatches so far
};

// Where a training stands after some epochs: what a checkpoint holds. Plain bytes.
struct Training {
  Weights weights{}, velocity{};
  std::uint64_t epochs = 0, rounds = 0;  // done
};

// Replaces an array by its sum over all ranks, the same bits on each.
using SumOverRanks = std::function<void(std::span<double>)>;

// Goes on from where `training` stands to the end of the plan; `after_epoch` may take a copy of it. Minibatches are cut
// from a permutation of all images that is equal on all ranks; each rank adds up those images of a minibatch that it
// holds. So the minibatches do not depend on how many ranks there are.
void train(Training& training, const Shard& shard, const Plan& plan, const SumOverRanks& sum_over_ranks,
           const std::function<void(const Epoch&)>& after_epoch);

}  // namespace digits

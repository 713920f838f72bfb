// The demo's data and model, without workers: where there are ranks, they are threads that sum over an array.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <stdexcept>
#include <thread>

#include "examples/deal.h"
#include "examples/digits_data.h"
#include "examples/softmax.h"

namespace digits {
namespace {

const std::vector<Image>& all_images() {
  static const std::vector<Image> images = load(WARREN_EXAMPLE_DATA "/digits.csv.gz");
  return images;
}

void nothing(const Epoch&) {}
void alone(std::span<double>) {}
Weights trained(const Shard& shard, const Plan& plan, const SumOverRanks& sum,
                const std::function<void(const Epoch&)>& after_epoch) {
  Training training;
  train(training, shard, plan, sum, after_epoch);
  return training.weights;
}

class TextFile {
 public:
  explicit TextFile(const std::string& text)
      : path_(testing::TempDir() + "warren-digits-" + std::to_string(getpid()) + ".csv") {
    std::ofstream(path_) << text;
  }
  ~TextFile() { std::remove(path_.c_str()); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string row(int pixel, int label, std::size_t pixels = kPixels) {
  std::string line;
  for (std::size_t i = 0; i < pixels; ++i) line += std::to_string(pixel) + ",";
  return line + std::to_string(label) + "\n";
}

std::string why(const std::string& text) {
  const TextFile file(text);
  try {
    (void)load(file.path());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(DigitsDataTest, ReadsTheImages) {
  EXPECT_EQ(all_images().size(), 1797u);
  std::array<int, kClasses> of_class{};
  for (const Image& image : all_images()) ++of_class[image.label];
  EXPECT_EQ(*std::min_element(of_class.begin(), of_class.end()), 174);
  EXPECT_EQ(all_images()[0].label, 0u);
  EXPECT_EQ(all_images()[0].pixels[2], 5 / 16.0);
  const TextFile plain(row(16, 9) + row(0, 3));
  const std::vector<Image> two = load(plain.path());
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].pixels[63], 1.0);
  EXPECT_EQ(two[1].label, 3u);
}

TEST(DigitsDataTest, RefusesWhatIsNotAnImage) {
  EXPECT_NE(why(row(1, 1) + row(17, 2)).find(":2: a pixel is 17"), std::string::npos);
  EXPECT_NE(why(row(-1, 2)).find(":1: a pixel is -1"), std::string::npos);
  EXPECT_NE(why(row(1, 10)).find(":1: the class is 10"), std::string::npos);
  EXPECT_NE(why(row(1, 1, 63)).find(":1: not 65 numbers"), std::string::npos);
  EXPECT_NE(why(row(1, 1, 65)).find(":1: not 65 numbers"), std::string::npos);
  EXPECT_NE(why(std::string(5000, '7')).find(":1: not 65 numbers"), std::string::npos);
  EXPECT_NE(why("").find("holds no images"), std::string::npos);
  EXPECT_THROW((void)load("/nonexistent/digits.csv.gz"), std::runtime_error);
}

TEST(DigitsDataTest, SaysWhenTheFileIsCutShort) {
  std::ifstream whole(WARREN_EXAMPLE_DATA "/digits.csv.gz", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(whole)), std::istreambuf_iterator<char>());
  ASSERT_GT(bytes.size(), 50'000u);
  EXPECT_NE(why(bytes.substr(0, 30'000)), "");
}

TEST(DigitsDataTest, HoldsOutTheSameImagesEveryTime) {
  const Split once = split(all_images(), 360, 1), again = split(all_images(), 360, 1),
              other = split(all_images(), 360, 2);
  ASSERT_EQ(once.test.size(), 360u);
  ASSERT_EQ(once.train.size(), 1437u);
  const auto pixels = [](const Split& s) { return s.test[0].pixels; };
  EXPECT_EQ(pixels(once), pixels(again));
  EXPECT_NE(pixels(once), pixels(other));
  const std::vector<std::size_t> order = permutation(1000, 5);
  EXPECT_EQ(std::set<std::size_t>(order.begin(), order.end()).size(), 1000u);
  EXPECT_EQ(*std::max_element(order.begin(), order.end()), 999u);
  EXPECT_TRUE(permutation(0, 1).empty());
}

TEST(DigitsDataTest, ShardsHoldEachImageOnce) {
  for (const std::size_t ranks : {1, 2, 3, 7, 2000}) {
    std::vector<Shard> shards;
    for (std::size_t r = 0; r < ranks; ++r) shards.emplace_back(all_images(), r, ranks);
    for (std::size_t i = 0; i < all_images().size(); ++i) {
      std::size_t holders = 0;
      for (const Shard& shard : shards) {
        if (const Image* image = shard.find(i)) {
          ++holders;
          ASSERT_EQ(image->pixels, all_images()[i].pixels);
        }
      }
      ASSERT_EQ(holders, 1u) << i << " of " << ranks;
    }
  }
}

// Whoever comes and goes: any rank may be missing in a sum, and come back in a later one.
TEST(DealTest, EachSampleIsUsedOnceWhoeverIsThere) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<std::size_t> chances = permutation(997, seed);
    std::size_t at = 0;
    const auto chance = [&](std::size_t of) { return chances[at++ % chances.size()] % of; };
    const std::size_t samples = 300;
    std::vector<int> uses(samples, 0);
    Deal deal(permutation(samples, seed), {0, 1, 2, 3, 4}, 1 + chance(40));
    std::size_t again = 0, counted = 0;
    while (!deal.left().empty()) {
      std::vector<int> there;
      for (int rank = 0; rank < 5; ++rank) {
        if (chance(4) != 0) there.push_back(rank);
      }
      if (there.empty()) there.push_back(static_cast<int>(chance(5)));
      for (int rank = 0; rank < 5; ++rank) {
        const bool contributes = std::ranges::binary_search(there, rank);
        for (const std::size_t sample : deal.share(rank)) {
          uses[sample] += contributes ? 1 : 0;
          counted += contributes ? 0 : 1;
        }
      }
      again += deal.close_step(there);
      EXPECT_EQ(deal.ranks(), there);
    }
    EXPECT_EQ(uses, std::vector<int>(samples, 1)) << "seed " << seed;
    EXPECT_EQ(again, counted);
    EXPECT_GT(again, 0u);
  }
}

TEST(DealTest, SharesFollowEachOtherAndWhoHasJustComeHasNone) {
  Deal deal({10, 11, 12, 13, 14}, {1, 3}, 3);
  const auto share = [&](int rank) {
    const auto samples = deal.share(rank);
    return std::vector<std::size_t>(samples.begin(), samples.end());
  };
  EXPECT_EQ(share(1), (std::vector<std::size_t>{10, 11}));
  EXPECT_EQ(share(2), std::vector<std::size_t>());
  EXPECT_EQ(share(3), (std::vector<std::size_t>{12, 13}));
  EXPECT_EQ(deal.close_step({2, 3}), 2u) << "rank 1 was lost";
  EXPECT_EQ(deal.left(), (std::vector<std::size_t>{10, 11, 14}));
  EXPECT_EQ(share(2), (std::vector<std::size_t>{10, 11}));
  EXPECT_EQ(share(3), std::vector<std::size_t>{14});
  EXPECT_EQ(deal.close_step({3}), 2u);
  EXPECT_EQ(deal.close_step({3}), 0u);
  EXPECT_TRUE(deal.left().empty());
}

TEST(SoftmaxTest, GradientIsThatOfTheLoss) {
  Weights weights{};
  for (std::size_t i = 0; i < kWeights; ++i) weights[i] = std::sin(static_cast<double>(i)) / 3;
  const Image& image = all_images()[5];
  BatchSums sums;
  accumulate(weights, image, sums);
  for (std::size_t i = 0; i < kWeights; i += 7) {
    constexpr double kStep = 1e-6;
    Weights up = weights, down = weights;
    up[i] += kStep;
    down[i] -= kStep;
    BatchSums above, below;
    accumulate(up, image, above);
    accumulate(down, image, below);
    EXPECT_NEAR(sums.gradient()[i], (above.loss() - below.loss()) / (2 * kStep), 1e-8) << i;
  }
}

TEST(SoftmaxTest, LearnsTheDigits) {
  const Split images = split(all_images(), 360, 1);
  std::vector<Epoch> epochs;
  const Weights weights =
      trained(Shard(images.train, 0, 1), Plan(), alone, [&](const Epoch& e) { epochs.push_back(e); });
  EXPECT_GT(accuracy(weights, images.test), 0.95);
  ASSERT_EQ(epochs.size(), Plan().epochs);
  EXPECT_EQ(epochs.back().rounds, Plan().epochs * 23);
  EXPECT_LT(epochs.back().loss, epochs.front().loss / 3);
}

// What a checkpoint holds is all that the rest of the training needs.
TEST(SoftmaxTest, GoesOnFromACheckpoint) {
  const Shard all(split(all_images(), 360, 1).train, 0, 1);
  Plan plan;
  plan.epochs = 6;
  Training whole, kept;
  std::vector<Epoch> epochs, later;
  train(whole, all, plan, alone, [&](const Epoch& e) {
    epochs.push_back(e);
    if (e.number == 4) kept = whole;
  });
  train(kept, all, plan, alone, [&](const Epoch& e) { later.push_back(e); });
  EXPECT_EQ(std::memcmp(&kept, &whole, sizeof(Training)), 0);
  ASSERT_EQ(later.size(), 2u);
  EXPECT_EQ(later[1].number, 6u);
  EXPECT_EQ(later[1].rounds, epochs[5].rounds);
  EXPECT_EQ(later[1].loss, epochs[5].loss);
}

// What the demo claims, with threads for ranks.
TEST(SoftmaxTest, RanksTogetherLearnWhatOneLearnsAlone) {
  const Split images = split(all_images(), 360, 1);
  constexpr std::size_t kRanks = 3;
  Plan plan;
  plan.epochs = 10;
  const Weights sequential = trained(Shard(images.train, 0, 1), plan, alone, nothing);
  std::barrier<> everyone(kRanks);
  std::array<std::vector<double>, kRanks> inputs;
  std::array<Weights, kRanks> results{};
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto sum = [&](std::span<double> values) {
        inputs[rank].assign(values.begin(), values.end());
        everyone.arrive_and_wait();
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = 0;
          for (const std::vector<double>& input : inputs) values[i] += input[i];
        }
        everyone.arrive_and_wait();
      };
      results[rank] = trained(Shard(images.train, rank, kRanks), plan, sum, nothing);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(std::memcmp(&results[0], &results[1], sizeof(Weights)), 0);
  EXPECT_EQ(std::memcmp(&results[0], &results[2], sizeof(Weights)), 0);
  EXPECT_LE(max_relative_difference(results[0], sequential), 1e-9);
  EXPECT_NE(std::memcmp(&results[0], &sequential, sizeof(Weights)), 0) << "the sums should be bracketed differently";
}

TEST(SoftmaxTest, DifferenceIsRelativeAndSeesNaN) {
  Weights a{}, b{};
  EXPECT_EQ(max_relative_difference(a, b), 0);
  a[3] = 1000;
  b[3] = 1001;
  EXPECT_NEAR(max_relative_difference(a, b), 1.0 / 1001, 1e-12);
  b[4] = 1e-30;
  EXPECT_EQ(max_relative_difference(a, b), 1);
  b[5] = std::nan("");
  a[6] = 5;
  EXPECT_TRUE(std::isnan(max_relative_difference(a, b)));
}

}  // namespace
}  // namespace digits

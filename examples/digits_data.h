// The handwritten digits of examples/data, and how they are divided: a fixed held-out part, and shares of the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace digits {

inline constexpr std::size_t kPixels = 64;
inline constexpr std::size_t kClasses = 10;

struct Image {
  std::array<double, kPixels> pixels{};  // 0 … 1
  std::size_t label = 0;                 // 0 … kClasses − 1
};

// Reads lines of 64 pixels (0 … 16) and a class, compressed by gzip or not. Throws std::runtime_error that names file
// and line.
[[nodiscard]] std::vector<Image> load(const std::string& path);

// 0 … n − 1 in an order that `seed` alone decides, on every machine.
[[nodiscard]] std::vector<std::size_t> permutation(std::size_t n, std::uint64_t seed);

struct Split {
  std::vector<Image> train;
  std::vector<Image> test;
};
// Holds `test_count` images out, always the same ones for a seed. `test_count` is at most images.size().
[[nodiscard]] Split split(const std::vector<Image>& images, std::size_t test_count, std::uint64_t seed);

// What one rank holds of the training images: those whose index is `rank` modulo `ranks`.
class Shard {
 public:
  Shard(const std::vector<Image>& all, std::size_t rank, std::size_t ranks);

  [[nodiscard]] std::size_t total() const { return total_; }  // images over all ranks
  // The image with this index among all, or nullptr if another rank holds it.
  [[nodiscard]] const Image* find(std::size_t index) const {
    return index % ranks_ == rank_ ? &images_[index / ranks_] : nullptr;
  }

 private:
  std::size_t rank_, ranks_, total_;
  std::vector<Image> images_;
};

}  // namespace digits

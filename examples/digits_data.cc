#include "examples/digits_data.h"

#include <zlib.h>

#include <charconv>
#include <memory>
#include <random>
#include <stdexcept>
#include <string_view>

namespace digits {
namespace {

constexpr std::size_t kMaxImages = 1'000'000;

struct CloseFile {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

// The numbers of one line, or nothing if it is not kPixels + 1 of them, separated by commas.
bool parse(std::string_view line, std::array<int, kPixels + 1>& numbers) {
  const char* at = line.data();
  const char* const end = line.data() + line.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0 && (at == end || *at++ != ',')) return false;
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    if (error != std::errc()) return false;
    at = next;
  }
  return at == end;
}

}  // namespace

std::vector<Image> load(const std::string& path) {
  const std::unique_ptr<gzFile_s, CloseFile> file(gzopen(path.c_str(), "rb"));
  if (file == nullptr) throw std::runtime_error("cannot open " + path);
  std::vector<Image> images;
  std::array<char, 1024> buffer{};
  while (gzgets(file.get(), buffer.data(), static_cast<int>(buffer.size())) != nullptr) {
    std::string_view line(buffer.data());
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
    const auto fail = [&](const std::string& why) {
      std::string what = path;
      throw std::runtime_error(what.append(":").append(std::to_string(images.size() + 1)).append(": ").append(why));
    };
    std::array<int, kPixels + 1> numbers{};
    if (!parse(line, numbers)) fail("not 65 numbers separated by commas");
    if (images.size() == kMaxImages) fail("more than " + std::to_string(kMaxImages) + " images");
    Image image;
    for (std::size_t i = 0; i < kPixels; ++i) {
      if (numbers[i] < 0 || numbers[i] > 16) fail("a pixel is " + std::to_string(numbers[i]) + ", not 0 to 16");
      image.pixels[i] = numbers[i] / 16.0;
    }
    const int label = numbers[kPixels];
    if (label < 0 || label >= static_cast<int>(kClasses))
      fail("the class is " + std::to_string(label) + ", not 0 to 9");
    image.label = static_cast<std::size_t>(label);
    images.push_back(image);
  }
  int error = Z_OK;
  const char* text = gzerror(file.get(), &error);
  if (error != Z_OK && error != Z_STREAM_END) throw std::runtime_error("cannot read " + path + ": " + text);
  if (images.empty()) throw std::runtime_error(path + " holds no images");
  return images;
}

std::vector<std::size_t> permutation(std::size_t n, std::uint64_t seed) {
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  std::mt19937_64 random(seed);  // the standard fixes its numbers, not those of std::shuffle
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

Split split(const std::vector<Image>& images, std::size_t test_count, std::uint64_t seed) {
  Split parts;
  const std::vector<std::size_t> order = permutation(images.size(), seed);
  for (std::size_t i = 0; i < order.size(); ++i) {
    (i < test_count ? parts.test : parts.train).push_back(images[order[i]]);
  }
  return parts;
}

Shard::Shard(const std::vector<Image>& all, std::size_t rank, std::size_t ranks)
    : rank_(rank), ranks_(ranks), total_(all.size()) {
  for (std::size_t i = rank; i < all.size(); i += ranks) images_.push_back(all[i]);
}

}  // namespace digits

#include "storage/xxh3.h"

#define XXH_INLINE_ALL
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstddef>
#include <random>
#include <span>
#include <vector>

namespace warren {
namespace {

// What is written by a processor with wide vectors is read by one without.
TEST(Xxh3, IsTheSameByAnyVectors) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes((std::size_t{1} << 20) + 77);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  const std::span<const std::byte> all(bytes);
  std::vector<std::size_t> sizes = {1023, 1024, 1025, 4096, 65536, 262144 + 7, bytes.size() - 1};
  for (std::size_t n = 0; n <= 260; n++) sizes.push_back(n);
  for (const std::size_t n : sizes) {
    for (const std::size_t from : {std::size_t{0}, std::size_t{1}}) {
      const auto part = all.subspan(from, n);
      EXPECT_EQ(xxh3(part), XXH3_64bits(part.data(), n)) << n;
      EXPECT_EQ(xxh3(part, 0x123456789abcdefu), XXH3_64bits_withSeed(part.data(), n, 0x123456789abcdefu)) << n;
    }
  }
  EXPECT_EQ(xxh3({}), XXH3_64bits(nullptr, 0));
}

}  // namespace
}  // namespace warren

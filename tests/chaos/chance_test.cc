#include "chaos/sim/chance.h"

#include <gtest/gtest.h>

#include <array>

namespace warren::chaos {
namespace {

constexpr std::uint64_t kSeeds = 200'000;

TEST(Chances, EachComesAsOftenAsItsRowSays) {
  std::array<std::uint64_t, kChances> seen{};
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Chances chances(seed);
    for (std::size_t c = 0; c < kChances; ++c) seen[c] += chances.has(static_cast<Chance>(c));
  }
  for (std::size_t c = 0; c < kChances; ++c) {
    const double expected = static_cast<double>(kSeeds) / static_cast<double>(kChanceInfo[c].one_in);
    EXPECT_NEAR(static_cast<double>(seen[c]), expected, 0.15 * expected) << kChanceInfo[c].name;
  }
}

// Seeds modulo small numbers had never put spares and full logs, or spares and the death of all, into one run.
TEST(Chances, AnyTwoComeTogetherAsOftenAsIndependentOnesDo) {
  std::array<std::array<std::uint64_t, kChances>, kChances> both{};
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Chances chances(seed);
    std::array<bool, kChances> has{};
    for (std::size_t c = 0; c < kChances; ++c) has[c] = chances.has(static_cast<Chance>(c));
    for (std::size_t a = 0; a < kChances; ++a) {
      for (std::size_t b = a + 1; has[a] && b < kChances; ++b) both[a][b] += has[b];
    }
  }
  for (std::size_t a = 0; a < kChances; ++a) {
    for (std::size_t b = a + 1; b < kChances; ++b) {
      const double expected = static_cast<double>(kSeeds) / static_cast<double>(kChanceInfo[a].one_in) /
                              static_cast<double>(kChanceInfo[b].one_in);
      EXPECT_GT(static_cast<double>(both[a][b]), 0.3 * expected) << kChanceInfo[a].name << ", " << kChanceInfo[b].name;
      EXPECT_LT(static_cast<double>(both[a][b]), 2.5 * expected) << kChanceInfo[a].name << ", " << kChanceInfo[b].name;
    }
  }
}

}  // namespace
}  // namespace warren::chaos

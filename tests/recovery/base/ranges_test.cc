#include "recovery/base/ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace warren {
namespace {

std::set<std::uint64_t> numbers(const Ranges& r) {
  std::set<std::uint64_t> out;
  for (const Interval& i : r.intervals()) {
    for (std::uint64_t v = i.begin; v < i.end; ++v) out.insert(v);
  }
  return out;
}

void expect_normal(const Ranges& r) {
  for (std::size_t i = 0; i < r.intervals().size(); ++i) {
    EXPECT_LT(r.intervals()[i].begin, r.intervals()[i].end);
    if (i != 0) {
      EXPECT_LT(r.intervals()[i - 1].end, r.intervals()[i].begin);
    }
  }
}

TEST(Ranges, AreSetsOfNumbers) {
  std::mt19937 random(7);
  const auto draw = [&](std::uint64_t below) { return random() % below; };
  for (int round = 0; round < 2000; ++round) {
    Ranges a, b;
    std::set<std::uint64_t> x, y;
    for (auto [ranges, set] : {std::pair(&a, &x), std::pair(&b, &y)}) {
      for (std::uint64_t n = draw(6); n > 0; --n) {
        const std::uint64_t begin = draw(40), end = begin + draw(9);
        ranges->add(begin, end);
        for (std::uint64_t v = begin; v < end; ++v) set->insert(v);
      }
      expect_normal(*ranges);
      EXPECT_EQ(numbers(*ranges), *set);
      EXPECT_EQ(ranges->size(), set->size());
      EXPECT_EQ(ranges->empty(), set->empty());
    }
    std::set<std::uint64_t> both, only;
    for (const std::uint64_t v : x) (y.contains(v) ? both : only).insert(v);
    EXPECT_EQ(numbers(a.intersect(b)), both);
    EXPECT_EQ(numbers(a.minus(b)), only);
    expect_normal(a.intersect(b));
    expect_normal(a.minus(b));
    const std::uint64_t begin = draw(40), end = begin + draw(9);
    bool all = true, some = false;
    for (std::uint64_t v = begin; v < end; ++v) (x.contains(v) ? some : all) = x.contains(v);
    EXPECT_EQ(a.covers(begin, end), all);
    EXPECT_EQ(a.meets(begin, end), some);
    a.add(b);
    x.insert(y.begin(), y.end());
    EXPECT_EQ(numbers(a), x);
    expect_normal(a);
  }
}

}  // namespace
}  // namespace warren

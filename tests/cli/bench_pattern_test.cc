#include "cli/bench_pattern.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cli/bench_cell.h"

namespace warren::cli {
namespace {

template <class T>
T decode(warren_type type, std::int64_t value) {
  const auto bytes = encode_element(type, value);
  T out;
  std::memcpy(&out, bytes.data(), sizeof out);
  return out;
}

TEST(BenchPattern, WholeNumbersHaveTheirBits) {
  EXPECT_EQ(decode<std::int8_t>(WARREN_I8, -3), -3);
  EXPECT_EQ(decode<std::uint64_t>(WARREN_U64, 200), 200u);
  EXPECT_EQ(decode<float>(WARREN_F32, -256), -256.0F);
  EXPECT_EQ(decode<double>(WARREN_F64, 3), 3.0);
  EXPECT_EQ(decode<std::uint16_t>(WARREN_BF16, 1), 0x3f80);
  EXPECT_EQ(decode<std::uint16_t>(WARREN_F16, 0), 0);
  EXPECT_EQ(decode<std::uint16_t>(WARREN_F16, 1), 0x3c00);
  EXPECT_EQ(decode<std::uint16_t>(WARREN_F16, -2), 0xc000);
  EXPECT_EQ(decode<std::uint16_t>(WARREN_F16, 3), 0x4200);
  EXPECT_EQ(decode<std::uint16_t>(WARREN_F16, 2047), 0x67ff);
}

TEST(BenchPattern, FindsEveryWrongElement) {
  const Pattern pattern(kTypes[8], 3, [](std::size_t i) { return static_cast<std::int64_t>(i); });
  std::vector<std::byte> buffer(40'000);  // 10,000 elements
  pattern.fill(buffer, 2);
  EXPECT_EQ(pattern.errors(buffer, 2), 0u);
  EXPECT_EQ(pattern.errors(buffer, 5), 0u);  // a period later
  EXPECT_EQ(pattern.errors(buffer, 0), 10'000u);
  buffer[0] ^= std::byte{1};
  buffer[39'999] ^= std::byte{0x80};
  EXPECT_EQ(pattern.errors(buffer, 2), 2u);
}

// The reduction of the inputs, done here again from the definition, element by element.
TEST(BenchPattern, TheReductionIsThatOfTheInputs) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (const OpName& op : kOps) {
      const auto data = BenchData::make(kTypes[2], op, ranks);  // i32
      ASSERT_TRUE(data.ok());
      constexpr std::size_t kCount = 100;
      std::vector<std::int32_t> expected(kCount), in(kCount);
      for (int r = 0; r < ranks; ++r) {
        data.value().input(r).fill(std::as_writable_bytes(std::span(in)), 0);
        for (std::size_t i = 0; i < kCount; ++i) {
          const std::int32_t a = expected[i], b = in[i];
          const auto combined = [&]() -> std::int32_t {
            switch (op.op) {
              case WARREN_PRODUCT: return a * b;
              case WARREN_MIN: return std::min(a, b);
              case WARREN_MAX: return std::max(a, b);
              case WARREN_BIT_AND: return a & b;
              case WARREN_BIT_OR: return a | b;
              case WARREN_BIT_XOR: return a ^ b;
              default: return a + b;
            }
          };
          expected[i] = r == 0 ? b : combined();
        }
      }
      for (std::int32_t& e : expected) {
        if (op.op != WARREN_AVERAGE) continue;
        ASSERT_EQ(e % ranks, 0) << "an average must be exact";
        e /= ranks;
      }
      EXPECT_EQ(data.value().reduced().errors(std::as_bytes(std::span(expected)), 0), 0u) << op.name << " " << ranks;
    }
  }
}

TEST(BenchPattern, WhatCannotBeCheckedIsRefused) {
  EXPECT_FALSE(BenchData::make(kTypes[8], kOps[4], 2).ok());   // f32, and
  EXPECT_TRUE(BenchData::make(kTypes[7], kOps[0], 256).ok());  // bf16, sum
  EXPECT_FALSE(BenchData::make(kTypes[7], kOps[0], 257).ok());
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(BenchCollective::kAllreduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(BenchCollective::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(BenchCollective::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(BenchCollective::kAllreduce, 1), 0);
}

}  // namespace
}  // namespace warren::cli

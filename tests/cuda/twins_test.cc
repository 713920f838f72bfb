// The kernels' arithmetic on the CPU, which is what the GPU compiles too, against the core's own kernels and against
// the oracle; and what the checksum has to notice.
#include "cuda/twins.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "cuda/elements.h"
#include "cuda/request.h"
#include "tests/worker/kernels/oracle.h"
#include "worker/kernels/reduce.h"

namespace warren::cuda {
namespace {

using worker::Form;
using worker::Reducer;
namespace oracle = worker::test;

constexpr std::size_t kElements = 4'099;

template <class T>
void check_reduce(warren_type type) {
  const auto data_type = static_cast<DataType>(type);
  for (const warren_op op : {WARREN_SUM, WARREN_PRODUCT, WARREN_MIN, WARREN_MAX, WARREN_AVERAGE}) {
    for (const std::size_t inputs : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(op)) + ", " + std::to_string(inputs) + " inputs");
      std::vector<std::vector<T>> in;
      for (std::size_t i = 0; i < inputs; i++) in.push_back(oracle::test_elements<T>(static_cast<int>(i), kElements));
      // Not an array of pairs any more: some special values meet others.
      if (inputs > 2) std::rotate(in[2].begin(), in[2].begin() + 7, in[2].end());
      std::vector<const void*> pointers;
      for (const auto& values : in) pointers.push_back(values.data());
      const std::size_t count = in[0].size();
      std::vector<T> got(count);
      twins::reduce(got.data(), pointers.data(), inputs, count, type, op);

      // By the core's kernels: what is partial stays f32 until the end.
      auto reducer = Reducer::make(data_type, static_cast<ReduceOp>(op), static_cast<std::uint32_t>(inputs));
      ASSERT_TRUE(reducer.ok());
      const Reducer& r = reducer.value();
      std::vector<float> partial(count);
      std::vector<T> want(count);
      if (inputs == 1) {
        r.copy(want.data(), Form::kValue, in[0].data(), Form::kValue, count, true);
      } else {
        const void* so_far = in[0].data();
        Form form = Form::kValue;
        for (std::size_t i = 1; i + 1 < inputs; i++) {
          r.reduce(partial.data(), Form::kPartial, so_far, form, in[i].data(), Form::kValue, count, false);
          so_far = partial.data();
          form = Form::kPartial;
        }
        r.reduce(want.data(), Form::kValue, so_far, form, in[inputs - 1].data(), Form::kValue, count, true);
      }
      ASSERT_EQ(std::memcmp(got.data(), want.data(), count * sizeof(T)), 0);
    }
  }
}

TEST(Twins, ReduceAsTheCoreDoes) {
  check_reduce<float>(WARREN_F32);
  check_reduce<oracle::F16>(WARREN_F16);
  check_reduce<oracle::BF16>(WARREN_BF16);
}

TEST(Twins, RoundOnceAfterTheLastInput) {
  // 2048 + 1 + 1 + 1 in f16: each sum alone would be rounded away.
  const oracle::F16 large = oracle::F16::narrow(2048), one = oracle::F16::narrow(1);
  const void* in[] = {&large, &one, &one, &one};
  oracle::F16 out{};
  twins::reduce(&out, in, 4, 1, WARREN_F16, WARREN_SUM);
  EXPECT_EQ(out.widen(), 2052.0f);
}

TEST(Twins, ConvertEveryHalfAndTheFloatsAroundThem) {
  const auto check = [](auto half, warren_type type) {
    using Half = decltype(half);
    std::vector<Half> all(65'536);
    for (std::uint32_t bits = 0; bits < all.size(); bits++) all[bits].bits = static_cast<std::uint16_t>(bits);
    std::vector<float> wide(all.size());
    twins::convert(wide.data(), WARREN_F32, all.data(), type, all.size());
    for (std::size_t i = 0; i < all.size(); i++) ASSERT_EQ(bits_of(wide[i]), bits_of(all[i].widen())) << i;
    // Each, its neighbours, and half-way to the next.
    for (const std::uint32_t change : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffffffu}) {
      std::vector<float> around(all.size());
      for (std::size_t i = 0; i < all.size(); i++) around[i] = float_of(bits_of(wide[i]) + change);
      std::vector<Half> narrow(all.size());
      twins::convert(narrow.data(), type, around.data(), WARREN_F32, all.size());
      for (std::size_t i = 0; i < all.size(); i++) {
        ASSERT_EQ(narrow[i].bits, Half::narrow(around[i]).bits) << bits_of(around[i]);
      }
    }
  };
  check(oracle::F16{}, WARREN_F16);
  check(oracle::BF16{}, WARREN_BF16);
}

TEST(Twins, ChecksumsNoticeChangesPlacesAndLengths) {
  constexpr std::size_t kBytes = WARREN_DEVICE_CHECKSUM_BLOCK + 1'003;
  std::vector<std::uint8_t> bytes(kBytes);
  for (std::size_t i = 0; i < kBytes; i++) bytes[i] = static_cast<std::uint8_t>(i * 131 % 251);
  std::uint64_t before[2], after[2];
  twins::checksum(before, bytes.data(), kBytes);
  for (const std::size_t at : {std::size_t{0}, std::size_t{4097}, WARREN_DEVICE_CHECKSUM_BLOCK - 1,
                               WARREN_DEVICE_CHECKSUM_BLOCK, kBytes - 1}) {
    bytes[at] ^= 0x10;
    twins::checksum(after, bytes.data(), kBytes);
    const bool in_first = at < WARREN_DEVICE_CHECKSUM_BLOCK;
    EXPECT_EQ(before[0] == after[0], !in_first) << at;
    EXPECT_EQ(before[1] == after[1], in_first) << at;
    bytes[at] ^= 0x10;
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 64);
  twins::checksum(after, bytes.data(), kBytes);
  EXPECT_NE(before[0], after[0]) << "words change places";
  // Zeros at the end are not nothing.
  const std::vector<std::uint8_t> zeros(64);
  std::set<std::uint64_t> all;
  for (std::size_t size = 1; size <= zeros.size(); size++) {
    twins::checksum(after, zeros.data(), size);
    all.insert(after[0]);
  }
  EXPECT_EQ(all.size(), zeros.size());
}

TEST(Twins, WhatIsNotServedIsRefused) {
  EXPECT_EQ(why_not_reduce(64, WARREN_BF16, WARREN_AVERAGE), nullptr);
  EXPECT_NE(why_not_reduce(0, WARREN_F32, WARREN_SUM), nullptr);
  EXPECT_NE(why_not_reduce(65, WARREN_F32, WARREN_SUM), nullptr);
  EXPECT_NE(why_not_reduce(2, WARREN_F64, WARREN_SUM), nullptr);
  EXPECT_NE(why_not_reduce(2, WARREN_F32, WARREN_BIT_OR), nullptr);
  EXPECT_EQ(why_not_convert(WARREN_F32, WARREN_F16), nullptr);
  EXPECT_NE(why_not_convert(WARREN_BF16, WARREN_F16), nullptr);
}

}  // namespace
}  // namespace warren::cuda

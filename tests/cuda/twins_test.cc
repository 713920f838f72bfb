// The kernels' arithmetic on the CPU, which is what the GPU compiles too, against the core's own kernels and against
// the oracle; and what the checksum has to notice.
#include "cuda/twins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
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

// As a rank finishes what all have given.
warren_device_reduction how_of(std::size_t inputs, warren_type type, warren_op op,
                               warren_device_bracketing bracketing = WARREN_DEVICE_CHAIN) {
  return {inputs, type, op, bracketing, 0, 0, static_cast<std::uint32_t>(inputs)};
}

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
      twins::reduce(got.data(), pointers.data(), count, how_of(inputs, type, op));

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
          ASSERT_TRUE(
              r.reduce(partial.data(), Form::kPartial, so_far, form, in[i].data(), Form::kValue, count, false).ok());
          so_far = partial.data();
          form = Form::kPartial;
        }
        ASSERT_TRUE(
            r.reduce(want.data(), Form::kValue, so_far, form, in[inputs - 1].data(), Form::kValue, count, true).ok());
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

// A piece at a time, as a rank of a host does that makes finals.
template <class T>
void check_combine(warren_type type) {
  for (const warren_op op : {WARREN_SUM, WARREN_PRODUCT, WARREN_MIN, WARREN_MAX, WARREN_AVERAGE}) {
    for (const std::size_t inputs : {2, 3, 4, 5, 6, 7, 8, 12, 33, 64}) {
      std::vector<std::vector<T>> in;
      std::vector<const void*> pointers;
      for (std::size_t i = 0; i < inputs; i++) {
        in.push_back(oracle::test_elements<T>(static_cast<int>(i), 211));
        std::rotate(in[i].begin(), in[i].begin() + static_cast<std::ptrdiff_t>(3 * i), in[i].end());
      }
      for (const auto& values : in) pointers.push_back(values.data());
      const std::size_t count = in[0].size();
      std::vector<float> partial = oracle::test_elements<float>(1, 211);
      ASSERT_GE(partial.size(), count);
      // An average of more than these.
      const auto contributors = static_cast<std::uint32_t>(inputs + 5);
      auto reducer = Reducer::make(static_cast<DataType>(type), static_cast<ReduceOp>(op), contributors);
      ASSERT_TRUE(reducer.ok());
      for (const int forms : {0, 1, 2, 3}) {
        const bool first_is_partial = (forms & 1) != 0, unfinished = (forms & 2) != 0;
        pointers[0] = first_is_partial ? static_cast<const void*>(partial.data()) : in[0].data();
        for (const bool balanced : {false, true}) {
          if (balanced && first_is_partial) continue;
          warren_device_reduction how =
              how_of(inputs, type, op, balanced ? WARREN_DEVICE_BALANCED : WARREN_DEVICE_CHAIN);
          how.first_is_partial = first_is_partial ? 1 : 0;
          how.unfinished = unfinished ? 1 : 0;
          how.contributors = contributors;
          ASSERT_EQ(why_not_reduce(how), nullptr);
          std::vector<float> got(count), want(count);  // wide enough for either form
          twins::reduce(got.data(), pointers.data(), count, how);
          ASSERT_TRUE(reducer.value()
                          .combine(want.data(), unfinished ? Form::kPartial : Form::kValue, pointers,
                                   first_is_partial ? Form::kPartial : Form::kValue,
                                   balanced ? worker::Bracketing::kBalanced : worker::Bracketing::kChain, count)
                          .ok());
          ASSERT_EQ(std::memcmp(got.data(), want.data(), reduced_bytes(how, count)), 0)
              << "op " << op << ", " << inputs << " inputs, " << (balanced ? "balanced" : "in a chain") << ", forms "
              << forms;
        }
      }
    }
  }
}

TEST(Twins, CombineAsTheCoreDoes) {
  check_combine<float>(WARREN_F32);
  check_combine<oracle::F16>(WARREN_F16);
  check_combine<oracle::BF16>(WARREN_BF16);
}

TEST(Twins, RoundOnceAfterTheLastInput) {
  // 2048 + 1 + 1 + 1 in f16: each sum alone would be rounded away.
  const oracle::F16 large = oracle::F16::narrow(2048), one = oracle::F16::narrow(1);
  const void* in[] = {&large, &one, &one, &one};
  oracle::F16 out{};
  twins::reduce(&out, in, 1, how_of(4, WARREN_F16, WARREN_SUM));
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

// ---- I8

constexpr std::size_t kValues = WARREN_DEVICE_I8_VALUES;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLeastScale = oracle::I8Block::kLeastScale;
static_assert(sizeof(oracle::I8Block) == sizeof(warren_device_i8_block));

// To blocks and back, with memory behind both that is not theirs; both as the oracle has it, and the core's kernels.
std::vector<float> through_blocks(const std::vector<float>& values, std::vector<warren_device_i8_block>& got) {
  const std::size_t blocks = (values.size() + kValues - 1) / kValues;
  EXPECT_EQ(converted_bytes(WARREN_I8, values.size()), blocks * sizeof(warren_device_i8_block));
  warren_device_i8_block other;
  std::memset(&other, 0x5a, sizeof other);
  got.assign(blocks + 1, other);
  twins::convert(got.data(), WARREN_I8, values.data(), WARREN_F32, values.size());
  EXPECT_EQ(std::memcmp(&got.back(), &other, sizeof other), 0) << "behind the last block";
  got.pop_back();
  std::vector<float> back(values.size() + 1, 77.0f);
  twins::convert(back.data(), WARREN_F32, got.data(), WARREN_I8, values.size());
  EXPECT_EQ(back.back(), 77.0f) << "behind the last value";
  back.pop_back();
  const auto core = Reducer::make(DataType::kF32AsI8, ReduceOp::kSum, 1);
  EXPECT_TRUE(core.ok());
  for (std::size_t b = 0; b < blocks; b++) {
    oracle::I8Values padded{};
    const std::size_t end = std::min(values.size(), (b + 1) * kValues);
    std::copy(values.begin() + static_cast<std::ptrdiff_t>(b * kValues),
              values.begin() + static_cast<std::ptrdiff_t>(end), padded.begin());
    const oracle::I8Block want = oracle::I8Block::narrow(padded);
    EXPECT_EQ(std::memcmp(&got[b], &want, sizeof want), 0) << "block " << b << ", scale " << got[b].scale;
    const oracle::I8Values wide = want.widen();
    for (std::size_t i = b * kValues; i < end; i++) EXPECT_EQ(bits_of(back[i]), bits_of(wide[i % kValues])) << i;
    oracle::I8Block by_core{};
    core.value().copy(&by_core, Form::kValue, padded.data(), Form::kPartial, 1, false);
    EXPECT_EQ(std::memcmp(&got[b], &by_core, sizeof by_core), 0) << "block " << b << ", scale " << by_core.scale;
    oracle::I8Values wide_by_core{};
    core.value().copy(wide_by_core.data(), Form::kPartial, &got[b], Form::kValue, 1, false);
    EXPECT_EQ(std::memcmp(&back[b * kValues], wide_by_core.data(), (end - b * kValues) * sizeof(float)), 0) << b;
  }
  return back;
}

TEST(Twins, BlocksOfI8AreThoseOfTheTable) {
  std::mt19937 random(7);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kValues - 1, kValues, kValues + 1, 5 * kValues + 3}) {
    // From the smallest denormals to the largest floats: the exponents of a block lie near each other, or anywhere.
    for (const int around : {-149, -127, -119, 0, 100, 120}) {
      SCOPED_TRACE(std::to_string(count) + " around 2^" + std::to_string(around));
      std::vector<float> values(count);
      for (float& value : values) {
        const float fraction = static_cast<float>(random() % 0x1000000) * 0x1p-23f - 1.0f;
        value = std::ldexp(fraction, around + static_cast<int>(random() % 8));
      }
      std::vector<warren_device_i8_block> blocks;
      const auto back = through_blocks(values, blocks);
      for (std::size_t i = 0; i < count; i++) {
        const double scale = static_cast<double>(blocks[i / kValues].scale);
        // Half a step, and what the roundings of factor, product and result make of 127 steps.
        ASSERT_LE(std::fabs(static_cast<double>(back[i]) - static_cast<double>(values[i])), scale * 0.50004) << i;
      }
    }
  }
}

TEST(Twins, I8RoundsTiesToEvenAndKeepsTheLargest) {
  // A scale of 1: halves are ties.
  std::vector<float> values{127.0f, -127.0f, 0.5f,   1.5f,    2.5f,        -0.5f,
                            -1.5f,  -2.5f,   126.5f, -126.5f, 0.49999997f, -0.0f};
  std::vector<warren_device_i8_block> blocks;
  (void)through_blocks(values, blocks);
  EXPECT_EQ(blocks[0].scale, 1.0f);
  const std::vector<int> want{127, -127, 0, 2, 2, 0, -2, -2, 126, -126, 0, 0};
  for (std::size_t i = 0; i < want.size(); i++) EXPECT_EQ(blocks[0].values[i], want[i]) << i;
  for (std::size_t i = want.size(); i < kValues; i++) EXPECT_EQ(blocks[0].values[i], 0) << "filled up";
  // Whatever the largest magnitude is, it comes out as 127 steps and nothing as more.
  std::mt19937 random(3);
  for (int n = 0; n < 100'000; n++) {
    const float largest = float_of(static_cast<std::uint32_t>(random() % 0x7f800000u));
    if (largest < 127.0f * kLeastScale) continue;
    const BlockScale scale = scale_of(magnitude_of(-largest));
    ASSERT_EQ(scale.scale, static_cast<float>(static_cast<double>(largest) / 127.0));
    ASSERT_EQ(scale.factor, static_cast<float>(127.0 / static_cast<double>(largest)));
    ASSERT_EQ(scaled_down(largest, scale.factor), 127) << largest;
    ASSERT_EQ(scaled_down(-largest, scale.factor), -127) << largest;
  }
}

// Where the last bit of scale and factor decides.
TEST(Twins, I8RoundsAsTheCoreDoesNextToTies) {
  std::mt19937 random(5);
  for (int n = 0; n < 300; n++) {
    const float largest = std::ldexp(1.0f + static_cast<float>(random() % 0x800000) * 0x1p-23f, n % 200 - 100);
    std::vector<float> values(kValues);
    for (std::size_t i = 0; i < kValues; i++) {
      const double tie = (static_cast<double>(i % 254) - 126.5) * static_cast<double>(largest) / 127.0;
      values[i] = float_of(bits_of(static_cast<float>(tie)) + static_cast<std::uint32_t>(random() % 3) - 1u);
    }
    values[0] = largest;
    std::vector<warren_device_i8_block> blocks;
    (void)through_blocks(values, blocks);
  }
}

TEST(Twins, I8OfZerosInfinitiesAndNans) {
  std::vector<warren_device_i8_block> blocks;
  std::vector<float> values(6 * kValues, 3.0f);
  std::fill_n(values.begin(), kValues, -0.0f);
  values[2 * kValues + 255] = kInfinity;
  values[3 * kValues] = -kInfinity;
  values[4 * kValues + 100] = float_of(0xff800001u);  // a signaling NaN with a sign
  const auto back = through_blocks(values, blocks);
  EXPECT_EQ(blocks[0].scale, kLeastScale);
  for (std::size_t b = 0; b < 6; b++) {
    const bool is_broken = b >= 2 && b <= 4;
    for (std::size_t i = b * kValues; i < (b + 1) * kValues; i++) {
      const float want = is_broken ? kNan : b == 0 ? 0.0f : 127.0f * (3.0f / 127.0f);
      ASSERT_EQ(bits_of(back[i]), bits_of(want)) << i;
    }
    EXPECT_EQ(blocks[b].values[0], is_broken || b == 0 ? 0 : 127);
  }
  // What the table's own blocks never have.
  warren_device_i8_block strange[2]{};
  strange[0].scale = kInfinity;
  strange[0].values[1] = -128;
  strange[1].scale = -2.0f;
  strange[1].values[0] = -128;
  float out[kValues + 1];
  twins::convert(out, WARREN_F32, strange, WARREN_I8, kValues + 1);
  EXPECT_EQ(bits_of(out[0]), bits_of(kNan)) << "0 times infinity";
  EXPECT_EQ(out[1], -kInfinity);
  EXPECT_EQ(out[kValues], 256.0f);
  float by_core[2 * kValues];
  const auto core = Reducer::make(DataType::kF32AsI8, ReduceOp::kSum, 1);
  core.value().copy(by_core, Form::kPartial, strange, Form::kValue, 2, false);
  EXPECT_EQ(std::memcmp(out, by_core, sizeof out), 0);
}

// ---- packing

// Packs pieces of these sizes, which begin so many bytes behind a multiple of 16, and unpacks them elsewhere; compares
// with copies made one after the other, and looks at what lies between.
void check_packing(const std::vector<std::pair<std::size_t, std::size_t>>& pieces, std::size_t packed_at) {
  constexpr unsigned char kOther = 0xee;
  std::size_t total = 0, space = 64;
  for (const auto& [bytes, at] : pieces) {
    total += bytes;
    space += bytes + at + 48;
  }
  const auto begin_of = [](std::vector<unsigned char>& memory) {
    return memory.data() + (16 - address_of(memory.data()) % 16) % 16;
  };
  std::vector<unsigned char> in(space, kOther), out(space, kOther), packed(total + 96, kOther);
  std::vector<warren_device_piece> from, to;
  std::size_t place = 16;
  unsigned char value = 1;
  std::vector<unsigned char> want(packed.size(), kOther), came(space, kOther);
  unsigned char* const packed_begin = begin_of(packed) + 32 + packed_at;
  std::size_t behind = static_cast<std::size_t>(packed_begin - packed.data());
  for (const auto& [bytes, at] : pieces) {
    unsigned char* const piece = begin_of(in) + place + at;
    from.push_back({piece, bytes});
    unsigned char* const target = begin_of(out) + place + at;
    to.push_back({target, bytes});
    for (std::size_t i = 0; i < bytes; i++, value = static_cast<unsigned char>(value % 201 + 1)) {
      piece[i] = value;
      want[behind++] = value;
      came[static_cast<std::size_t>(target - out.data()) + i] = value;
    }
    place = (place + at + bytes + 16 + 15) / 16 * 16;
  }
  ASSERT_LE(place, space);
  const auto in_before = in;
  twins::pack(packed_begin, from.data(), from.size());
  ASSERT_EQ(packed, want);
  ASSERT_EQ(in, in_before);
  twins::unpack(packed_begin, to.data(), to.size());
  ASSERT_EQ(out, came);
  ASSERT_EQ(packed, want);
}

TEST(Twins, PackingCopiesWhateverTheSizesAndAlignments) {
  check_packing({}, 0);
  check_packing({{0, 0}, {0, 3}}, 1);
  for (std::size_t packed_at = 0; packed_at < 16; packed_at++) {
    for (std::size_t at = 0; at < 16; at++) {
      SCOPED_TRACE(std::to_string(packed_at) + ", " + std::to_string(at));
      for (std::size_t bytes = 0; bytes < 50; bytes++) check_packing({{bytes, at}}, packed_at);
      // Over the bounds of tiles, alone and among others.
      check_packing({{kTileBytes - 1, at}, {0, 5}, {2 * kTileBytes + 33, at}, {1, 0}}, packed_at);
    }
  }
  check_packing({{kTileBytes, 0}, {kTileBytes, 4}, {3 * kTileBytes, 8}}, 0);
}

TEST(Twins, PackingTakesAsManyPiecesAsItSays) {
  std::mt19937 random(11);
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  for (std::size_t i = 0; i < WARREN_DEVICE_MAX_PIECES; i++) {
    // Some small, some larger than a tile, some of none, also at the ends.
    const std::size_t bytes = i % 7 == 0 ? 0 : i % 31 == 1 ? kTileBytes + random() % 5'000 : random() % 300;
    pieces.emplace_back(bytes, random() % 16);
  }
  check_packing(pieces, 0);
  check_packing(pieces, 7);
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
  EXPECT_EQ(why_not_reduce(how_of(64, WARREN_BF16, WARREN_AVERAGE)), nullptr);
  EXPECT_NE(why_not_reduce(how_of(0, WARREN_F32, WARREN_SUM)), nullptr);
  EXPECT_NE(why_not_reduce(how_of(65, WARREN_F32, WARREN_SUM)), nullptr);
  EXPECT_NE(why_not_reduce(how_of(2, WARREN_F64, WARREN_SUM)), nullptr);
  EXPECT_NE(why_not_reduce(how_of(2, WARREN_F32, WARREN_BIT_OR)), nullptr);
  warren_device_reduction how = how_of(4, WARREN_F32, WARREN_AVERAGE, WARREN_DEVICE_BALANCED);
  how.contributors = 0;
  EXPECT_NE(why_not_reduce(how), nullptr);
  how.contributors = 4;
  EXPECT_EQ(why_not_reduce(how), nullptr);
  how.first_is_partial = 1;
  EXPECT_NE(why_not_reduce(how), nullptr);
  EXPECT_EQ(why_not_convert(WARREN_F32, WARREN_F16), nullptr);
  EXPECT_EQ(why_not_convert(WARREN_I8, WARREN_F32), nullptr);
  EXPECT_NE(why_not_convert(WARREN_BF16, WARREN_F16), nullptr);
  EXPECT_NE(why_not_convert(WARREN_I8, WARREN_BF16), nullptr);
  EXPECT_EQ(why_not_pack(WARREN_DEVICE_MAX_PIECES), nullptr);
  EXPECT_NE(why_not_pack(WARREN_DEVICE_MAX_PIECES + 1), nullptr);
}

TEST(Twins, AGpuOfBeforeIsRefusedAndSaysWhichAreServed) {
  EXPECT_EQ(why_not_on(1, 7, 5, 800), "GPU 1 has compute capability 7.5, and this module is built for 8.0 and newer");
  EXPECT_EQ(why_not_on(0, 8, 0, 860), "GPU 0 has compute capability 8.0, and this module is built for 8.6 and newer");
  EXPECT_EQ(why_not_on(0, 9, 0, 1000), "GPU 0 has compute capability 9.0, and this module is built for 10.0 and newer");
  EXPECT_EQ(why_not_on(0, 8, 0, 800), "");
  EXPECT_EQ(why_not_on(0, 8, 6, 800), "");
  EXPECT_EQ(why_not_on(0, 12, 1, 800), "");
}

}  // namespace
}  // namespace warren::cuda

// Blocks of 8-bit integers with a scale: every form, operation, bracketing and aliasing, on every instruction set,
// against the oracle: same bits.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/worker/kernels/oracle.h"
#include "tests/worker/kernels/targets.h"
#include "worker/kernels/reduce.h"

namespace warren::worker {
namespace {

using test::I8Block;
using test::I8Values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array kForms{Form::kValue, Form::kPartial};

// Of all magnitudes, those of a block near each other or not, some with values that matter.
std::vector<I8Values> test_values(std::size_t blocks, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<I8Values> all(blocks);
  constexpr int kAround[] = {0, -149, -130, -119, 20, 100, 119, -6};
  for (std::size_t b = 0; b < blocks; ++b) {
    for (float& value : all[b]) {
      const float fraction = static_cast<float>(random() % 0x1000000) * 0x1p-23f - 1.0f;
      value = std::ldexp(fraction, kAround[b % std::size(kAround)] + static_cast<int>(random() % 8));
    }
    const std::size_t at = random() % all[b].size();
    switch (b % 13) {
      case 3: all[b][at] = kInfinity; break;
      case 5: all[b][at] = std::bit_cast<float>(0xff800001u); break;  // a signaling NaN with a sign
      case 7: all[b].fill(-0.0f); break;
      case 9:  // a scale of 1, with ties
        for (std::size_t i = 0; i < all[b].size(); ++i) all[b][i] = static_cast<float>(i % 255) * 0.5f;
        all[b][at] = -127.0f;
        break;
      case 11: all[b][at] = -std::numeric_limits<float>::max(); break;
      case 12:  // next to ties, where the last bit of the scale decides
        for (std::size_t i = 1; i < all[b].size(); ++i) {
          const double tie = (static_cast<double>(i % 254) - 126.5) * static_cast<double>(all[b][0]) / 127.0;
          all[b][i] = static_cast<float>(tie * (1.0 + (static_cast<double>(i % 3) - 1.0) * 0x1p-24));
        }
        break;
      default: break;
    }
  }
  return all;
}

// Elements in one form, as bytes.
std::vector<std::byte> as_form(const std::vector<I8Values>& values, Form form) {
  std::vector<std::byte> out;
  const auto append = [&](const auto& element) {
    const auto bytes = std::as_bytes(std::span(&element, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  for (const I8Values& v : values) {
    if (form == Form::kPartial) append(v);
    if (form == Form::kValue) append(I8Block::narrow(v));
  }
  return out;
}

std::vector<I8Values> load(const std::vector<std::byte>& bytes, Form form) {
  std::vector<I8Values> out(bytes.size() / (form == Form::kValue ? sizeof(I8Block) : sizeof(I8Values)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (form == Form::kPartial) {
      std::memcpy(&out[i], bytes.data() + i * sizeof out[i], sizeof out[i]);
      continue;
    }
    I8Block block;
    std::memcpy(&block, bytes.data() + i * sizeof block, sizeof block);
    out[i] = block.widen();
  }
  return out;
}

I8Values sum_of(const I8Values& a, const I8Values& b) {
  I8Values sum{};
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = test::combine_one(ReduceOp::kSum, a[i], b[i]);
  return sum;
}
I8Values finished(ReduceOp op, I8Values v, std::uint32_t contributors) {
  for (float& value : v) value = test::finish_one(op, value, contributors);
  return v;
}

// Memory that begins so many bytes behind a cache line, between bytes that must not change.
class Buffer {
 public:
  Buffer(const std::vector<std::byte>& content, std::size_t shift)
      : storage_(content.size() + shift + 128, kGuard), shift_(shift), bytes_(content.size()) {
    std::copy(content.begin(), content.end(), begin());
  }
  [[nodiscard]] std::byte* data() { return storage_.data() + 64 + shift_; }
  [[nodiscard]] std::vector<std::byte> content() const {
    const auto from = storage_.begin() + static_cast<std::ptrdiff_t>(64 + shift_);
    return {from, from + static_cast<std::ptrdiff_t>(bytes_)};
  }
  [[nodiscard]] bool guards_intact() const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      if ((i < 64 + shift_ || i >= 64 + shift_ + bytes_) && storage_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] std::vector<std::byte>::iterator begin() {
    return storage_.begin() + static_cast<std::ptrdiff_t>(64 + shift_);
  }
  static constexpr std::byte kGuard{0xa5};
  std::vector<std::byte> storage_;
  std::size_t shift_, bytes_;
};

Reducer make(ReduceOp op, std::uint32_t contributors) {
  auto made = Reducer::make(DataType::kF32AsI8, op, contributors);
  EXPECT_TRUE(made.ok()) << made.status().describe();
  return made.ok() ? made.value() : Reducer();
}

class Blocks : public testing::TestWithParam<std::int64_t> {
 protected:
  const test::UseTarget use_{GetParam()};
};

TEST_P(Blocks, CopyLikeTheOracle) {
  for (const std::size_t blocks : {0, 1, 2, 40}) {
    const auto values = test_values(blocks, 1);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      const Reducer reducer = make(op, 3);
      for (const Form from : kForms) {
        for (const Form to : kForms) {
          for (const bool finish : {false, true}) {
            SCOPED_TRACE(std::string(to_string(op)) + " of " + std::to_string(blocks) + ", forms " +
                         std::to_string(static_cast<int>(from)) + std::to_string(static_cast<int>(to)) +
                         (finish ? ", finished" : ""));
            const auto in = as_form(values, from);
            auto made = load(in, from);
            if (finish) {
              for (I8Values& v : made) v = finished(op, v, 3);
            }
            const bool moves = from == to && !(finish && op == ReduceOp::kAverage);
            const auto want = moves ? in : as_form(made, to);
            Buffer source(in, 4), target(std::vector<std::byte>(want.size()), 7);
            reducer.copy(target.data(), to, source.data(), from, blocks, finish);
            EXPECT_EQ(target.content(), want);
            EXPECT_EQ(source.content(), in);
            EXPECT_TRUE(source.guards_intact() && target.guards_intact());
            if (from != to) continue;
            reducer.copy(source.data(), to, source.data(), from, blocks, finish);
            EXPECT_EQ(source.content(), want) << "in place";
          }
        }
      }
    }
  }
}

TEST_P(Blocks, CombineLikeTheOracle) {
  constexpr std::size_t kBlocks = 104;  // each kind of block meets each
  auto first = test_values(kBlocks, 2), second = test_values(kBlocks, 3);
  std::rotate(second.begin(), second.begin() + 1, second.end());
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    const Reducer reducer = make(op, 7);
    for (int forms = 0; forms < 16; ++forms) {
      const Form to = kForms[forms & 1], a_form = kForms[forms >> 1 & 1], b_form = kForms[forms >> 2 & 1];
      const bool finish = (forms & 8) != 0;
      SCOPED_TRACE(std::string(to_string(op)) + ", forms " + std::to_string(forms));
      const auto a = as_form(first, a_form), b = as_form(second, b_form);
      const auto x = load(a, a_form), y = load(b, b_form);
      std::vector<I8Values> made;
      for (std::size_t i = 0; i < kBlocks; ++i) {
        made.push_back(sum_of(x[i], y[i]));
        if (finish) made.back() = finished(op, made.back(), 7);
      }
      const auto want = as_form(made, to);
      for (const int over : {0, 1, 2}) {  // nothing, a, b
        if ((over == 1 && a_form != to) || (over == 2 && b_form != to)) continue;
        Buffer in_a(a, 8), in_b(b, 1), out(std::vector<std::byte>(want.size()), 12);
        Buffer& target = over == 0 ? out : over == 1 ? in_a : in_b;
        ASSERT_TRUE(reducer.reduce(target.data(), to, in_a.data(), a_form, in_b.data(), b_form, kBlocks, finish).ok());
        EXPECT_EQ(target.content(), want) << over;
        EXPECT_TRUE(in_a.guards_intact() && in_b.guards_intact() && out.guards_intact());
      }
    }
  }
}

TEST_P(Blocks, CombineManyLikeStepByStep) {
  constexpr std::size_t kBlocks = 27;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    for (const std::size_t count : {2, 3, 4, 5, 7, 8, 16, 37}) {
      const Reducer reducer = make(op, static_cast<std::uint32_t>(count));
      std::vector<std::vector<std::byte>> in;
      std::vector<std::vector<I8Values>> wide;
      for (std::size_t k = 0; k < count; ++k) {
        auto values = test_values(kBlocks, static_cast<unsigned>(10 + k));
        std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(k % kBlocks), values.end());
        in.push_back(as_form(values, Form::kValue));
        wide.push_back(load(in.back(), Form::kValue));
      }
      for (const Bracketing bracketing : {Bracketing::kChain, Bracketing::kBalanced}) {
        SCOPED_TRACE(std::string(to_string(op)) + " of " + std::to_string(count) +
                     (bracketing == Bracketing::kChain ? " in a chain" : " balanced"));
        std::vector<I8Values> made;
        for (std::size_t i = 0; i < kBlocks; ++i) {
          std::vector<I8Values> sums;
          if (bracketing == Bracketing::kChain) {
            sums.push_back(wide[0][i]);
            for (std::size_t k = 1; k < count; ++k) sums[0] = sum_of(sums[0], wide[k][i]);
          } else {
            std::size_t positions = 1;
            while (2 * positions <= count) positions *= 2;
            for (std::size_t k = 0, p = 0; p < positions; ++p) {
              const bool pair = p < count - positions;
              sums.push_back(pair ? sum_of(wide[k][i], wide[k + 1][i]) : wide[k][i]);
              k += pair ? 2 : 1;
            }
            for (; positions > 1; positions /= 2) {
              for (std::size_t p = 0; p < positions / 2; ++p) sums[p] = sum_of(sums[2 * p], sums[2 * p + 1]);
            }
          }
          made.push_back(finished(op, sums[0], static_cast<std::uint32_t>(count)));
        }
        const auto want = as_form(made, Form::kValue);
        for (const std::size_t over : {count, std::size_t{0}, count - 1}) {
          std::vector<Buffer> buffers;
          std::vector<const void*> operands;
          for (const auto& operand : in) buffers.emplace_back(operand, 4 * buffers.size() % 20);
          buffers.emplace_back(std::vector<std::byte>(want.size()), 3);
          for (std::size_t k = 0; k < count; ++k) operands.push_back(buffers[k].data());
          ASSERT_TRUE(
              reducer.combine(buffers[over].data(), Form::kValue, operands, Form::kValue, bracketing, kBlocks).ok());
          EXPECT_EQ(buffers[over].content(), want) << over;
          for (const Buffer& buffer : buffers) EXPECT_TRUE(buffer.guards_intact());
        }
      }
    }
  }
}

TEST_P(Blocks, AreTheSameInAnyFloatingPointMode) {
  constexpr std::size_t kBlocks = 40;
  const auto a = as_form(test_values(kBlocks, 4), Form::kValue), b = as_form(test_values(kBlocks, 5), Form::kPartial);
  const Reducer reducer = make(ReduceOp::kAverage, 3);
  std::vector<std::byte> want(a.size()), got(a.size());
  ASSERT_TRUE(
      reducer.reduce(want.data(), Form::kValue, a.data(), Form::kValue, b.data(), Form::kPartial, kBlocks, true).ok());
  for (const unsigned mode : {0x1f80u | 0x8040u, 0x1f80u | 0x4000u, 0x1f80u | 0x6000u, 0x0000u}) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(mode);
    ASSERT_TRUE(
        reducer.reduce(got.data(), Form::kValue, a.data(), Form::kValue, b.data(), Form::kPartial, kBlocks, true).ok());
    _mm_setcsr(before);
    EXPECT_EQ(got, want) << std::hex << mode;
  }
}

// What no rank makes, and a damaged one might send.
TEST_P(Blocks, TakeAnyScale) {
  I8Block strange[2]{};
  strange[0].scale = kInfinity;
  strange[0].values[1] = -128;
  strange[1].scale = -2.0f;
  strange[1].values[0] = -128;
  I8Values out[2];
  make(ReduceOp::kSum, 2).copy(out, Form::kPartial, strange, Form::kValue, 2, false);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(out[0][0]), std::bit_cast<std::uint32_t>(kNan)) << "0 times infinity";
  EXPECT_EQ(out[0][1], -kInfinity);
  EXPECT_EQ(out[1][0], 256.0f);
}

INSTANTIATE_TEST_SUITE_P(Targets, Blocks, testing::ValuesIn(test::targets()),
                         [](const auto& parameter) { return std::string(hwy::TargetName(parameter.param)); });

}  // namespace
}  // namespace warren::worker

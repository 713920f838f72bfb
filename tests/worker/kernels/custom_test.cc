// Reductions by a user's function: the operands come in order, wherever the result goes.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "recovery/base/limits.h"
#include "worker/kernels/reduce.h"

namespace warren::worker {
namespace {

// x → slope · x + offset, modulo 2^32: composing is associative and not commutative.
struct Affine {
  std::uint32_t slope, offset, unused;
  friend bool operator==(const Affine&, const Affine&) = default;
};

Affine compose(const Affine& a, const Affine& b) {
  return {a.slope * b.slope, a.slope * b.offset + a.offset, 7};
}

std::int32_t compose_all(const void* a, void* inout, std::size_t n, void* context) {
  const auto* first = static_cast<const Affine*>(a);
  auto* second = static_cast<Affine*>(inout);
  for (std::size_t i = 0; i < n; ++i) second[i] = compose(first[i], second[i]);
  *static_cast<std::size_t*>(context) += n;
  return 0;
}

std::vector<Affine> elements(std::size_t n, std::uint32_t seed) {
  std::vector<Affine> v(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<std::uint32_t>(i);
    v[i] = {seed * (x + 3), seed + x * x, 0};
  }
  return v;
}

TEST(CustomTest, KeepsTheOrderOfOperandsForEveryAlias) {
  std::size_t seen = 0;
  auto made = Reducer::make(DataType::kCustom, ReduceOp::kCustom, 4, sizeof(Affine), compose_all, &seen);
  ASSERT_TRUE(made.ok());
  const Reducer& reducer = made.value();
  EXPECT_EQ(reducer.bytes(Form::kPartial), sizeof(Affine));
  for (const std::size_t n : {0, 1, 2, 17, 130, 1364, 1365, 1366, 5000}) {  // 1365 elements fill one block
    const std::vector<Affine> a = elements(n, 5), b = elements(n, 11);
    std::vector<Affine> expected(n), squared(n);
    for (std::size_t i = 0; i < n; ++i) {
      expected[i] = compose(a[i], b[i]);
      squared[i] = compose(a[i], a[i]);
    }
    const auto reduce = [&](std::vector<Affine>& dst, const std::vector<Affine>& x, const std::vector<Affine>& y) {
      seen = 0;
      ASSERT_TRUE(
          reducer.reduce(dst.data(), Form::kPartial, x.data(), Form::kValue, y.data(), Form::kPartial, n, true).ok());
      EXPECT_EQ(seen, n);
    };
    std::vector<Affine> out(n), into_a = a, into_b = b, all_one = a;
    reduce(out, a, b);
    EXPECT_EQ(out, expected) << n;
    reduce(into_a, into_a, b);
    EXPECT_EQ(into_a, expected) << n;
    reduce(into_b, a, into_b);
    EXPECT_EQ(into_b, expected) << n;
    reduce(all_one, all_one, all_one);
    EXPECT_EQ(all_one, squared) << n;
    reducer.copy(out.data(), Form::kValue, a.data(), Form::kPartial, n, true);
    EXPECT_EQ(out, a);
  }
}

// Also those of which none fits in the block that operands are kept in.
TEST(CustomTest, TakesLargeElements) {
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{20'000}, limits::kMaxCustomElementBytes}) {
    std::size_t size = bytes;
    const auto add = [](const void* a, void* inout, std::size_t n, void* context) -> std::int32_t {
      for (std::size_t i = 0; i < n * *static_cast<const std::size_t*>(context); ++i) {
        auto* out = static_cast<std::uint8_t*>(inout) + i;
        *out = static_cast<std::uint8_t>(*out * 2 + static_cast<const std::uint8_t*>(a)[i]);
      }
      return 0;
    };
    auto made = Reducer::make(DataType::kCustom, ReduceOp::kCustom, 2, bytes, add, &size);
    ASSERT_TRUE(made.ok());
    constexpr std::size_t kElements = 9;
    std::vector<std::uint8_t> a, b, expected;
    for (std::size_t i = 0; i < kElements; ++i) {
      a.insert(a.end(), bytes, static_cast<std::uint8_t>(i));
      b.insert(b.end(), bytes, static_cast<std::uint8_t>(100 + i));
      expected.insert(expected.end(), bytes, static_cast<std::uint8_t>(2 * (100 + i) + i));
    }
    ASSERT_TRUE(made.value()
                    .reduce(a.data(), Form::kValue, a.data(), Form::kValue, b.data(), Form::kValue, kElements, true)
                    .ok());
    EXPECT_TRUE(a == expected) << bytes;
  }
}

TEST(CustomTest, RefusesElementsOfWrongSize) {
  const auto code = [](std::size_t bytes, CustomReduce function) {
    return Reducer::make(DataType::kCustom, ReduceOp::kCustom, 2, bytes, function).status().code();
  };
  EXPECT_EQ(code(0, compose_all), Code::kInvalidArgument);
  EXPECT_EQ(code(limits::kMaxCustomElementBytes + 1, compose_all), Code::kInvalidArgument);
  EXPECT_EQ(code(12, nullptr), Code::kInvalidArgument);
  EXPECT_EQ(code(limits::kMaxCustomElementBytes, compose_all), Code::kOk);
  EXPECT_EQ(Reducer::make(DataType::kCustom, ReduceOp::kSum, 2, 8).status().code(), Code::kInvalidArgument);
}

// ((0 ∘ 1) ∘ 2) ∘ … and the balanced tree are one function here; the order of operands shows.
TEST(CustomTest, ManyOperandsKeepTheirOrder) {
  std::size_t seen = 0;
  const Reducer reducer =
      Reducer::make(DataType::kCustom, ReduceOp::kCustom, 4, sizeof(Affine), compose_all, &seen).value();
  for (const std::size_t count : {2, 3, 4, 6, 8, 13}) {
    for (const std::size_t n : {1, 340, 342, 2000}) {  // 341 elements are a block
      std::vector<std::vector<Affine>> inputs;
      for (std::size_t k = 0; k < count; ++k) inputs.push_back(elements(n, static_cast<std::uint32_t>(5 + 2 * k)));
      std::vector<Affine> expected = inputs[0];
      for (std::size_t k = 1; k < count; ++k) {
        for (std::size_t i = 0; i < n; ++i) expected[i] = compose(expected[i], inputs[k][i]);
      }
      for (const Bracketing bracketing : {Bracketing::kChain, Bracketing::kBalanced}) {
        for (const std::size_t over : {count, std::size_t{0}, count - 1}) {
          auto operands = inputs;
          operands.resize(count + 1, std::vector<Affine>(n));
          std::vector<const void*> at;
          for (std::size_t k = 0; k < count; ++k) at.push_back(operands[k].data());
          seen = 0;
          ASSERT_TRUE(reducer.combine(operands[over].data(), Form::kValue, at, Form::kValue, bracketing, n).ok());
          EXPECT_EQ(operands[over], expected) << count << " operands, n " << n << ", over " << over;
          EXPECT_EQ(seen, (count - 1) * n);
        }
      }
    }
  }
}

// Fails at its `fails_at`-th call.
struct Failing {
  int fails_at = 1, calls = 0;
  bool throws = false;
  static std::int32_t run(const void*, void*, std::size_t, void* context) {
    Failing& self = *static_cast<Failing*>(context);
    if (++self.calls != self.fails_at) return 0;
    if (self.throws) throw std::out_of_range("row 7");
    return 7;
  }
};

// Whatever the result is made of: a pair, a chain or a tree, in one block or several, aside or in place.
TEST(CustomTest, AFunctionThatHasFailedIsNotCalledAgain) {
  for (const bool throws : {false, true}) {
    for (const std::size_t count : {2, 3, 4, 6, 8, 13}) {
      for (const std::size_t n : {1, 2000}) {  // 341 elements are a block
        for (const Bracketing bracketing : {Bracketing::kChain, Bracketing::kBalanced}) {
          for (const bool in_place : {false, true}) {
            const std::vector<std::vector<Affine>> inputs(count, elements(n, 5));
            int calls = 0;
            for (int fails_at = 1; fails_at == 1 || fails_at <= calls; ++fails_at) {
              auto operands = inputs;
              std::vector<const void*> at;
              for (const auto& operand : operands) at.push_back(operand.data());
              std::vector<Affine> aside(n);
              Failing failing{0};
              const auto combine = [&] {
                const Reducer reducer =
                    Reducer::make(DataType::kCustom, ReduceOp::kCustom, 4, sizeof(Affine), &Failing::run, &failing)
                        .value();
                return reducer.combine(in_place ? operands[0].data() : aside.data(), Form::kValue, at, Form::kValue,
                                       bracketing, n);
              };
              ASSERT_TRUE(combine().ok());
              calls = failing.calls;
              failing = {fails_at, 0, throws};
              const Status status = combine();
              EXPECT_EQ(status.code(), Code::kInternal);
              EXPECT_EQ(status.describe(),
                        throws ? "the reduction has thrown: row 7" : "the reduction has failed, and returned 7");
              EXPECT_EQ(failing.calls, fails_at);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace warren::worker

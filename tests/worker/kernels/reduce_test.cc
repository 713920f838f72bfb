// Every type, operation, form, length, alignment and aliasing, on every instruction set, against the oracle: same bits.
#include "worker/kernels/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <string>
#include <tuple>

#include "tests/sanitized.h"
#include "tests/worker/kernels/oracle.h"
#include "tests/worker/kernels/targets.h"
#include "worker/kernels/kernel_table.h"

namespace warren::worker {
namespace {

using test::BF16;
using test::F16;

constexpr std::array kForms{Form::kValue, Form::kPartial};
constexpr std::array kOps{ReduceOp::kSum,    ReduceOp::kProduct, ReduceOp::kMin,    ReduceOp::kMax,
                          ReduceOp::kBitAnd, ReduceOp::kBitOr,   ReduceOp::kBitXor, ReduceOp::kAverage};
constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};

bool is_bitwise(ReduceOp op) {
  return op >= ReduceOp::kBitAnd && op <= ReduceOp::kBitXor;
}
bool is_half(DataType type) {
  return type == DataType::kF16 || type == DataType::kBF16;
}
bool is_float(DataType type) {
  return type >= DataType::kF16 && type <= DataType::kF64;
}

bool is_defined(DataType type, ReduceOp op) {
  return !(is_float(type) && is_bitwise(op)) && !(type == DataType::kBool && op == ReduceOp::kAverage);
}

Reducer make(DataType type, ReduceOp op, std::uint32_t contributors) {
  auto made = Reducer::make(type, op, contributors);
  EXPECT_TRUE(made.ok()) << made.status().describe();
  return made.ok() ? made.value() : Reducer();
}

// Memory for n elements at an address that is `shift` elements past a cache line, with guards on both sides.
class Buffer {
 public:
  Buffer(Buffer&&) = default;  // what it points to does not move
  Buffer(std::size_t bytes, std::size_t shift_bytes)
      : storage_(bytes + shift_bytes + 2 * kGuardBytes + 64, kGuard), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuardBytes;
    data_ = storage_.data() + kGuardBytes + (64 - address % 64) % 64 + shift_bytes;
  }
  std::byte* data() { return data_; }
  void set(const std::byte* from) {
    if (bytes_ > 0) std::memcpy(data_, from, bytes_);
  }
  [[nodiscard]] bool guards_intact() const {
    for (const std::byte* p = storage_.data(); p != storage_.data() + storage_.size(); ++p) {
      if ((p < data_ || p >= data_ + bytes_) && *p != kGuard) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> storage_;
  std::byte* data_;
  std::size_t bytes_;
};

class ReduceTest : public testing::TestWithParam<std::tuple<std::int64_t, DataType>> {
 protected:
  // Runs `body` with a value of the C++ type that stands for the parameter's.
  template <class Body>
  static void with_type(Body body) {
    switch (std::get<1>(GetParam())) {
      case DataType::kI8: return body(std::int8_t{});
      case DataType::kU8: return body(std::uint8_t{});
      case DataType::kI16: return body(std::int16_t{});
      case DataType::kU16: return body(std::uint16_t{});
      case DataType::kBool: return body(test::Truth{});
      case DataType::kI32: return body(std::int32_t{});
      case DataType::kU32: return body(std::uint32_t{});
      case DataType::kI64: return body(std::int64_t{});
      case DataType::kU64: return body(std::uint64_t{});
      case DataType::kF16: return body(F16{});
      case DataType::kBF16: return body(BF16{});
      case DataType::kF32: return body(float{});
      case DataType::kF64: return body(double{});
      default: FAIL();
    }
  }
  const test::UseTarget use_{std::get<0>(GetParam())};
  const DataType type_ = std::get<1>(GetParam());
};

// Operand arrays in one form, as bytes.
template <class T>
std::vector<std::byte> operand(int side, Form form) {
  constexpr std::size_t kRandom = 6000;
  const auto bytes = [](const auto& v) {
    const auto* first = reinterpret_cast<const std::byte*>(v.data());
    return std::vector<std::byte>(first, first + v.size() * sizeof(v[0]));
  };
  if (form == Form::kValue) return bytes(test::test_elements<T>(side, kRandom));
  return bytes(test::test_elements<typename test::Traits<T>::Partial>(side, kRandom));
}

template <class T>
std::size_t width(Form form) {
  return form == Form::kValue ? sizeof(T) : sizeof(typename test::Traits<T>::Partial);
}

// Under AddressSanitizer kernels of halves are not optimized: of them a thousand elements at most.
template <class T>
constexpr std::size_t kMostElements =
    kAddressSanitized && !std::is_same_v<T, typename test::Traits<T>::Partial> ? 1025 : 4099;

// Under a sanitizer, which takes ten times as long: around each power of two.
template <class T>
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n <= 130; ++n) {
    if (!kAddressSanitized || n <= 9 || std::has_single_bit(n - 1) || std::has_single_bit(n) ||
        std::has_single_bit(n + 1)) {
      all.push_back(n);
    }
  }
  for (const std::size_t n : {255, 256, 257, 1000, 4099}) {
    if (n <= kMostElements<T>) all.push_back(n);
  }
  return all;
}

template <class T>
void check_combination(const Reducer& reducer, ReduceOp op, std::uint32_t contributors, Form dst_form, Form a_form,
                       Form b_form, bool finish) {
  const std::vector<std::byte> a = operand<T>(0, a_form), b = operand<T>(1, b_form);
  const std::size_t wa = width<T>(a_form), wb = width<T>(b_form), wd = width<T>(dst_form);
  const std::size_t total = std::min(a.size() / wa, b.size() / wb);
  enum Alias { kNone, kDstIsA, kDstIsB, kAllOne };
  const auto expect = [&](bool same_operands) {
    std::vector<std::byte> out(total * wd);
    for (std::size_t i = 0; i < total; ++i) {
      const auto x = test::load_one<T>(a.data(), a_form, i);
      const auto y = same_operands ? x : test::load_one<T>(b.data(), b_form, i);
      auto r = test::combine_one(op, x, y);
      if (finish) r = test::finish_one(op, r, contributors);
      test::store_one<T>(out.data(), dst_form, i, r);
    }
    return out;
  };
  const std::vector<std::byte> expected = expect(false);
  const std::vector<std::byte> expected_same = a_form == b_form ? expect(true) : expected;

  for (const std::size_t n : lengths<T>()) {
    const std::size_t start = n * 37 % (total - n);  // so that short lengths meet all special values too
    for (const std::size_t shift : {0, 1, 7}) {
      for (const Alias alias : {kNone, kDstIsA, kDstIsB, kAllOne}) {
        if ((alias == kDstIsA || alias == kAllOne) && wd != wa) continue;
        if ((alias == kDstIsB || alias == kAllOne) && wd != wb) continue;
        if (alias == kAllOne && a_form != b_form) continue;
        Buffer ba(n * wa, shift * wa), bb(n * wb, (shift * 3 + 1) * wb), bd(n * wd, (shift * 5 + 2) % 11 * wd);
        ba.set(a.data() + start * wa);
        bb.set(b.data() + start * wb);
        std::byte* dst = alias == kNone ? bd.data() : alias == kDstIsB ? bb.data() : ba.data();
        const std::byte* second = alias == kAllOne ? ba.data() : bb.data();
        ASSERT_TRUE(reducer.reduce(dst, dst_form, ba.data(), a_form, second, b_form, n, finish).ok());
        const std::byte* want = (alias == kAllOne ? expected_same : expected).data() + start * wd;
        if (n > 0 && std::memcmp(dst, want, n * wd) != 0) {
          std::size_t i = 0;
          while (std::memcmp(dst + i * wd, want + i * wd, wd) == 0) ++i;
          FAIL() << to_string(op) << " n " << n << " start " << start << " shift " << shift << " alias " << alias
                 << " forms " << int(dst_form) << int(a_form) << int(b_form) << " finish " << finish << " element " << i
                 << "\n got  " << testing::PrintToString(std::vector<std::byte>(dst + i * wd, dst + (i + 1) * wd))
                 << "\n want " << testing::PrintToString(std::vector<std::byte>(want + i * wd, want + (i + 1) * wd))
                 << "\n a    "
                 << testing::PrintToString(std::vector<std::byte>(&a[(start + i) * wa], &a[(start + i) * wa] + wa))
                 << "\n b    "
                 << testing::PrintToString(std::vector<std::byte>(&b[(start + i) * wb], &b[(start + i) * wb] + wb));
        }
        ASSERT_TRUE(ba.guards_intact() && bb.guards_intact() && bd.guards_intact())
            << to_string(op) << " wrote outside its elements, n " << n << " shift " << shift << " alias " << alias;
        if (alias != kDstIsA && alias != kAllOne && n > 0) {
          ASSERT_EQ(std::memcmp(ba.data(), a.data() + start * wa, n * wa), 0) << "an operand changed";
        }
      }
    }
  }
}

TEST_P(ReduceTest, CombinesLikeTheOracle) {
  with_type([&]<class T>(T) {
    for (const ReduceOp op : kOps) {
      if (!is_defined(type_, op)) continue;
      for (const std::uint32_t contributors : {3u, 7u}) {
        if (contributors != 3 && op != ReduceOp::kAverage) continue;
        const Reducer reducer = make(type_, op, contributors);
        for (const Form dst : kForms) {
          for (const Form a : kForms) {
            for (const Form b : kForms) {
              // Where both forms are one type, three combinations show that each is served.
              if (!is_half(type_) && (a != b || (a == Form::kPartial && dst == a))) continue;
              for (const bool finish : {false, true}) {
                check_combination<T>(reducer, op, contributors, dst, a, b, finish);
                if (HasFatalFailure()) return;
              }
            }
          }
        }
      }
    }
  });
}

// The bracketing of worker/kernels/form.h, written down anew.
template <class P>
P bracketed(ReduceOp op, Bracketing bracketing, const std::vector<P>& values) {
  if (bracketing == Bracketing::kChain) {
    P sum = values[0];
    for (std::size_t k = 1; k < values.size(); ++k) sum = test::combine_one(op, sum, values[k]);
    return sum;
  }
  std::size_t positions = 1;
  while (2 * positions <= values.size()) positions *= 2;
  std::vector<P> sums;
  for (std::size_t k = 0, p = 0; p < positions; ++p) {
    const bool pair = p < values.size() - positions;
    sums.push_back(pair ? test::combine_one(op, values[k], values[k + 1]) : values[k]);
    k += pair ? 2 : 1;
  }
  for (; positions > 1; positions /= 2) {
    for (std::size_t p = 0; p < positions / 2; ++p) sums[p] = test::combine_one(op, sums[2 * p], sums[2 * p + 1]);
  }
  return sums[0];
}

template <class T>
void check_many(const Reducer& reducer, ReduceOp op, Form dst_form, Form first_form, Bracketing bracketing,
                std::size_t count, std::uint32_t contributors) {
  const auto form = [&](std::size_t k) { return k == 0 ? first_form : k == count ? dst_form : Form::kValue; };
  std::vector<std::vector<std::byte>> arrays;
  for (std::size_t k = 0; k < std::max<std::size_t>(count, 3); ++k) {
    arrays.push_back(k < 3 ? operand<T>(static_cast<int>(k % 2), k == 0 ? first_form : Form::kValue) : arrays[k - 2]);
  }
  const std::size_t total =
      std::min({arrays[0].size() / width<T>(first_form), arrays[1].size() / sizeof(T), arrays[2].size() / sizeof(T)});
  for (const std::size_t n : {0, 1, 3, 15, 16, 17, 33, 64, 65, 127, 1023, 1025, 4099}) {
    if (n > kMostElements<T>) continue;
    // Operand k begins somewhere else in one of the two, so that special values meet others.
    const auto start = [&](std::size_t k) { return (n * 37 + k * 113) % (total - n); };
    std::vector<std::byte> expected(n * width<T>(dst_form));
    std::vector<decltype(test::load_one<T>(arrays[0].data(), Form::kValue, 0))> values;
    for (std::size_t i = 0; i < n; ++i) {
      values.clear();
      for (std::size_t k = 0; k < count; ++k) {
        values.push_back(test::load_one<T>(arrays[k].data(), form(k), start(k) + i));
      }
      auto sum = bracketed(op, bracketing, values);
      if (dst_form == Form::kValue) sum = test::finish_one(op, sum, contributors);
      test::store_one<T>(expected.data(), dst_form, i, sum);
    }
    // Into memory of its own, and over the first, a middle and the last operand, those of its form.
    for (const std::size_t alias : {count, std::size_t{0}, count / 2, count - 1}) {
      if (form(alias) != dst_form) continue;
      std::vector<Buffer> buffers;
      std::vector<const void*> operands;
      for (std::size_t k = 0; k <= count; ++k) {
        const std::size_t w = width<T>(form(k));
        buffers.emplace_back(n * w, (k * 3 + n) % 5 * w);
      }
      for (std::size_t k = 0; k < count; ++k) {
        buffers[k].set(arrays[k].data() + start(k) * width<T>(form(k)));
        operands.push_back(buffers[k].data());
      }
      ASSERT_TRUE(reducer.combine(buffers[alias].data(), dst_form, operands, first_form, bracketing, n).ok());
      const std::size_t wd = width<T>(dst_form);
      const bool right = n == 0 || std::memcmp(buffers[alias].data(), expected.data(), n * wd) == 0;
      for (std::size_t i = 0; !right && i < n; ++i) {
        ASSERT_EQ(std::memcmp(buffers[alias].data() + i * wd, expected.data() + i * wd, wd), 0)
            << to_string(op) << " of " << count << (bracketing == Bracketing::kChain ? " in a chain" : " balanced")
            << ", n " << n << ", over operand " << alias << ", element " << i << ", forms " << int(first_form)
            << int(dst_form);
      }
      for (std::size_t k = 0; k <= count; ++k) {
        ASSERT_TRUE(buffers[k].guards_intact()) << "wrote outside its elements";
        if (k == alias || k == count || n == 0) continue;
        const std::size_t w = width<T>(form(k));
        ASSERT_EQ(std::memcmp(buffers[k].data(), arrays[k].data() + start(k) * w, n * w), 0) << "an operand changed";
      }
    }
  }
}

TEST_P(ReduceTest, CombinesManyLikeTheOracle) {
  with_type([&]<class T>(T) {
    for (const ReduceOp op : kOps) {
      if (!is_defined(type_, op)) continue;
      // Operations differ in no access to memory, and halves take minutes.
      if (kAddressSanitized && is_half(type_) && op != ReduceOp::kSum && op != ReduceOp::kAverage) continue;
      for (const std::size_t count : {2, 3, 4, 5, 6, 7, 8, 11, 16, 37}) {
        if (kAddressSanitized && is_half(type_) && count > 2 && count % 2 == 0) continue;
        const auto contributors = static_cast<std::uint32_t>(count);
        const Reducer reducer = make(type_, op, contributors);
        for (const Bracketing bracketing : {Bracketing::kChain, Bracketing::kBalanced}) {
          for (const Form dst_form : kForms) {
            for (const Form first_form : kForms) {
              if (first_form == Form::kPartial && bracketing == Bracketing::kBalanced) continue;
              const bool is_few = count <= 5 || count == 11;
              if (!is_few && (first_form == Form::kPartial || dst_form == Form::kPartial)) continue;
              check_many<T>(reducer, op, dst_form, first_form, bracketing, count, contributors);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  });
}

TEST_P(ReduceTest, CopiesLikeTheOracle) {
  with_type([&]<class T>(T) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      if (!is_defined(type_, op)) continue;
      for (const std::uint32_t contributors : {1u, 2u, 3u, 16384u}) {
        const Reducer reducer = make(type_, op, contributors);
        for (const Form a_form : kForms) {
          for (const Form dst_form : kForms) {
            for (const bool finish : {false, true}) {
              const std::vector<std::byte> a = operand<T>(0, a_form);
              const std::size_t wa = width<T>(a_form), wd = width<T>(dst_form), total = a.size() / wa;
              std::vector<std::byte> expected(total * wd);
              for (std::size_t i = 0; i < total; ++i) {
                auto x = test::load_one<T>(a.data(), a_form, i);
                if (finish) x = test::finish_one(op, x, contributors);
                test::store_one<T>(expected.data(), dst_form, i, x);
              }
              const bool makes = op == ReduceOp::kAverage || type_ == DataType::kBool;
              const bool moves = a_form == dst_form && !(finish && makes);
              if (moves) expected = a;  // a NaN that is only moved does not become quiet
              for (const std::size_t n : lengths<T>()) {
                const std::size_t start = n * 37 % (total - n);
                for (const bool in_place : {false, true}) {
                  if (in_place && wa != wd) continue;
                  Buffer ba(n * wa, wa), bd(n * wd, 3 * wd);
                  ba.set(a.data() + start * wa);
                  std::byte* dst = in_place ? ba.data() : bd.data();
                  reducer.copy(dst, dst_form, ba.data(), a_form, n, finish);
                  if (n > 0) {
                    ASSERT_EQ(std::memcmp(dst, expected.data() + start * wd, n * wd), 0)
                        << to_string(op) << " n " << n << " forms " << int(dst_form) << int(a_form) << finish;
                  }
                  ASSERT_TRUE(ba.guards_intact() && bd.guards_intact());
                }
              }
            }
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Targets, ReduceTest,
                         testing::Combine(testing::ValuesIn(test::targets()),
                                          testing::Values(DataType::kI8, DataType::kU8, DataType::kI32, DataType::kU32,
                                                          DataType::kI64, DataType::kU64, DataType::kF16,
                                                          DataType::kBF16, DataType::kF32, DataType::kF64,
                                                          DataType::kI16, DataType::kU16, DataType::kBool)),
                         [](const auto& parameters) {
                           return std::string(hwy::TargetName(std::get<0>(parameters.param))) + "_" +
                                  to_string(std::get<1>(parameters.param));
                         });

// Widening of all 65,536 values, and narrowing of every value, every midpoint between neighbours and both its sides.
template <class H>
void check_conversions(DataType type) {
  const Reducer reducer = make(type, ReduceOp::kSum, 2);
  std::vector<H> halves;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) halves.push_back(H{static_cast<std::uint16_t>(bits)});
  std::vector<float> wide(halves.size());
  reducer.copy(wide.data(), Form::kPartial, halves.data(), Form::kValue, halves.size(), false);
  std::vector<float> hard;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(halves[i].widen())) << "half " << i;
    const auto bits = std::bit_cast<std::uint32_t>(wide[i]);
    const std::uint32_t next = i + 1 < wide.size() ? std::bit_cast<std::uint32_t>(wide[i + 1]) : bits;
    const std::uint32_t middle = bits + (next - bits) / 2;
    for (const std::uint32_t b : {bits, bits - 1, bits + 1, middle - 1, middle, middle + 1}) {
      hard.push_back(std::bit_cast<float>(b));
    }
  }
  std::vector<std::uint16_t> narrow(hard.size());
  reducer.copy(narrow.data(), Form::kValue, hard.data(), Form::kPartial, hard.size(), true);
  for (std::size_t i = 0; i < hard.size(); ++i) {
    ASSERT_EQ(narrow[i], H::narrow(hard[i]).bits) << std::hexfloat << hard[i];
  }
}

TEST(ConversionTest, EveryHalfAndEveryTieOnEveryTarget) {
  for (const std::int64_t target : test::targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const test::UseTarget use(target);
    check_conversions<F16>(DataType::kF16);
    check_conversions<BF16>(DataType::kBF16);
  }
}

// The suites above would prove nothing if one target's kernels served for all.
TEST(TargetTest, EachHasKernelsOfItsOwn) {
  std::set<const kernels::KernelTable*> tables;
  const std::vector<std::int64_t> targets = test::targets();
  for (const std::int64_t target : targets) {
    const test::UseTarget use(target);
    tables.insert(kernels::find_float_kernels(DataType::kF32, ReduceOp::kSum));
  }
  EXPECT_EQ(tables.size(), targets.size());
}

TEST(MakeTest, RefusesWhatIsNotDefined) {
  const auto code = [](DataType type, ReduceOp op, std::uint32_t contributors = 2) {
    return Reducer::make(type, op, contributors).status().code();
  };
  for (const DataType type : {DataType::kF16, DataType::kBF16, DataType::kF32, DataType::kF64}) {
    for (const ReduceOp op : {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
      EXPECT_EQ(code(type, op), Code::kInvalidArgument) << to_string(type) << " " << to_string(op);
    }
  }
  EXPECT_EQ(code(DataType::kBool, ReduceOp::kAverage), Code::kInvalidArgument);
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBitOr}) {
    EXPECT_EQ(code(DataType::kF32AsI8, op), Code::kInvalidArgument) << to_string(op);
  }
  EXPECT_EQ(code(DataType::kF32, ReduceOp::kSum, 0), Code::kInvalidArgument);
  EXPECT_EQ(code(DataType::kF32, ReduceOp::kSum, 16385), Code::kInvalidArgument);
  EXPECT_EQ(code(DataType::kF32, ReduceOp::kCustom), Code::kInvalidArgument);
  EXPECT_EQ(code(DataType::kCustom, ReduceOp::kCustom), Code::kInvalidArgument);
  EXPECT_EQ(code(static_cast<DataType>(0), ReduceOp::kSum), Code::kInvalidArgument);
  EXPECT_EQ(code(static_cast<DataType>(static_cast<int>(kLastDataType) + 1), ReduceOp::kSum), Code::kInvalidArgument);
  EXPECT_EQ(code(DataType::kF32, static_cast<ReduceOp>(10)), Code::kInvalidArgument);
  EXPECT_EQ(code(DataType::kF32, ReduceOp::kSum), Code::kOk);
}

TEST(MakeTest, KnowsTheWidthOfEachForm) {
  const Reducer half = make(DataType::kF16, ReduceOp::kSum, 2);
  EXPECT_EQ(half.bytes(Form::kValue), 2u);
  EXPECT_EQ(half.bytes(Form::kPartial), 4u);
  const Reducer wide = make(DataType::kI64, ReduceOp::kMin, 2);
  EXPECT_EQ(wide.bytes(Form::kValue), 8u);
  EXPECT_EQ(wide.bytes(Form::kPartial), 8u);
  EXPECT_EQ(make(DataType::kF16, ReduceOp::kNone, 2).bytes(Form::kPartial), 2u);
  const Reducer blocks = make(DataType::kF32AsI8, ReduceOp::kAverage, 2);
  EXPECT_EQ(blocks.bytes(Form::kValue), 260u);
  EXPECT_EQ(blocks.bytes(Form::kPartial), 1024u);
  EXPECT_EQ(make(DataType::kF32AsI8, ReduceOp::kNone, 2).bytes(Form::kPartial), 260u);
  EXPECT_EQ(Reducer().bytes(Form::kValue), 1u);
}

TEST(MakeTest, WithoutAnOperationMovesElements) {
  const std::vector<std::uint16_t> from{0x7c01, 1, 2};  // a signalling NaN stays one
  std::vector<std::uint16_t> to(3);
  make(DataType::kF16, ReduceOp::kNone, 1).copy(to.data(), Form::kValue, from.data(), Form::kValue, 3, true);
  EXPECT_EQ(to, from);
  std::vector<std::uint16_t> bytes(3);
  Reducer().copy(bytes.data(), Form::kValue, from.data(), Form::kValue, 6, false);
  EXPECT_EQ(bytes, from);
}

}  // namespace
}  // namespace warren::worker

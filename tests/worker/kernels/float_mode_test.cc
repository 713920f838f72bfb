// The caller's floating-point mode neither changes bits nor is it changed.
#include "worker/kernels/float_mode.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <cfloat>
#include <string>

#include "tests/worker/kernels/oracle.h"
#include "tests/worker/kernels/targets.h"
#include "worker/kernels/reduce.h"

namespace warren::worker {
namespace {

constexpr unsigned kControl = ~0x3fu;
constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kRoundUp = 0x4000, kTowardZero = 0x6000;
constexpr unsigned kMasks = 0x1f80;

class FloatModeTest : public testing::TestWithParam<unsigned> {
 protected:
  // A mode of the calling thread, for as long as this lives. Nothing between may compute with floats.
  class CallerMode {
   public:
    explicit CallerMode(unsigned mode) : before_(_mm_getcsr()) { _mm_setcsr(mode); }
    ~CallerMode() { _mm_setcsr(before_); }
    CallerMode(const CallerMode&) = delete;
    CallerMode& operator=(const CallerMode&) = delete;

   private:
    unsigned before_;
  };
};

template <class T>
void check(unsigned mode_bits, DataType type, ReduceOp op) {
  const std::vector<T> a = test::test_elements<T>(0, 2000), b = test::test_elements<T>(1, 2000);
  const std::size_t n = a.size();
  auto made = Reducer::make(type, op, 3);
  ASSERT_TRUE(made.ok());
  std::vector<T> expected(n), got(n), halved(n);
  for (std::size_t i = 0; i < n; ++i) {
    auto r = test::combine_one(op, test::Traits<T>::widen(a[i]), test::Traits<T>::widen(b[i]));
    expected[i] = test::Traits<T>::narrow(test::finish_one(op, r, 3));
  }
  unsigned mode_after = 0;
  {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(mode_bits);
    ASSERT_TRUE(
        made.value().reduce(got.data(), Form::kValue, a.data(), Form::kValue, b.data(), Form::kValue, n, true).ok());
    made.value().copy(halved.data(), Form::kValue, a.data(), Form::kValue, n, true);
    mode_after = _mm_getcsr();
    _mm_setcsr(before);
  }
  EXPECT_EQ(mode_after & kControl, mode_bits & kControl) << "the caller's mode was not restored";
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), n * sizeof(T)), 0) << to_string(type) << " " << to_string(op);
  if (op == ReduceOp::kAverage) {
    for (std::size_t i = 0; i < n; ++i) {
      expected[i] = test::Traits<T>::narrow(test::finish_one(op, test::Traits<T>::widen(a[i]), 3));
    }
    EXPECT_EQ(std::memcmp(halved.data(), expected.data(), n * sizeof(T)), 0) << "copy of " << to_string(type);
  }
}

TEST_P(FloatModeTest, DoesNotReachTheKernels) {
  for (const std::int64_t target : test::targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const test::UseTarget use(target);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAverage}) {
      check<float>(GetParam(), DataType::kF32, op);
      check<double>(GetParam(), DataType::kF64, op);
      check<test::F16>(GetParam(), DataType::kF16, op);
      check<test::BF16>(GetParam(), DataType::kBF16, op);
      check<std::int32_t>(GetParam(), DataType::kI32, op);
      check<std::int8_t>(GetParam(), DataType::kI8, op);
    }
  }
}

// The last one unmasks all exceptions: a kernel that ran in it would die of SIGFPE.
INSTANTIATE_TEST_SUITE_P(Modes, FloatModeTest,
                         testing::Values(kMasks, kMasks | kFlushToZero | kDenormalsAreZero, kMasks | kRoundUp,
                                         kMasks | kTowardZero | kFlushToZero, kDenormalsAreZero | kRoundUp));

TEST_F(FloatModeTest, ReachesNoCustomFunctionEither) {
  const auto seen = [](const void*, void*, std::size_t, void* context) -> std::int32_t {
    *static_cast<unsigned*>(context) = _mm_getcsr() & kControl;
    return 0;
  };
  unsigned mode = 0;
  auto made = Reducer::make(DataType::kCustom, ReduceOp::kCustom, 2, 4, seen, &mode);
  ASSERT_TRUE(made.ok());
  float a = 1, b = 2;
  {
    const CallerMode caller(kMasks | kFlushToZero | kRoundUp);
    ASSERT_TRUE(made.value().reduce(&b, Form::kValue, &a, Form::kValue, &b, Form::kValue, 1, false).ok());
  }
  EXPECT_EQ(mode, kMasks);
}

TEST_F(FloatModeTest, KeepsTheCallersStatusFlags) {
  unsigned after = 0;
  {
    const CallerMode caller(kMasks | kRoundUp | 0x01);
    { const kernels::DefaultFloatMode mode; }
    after = _mm_getcsr();
  }
  EXPECT_EQ(after, kMasks | kRoundUp | 0x01);
}

}  // namespace
}  // namespace warren::worker

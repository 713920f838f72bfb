// The GPUs of a session, of a worker that has none and of one that has.
#include "worker/session/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/device/fake_gpu.h"
#include "tests/worker/session/parts.h"
#include "tests/worker/sum_call.h"

namespace warren::worker {
namespace {

using test::DeviceArray;
using test::fake_gpu;
using ::testing::HasSubstr;
using testing::SessionParts;

constexpr GroupShape kTwoRanks{0, 2};

// A sum in place.
struct Sum : Call {
  Sum(float* values, std::size_t count) { make_sum(spec, values, count); }
};

class GpusTest : public ::testing::Test {
 protected:
  GpusTest() { parts_.begin(); }
  void serve() {
    parts_.settings.device_pinned_bytes = std::uint64_t{64} << 20;
    parts_.settings.round_timeout_ms = 60'000;
    parts_.gpus.serve(fake_gpu().table, parts_.life.engine());
  }

  SessionParts parts_;
  Gpus& gpus_ = parts_.gpus;
};

TEST_F(GpusTest, AWorkerWithoutOneLeavesCallsAsTheyAre) {
  std::vector<float> values(16);
  Sum call(values.data(), values.size());
  EXPECT_TRUE(gpus_.stage(call, kTwoRanks).ok());
  EXPECT_EQ(call.spec.input, values.data());
  EXPECT_EQ(call.buffers, nullptr);
  EXPECT_FALSE(gpus_.take_news().has_value());
  EXPECT_FALSE(gpus_.has_gone_shares());
  EXPECT_FALSE(gpus_.may_hang());
  EXPECT_FALSE(gpus_.overdue(TimeMs{0}).has_value());
  EXPECT_FALSE(gpus_.offer(Incarnation(2), 1, OwnedFd(), 4096)) << "the other rank must hear that nothing is mapped";
  gpus_.install({}, 2);
  gpus_.end();
  gpus_.settle();
}

TEST_F(GpusTest, NcclWithoutAGpuIsRefusedWithWhatTheLibraryHasFound) {
  DeviceLibrary none;
  none.says = "no driver is loaded";
  const auto version = gpus_.use_nccl(
      none, [](bool, const std::string&) {}, parts_.life.engine());
  EXPECT_EQ(version.status().code(), Code::kUnavailable);
  EXPECT_THAT(version.status().describe(), HasSubstr("this worker has no GPU: no driver is loaded"));
}

TEST_F(GpusTest, ACallOnAGpuGetsCopiesThatTheEngineWorksOn) {
  serve();
  const DeviceArray<float> values(16);
  Sum call(values.data(), 16);
  const Status staged = gpus_.stage(call, kTwoRanks);
  ASSERT_TRUE(staged.ok()) << staged.describe();
  EXPECT_NE(call.buffers, nullptr);
  EXPECT_NE(call.spec.input, values.data());
  EXPECT_NE(call.spec.prepare, nullptr) << "the input is copied when the round is about to read it";
}

}  // namespace
}  // namespace warren::worker

// Buffers of Warren's own programs on a GPU, here the fake one.
#include "worker/device/program_gpu.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "tests/worker/device/fake_gpu.h"

namespace warren::worker {
namespace {

using test::fake_gpu;
using test::FakeFault;
using ::testing::HasSubstr;

class ProgramGpus : public ::testing::Test {
 protected:
  ProgramGpus() {
    EXPECT_EQ(setenv("WARREN_DEVICE_LIBRARY", WARREN_FAKE_DEVICE, 1), 0);
    EXPECT_EQ(unsetenv("NCCL_HOSTID"), 0);
  }
  ~ProgramGpus() override { fake_gpu().controls.release(); }

  static std::unique_ptr<ProgramGpu> open(std::uint32_t number = 0, std::uint32_t processes = 1) {
    auto gpu = ProgramGpu::open(number, processes);
    EXPECT_TRUE(gpu.ok()) << gpu.status().describe();
    return gpu.ok() ? std::move(gpu).value() : nullptr;
  }
};

TEST_F(ProgramGpus, WhatIsSentIsFetched) {
  const auto gpu = open();
  ASSERT_NE(gpu->stream(), nullptr);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5'000'001}}) {
    auto buffer = gpu->take(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status().describe();
    ASSERT_GE(buffer.value().bytes, bytes);
    std::byte* const host = buffer.value().host;
    for (std::size_t i = 0; i < bytes; i++) host[i] = static_cast<std::byte>(i * 7);
    ASSERT_TRUE(gpu->send(buffer.value(), bytes).ok());
    ASSERT_TRUE(gpu->wait().ok());
    std::fill_n(host, bytes, std::byte{0});
    ASSERT_TRUE(gpu->fetch(buffer.value(), bytes).ok());
    for (std::size_t i = 0; i < bytes; i++) ASSERT_EQ(host[i], static_cast<std::byte>(i * 7)) << i;
    gpu->give_back(buffer.value());
  }
}

TEST_F(ProgramGpus, WhatWasGivenBackIsTakenAgain) {
  const auto gpu = open();
  const auto first = gpu->take(100'000), second = gpu->take(100'000);
  EXPECT_NE(first.value().device, second.value().device);
  gpu->give_back(first.value());
  EXPECT_NE(gpu->take(200'000).value().device, first.value().device) << "it is too small";
  EXPECT_EQ(gpu->take(80'000).value().device, first.value().device);
}

// The fake has two GPUs.
TEST_F(ProgramGpus, ProcessesTakeGpusInTurnAndThoseThatShareOneLookLikeHosts) {
  for (std::uint32_t number = 0; number < 3; number++) {
    const auto gpu = open(number, 2);
    std::int32_t device = -1;
    ASSERT_EQ(fake_gpu().table.locate(gpu->take(1).value().device, &device), WARREN_DEVICE_OK);
    EXPECT_EQ(device, static_cast<std::int32_t>(number % 2));
  }
  EXPECT_EQ(getenv("NCCL_HOSTID"), nullptr) << "each has one of its own";
  (void)open(2, 0);
  EXPECT_EQ(getenv("NCCL_HOSTID"), nullptr) << "there may be other hosts";
  (void)open(2, 3);
  EXPECT_STREQ(getenv("NCCL_HOSTID"), "warren-2");
  (void)open(1, 3);
  EXPECT_STREQ(getenv("NCCL_HOSTID"), "warren-2") << "whoever has set it knows better";
}

TEST_F(ProgramGpus, WhatFailsIsTold) {
  const auto gpu = open();
  fake_gpu().controls.arm("allocate_pinned", 0, FakeFault::kNoMemory);
  const auto refused = gpu->take(1000);
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_THAT(refused.status().describe(), HasSubstr("a buffer of 4096 bytes in pinned memory"));
  const auto buffer = gpu->take(1000);
  ASSERT_TRUE(buffer.ok()) << buffer.status().describe();
  fake_gpu().controls.arm("to_device", 0, FakeFault::kError);
  EXPECT_THAT(gpu->send(buffer.value(), 10).describe(), HasSubstr("cannot copy to the GPU"));
  fake_gpu().controls.arm("stream.to_host", 0, FakeFault::kError);
  EXPECT_THAT(gpu->fetch(buffer.value(), 10).describe(), HasSubstr("cannot copy from the GPU"));
}

// What is timed after wait() has nothing of a copy before it.
TEST_F(ProgramGpus, WaitsUntilAllIsSent) {
  const auto gpu = open();
  const auto buffer = gpu->take(1000);
  fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
  ASSERT_TRUE(gpu->send(buffer.value(), 1000).ok());
  std::atomic<bool> waited = false;
  const std::uint64_t looks = fake_gpu().controls.calls("query");
  std::thread waits([&] {
    EXPECT_TRUE(gpu->wait().ok());
    waited = true;
  });
  while (fake_gpu().controls.calls("query") < looks + 10) std::this_thread::yield();
  EXPECT_FALSE(waited);
  fake_gpu().controls.release();
  waits.join();
}

TEST_F(ProgramGpus, WhereThereIsNoneItSaysWhy) {
  EXPECT_TRUE(ProgramGpu::look().ok());
  fake_gpu().controls.arm("init", 0, FakeFault::kNone);
  EXPECT_EQ(ProgramGpu::look().code(), Code::kUnavailable);
  fake_gpu().controls.release();
  ASSERT_EQ(setenv("WARREN_DEVICE_LIBRARY", "none", 1), 0);
  const auto none = ProgramGpu::open(0, 1);
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_THAT(none.status().describe(), HasSubstr("WARREN_DEVICE_LIBRARY is none"));
  ASSERT_EQ(setenv("WARREN_DEVICE_LIBRARY", "/none/at/all.so", 1), 0);
  EXPECT_THAT(ProgramGpu::look().describe(), HasSubstr("/none/at/all.so does not load"));
}

}  // namespace
}  // namespace warren::worker

// Copies in which f32 travels: where they lie, when they are filled, what comes back.
#include "worker/narrowing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace warren::worker {
namespace {

CallSpec sum_of(std::vector<float>& in, std::vector<float>& out, Collective collective = Collective::kAllreduce) {
  CallSpec spec;
  spec.collective = collective;
  spec.type = DataType::kF32;
  spec.wire = DataType::kBF16;
  if (collective != Collective::kAllgather) spec.op = ReduceOp::kSum;
  spec.input = in.data();
  spec.output = out.data();
  spec.count = collective == Collective::kReduceScatter ? out.size() : in.size();
  return spec;
}

const std::uint16_t* halves(const void* buffer) {
  return static_cast<const std::uint16_t*>(buffer);
}

// What stands around the copies, as buffers on a GPU do.
struct Around final : CallBuffers {
  Around(std::string& told, Status status) : said(told), fill(std::move(status)) {}
  [[nodiscard]] Status filled() const override { return fill; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override {
    said += "delivered";
    return {Code::kUnavailable, "the GPU is gone"};
  }
  std::string& said;
  Status fill;
};

TEST(Narrowing, TheRoundIsOneOfNarrowValues) {
  const auto memory = std::make_shared<CopyMemory>();
  std::vector<float> in{1.0f, -2.5f, 1.00390625f, 1.01171875f}, out(4, 7.0f);
  Call call;
  call.spec = sum_of(in, out);
  ASSERT_TRUE(narrow(call, {1, 3}, memory).ok());
  EXPECT_EQ(call.spec.type, DataType::kF32AsBF16);
  EXPECT_EQ(element_bytes(call.spec), 2u);
  EXPECT_EQ(call.spec.input, call.spec.output) << "in place";
  ASSERT_NE(call.spec.prepare, nullptr);
  call.spec.prepare(call.spec.prepare_context);
  EXPECT_TRUE(call.buffers->filled().ok());
  const std::vector<std::uint16_t> expected{0x3f80, 0xc020, 0x3f80, 0x3f82};  // ties to even
  EXPECT_EQ(std::memcmp(call.spec.input, expected.data(), 8), 0);
  EXPECT_EQ(in[3], 1.01171875f) << "the program's input stays";
  EXPECT_EQ(out[0], 7.0f);
  ASSERT_TRUE(call.buffers->delivers());
  ASSERT_TRUE(call.buffers->deliver().ok());
  EXPECT_EQ(out, (std::vector<float>{1.0f, -2.5f, 1.0f, 1.015625f}));
}

TEST(Narrowing, SharesStandWhereTheCollectiveHasThem) {
  const auto memory = std::make_shared<CopyMemory>();
  std::vector<float> share{1, 2}, whole(6, 3.0f);
  Call gather;
  gather.spec = sum_of(share, whole, Collective::kAllgather);
  ASSERT_TRUE(narrow(gather, {2, 3}, memory).ok());
  EXPECT_EQ(halves(gather.spec.input), halves(gather.spec.output) + 4);
  Call scatter;
  scatter.spec = sum_of(whole, share, Collective::kReduceScatter);
  scatter.spec.wire = DataType::kF16;
  ASSERT_TRUE(narrow(scatter, {1, 3}, memory).ok());
  EXPECT_EQ(scatter.spec.type, DataType::kF32AsF16);
  EXPECT_EQ(halves(scatter.spec.output), halves(scatter.spec.input) + 2);
  EXPECT_TRUE(validate(scatter.spec, {1, 3}).code() == Code::kInvalidArgument) << "it is not narrowed twice";
}

// The program's prepare function, or the copy from a GPU, comes before; the copy to a GPU after.
TEST(Narrowing, WhatStandsAroundTheBuffersComesBeforeAndAfter) {
  const auto memory = std::make_shared<CopyMemory>();
  std::string said;
  std::vector<float> in{0.0f}, out{0.0f};
  const auto make = [&](Status fill) {
    auto call = std::make_unique<Call>();
    call->spec = sum_of(in, out);
    call->spec.prepare = [](void* context) { static_cast<std::vector<float>*>(context)->at(0) = 5.0f; };
    call->spec.prepare_context = &in;
    call->buffers = std::make_unique<Around>(said, std::move(fill));
    EXPECT_TRUE(narrow(*call, {0, 2}, memory).ok());
    return call;
  };
  auto call = make({});
  call->spec.prepare(call->spec.prepare_context);
  EXPECT_EQ(*halves(call->spec.input), 0x40a0);
  EXPECT_EQ(call->buffers->deliver().code(), Code::kUnavailable);
  EXPECT_EQ(said, "delivered");
  EXPECT_EQ(out[0], 5.0f);
  auto broken = make({Code::kUnavailable, "the GPU is gone"});
  broken->spec.prepare(broken->spec.prepare_context);
  EXPECT_EQ(broken->buffers->filled().code(), Code::kUnavailable);
}

TEST(Narrowing, MemoryIsKeptForTheNextCall) {
  const auto memory = std::make_shared<CopyMemory>();
  std::vector<float> in(1000), out(1000);
  const void* first = nullptr;
  {
    Call call;
    call.spec = sum_of(in, out);
    ASSERT_TRUE(narrow(call, {0, 2}, memory).ok());
    first = call.spec.input;
    EXPECT_EQ(memory->idle_bytes(), 0u);
  }
  EXPECT_EQ(memory->idle_bytes(), 2000u);
  {
    std::vector<float> less(999);
    Call call;
    call.spec = sum_of(less, less);
    ASSERT_TRUE(narrow(call, {0, 2}, memory).ok());
    EXPECT_EQ(call.spec.input, first);
    std::vector<float> few(10);
    Call small;
    small.spec = sum_of(few, few);
    ASSERT_TRUE(narrow(small, {0, 2}, memory).ok());
  }
  EXPECT_EQ(memory->idle_bytes(), 2064u);
  auto large = memory->take(CopyMemory::kMostIdleBytes);
  ASSERT_TRUE(large.ok());
  memory->give_back(std::move(large).value());
  EXPECT_EQ(memory->idle_bytes(), 2064u) << "not more than is worth keeping";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Where a sanitizer watches, asking for so much ends the process.
  EXPECT_EQ(memory->take(SIZE_MAX / 4).status().code(), Code::kExhausted);
#endif
}

TEST(Narrowing, WireTypesAreForWhatHasABound) {
  std::vector<float> in(4), out(4);
  const auto why = [&](auto change) {
    CallSpec spec = sum_of(in, out);
    change(spec);
    return validate(spec, {0, 1}).describe();
  };
  EXPECT_EQ(why([](CallSpec&) {}), Status().describe());
  EXPECT_EQ(why([](CallSpec& s) { s.op = ReduceOp::kAverage; }), Status().describe());
  EXPECT_NE(why([](CallSpec& s) { s.op = ReduceOp::kProduct; }).find("not for f32 by product"), std::string::npos);
  EXPECT_NE(why([](CallSpec& s) { s.type = DataType::kF64; }).find("a wire type (bf16) is for f32"), std::string::npos);
  EXPECT_NE(why([](CallSpec& s) {
              s.collective = Collective::kBroadcast;
              s.root = 0;
            }).find("broadcast: a wire type"),
            std::string::npos);
}

}  // namespace
}  // namespace warren::worker

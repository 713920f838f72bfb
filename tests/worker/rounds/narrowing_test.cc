// Copies in which f32 travels: where they lie, when they are filled, what comes back.
#include "worker/rounds/narrowing.h"
#include "tests/worker/input_made_by.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/sanitized.h"

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

float scale_of(const void* buffer, std::size_t block) {
  float scale = 0;
  std::memcpy(&scale, static_cast<const std::byte*>(buffer) + block * kI8BlockBytes, sizeof scale);
  return scale;
}
int i8_of(const void* buffer, std::size_t block, std::size_t value) {
  const auto* bytes = static_cast<const std::int8_t*>(buffer);
  return bytes[block * kI8BlockBytes + sizeof(float) + value];
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

TEST(Narrowing, BlocksAreFilledUp) {
  const auto memory = std::make_shared<CopyMemory>();
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{257}, std::size_t{1000}}) {
    SCOPED_TRACE(count);
    std::vector<float> in(count, 1.0f), out(count + 1, 7.0f);
    in.back() = -127.0f;
    Call call;
    call.spec = sum_of(in, out);
    call.spec.wire = DataType::kI8;
    ASSERT_TRUE(narrow(call, {1, 3}, memory).ok());
    EXPECT_EQ(call.spec.type, DataType::kF32AsI8);
    const std::size_t blocks = (count + 255) / 256;
    EXPECT_EQ(call.spec.count, blocks);
    EXPECT_EQ(call.spec.values, count);
    EXPECT_EQ(call.spec.input, call.spec.output) << "in place";
    const BufferBytes bytes = buffer_bytes(call.spec, {1, 3});
    EXPECT_EQ(bytes.input, blocks * 260);
    EXPECT_EQ(bytes.output, blocks * 260);
    // What an earlier call has left there.
    std::memset(call.spec.output, 0x5a, bytes.output);
    call.spec.prepare(call.spec.prepare_context);
    for (std::size_t i = 0; i < blocks * 256; i++) {
      const bool last = i / 256 == blocks - 1;  // whose scale is 1
      EXPECT_EQ(i8_of(call.spec.input, i / 256, i % 256), i >= count ? 0 : i == count - 1 ? -127 : last ? 1 : 127) << i;
    }
    EXPECT_EQ(scale_of(call.spec.input, blocks - 1), 1.0f);
    const float two = 2.0f;
    for (std::size_t b = 0; b < blocks; b++) {
      std::memcpy(static_cast<std::byte*>(call.spec.output) + b * kI8BlockBytes, &two, sizeof two);
    }
    ASSERT_TRUE(call.buffers->deliver().ok());
    EXPECT_EQ(out[count - 1], -254.0f);
    EXPECT_EQ(out[count], 7.0f) << "behind the last value";
    if (count > 1) {
      EXPECT_EQ(out[0], blocks == 1 ? 2.0f : 254.0f);
    }
  }
}

TEST(Narrowing, EachShareBeginsWithABlock) {
  const auto memory = std::make_shared<CopyMemory>();
  constexpr std::size_t kShare = 300;
  std::vector<float> share(kShare), whole(3 * kShare);
  for (std::size_t i = 0; i < whole.size(); i++) whole[i] = i % kShare == 0 || i % kShare == 256 ? 127.0f : 1.0f;
  Call scatter;
  scatter.spec = sum_of(whole, share, Collective::kReduceScatter);
  scatter.spec.wire = DataType::kI8;
  ASSERT_TRUE(narrow(scatter, {1, 3}, memory).ok());
  EXPECT_EQ(scatter.spec.count, 2u);
  EXPECT_EQ(scatter.spec.values, kShare);
  auto* const blocks = static_cast<std::byte*>(const_cast<void*>(scatter.spec.input));
  EXPECT_EQ(scatter.spec.output, blocks + 2 * kI8BlockBytes);
  scatter.spec.prepare(scatter.spec.prepare_context);
  for (std::size_t b = 0; b < 6; b++) {
    EXPECT_EQ(scale_of(blocks, b), 1.0f) << b;
    EXPECT_EQ(i8_of(blocks, b, 0), 127) << b;
    EXPECT_EQ(i8_of(blocks, b, 43), 1) << b;
    EXPECT_EQ(i8_of(blocks, b, 44), b % 2 == 0 ? 1 : 0) << b;
  }
  ASSERT_TRUE(scatter.buffers->deliver().ok());
  EXPECT_EQ(share, std::vector<float>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(kShare)));

  Call gather;
  gather.spec = sum_of(share, whole, Collective::kAllgather);
  gather.spec.wire = DataType::kI8;
  ASSERT_TRUE(narrow(gather, {2, 3}, memory).ok());
  auto* const all = static_cast<std::byte*>(gather.spec.output);
  EXPECT_EQ(gather.spec.input, all + 4 * kI8BlockBytes);
  gather.spec.prepare(gather.spec.prepare_context);
  // As if each rank had given this one's values, times its number.
  for (std::size_t r = 0; r < 3; r++) {
    std::memmove(all + 2 * r * kI8BlockBytes, gather.spec.input, 2 * kI8BlockBytes);
    const auto number = static_cast<float>(r + 1);
    for (std::size_t b = 2 * r; b < 2 * r + 2; b++) std::memcpy(all + b * kI8BlockBytes, &number, sizeof number);
  }
  ASSERT_TRUE(gather.buffers->deliver().ok());
  for (std::size_t i = 0; i < whole.size(); i++) {
    EXPECT_EQ(whole[i], share[i % kShare] * static_cast<float>(i / kShare + 1)) << i;
  }
}

// Of so many blocks there are calls of 256 different sizes.
TEST(Narrowing, FingerprintsTellWhatWasCalled) {
  const auto memory = std::make_shared<CopyMemory>();
  const auto fingerprint = [&](std::size_t count, DataType wire) {
    std::vector<float> values(count);
    Call call;
    call.spec = sum_of(values, values);
    call.spec.wire = wire;
    EXPECT_TRUE(narrow(call, {0, 2}, memory).ok());
    return fingerprint_of(call.spec, 0);
  };
  EXPECT_EQ(to_string(fingerprint(300, DataType::kI8)), "allreduce(f32 as i8, sum, count 300)");
  EXPECT_TRUE(agree(fingerprint(300, DataType::kI8), fingerprint(300, DataType::kI8)));
  EXPECT_FALSE(agree(fingerprint(300, DataType::kI8), fingerprint(301, DataType::kI8)));
  EXPECT_FALSE(agree(fingerprint(300, DataType::kI8), fingerprint(300, DataType::kBF16)));
  EXPECT_FALSE(agree(fingerprint(2, DataType::kI8), fingerprint(2, DataType::kF16)));
  EXPECT_EQ(to_string(fingerprint(0, DataType::kI8)), "allreduce(f32 as i8, sum, count 0)");
}

// The program's prepare function, or the copy from a GPU, comes before; the copy to a GPU after.
TEST(Narrowing, WhatStandsAroundTheBuffersComesBeforeAndAfter) {
  const auto memory = std::make_shared<CopyMemory>();
  std::string said;
  std::vector<float> in{0.0f}, out{0.0f};
  const auto make = [&](Status fill) {
    auto call = std::make_unique<Call>();
    call->spec = sum_of(in, out);
    call->spec.prepare = &input_made_by<[](void* context) { static_cast<std::vector<float>*>(context)->at(0) = 5.0f; }>;
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
  // Where a sanitizer watches, asking for so much ends the process.
  if (kAddressSanitized || kThreadSanitized) return;
  EXPECT_EQ(memory->take(SIZE_MAX / 4).status().code(), Code::kExhausted);
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
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    EXPECT_EQ(why([op](CallSpec& s) {
                s.wire = DataType::kI8;
                s.op = op;
              }),
              Status().describe());
  }
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const std::string refusal = why([op](CallSpec& s) {
      s.wire = DataType::kI8;
      s.op = op;
    });
    EXPECT_NE(refusal.find("a wire type (i8) is for f32 in allreduce and reduce_scatter, by sum and average,"),
              std::string::npos)
        << refusal;
    EXPECT_NE(refusal.find(std::string(" by ") + to_string(op) + "; f16 and bf16 have min and max"), std::string::npos)
        << refusal;
  }
  // Types of rounds are none of programs'.
  for (const DataType type : {DataType::kF32AsF16, DataType::kF32AsBF16, DataType::kF32AsI8}) {
    EXPECT_NE(why([type](CallSpec& s) {
                s.type = type;
                s.wire = {};
              }).find("unknown type"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace warren::worker

// Which calls are put together, what the round is that they make, and what comes back to each.
#include "worker/session/fusion.h"
#include "tests/worker/input_made_by.h"
#include "tests/worker/sum_call.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace warren::worker {
namespace {

constexpr GroupShape kShape{0, 2};

std::shared_ptr<Call> sum_of(std::vector<float>& in, std::vector<float>& out) {
  auto call = std::make_shared<Call>();
  make_sum(call->spec, in.data(), out.data(), in.size());
  return call;
}

const std::shared_ptr<CopyMemory>& memory() {
  static const auto shared = std::make_shared<CopyMemory>();
  return shared;
}

std::shared_ptr<Call> close(Batch& batch) {
  std::vector<std::shared_ptr<Call>> lost;
  auto call = batch.close(memory(), nullptr, lost);
  EXPECT_TRUE(call.ok());
  EXPECT_TRUE(lost.empty());
  EXPECT_TRUE(batch.empty());
  return std::move(call).value();
}

TEST(Fusion, ARoundOfAllParts) {
  std::vector<float> a{1, 2}, b{3}, none, a_out(2), c_out{9, 9, 9}, c{4, 5, 6};
  Batch batch;
  batch.add(kWorldGroup, kShape, sum_of(a, a_out));
  batch.add(kWorldGroup, kShape, sum_of(none, none));
  batch.add(kWorldGroup, kShape, sum_of(b, b));
  batch.add(kWorldGroup, kShape, sum_of(c, c_out));
  const auto call = close(batch);
  EXPECT_EQ(call->spec.count, 6u);
  EXPECT_EQ(call->parts.size(), 4u);
  EXPECT_NE(fingerprint_of(call->spec, 0).shape, 0u);
  a[0] = 7;  // what the input is when the round begins counts
  call->spec.prepare(call->spec.prepare_context);
  EXPECT_EQ(call->spec.input, call->spec.output);
  auto* const at = static_cast<float*>(call->spec.output);
  EXPECT_EQ(std::vector<float>(at, at + 6), (std::vector<float>{7, 2, 3, 4, 5, 6}));
  for (int i = 0; i < 6; i++) at[i] *= 10;
  EXPECT_EQ(c_out[0], 9.0f);
  ASSERT_TRUE(call->buffers->deliver().ok());
  EXPECT_EQ(a_out, (std::vector<float>{70, 20}));
  EXPECT_EQ(b, std::vector<float>{30});
  EXPECT_EQ(c_out, (std::vector<float>{40, 50, 60}));
  EXPECT_EQ(a[0], 7.0f);
}

TEST(Fusion, OtherCutsAreOtherCalls) {
  std::vector<float> one(1), two(2);
  const auto shape_of = [&](std::vector<std::vector<float>*> parts) {
    Batch batch;
    for (auto* p : parts) batch.add(kWorldGroup, kShape, sum_of(*p, *p));
    return fingerprint_of(close(batch)->spec, 0).shape;
  };
  EXPECT_NE(shape_of({&one, &two}), shape_of({&two, &one}));
  EXPECT_NE(shape_of({&one, &one}), shape_of({&one, &one, &one}));
  EXPECT_EQ(shape_of({&one, &two}), shape_of({&one, &two}));
  EXPECT_EQ(shape_of({&two}), 0u) << "one alone is itself";
}

TEST(Fusion, OneAloneIsMadeAsItIs) {
  std::vector<float> a{1};
  Batch batch;
  const auto part = sum_of(a, a);
  batch.add(kWorldGroup, kShape, part);
  EXPECT_EQ(close(batch), part);
  EXPECT_EQ(part->spec.input, a.data());
}

// Which one it is hangs on the size of all together, where no call says so.
TEST(Fusion, TheAlgorithmIsTheOneThatEachCallNamed) {
  std::vector<float> a{1}, large(100'000);
  Batch batch;
  batch.add(kWorldGroup, kShape, sum_of(a, a));
  EXPECT_TRUE(batch.fits(kWorldGroup, *sum_of(large, large), 1 << 20));
  batch.add(kWorldGroup, kShape, sum_of(large, large));
  EXPECT_EQ(close(batch)->spec.algorithm, 0);
  const auto named = [&] {
    auto part = sum_of(a, a);
    part->spec.algorithm = static_cast<std::uint8_t>(schedule::Algorithm::kRing);
    return part;
  };
  batch.add(kWorldGroup, kShape, named());
  EXPECT_TRUE(batch.fits(kWorldGroup, *named(), 1 << 20));
  EXPECT_FALSE(batch.fits(kWorldGroup, *sum_of(a, a), 1 << 20));
  batch.add(kWorldGroup, kShape, named());
  EXPECT_EQ(close(batch)->spec.algorithm, static_cast<std::uint8_t>(schedule::Algorithm::kRing));
}

TEST(Fusion, PartsAreNarrowedTogether) {
  std::vector<float> a{1.0f}, b{2.0f};
  Batch batch;
  for (auto* v : {&a, &b}) {
    auto part = sum_of(*v, *v);
    part->spec.wire = DataType::kF16;
    batch.add(kWorldGroup, kShape, part);
  }
  const auto call = close(batch);
  EXPECT_EQ(call->spec.type, DataType::kF32AsF16);
  call->spec.prepare(call->spec.prepare_context);
  auto* const at = static_cast<std::uint16_t*>(call->spec.output);
  EXPECT_EQ(at[0], 0x3c00);
  EXPECT_EQ(at[1], 0x4000);
  at[1] = 0x4400;
  ASSERT_TRUE(call->buffers->deliver().ok());
  EXPECT_EQ(b[0], 4.0f);
}

// As one call of all their values: blocks go over the ends of parts.
TEST(Fusion, PartsShareBlocks) {
  std::vector<float> a(200, 1.0f), b(100, 2.0f);
  b[99] = 127.0f;
  Batch batch;
  for (auto* v : {&a, &b}) {
    auto part = sum_of(*v, *v);
    part->spec.wire = DataType::kI8;
    batch.add(kWorldGroup, kShape, part);
  }
  const auto call = close(batch);
  EXPECT_EQ(call->spec.type, DataType::kF32AsI8);
  EXPECT_EQ(call->spec.count, 2u);
  EXPECT_EQ(call->spec.values, 300u);
  call->spec.prepare(call->spec.prepare_context);
  const auto* const values = static_cast<const std::int8_t*>(call->spec.input) + sizeof(float);
  EXPECT_EQ(values[0], 64) << "half of the largest of its block, ties to even";
  EXPECT_EQ(values[200], 127);
  EXPECT_EQ(values[kI8BlockBytes], 2);
  EXPECT_EQ(values[kI8BlockBytes + 43], 127);
  ASSERT_TRUE(call->buffers->deliver().ok());
  EXPECT_EQ(a[199], 64.0f * (2.0f / 127.0f));
  EXPECT_EQ(b[55], 127.0f * (2.0f / 127.0f));
  EXPECT_EQ(b[99], 127.0f);
}

TEST(Fusion, WhatFits) {
  std::vector<float> ten(10), five(5);
  const auto takes = [&](auto change) {
    auto call = sum_of(ten, ten);
    change(*call);
    return Batch::takes(*call, 40);
  };
  EXPECT_TRUE(takes([](Call&) {}));
  EXPECT_FALSE(takes([](Call& c) { c.spec.count = 11; }));
  EXPECT_FALSE(takes([](Call& c) { c.spec.collective = Collective::kBroadcast; }));
  EXPECT_FALSE(takes([](Call& c) { c.setup = "sketch"; }));
  EXPECT_FALSE(takes([](Call& c) { c.spec.prepare = &input_made_by<[](void*) {}>; }));
  EXPECT_FALSE(takes([](Call& c) {
    c.spec.type = DataType::kCustom;
    c.spec.custom_bytes = 1;
  }));
  Batch batch;
  batch.add(kWorldGroup, kShape, sum_of(five, five));
  const auto fits = [&](auto change, GroupId group = kWorldGroup) {
    auto call = sum_of(five, five);
    change(*call);
    return batch.fits(group, *call, 40);
  };
  EXPECT_TRUE(fits([](Call&) {}));
  EXPECT_FALSE(fits([](Call& c) { c.spec.count = 6; }));
  EXPECT_FALSE(fits([](Call& c) { c.spec.op = ReduceOp::kMax; }));
  EXPECT_FALSE(fits([](Call& c) { c.spec.type = DataType::kI32; }));
  EXPECT_FALSE(fits([](Call& c) { c.spec.wire = DataType::kBF16; }));
  EXPECT_FALSE(fits([](Call& c) { c.spec.algorithm = 1; }));
  EXPECT_FALSE(fits([](Call&) {}, GroupId(7)));
  EXPECT_FALSE(batch.full(40));
  batch.add(kWorldGroup, kShape, sum_of(five, five));
  EXPECT_TRUE(batch.full(40));
  EXPECT_EQ(batch.take().size(), 2u);
  EXPECT_TRUE(batch.empty());
}

}  // namespace
}  // namespace warren::worker

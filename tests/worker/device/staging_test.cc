// The pinned arena, the chunked copies and the staging of calls, against the fake device with faults in every call.
#include "worker/device/staging.h"

#include <gmock/gmock.h>

#include <atomic>
#include <numeric>
#include <string>
#include <thread>

#include "tests/worker/device/fake_gpu.h"
#include "worker/device/device_library.h"

namespace warren::worker {
namespace {

using test::DeviceArray;
using test::fake_gpu;
using test::FakeFault;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::int64_t kPatienceMs = 60'000;
constexpr std::int64_t kShortMs = 150;

std::vector<std::uint8_t> numbered(std::size_t bytes, unsigned seed) {
  std::vector<std::uint8_t> values(bytes);
  for (std::size_t i = 0; i < bytes; i++) values[i] = static_cast<std::uint8_t>(i * 31 + i / 251 + seed);
  return values;
}

// ---- the library

TEST(DeviceLibrary, IsAbsentOrSwitchedOffWithoutAnError) {
  for (const char* setting : {"", "none"}) {
    const auto library = load_device_library(setting);
    ASSERT_TRUE(library.ok()) << library.status().describe();
    EXPECT_EQ(library.value().table, nullptr);
  }
}

TEST(DeviceLibrary, ThatWasNamedMustLoad) {
  EXPECT_THAT(load_device_library("/no/such/library.so").status().describe(), HasSubstr("WARREN_DEVICE_LIBRARY=none"));
  // A library without a table.
  EXPECT_THAT(load_device_library("libdl.so.2").status().describe(), HasSubstr("lacks warren_device_table_1"));
}

TEST(DeviceLibrary, WithoutAGpuIsNoErrorAndWithABrokenOneIs) {
  fake_gpu().controls.arm("init", 0, FakeFault::kNone);
  const auto none = load_device_library(WARREN_FAKE_DEVICE);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value().table, nullptr);
  EXPECT_THAT(none.value().says, HasSubstr("finds no GPU"));
  fake_gpu().controls.arm("init", 0, FakeFault::kError);
  const auto broken = load_device_library(WARREN_FAKE_DEVICE);
  EXPECT_EQ(broken.status().code(), Code::kUnavailable);
  EXPECT_THAT(broken.status().describe(), HasSubstr("injected into init"));
  const auto good = load_device_library(WARREN_FAKE_DEVICE);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good.value().table, &fake_gpu().table);
}

using FakeDeviceDeath = ::testing::Test;

TEST(FakeDeviceDeath, MemoryOfTheDeviceCannotBeTouched) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DeviceArray<int> array(std::vector<int>{1, 2, 3});
  EXPECT_DEATH((void)*const_cast<volatile int*>(array.data()), "");
}

// ---- the arena

TEST(PinnedArena, KeepsBlocksWithinItsBudget) {
  PinnedArena arena(fake_gpu().table, 8 * kMiB);
  const std::byte* first = nullptr;
  {
    auto block = arena.take(3 * kMiB);
    ASSERT_TRUE(block.ok());
    first = block.value().data();
  }
  EXPECT_EQ(arena.pinned_bytes(), 3 * kMiB);
  {
    auto again = arena.take(3 * kMiB - 1000);
    EXPECT_EQ(again.value().data(), first) << "kept";
    auto second = arena.take(5 * kMiB);
    ASSERT_TRUE(second.ok());
    const auto third = arena.take(1);
    EXPECT_EQ(third.status().code(), Code::kExhausted);
    EXPECT_THAT(third.status().describe(), HasSubstr("device_pinned_bytes is 8388608"));
  }
  // What is kept makes room.
  auto large = arena.take(8 * kMiB);
  ASSERT_TRUE(large.ok()) << large.status().describe();
  EXPECT_EQ(arena.pinned_bytes(), 8 * kMiB);
  EXPECT_EQ(arena.take(9 * kMiB).status().code(), Code::kExhausted);
}

TEST(PinnedArena, ABlockThatAGpuMayStillWriteToIsNotUsedAgain) {
  PinnedArena arena(fake_gpu().table, 2 * kMiB);
  {
    auto block = arena.take(kMiB);
    block.value().abandon();
  }
  EXPECT_EQ(arena.pinned_bytes(), kMiB);
  EXPECT_EQ(arena.take(2 * kMiB).status().code(), Code::kExhausted);
  // Nor is anything freed, which might wait for that GPU.
  const std::uint64_t freed = fake_gpu().controls.calls("free_pinned");
  EXPECT_TRUE(arena.take(kMiB).ok());
  EXPECT_EQ(arena.take(2 * kMiB).status().code(), Code::kExhausted);
  EXPECT_EQ(fake_gpu().controls.calls("free_pinned"), freed);
}

TEST(PinnedArena, SaysThatTheMachineHasNoMore) {
  PinnedArena arena(fake_gpu().table, 2 * kMiB);
  fake_gpu().controls.arm("allocate_pinned", 0, FakeFault::kNoMemory);
  EXPECT_EQ(arena.take(kMiB).status().code(), Code::kExhausted);
  EXPECT_EQ(arena.pinned_bytes(), 0u);
}

// ---- copies

class Copies : public ::testing::Test {
 protected:
  ~Copies() override { fake_gpu().controls.release(); }
  [[nodiscard]] PinnedArena::Block pinned(std::size_t bytes) {
    auto block = arena_.take(bytes);
    EXPECT_TRUE(block.ok());
    return std::move(block).value();
  }
  std::atomic<bool> ends_{false};
  PinnedArena arena_{fake_gpu().table, 4096 * kMiB};
  DeviceCopies copies_{fake_gpu().table, 0, kPatienceMs, ends_};
};

TEST_F(Copies, OfEverySizeArriveBothWays) {
  const auto event = copies_.make_event().value();
  ASSERT_TRUE(copies_.record(*event, nullptr).ok());
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kDeviceChunkBytes - 1, kDeviceChunkBytes,
                                  kDeviceChunkBytes + 3, 5 * kDeviceChunkBytes + 5}) {
    const auto values = numbered(bytes, 3);
    const DeviceArray<std::uint8_t> source(values), target(numbered(bytes, 99));
    const auto block = pinned(bytes);
    ASSERT_TRUE(copies_.to_host(block.data(), source.data(), bytes, *event).ok());
    EXPECT_TRUE(std::equal(values.begin(), values.end(), reinterpret_cast<const std::uint8_t*>(block.data())));
    ASSERT_TRUE(copies_.to_device(target.data(), block.data(), bytes, *event).ok());
    EXPECT_EQ(target.read(), values);
  }
}

TEST_F(Copies, ComeAfterWhatIsOnTheProgramsStream) {
  const auto values = numbered(1000, 1);
  const DeviceArray<std::uint8_t> array(numbered(1000, 2));
  auto source = pinned(1000), target = pinned(1000);
  std::copy(values.begin(), values.end(), reinterpret_cast<std::uint8_t*>(source.data()));
  void* stream = nullptr;
  ASSERT_EQ(fake_gpu().table.make_stream(0, &stream), WARREN_DEVICE_OK);
  fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
  ASSERT_EQ(fake_gpu().table.to_device(0, array.data(), source.data(), 1000, stream), WARREN_DEVICE_OK);
  const auto event = copies_.make_event().value();
  ASSERT_TRUE(copies_.record(*event, stream).ok());
  const std::uint64_t looked = fake_gpu().controls.calls("query");
  std::thread copy([&] { EXPECT_TRUE(copies_.to_host(target.data(), array.data(), 1000, *event).ok()); });
  while (fake_gpu().controls.calls("query") < looked + 300) std::this_thread::yield();
  fake_gpu().controls.release();
  copy.join();
  EXPECT_TRUE(std::equal(values.begin(), values.end(), reinterpret_cast<const std::uint8_t*>(target.data())));
  ASSERT_EQ(fake_gpu().table.end_stream(0, stream), WARREN_DEVICE_OK);
}

TEST_F(Copies, FailWithTheReasonOfAnyCall) {
  const std::size_t bytes = 8 * kDeviceChunkBytes;
  const DeviceArray<std::uint8_t> array(bytes);
  for (const char* where : {"make_event", "record", "make_stream", "wait_for", "to_host", "query", "stream.to_host"}) {
    for (const int after : {0, 6}) {
      // Those that are not asked so often: the stream's and its events' makers, and the one wait.
      if (after != 0 && std::string(where) != "to_host" && std::string(where) != "stream.to_host") continue;
      SCOPED_TRACE(std::string(where) + " " + std::to_string(after));
      DeviceCopies fresh(fake_gpu().table, 0, kPatienceMs, ends_);
      auto block = pinned(bytes);
      fake_gpu().controls.arm(where, after, FakeFault::kError);
      auto event = fresh.make_event();
      Status status = event.status();
      if (status.ok()) status = fresh.record(*event.value(), nullptr);
      if (status.ok()) status = fresh.to_host(block.data(), array.data(), bytes, *event.value());
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
      EXPECT_THAT(status.describe(), HasSubstr("GPU 0"));
      block.abandon();
      fake_gpu().controls.release();
    }
  }
}

TEST_F(Copies, ThatHangAreGivenUpAndThoseThatNobodyWantsToo) {
  const std::size_t bytes = 2 * kDeviceChunkBytes;
  const DeviceArray<std::uint8_t> array(bytes);
  auto block = pinned(bytes);
  {
    DeviceCopies impatient(fake_gpu().table, 0, kShortMs, ends_);
    const auto event = impatient.make_event().value();
    fake_gpu().controls.arm("stream.to_device", 1, FakeFault::kHang);
    const Status status = impatient.to_device(array.data(), block.data(), bytes, *event);
    EXPECT_EQ(status.code(), Code::kTimeout);
    EXPECT_THAT(status.describe(), HasSubstr("round timeout of 150 ms"));
  }
  fake_gpu().controls.release();
  const auto event = copies_.make_event().value();
  fake_gpu().controls.arm("stream.to_host", 0, FakeFault::kHang);
  ends_ = true;
  EXPECT_EQ(copies_.to_host(block.data(), array.data(), bytes, *event).code(), Code::kClosed);
  block.abandon();
  fake_gpu().controls.release();
}

// ---- staging

CallSpec spec_of(Collective collective, const void* input, void* output, std::uint64_t count, std::int32_t root = -1) {
  CallSpec spec;
  spec.collective = collective;
  spec.type = DataType::kI32;
  spec.op = ReduceOp::kSum;
  spec.input = input;
  spec.output = output;
  spec.count = count;
  spec.root = root;
  return spec;
}

class Stages : public ::testing::Test {
 protected:
  ~Stages() override { fake_gpu().controls.release(); }
  Staging staging_{fake_gpu().table, 64 * kMiB, kPatienceMs};
  static constexpr GroupShape kShape{1, 4};
};

TEST_F(Stages, LeavesMemoryOfTheCpuAlone) {
  std::vector<int> in(8), out(8);
  Call call;
  call.spec = spec_of(Collective::kAllreduce, in.data(), out.data(), 8);
  ASSERT_TRUE(staging_.stage(call, kShape).ok());
  EXPECT_EQ(call.buffers, nullptr);
  EXPECT_EQ(call.spec.input, in.data());
  EXPECT_EQ(call.spec.prepare, nullptr);
}

TEST_F(Stages, GivesCopiesThatAreFilledAndBroughtBack) {
  const DeviceArray<int> in(std::vector<int>{1, 2, 3}), out(std::vector<int>{7, 7, 7});
  Call call;
  call.spec = spec_of(Collective::kAllreduce, in.data(), out.data(), 3);
  ASSERT_TRUE(staging_.stage(call, kShape).ok());
  ASSERT_NE(call.buffers, nullptr);
  call.spec.prepare(call.spec.prepare_context);
  ASSERT_TRUE(call.buffers->filled().ok());
  const int* const input = static_cast<const int*>(call.spec.input);
  int* const output = static_cast<int*>(call.spec.output);
  EXPECT_EQ(std::vector<int>(input, input + 3), (std::vector<int>{1, 2, 3}));
  EXPECT_NE(static_cast<const void*>(output), input);
  std::iota(output, output + 3, 40);
  EXPECT_TRUE(call.buffers->delivers());
  ASSERT_TRUE(call.buffers->deliver().ok());
  EXPECT_EQ(out.read(), (std::vector<int>{40, 41, 42}));
  EXPECT_EQ(in.read(), (std::vector<int>{1, 2, 3}));
}

TEST_F(Stages, KeepsWhatIsInPlaceInPlace) {
  const DeviceArray<int> whole(std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  struct Case {
    Collective collective;
    const int *in, *out;
    std::uint64_t count;
  };
  for (const Case& c : {Case{Collective::kAllreduce, whole.data(), whole.data(), 8},
                        Case{Collective::kAllgather, whole.data() + 2, whole.data(), 2},
                        Case{Collective::kReduceScatter, whole.data(), whole.data() + 2, 2}}) {
    SCOPED_TRACE(to_string(c.collective));
    Call call;
    call.spec = spec_of(c.collective, c.in, const_cast<int*>(c.out), c.count);
    ASSERT_TRUE(validate(call.spec, kShape).ok());
    ASSERT_TRUE(staging_.stage(call, kShape).ok());
    EXPECT_EQ(static_cast<const int*>(call.spec.input) - static_cast<const int*>(call.spec.output), c.in - c.out);
    ASSERT_TRUE(validate(call.spec, kShape).ok());
    call.spec.prepare(call.spec.prepare_context);
    EXPECT_EQ(*static_cast<const int*>(call.spec.input), c.in - whole.data());
  }
}

// The prepare function starts work that is still going on when it returns.
TEST_F(Stages, ReadsWhatTheProgramsPrepareFunctionHasPutOnTheStream) {
  struct Program {
    const DeviceArray<int> array{std::vector<int>{1, 1}};
    void* pinned = nullptr;
    std::thread later;
  } program;
  ASSERT_EQ(fake_gpu().table.allocate_pinned(2 * sizeof(int), &program.pinned), WARREN_DEVICE_OK);
  static_cast<int*>(program.pinned)[1] = 6;
  Call call;
  call.spec = spec_of(Collective::kAllreduce, program.array.data(), program.array.data(), 2);
  call.spec.prepare = [](void* context) {
    Program& self = *static_cast<Program*>(context);
    fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
    ASSERT_EQ(fake_gpu().table.to_device(0, self.array.data(), self.pinned, 2 * sizeof(int), nullptr),
              WARREN_DEVICE_OK);
    self.later = std::thread([looked = fake_gpu().controls.calls("query")] {
      while (fake_gpu().controls.calls("query") < looked + 2) std::this_thread::yield();
      fake_gpu().controls.release();
    });
  };
  call.spec.prepare_context = &program;
  ASSERT_TRUE(staging_.stage(call, kShape).ok());
  call.spec.prepare(call.spec.prepare_context);
  EXPECT_EQ(static_cast<const int*>(call.spec.input)[1], 6);
  program.later.join();
}

TEST_F(Stages, ABroadcastReadsAtItsRootAlone) {
  const DeviceArray<int> array(std::vector<int>{4, 5});
  for (const std::int32_t root : {0, 1}) {
    Call call;
    call.spec = spec_of(Collective::kBroadcast, nullptr, array.data(), 2, root);
    ASSERT_TRUE(staging_.stage(call, kShape).ok());
    ASSERT_EQ(call.spec.prepare != nullptr, root == kShape.rank);
    if (root == kShape.rank) {
      call.spec.prepare(call.spec.prepare_context);
      EXPECT_EQ(static_cast<const int*>(call.spec.output)[1], 5);
    }
    EXPECT_TRUE(call.buffers->delivers());
  }
}

TEST_F(Stages, ASendIsReadAtOnceAndBringsNothingBack) {
  const DeviceArray<int> array(std::vector<int>{4, 5});
  Call call;
  call.spec = spec_of(Collective::kPoint, array.data(), nullptr, 2, 0);
  call.spec.sends = true;
  call.spec.tag = 0;
  ASSERT_TRUE(staging_.stage(call, kShape).ok());
  EXPECT_EQ(static_cast<const int*>(call.spec.input)[1], 5);
  EXPECT_FALSE(call.buffers->delivers());
}

TEST_F(Stages, RefusesTwoGpusAndSaysWhy) {
  const DeviceArray<int> here(2, 0), there(2, 1);
  Call call;
  call.spec = spec_of(Collective::kAllreduce, here.data(), there.data(), 2);
  const Status status = staging_.stage(call, kShape);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.describe(), HasSubstr("GPU 0 and the output on GPU 1"));
}

TEST_F(Stages, FailuresReachTheirOwner) {
  const DeviceArray<int> array(std::vector<int>{4, 5});
  const auto stage = [&](Call& call) {
    call.spec = spec_of(Collective::kAllreduce, array.data(), array.data(), 2);
    return staging_.stage(call, kShape);
  };
  for (const char* where : {"locate", "make_event", "record", "allocate_pinned"}) {
    Call call;
    fake_gpu().controls.arm(where, 0, FakeFault::kError);
    Staging fresh(fake_gpu().table, kMiB, kPatienceMs);
    call.spec = spec_of(Collective::kAllreduce, array.data(), array.data(), 2);
    EXPECT_THAT(fresh.stage(call, kShape).describe(), HasSubstr(std::string("injected into ") + where));
    EXPECT_EQ(call.spec.input, array.data()) << "nothing was changed";
  }
  {
    Call call;
    ASSERT_TRUE(stage(call).ok());
    fake_gpu().controls.arm("stream.to_host", 0, FakeFault::kError);
    call.spec.prepare(call.spec.prepare_context);
    EXPECT_EQ(call.buffers->filled().code(), Code::kUnavailable);
  }
  Call call;
  ASSERT_TRUE(stage(call).ok());
  call.spec.prepare(call.spec.prepare_context);
  fake_gpu().controls.arm("to_device", 0, FakeFault::kError);
  EXPECT_EQ(call.buffers->deliver().code(), Code::kUnavailable);
}

TEST_F(Stages, StatesAreReadFromWhereverTheyLie) {
  const auto values = numbered(2 * kDeviceChunkBytes + 77, 5);
  const auto here = staging_.read(std::as_bytes(std::span(values)), nullptr);
  ASSERT_TRUE(here.ok());
  EXPECT_EQ(static_cast<const void*>(here.value().bytes.data()), values.data()) << "not copied";
  const DeviceArray<std::uint8_t> array(values);
  const auto copy = staging_.read(std::as_bytes(array.span()), nullptr);
  ASSERT_TRUE(copy.ok());
  EXPECT_TRUE(
      std::equal(values.begin(), values.end(), reinterpret_cast<const std::uint8_t*>(copy.value().bytes.data())));
}

}  // namespace
}  // namespace warren::worker

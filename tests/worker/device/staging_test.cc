// The pinned arena, the chunked copies and the staging of calls, against the fake device with faults in every call.
#include "worker/device/staging.h"
#include "tests/worker/input_made_by.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "recovery/base/ranges.h"
#include "tests/worker/device/gpu_tests.h"
#include "worker/device/device_library.h"
#include "worker/kernels/reduce.h"

namespace warren::worker {
namespace {

constexpr std::int64_t kShortMs = 150;
// Where the GPU has something to do before it hangs: 4 MiB converted under ThreadSanitizer on a busy machine took more
// than kShortMs.
constexpr std::int64_t kAfterWorkMs = 2000;
// For what is not to wait at all.
constexpr auto kPatience = std::chrono::seconds(10);

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
  EXPECT_THAT(load_device_library("libdl.so.2").status().describe(), HasSubstr("lacks warren_device_table_7"));
}

TEST(DeviceLibrary, WithoutAGpuIsNoErrorAndWithABrokenOneIs) {
  fake_gpu().controls.arm("init", 0, FakeFault::kNone);
  const auto none = load_device_library(WARREN_FAKE_DEVICE);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value().table, nullptr);
  EXPECT_THAT(none.value().says, HasSubstr("finds no GPU"));
  EXPECT_EQ(none.value().news(), none.value().says) << "this one was named";
  EXPECT_EQ((DeviceLibrary{.table = nullptr, .says = none.value().says, .asked_for = false}).news(), "");
  fake_gpu().controls.arm("init", 0, FakeFault::kError);
  const auto broken = load_device_library(WARREN_FAKE_DEVICE);
  EXPECT_EQ(broken.status().code(), Code::kUnavailable);
  EXPECT_THAT(broken.status().describe(), HasSubstr("injected into init"));
  const auto good = load_device_library(WARREN_FAKE_DEVICE);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good.value().table, &fake_gpu().table);
  EXPECT_EQ((DeviceLibrary{good.value().table, good.value().says, false}).news(), good.value().says);
}

using FakeDeviceDeath = ::testing::Test;

TEST(FakeDeviceDeath, MemoryOfTheDeviceCannotBeTouched) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DeviceArray<int> array(std::vector<int>{1, 2, 3});
  EXPECT_DEATH((void)*const_cast<volatile int*>(array.data()), "");
}

// As CUDA is, and not only as far as this code knows of it.
TEST(FakeDevice, IsAsStrictAsCuda) {
  const warren_device_table& table = fake_gpu().table;
  void *stream = nullptr, *event = nullptr, *pinned = nullptr, *memory = nullptr;
  ASSERT_EQ(table.make_stream(1, &stream), WARREN_DEVICE_OK);
  ASSERT_EQ(table.make_event(1, &event), WARREN_DEVICE_OK);
  ASSERT_EQ(table.allocate_pinned(8, &pinned), WARREN_DEVICE_OK);
  ASSERT_EQ(table.allocate(0, 8, &memory), WARREN_DEVICE_OK);
  EXPECT_EQ(table.to_device(0, memory, pinned, 8, stream), WARREN_DEVICE_FAILED) << "a stream of another device";
  EXPECT_EQ(table.record(1, event, nullptr), WARREN_DEVICE_OK);
  EXPECT_EQ(table.record(0, event, nullptr), WARREN_DEVICE_FAILED) << "an event of another device";
  EXPECT_EQ(table.query(0, event), WARREN_DEVICE_FAILED);
  // Freeing waits for what may use the memory.
  const std::uint64_t copies = fake_gpu().controls.calls("stream.to_device");
  for (int i = 0; i < 1000; i++) ASSERT_EQ(table.to_device(0, memory, pinned, 8, nullptr), WARREN_DEVICE_OK);
  EXPECT_EQ(table.free_pinned(pinned), WARREN_DEVICE_OK);
  EXPECT_EQ(fake_gpu().controls.calls("stream.to_device"), copies + 1000);
  for (int i = 0; i < 1000; i++) ASSERT_EQ(table.record(1, event, stream), WARREN_DEVICE_OK);
  EXPECT_EQ(table.release(0, memory), WARREN_DEVICE_OK);
  EXPECT_EQ(table.query(1, event), WARREN_DEVICE_OK);
  EXPECT_EQ(table.end_event(1, event), WARREN_DEVICE_OK);
  EXPECT_EQ(table.end_stream(1, stream), WARREN_DEVICE_OK);
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

// To pin memory, or to free it, may take long, or for ever. Blocks come back under locks that others wait for.
TEST(PinnedArena, BlocksComeBackMeanwhile) {
  for (const char* where : {"allocate_pinned", "free_pinned"}) {
    SCOPED_TRACE(where);
    PinnedArena arena(fake_gpu().table, 4 * kMiB);
    auto block = arena.take(kMiB);
    ASSERT_TRUE(block.ok());
    (void)arena.take(2 * kMiB);  // kept
    fake_gpu().controls.arm(where, 0, FakeFault::kHang);
    const std::uint64_t calls = fake_gpu().controls.calls(where);
    std::thread takes([&] {
      const auto other = arena.take(3 * kMiB);  // in the place of what is kept
      EXPECT_TRUE(other.ok()) << other.status().describe();
      EXPECT_LE(arena.pinned_bytes(), 4 * kMiB);
    });
    while (fake_gpu().controls.calls(where) == calls) std::this_thread::yield();
    auto back = std::async(std::launch::async, [&] {
      block = Status(Code::kClosed, "given back");
      return arena.pinned_bytes();
    });
    EXPECT_EQ(back.wait_for(kPatience), std::future_status::ready);
    fake_gpu().controls.release();
    takes.join();
    EXPECT_LE(back.get(), 4 * kMiB);
    EXPECT_EQ(arena.pinned_bytes(), 4 * kMiB);
  }
}

TEST(DeviceMemory, BlocksComeBackMeanwhile) {
  PinnedArena arena(fake_gpu().table, 0);
  for (const char* where : {"allocate", "release"}) {
    SCOPED_TRACE(where);
    DeviceMemory memory(fake_gpu().table, 4 * kMiB, arena);
    auto block = memory.take(0, kMiB);
    ASSERT_TRUE(block.ok());
    (void)memory.take(0, 2 * kMiB);  // kept
    fake_gpu().controls.arm(where, 0, FakeFault::kHang);
    const std::uint64_t calls = fake_gpu().controls.calls(where);
    std::thread takes([&] {
      const auto other = memory.take(0, 3 * kMiB);  // in the place of what is kept
      ASSERT_TRUE(other.ok()) << other.status().describe();
      EXPECT_NE(other.value().data(), nullptr);
    });
    while (fake_gpu().controls.calls(where) == calls) std::this_thread::yield();
    auto back = std::async(std::launch::async, [&] {
      block = Status(Code::kClosed, "given back");
      return memory.bytes();
    });
    EXPECT_EQ(back.wait_for(kPatience), std::future_status::ready);
    fake_gpu().controls.release();
    takes.join();
    EXPECT_LE(back.get(), 4 * kMiB);
    EXPECT_EQ(memory.bytes(), 4 * kMiB);
  }
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

// Who ends with copies under way leaves the memory in which they are converted to them.
TEST_F(Copies, ThatAreConvertedUseMemoryThatNobodyElseUses) {
  constexpr std::size_t kBytes = 2000;
  const DeviceArray<float> array(kBytes / 2);
  const auto block = pinned(DeviceCopies::kScratches * kBytes);
  DeviceMemory memory(fake_gpu().table, 64 * kMiB, arena_);
  DeviceCopies copies(fake_gpu().table, 0, kPatienceMs, ends_);
  ASSERT_TRUE(copies.converts(memory).value());
  const auto event = copies.make_event().value();
  ASSERT_TRUE(copies.record(*event, nullptr).ok());
  const auto begin = [&](DeviceCopies::Flow& flow, std::size_t at) {
    while (!flow.began()) ASSERT_TRUE(flow.look().ok());
    ASSERT_TRUE(flow.has_room());
    ASSERT_TRUE(flow.to_host(block.data() + at, array.data(), kBytes).ok());
  };
  for (std::size_t i = 0; i < 2 * DeviceCopies::kScratches; i++) {
    DeviceCopies::Flow flow(copies, *event, WARREN_BF16);
    begin(flow, 0);
    while (flow.under_way() != 0) ASSERT_TRUE(flow.look().ok());
  }
  // Each to bytes of its own: they are still under way when the next one begins.
  for (std::size_t i = 0; i < DeviceCopies::kScratches; i++) {
    DeviceCopies::Flow flow(copies, *event, WARREN_BF16);
    begin(flow, i * kBytes);
  }
  DeviceCopies::Flow late(copies, *event, WARREN_BF16);
  while (!late.began()) ASSERT_TRUE(late.look().ok());
  EXPECT_FALSE(late.has_room());
  fake_gpu().controls.release();  // returns when nothing runs any more
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
  Staging staging_{fake_gpu().table, 64 * kMiB, 16 * kMiB, 0, kPatienceMs};
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
  call.spec.prepare = &input_made_by<[](void* context) {
    Program& self = *static_cast<Program*>(context);
    fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
    ASSERT_EQ(fake_gpu().table.to_device(0, self.array.data(), self.pinned, 2 * sizeof(int), nullptr),
              WARREN_DEVICE_OK);
    self.later = std::thread([looked = fake_gpu().controls.calls("query")] {
      while (fake_gpu().controls.calls("query") < looked + 2) std::this_thread::yield();
      fake_gpu().controls.release();
    });
  }>;
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
    Staging fresh(fake_gpu().table, kMiB, 0, 0, kPatienceMs);
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

// ---- streams

// A large allreduce, in place or not, over the arrays of the fake device.
class Streams : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::size_t kBytes = 21 * kMiB + 77;
  static constexpr GroupShape kShape{1, 4};
  ~Streams() override {
    fake_gpu().controls.release();
    staging_.reset();
  }
  void stage(Call& call, std::int64_t stall_ms = kPatienceMs) {
    staging_ = std::make_unique<Staging>(fake_gpu().table, 128 * kMiB, 0, 0, stall_ms);
    call.spec = spec_of(Collective::kAllreduce, in_.data(), GetParam() ? in_.data() : out_.data(), kBytes);
    call.spec.type = DataType::kU8;
    call.spec.stream = stream_;
    call.spec.prepare = prepare_;
    call.spec.prepare_context = this;
    ASSERT_TRUE(staging_->stage(call, kShape).ok());
    ASSERT_NE(call.buffers->stream(), nullptr);
    BufferStream& stream = *call.buffers->stream();
    EXPECT_FALSE(stream.all_arrived() || stream.moves());
    // The second half first.
    std::vector<ByteRange> order;
    for (const Interval half : {Interval{kBytes / 2, kBytes}, Interval{0, kBytes / 2}}) {
      for (std::uint64_t at = half.begin; at < half.end; at += stream.most_bytes(2)) {
        order.push_back({at, std::min<std::uint64_t>(stream.most_bytes(2), half.end - at)});
      }
    }
    pieces_ = order;
    stream.order(std::move(order));
  }
  static void begin(Call& call) { call.spec.prepare(call.spec.prepare_context); }
  // Until nothing moves, or something fails.
  static Status move(Call& call) { return move_all(*call.buffers->stream()); }
  static std::uint8_t* output(Call& call) { return static_cast<std::uint8_t*>(call.spec.output); }
  [[nodiscard]] std::vector<std::uint8_t> result() const { return (GetParam() ? in_ : out_).read(); }

  // A prepare function reads these.
 public:
  void* stream_ = nullptr;
  PrepareInput prepare_ = nullptr;
  std::vector<ByteRange> pieces_;
  const std::vector<std::uint8_t> values_ = numbered(kBytes, 1);
  const DeviceArray<std::uint8_t> in_{values_}, out_{numbered(kBytes, 50)};
  std::unique_ptr<Staging> staging_;
};

TEST_P(Streams, InputsComeInTheirOrderAndFinalsGoBackAsTheyLand) {
  Call call;
  stage(call);
  const auto before = result();
  begin(call);
  ASSERT_TRUE(call.buffers->filled().ok());
  BufferStream& stream = *call.buffers->stream();
  for (std::size_t seen = 0; !stream.all_arrived();) {
    ASSERT_TRUE(stream.move().ok());
    for (const std::size_t arrived = stream.arrived(); seen < arrived; seen++) {
      const ByteRange& p = pieces_[seen];
      EXPECT_TRUE(std::equal(values_.begin() + static_cast<std::ptrdiff_t>(p.at),
                             values_.begin() + static_cast<std::ptrdiff_t>(p.at + p.bytes),
                             static_cast<const std::uint8_t*>(call.spec.input) + p.at));
    }
  }
  EXPECT_FALSE(stream.moves());
  const auto sum = numbered(kBytes, 99);
  std::copy(sum.begin(), sum.begin() + 1000, output(call));
  std::copy(sum.begin() + 3 * kMiB, sum.end(), output(call) + 3 * kMiB);
  stream.landed({0, 1000});
  EXPECT_FALSE(stream.moves()) << "it is no piece yet";
  stream.landed({3 * kMiB, kBytes - 3 * kMiB});
  EXPECT_TRUE(stream.moves());
  ASSERT_TRUE(move(call).ok());
  auto expected = before;
  std::copy(sum.begin() + 3 * kMiB, sum.end(), expected.begin() + static_cast<std::ptrdiff_t>(3 * kMiB));
  EXPECT_EQ(result(), expected) << "and nothing else";
  // What was told before is not brought back again.
  const std::uint64_t copies = fake_gpu().controls.calls("to_device");
  stream.landed({500, 500});
  EXPECT_FALSE(stream.moves());
  std::copy(sum.begin(), sum.end(), output(call));
  stream.conclude();
  ASSERT_TRUE(move(call).ok());
  EXPECT_EQ(fake_gpu().controls.calls("to_device"), copies + 1);
  EXPECT_EQ(result(), sum);
}

TEST_P(Streams, ARoundOfTheLogNeedsNoInput) {
  Call call;
  stage(call);
  const std::uint64_t read = fake_gpu().controls.calls("to_host");
  const auto sum = numbered(kBytes, 99);
  std::copy(sum.begin(), sum.end(), output(call));
  call.buffers->stream()->conclude();
  ASSERT_TRUE(move(call).ok());
  EXPECT_EQ(result(), sum);
  EXPECT_EQ(fake_gpu().controls.calls("to_host"), read);
}

TEST_P(Streams, NothingMovesBeforeTheProgramsWork) {
  ASSERT_EQ(fake_gpu().table.make_stream(0, &stream_), WARREN_DEVICE_OK);
  // It is put on the stream by the prepare function.
  prepare_ = &input_made_by<[](void* context) {
    const auto& self = *static_cast<Streams*>(context);
    void* pinned = nullptr;
    ASSERT_EQ(fake_gpu().table.allocate_pinned(4096, &pinned), WARREN_DEVICE_OK);
    static_cast<std::uint8_t*>(pinned)[0] = 123;
    fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
    ASSERT_EQ(fake_gpu().table.to_device(0, self.in_.data(), pinned, 1, self.stream_), WARREN_DEVICE_OK);
  }>;
  Call call;
  // For longer than a copy may take.
  constexpr std::int64_t kStallMs = 400;
  stage(call, kStallMs);
  begin(call);
  BufferStream& stream = *call.buffers->stream();
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kStallMs + 100);
  while (std::chrono::steady_clock::now() < until) {
    const auto moved = stream.move();
    ASSERT_TRUE(moved.ok()) << moved.status().describe();
    EXPECT_FALSE(moved.value());
  }
  EXPECT_EQ(stream.arrived(), 0u);
  fake_gpu().controls.release();
  ASSERT_EQ(fake_gpu().table.end_stream(0, stream_), WARREN_DEVICE_OK);
  ASSERT_TRUE(move(call).ok());
  EXPECT_EQ(static_cast<const std::uint8_t*>(call.spec.input)[0], 123);
}

TEST_P(Streams, FailWithTheReasonOfAnyCallAndKeepTheMemory) {
  for (const char* where :
       {"make_stream", "wait_for", "to_host", "record", "query", "stream.to_host", "to_device", "stream.to_device"}) {
    SCOPED_TRACE(where);
    Call call;
    stage(call);
    fake_gpu().controls.arm(where, 0, FakeFault::kError);
    begin(call);
    Status status = call.buffers->filled();
    if (status.ok()) status = move(call);
    if (status.ok()) {
      call.buffers->stream()->conclude();
      status = move(call);
    }
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
    EXPECT_THAT(status.describe(), HasSubstr("GPU 0"));
    EXPECT_THAT(status.describe(), HasSubstr(std::string(where).ends_with("device") ? "the result does not come back"
                                                                                    : "the input does not come"));
    EXPECT_FALSE(call.buffers->stream()->moves());
    fake_gpu().controls.release();
    const std::uint64_t pinned = staging_->pinned_bytes();
    call.buffers.reset();
    Call next;
    next.spec = spec_of(Collective::kAllreduce, in_.data(), in_.data(), kBytes / sizeof(int));
    ASSERT_TRUE(staging_->stage(next, kShape).ok());
    EXPECT_GT(staging_->pinned_bytes(), pinned) << "the GPU may still write to what was pinned";
  }
}

TEST_P(Streams, ThatHangAreGivenUp) {
  for (const char* where : {"stream.to_host", "stream.to_device"}) {
    SCOPED_TRACE(where);
    Call call;
    const bool comes = std::string(where) == "stream.to_device";
    const std::int64_t stall_ms = comes ? kAfterWorkMs : kShortMs;
    stage(call, stall_ms);
    fake_gpu().controls.arm(where, 1, FakeFault::kHang);
    begin(call);
    Status status = move(call);
    EXPECT_EQ(status.ok(), comes);
    if (status.ok()) {
      for (std::uint64_t at = 0; at < 5; at++) {
        call.buffers->stream()->landed({2 * at * kMiB, kMiB});
        // The two are not one copy.
        if (at == 0) {
          EXPECT_TRUE(move(call).ok());
        }
      }
      status = move(call);
    }
    EXPECT_EQ(status.code(), Code::kTimeout);
    EXPECT_THAT(status.describe(), HasSubstr("round timeout of " + std::to_string(stall_ms) + " ms"));
    fake_gpu().controls.release();
  }
}

// What is under way on the GPU ends before the program has its memory back; what waits for the program does not.
TEST_P(Streams, EndWithTheSession) {
  Call call;
  stage(call);
  fake_gpu().controls.arm("stream.to_host", 2, FakeFault::kHang);
  begin(call);
  BufferStream& stream = *call.buffers->stream();
  while (stream.arrived() < 2) ASSERT_TRUE(stream.move().ok());
  staging_->end();
  for (int n = 0; n < 100; n++) ASSERT_TRUE(stream.move().ok());
  EXPECT_TRUE(stream.moves());
  fake_gpu().controls.release();
  ASSERT_TRUE(move(call).ok());
  EXPECT_FALSE(stream.all_arrived()) << "no more was begun";

  call.buffers.reset();
  staging_.reset();  // not later: to free memory waits for the GPU
  ASSERT_EQ(fake_gpu().table.make_stream(0, &stream_), WARREN_DEVICE_OK);
  Call waits;
  void* from = nullptr;
  ASSERT_EQ(fake_gpu().table.allocate_pinned(4096, &from), WARREN_DEVICE_OK);
  fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
  ASSERT_EQ(fake_gpu().table.to_device(0, out_.data(), from, 1, stream_), WARREN_DEVICE_OK);
  stage(waits);
  begin(waits);
  staging_->end();
  EXPECT_EQ(move(waits).code(), Code::kClosed);
  fake_gpu().controls.release();
  ASSERT_EQ(fake_gpu().table.end_stream(0, stream_), WARREN_DEVICE_OK);
}

INSTANTIATE_TEST_SUITE_P(InPlace, Streams, testing::Bool());

// The prepare function of a rank that only receives runs, too, and its work on the stream may come last.
TEST_P(Streams, WhatTheProgramPreparesIsNotWrittenOverTheResult) {
  ASSERT_EQ(fake_gpu().table.make_stream(0, &stream_), WARREN_DEVICE_OK);
  void* pinned = nullptr;
  ASSERT_EQ(fake_gpu().table.allocate_pinned(4096, &pinned), WARREN_DEVICE_OK);
  static_cast<std::uint8_t*>(pinned)[0] = 123;
  struct Program {
    void *to, *from, *stream;
  } program{out_.data(), pinned, stream_};
  staging_ = std::make_unique<Staging>(fake_gpu().table, 128 * kMiB, 0, 0, kPatienceMs);
  Call call;
  const std::size_t bytes = GetParam() ? kBytes : 8;
  call.spec = spec_of(Collective::kBroadcast, nullptr, out_.data(), bytes, 0);
  call.spec.type = DataType::kU8;
  call.spec.stream = stream_;
  call.spec.prepare_context = &program;
  call.spec.prepare = &input_made_by<[](void* context) {
    const Program& p = *static_cast<Program*>(context);
    fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
    ASSERT_EQ(fake_gpu().table.to_device(0, p.to, p.from, 1, p.stream), WARREN_DEVICE_OK);
  }>;
  ASSERT_TRUE(staging_->stage(call, kShape).ok());
  EXPECT_EQ(call.buffers->stream() != nullptr, GetParam());
  begin(call);
  ASSERT_TRUE(call.buffers->filled().ok());
  const auto sum = numbered(bytes, 99);
  std::ranges::copy(sum, output(call));
  // When somebody has looked for it, or for the result, which does not wait then.
  std::thread release([looked = fake_gpu().controls.calls("query")] {
    while (fake_gpu().controls.calls("query") < looked + 2) std::this_thread::yield();
    fake_gpu().controls.release();
  });
  if (GetParam()) {
    EXPECT_TRUE(call.buffers->stream()->all_arrived());
    call.buffers->stream()->conclude();
    EXPECT_TRUE(move(call).ok());
  } else {
    EXPECT_TRUE(call.buffers->deliver().ok());
  }
  release.join();
  ASSERT_EQ(fake_gpu().table.end_stream(0, stream_), WARREN_DEVICE_OK);
  EXPECT_EQ(out_.read()[0], sum[0]);
}

// The root of a broadcast has the result; where the log has given it, it has not.
TEST_P(Streams, ARootsBufferIsReadAndWrittenWhereItHasToBe) {
  staging_ = std::make_unique<Staging>(fake_gpu().table, 128 * kMiB, 0, 0, kPatienceMs);
  Call call;
  call.spec = spec_of(Collective::kBroadcast, nullptr, in_.data(), kBytes, kShape.rank);
  call.spec.type = DataType::kU8;
  ASSERT_TRUE(staging_->stage(call, kShape).ok());
  BufferStream& stream = *call.buffers->stream();
  EXPECT_FALSE(stream.all_arrived());
  std::vector<ByteRange> order;
  for (std::uint64_t at = 0; at < kBytes; at += kMiB) order.push_back({at, std::min(kMiB, kBytes - at)});
  stream.order(std::move(order));
  const std::uint64_t written = fake_gpu().controls.calls("to_device");
  begin(call);
  ASSERT_TRUE(move(call).ok());
  EXPECT_TRUE(stream.all_arrived());
  EXPECT_TRUE(std::equal(values_.begin(), values_.end(), output(call)));
  if (GetParam()) stream.result_is_there();
  output(call)[5] ^= 1;
  stream.conclude();
  EXPECT_EQ(stream.moves(), !GetParam());
  ASSERT_TRUE(move(call).ok());
  EXPECT_EQ(fake_gpu().controls.calls("to_device") == written, GetParam());
  EXPECT_EQ(in_.read()[5] == values_[5], GetParam());
}

TEST_F(Stages, StreamsWhatIsLarge) {
  const DeviceArray<int> large(2 * kDeviceChunkBytes / sizeof(int) + 2);
  const std::uint64_t count = kDeviceChunkBytes / sizeof(int);
  const auto streams = [&](Collective collective, std::uint64_t n, const auto& change) {
    Call call;
    call.spec = spec_of(collective, large.data(), large.data(), n, 0);
    change(call.spec);
    EXPECT_TRUE(staging_.stage(call, {0, 1}).ok());
    return call.buffers->stream() != nullptr;
  };
  const auto as_it_is = [](CallSpec&) {};
  EXPECT_TRUE(streams(Collective::kAllreduce, count + 1, as_it_is));
  EXPECT_FALSE(streams(Collective::kAllreduce, count, as_it_is)) << "one copy";
  for (const Collective collective : {Collective::kReduce, Collective::kBroadcast, Collective::kAllgather,
                                      Collective::kReduceScatter, Collective::kGather, Collective::kScatter}) {
    const auto at_root = [](CallSpec& spec) { spec.root = 0; };
    EXPECT_TRUE(streams(collective, count + 1, at_root)) << to_string(collective);
    EXPECT_FALSE(streams(collective, count, at_root)) << to_string(collective);
  }
  Call share;
  share.spec = spec_of(Collective::kReduceScatter, large.data(), large.data() + count, count);
  ASSERT_TRUE(staging_.stage(share, {1, 2}).ok());
  EXPECT_NE(share.buffers->stream(), nullptr) << "its input is large";
  Call blocks;
  blocks.spec = spec_of(Collective::kAllgather, large.data(), large.data(), count / 32);
  ASSERT_TRUE(staging_.stage(blocks, {0, 64}).ok());
  EXPECT_NE(blocks.buffers->stream(), nullptr);
  Call small_blocks;
  small_blocks.spec = spec_of(Collective::kAllgather, large.data(), large.data(), count / 33);
  ASSERT_TRUE(staging_.stage(small_blocks, {0, 64}).ok());
  EXPECT_EQ(small_blocks.buffers->stream(), nullptr) << "many small copies";
  Call message;
  message.spec = spec_of(Collective::kPoint, large.data(), nullptr, count + 1, 1);
  message.spec.sends = true;
  message.spec.tag = 0;
  ASSERT_TRUE(staging_.stage(message, {0, 2}).ok());
  EXPECT_EQ(message.buffers->stream(), nullptr) << "it is read at once";
  const auto as_bf16 = [](CallSpec& spec) {
    spec.type = DataType::kF32;
    spec.wire = DataType::kBF16;
  };
  EXPECT_TRUE(streams(Collective::kAllreduce, 2 * count + 2, as_bf16));
  EXPECT_FALSE(streams(Collective::kAllreduce, 2 * count, as_bf16)) << "one copy of half the bytes";
  // What lies on the CPU is there.
  std::vector<int> on_cpu(count + 1);
  Call out, in;
  out.spec = spec_of(Collective::kAllreduce, on_cpu.data(), large.data(), count + 1);
  ASSERT_TRUE(staging_.stage(out, kShape).ok());
  EXPECT_TRUE(out.buffers->stream()->all_arrived());
  EXPECT_EQ(out.spec.prepare, nullptr);
  in.spec = spec_of(Collective::kAllreduce, large.data(), on_cpu.data(), count + 1);
  ASSERT_TRUE(staging_.stage(in, kShape).ok());
  in.buffers->stream()->conclude();
  EXPECT_FALSE(in.buffers->delivers() || in.buffers->stream()->moves());
  Call narrow;
  narrow.spec = spec_of(Collective::kAllreduce, on_cpu.data(), large.data(), count + 1);
  as_bf16(narrow.spec);
  ASSERT_TRUE(staging_.stage(narrow, kShape).ok());
  EXPECT_EQ(narrow.buffers->stream(), nullptr) << "all of it is narrowed first, on the CPU";
  EXPECT_EQ(narrow.spec.wire, DataType::kBF16);
}

// ---- wire types

std::vector<float> floats(std::size_t count, int seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; i++) {
    values[i] = static_cast<float>(seed + 1) / static_cast<float>(i % 10'007 + 3) * (i % 3 == 0 ? -1.0f : 1.0f);
  }
  if (count > 8) {
    std::size_t at = count / 2;
    for (const float special : {1e30f, -1e-41f, -0.0f, -std::numeric_limits<float>::infinity()}) values[at++] = special;
  }
  return values;
}

// By the core's own kernels, which narrow what lies on the CPU.
std::vector<std::uint16_t> narrow_by_cpu(DataType wire, const std::vector<float>& values) {
  std::vector<std::uint16_t> out(values.size());
  const auto reducer = Reducer::make(wire, ReduceOp::kSum, 1);
  reducer.value().copy(out.data(), Form::kValue, values.data(), Form::kPartial, values.size(), false);
  return out;
}
std::vector<float> widen_by_cpu(DataType wire, const std::vector<std::uint16_t>& values) {
  std::vector<float> out(values.size());
  const auto reducer = Reducer::make(wire, ReduceOp::kSum, 1);
  reducer.value().copy(out.data(), Form::kPartial, values.data(), Form::kValue, values.size(), false);
  return out;
}

CallSpec wire_spec(Collective collective, DataType wire, const float* input, float* output, std::uint64_t count) {
  CallSpec spec = spec_of(collective, input, output, count);
  spec.type = DataType::kF32;
  spec.wire = wire;
  if (collective == Collective::kAllgather) spec.op = ReduceOp::kNone;
  return spec;
}

const std::uint16_t* halves(const void* buffer) {
  return static_cast<const std::uint16_t*>(buffer);
}

class Narrows : public Stages {
 protected:
  // Begins a call that does not move in pieces, and returns its input as the engine sees it.
  static std::vector<std::uint16_t> filled(Call& call, std::size_t count) {
    call.spec.prepare(call.spec.prepare_context);
    EXPECT_TRUE(call.buffers->filled().ok()) << call.buffers->filled().describe();
    return {halves(call.spec.input), halves(call.spec.input) + count};
  }
  static void give(Call& call, const std::vector<std::uint16_t>& result) {
    std::copy(result.begin(), result.end(), static_cast<std::uint16_t*>(call.spec.output));
    ASSERT_TRUE(call.buffers->delivers());
    const Status delivered = call.buffers->deliver();
    EXPECT_TRUE(delivered.ok()) << delivered.describe();
  }
};

TEST_F(Narrows, OnTheGpuToTheBitsOfTheCpu) {
  // Up to a chunk of the copy and more, which goes in one piece or several.
  for (const std::size_t count : {std::size_t{1}, std::size_t{17}, std::size_t{100'001}, std::size_t{1'500'003}}) {
    for (const DataType wire : {DataType::kF16, DataType::kBF16}) {
      SCOPED_TRACE(std::to_string(count) + to_string(wire));
      const auto values = floats(count, 1), others = floats(count, 2);
      const DeviceArray<float> in(values), out(count);
      Staging fresh(fake_gpu().table, 64 * kMiB, 0, 0, kPatienceMs);
      const std::uint64_t copied = fake_gpu().controls.calls("to_host"), kernels = fake_gpu().controls.calls("convert");
      Call call;
      call.spec = wire_spec(Collective::kAllreduce, wire, in.data(), out.data(), count);
      ASSERT_TRUE(fresh.stage(call, kShape).ok());
      EXPECT_EQ(call.spec.type, wire == DataType::kF16 ? DataType::kF32AsF16 : DataType::kF32AsBF16);
      EXPECT_EQ(call.spec.wire, DataType{}) << "nobody narrows it once more";
      EXPECT_EQ(call.spec.input, call.spec.output) << "in place";
      // Half of what an f32 takes, rounded up as blocks are.
      EXPECT_LE(fresh.pinned_bytes(), (64 << 10) + count * 5 / 2);
      EXPECT_EQ(filled(call, count), narrow_by_cpu(wire, values));
      const auto result = narrow_by_cpu(wire, others);
      give(call, result);
      const auto got = out.read(), want = widen_by_cpu(wire, result);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), count * sizeof(float)), 0);
      EXPECT_EQ(in.read(), values);
      const std::uint64_t chunks = (count * 2 + kDeviceChunkBytes / 2 - 1) / (kDeviceChunkBytes / 2);
      EXPECT_EQ(fake_gpu().controls.calls("to_host") - copied, chunks);
      EXPECT_EQ(fake_gpu().controls.calls("convert") - kernels, 2 * chunks);
    }
  }
}

TEST_F(Narrows, SharesStandWhereTheCollectiveHasThem) {
  const auto values = floats(8, 1);
  const DeviceArray<float> whole(values), share(std::vector<float>{5, 6});
  for (const bool in_place : {false, true}) {
    Call gather;
    gather.spec =
        wire_spec(Collective::kAllgather, DataType::kBF16, in_place ? whole.data() + 2 : share.data(), whole.data(), 2);
    ASSERT_TRUE(validate(gather.spec, kShape).ok());
    ASSERT_TRUE(staging_.stage(gather, kShape).ok());
    EXPECT_EQ(halves(gather.spec.input), halves(gather.spec.output) + 2);
    EXPECT_EQ(filled(gather, 2),
              narrow_by_cpu(DataType::kBF16, in_place ? std::vector<float>{values[2], values[3]} : share.read()));
    Call scatter;
    scatter.spec = wire_spec(Collective::kReduceScatter, DataType::kF16, whole.data(),
                             in_place ? whole.data() + 2 : share.data(), 2);
    ASSERT_TRUE(staging_.stage(scatter, kShape).ok());
    EXPECT_EQ(halves(scatter.spec.output), halves(scatter.spec.input) + 2);
    EXPECT_EQ(filled(scatter, 8), narrow_by_cpu(DataType::kF16, whole.read()));
    give(scatter, {0x3c00, 0x4000});
    EXPECT_EQ((in_place ? whole : share).read()[in_place ? 2 : 0], 1.0f);
    EXPECT_EQ((in_place ? whole : share).read()[in_place ? 3 : 1], 2.0f);
    whole.write(values);
  }
}

// Blocks as the CPU makes them.
std::vector<std::byte> blocks_by_cpu(std::vector<float> values) {
  const std::size_t blocks = (values.size() + kI8BlockValues - 1) / kI8BlockValues;
  values.resize(blocks * kI8BlockValues, 0.0f);
  std::vector<std::byte> out(blocks * kI8BlockBytes);
  const auto reducer = Reducer::make(DataType::kF32AsI8, ReduceOp::kSum, 1);
  reducer.value().copy(out.data(), Form::kValue, values.data(), Form::kPartial, blocks, false);
  return out;
}
std::vector<float> values_by_cpu(const std::vector<std::byte>& blocks, std::size_t count) {
  std::vector<float> out(blocks.size() / kI8BlockBytes * kI8BlockValues);
  const auto reducer = Reducer::make(DataType::kF32AsI8, ReduceOp::kSum, 1);
  reducer.value().copy(out.data(), Form::kPartial, blocks.data(), Form::kValue, blocks.size() / kI8BlockBytes, false);
  out.resize(count);
  return out;
}

TEST_F(Narrows, ToBlocksOnTheGpuToTheBitsOfTheCpu) {
  // Up to a chunk of the GPU's memory and more; with blocks that are filled up, and without.
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{256}, std::size_t{257}, std::size_t{100'001}, std::size_t{2'500'003}}) {
    SCOPED_TRACE(count);
    const auto values = floats(count, 1), others = floats(count, 2);
    const DeviceArray<float> in(values), out(count);
    Staging fresh(fake_gpu().table, 64 * kMiB, 0, 0, kPatienceMs);
    const std::uint64_t copied = fake_gpu().controls.calls("to_host"), kernels = fake_gpu().controls.calls("convert");
    Call call;
    call.spec = wire_spec(Collective::kAllreduce, DataType::kI8, in.data(), out.data(), count);
    ASSERT_TRUE(fresh.stage(call, kShape).ok());
    const auto want = blocks_by_cpu(values), result = blocks_by_cpu(others);
    EXPECT_EQ(call.spec.type, DataType::kF32AsI8);
    EXPECT_EQ(call.spec.wire, DataType{}) << "nobody narrows it once more";
    EXPECT_EQ(call.spec.count, want.size() / kI8BlockBytes);
    EXPECT_EQ(call.spec.values, count);
    EXPECT_EQ(call.spec.input, call.spec.output) << "in place";
    EXPECT_LE(fresh.pinned_bytes(), (64 << 10) + want.size() * 5 / 4);
    call.spec.prepare(call.spec.prepare_context);
    ASSERT_TRUE(call.buffers->filled().ok()) << call.buffers->filled().describe();
    EXPECT_EQ(std::memcmp(call.spec.input, want.data(), want.size()), 0);
    std::memcpy(call.spec.output, result.data(), result.size());
    const Status delivered = call.buffers->deliver();
    ASSERT_TRUE(delivered.ok()) << delivered.describe();
    const auto got = out.read(), wide = values_by_cpu(result, count);
    EXPECT_EQ(std::memcmp(got.data(), wide.data(), count * sizeof(float)), 0);
    EXPECT_EQ(in.read(), values);
    const std::uint64_t chunks = (count * sizeof(float) + kDeviceChunkBytes - 1) / kDeviceChunkBytes;
    EXPECT_EQ(fake_gpu().controls.calls("to_host") - copied, chunks);
    EXPECT_EQ(fake_gpu().controls.calls("convert") - kernels, 2 * chunks);
  }
}

// Blocks follow each other on the GPU where shares are of whole ones; others are narrowed share by share, on the CPU.
TEST_F(Narrows, SharesOfWholeBlocksOnTheGpu) {
  for (const std::size_t count : {std::size_t{512}, std::size_t{300}}) {
    SCOPED_TRACE(count);
    const auto values = floats(4 * count, 1), mine = floats(count, 2);
    const DeviceArray<float> whole(values), share(mine);
    Call gather, scatter;
    gather.spec = wire_spec(Collective::kAllgather, DataType::kI8, share.data(), whole.data(), count);
    scatter.spec = wire_spec(Collective::kReduceScatter, DataType::kI8, whole.data(), share.data(), count);
    ASSERT_TRUE(staging_.stage(gather, kShape).ok());
    ASSERT_TRUE(staging_.stage(scatter, kShape).ok());
    if (count % kI8BlockValues != 0) {
      for (const Call* call : {&gather, &scatter}) {
        EXPECT_EQ(call->spec.wire, DataType::kI8);
        EXPECT_EQ(call->spec.type, DataType::kF32);
        EXPECT_EQ(call->spec.count, count);
      }
      continue;
    }
    const std::size_t share_bytes = count / kI8BlockValues * kI8BlockBytes;
    EXPECT_EQ(gather.spec.input, static_cast<std::byte*>(gather.spec.output) + share_bytes) << "of rank 1";
    EXPECT_EQ(scatter.spec.output, static_cast<const std::byte*>(scatter.spec.input) + share_bytes);
    gather.spec.prepare(gather.spec.prepare_context);
    scatter.spec.prepare(scatter.spec.prepare_context);
    EXPECT_EQ(std::memcmp(gather.spec.input, blocks_by_cpu(mine).data(), share_bytes), 0);
    const auto blocks = blocks_by_cpu(values);
    EXPECT_EQ(std::memcmp(scatter.spec.input, blocks.data(), blocks.size()), 0);
    ASSERT_TRUE(scatter.buffers->deliver().ok());
    const auto got = share.read(), wide = values_by_cpu(blocks, values.size());
    EXPECT_EQ(std::memcmp(got.data(), wide.data() + count, count * sizeof(float)), 0);
  }
}

// As it was: copied as f32, and narrowed by who comes next.
TEST_F(Narrows, OnTheCpuWhereTheGpuHasNoMemory) {
  const DeviceArray<float> array(floats(100, 1));
  const auto stays_wide = [&](Staging& staging) {
    Call call;
    call.spec = wire_spec(Collective::kAllreduce, DataType::kBF16, array.data(), array.data(), 100);
    const Status staged = staging.stage(call, kShape);
    EXPECT_TRUE(staged.ok()) << staged.describe();
    const bool wide = call.spec.wire == DataType::kBF16;
    EXPECT_EQ(call.spec.type, wide ? DataType::kF32 : DataType::kF32AsBF16);
    call.spec.prepare(call.spec.prepare_context);
    if (wide) {
      EXPECT_EQ(std::memcmp(call.spec.input, array.read().data(), 400), 0);
    }
    return wide;
  };
  const std::uint64_t asked = fake_gpu().controls.calls("allocate");
  fake_gpu().controls.arm("allocate", 0, FakeFault::kNoMemory);
  EXPECT_TRUE(stays_wide(staging_));
  EXPECT_TRUE(stays_wide(staging_));
  EXPECT_EQ(fake_gpu().controls.calls("allocate"), asked + 1) << "it is not asked again and again";
  EXPECT_EQ(staging_.scratch_bytes(), 0u);
  const std::uint64_t released = fake_gpu().controls.calls("release");
  {
    Staging fresh(fake_gpu().table, 64 * kMiB, 0, 0, kPatienceMs);
    EXPECT_FALSE(stays_wide(fresh));
    EXPECT_FALSE(stays_wide(fresh));
    EXPECT_EQ(fake_gpu().controls.calls("allocate"), asked + 2) << "kept";
    EXPECT_EQ(fresh.scratch_bytes(), DeviceCopies::kScratchBytes);
  }
  EXPECT_EQ(fake_gpu().controls.calls("release"), released + 1);
}

TEST_F(Narrows, FailWithTheReasonOfAnyCallAndKeepTheMemory) {
  const DeviceArray<float> array(floats(2'000'000, 1));
  for (const char* where :
       {"locate", "allocate", "allocate_pinned", "make_event", "record", "make_stream", "wait_for", "query", "convert",
        "stream.convert", "to_host", "stream.to_host", "to_device", "stream.to_device"}) {
    for (const int after : {0, 2}) {
      // The third of these widens, or is behind the last one.
      if (after != 0 && !std::string(where).ends_with("convert")) continue;
      SCOPED_TRACE(std::string(where) + " " + std::to_string(after));
      auto fresh = std::make_unique<Staging>(fake_gpu().table, 64 * kMiB, 0, 0, kPatienceMs);
      const std::uint64_t freed = fake_gpu().controls.calls("release") + fake_gpu().controls.calls("free_pinned");
      fake_gpu().controls.arm(where, after, FakeFault::kError);
      {
        Call call;
        call.spec = wire_spec(Collective::kAllreduce, DataType::kBF16, array.data(), array.data(), 2'000'000);
        Status status = fresh->stage(call, kShape);
        const bool staged = status.ok();
        if (staged) {
          call.spec.prepare(call.spec.prepare_context);
          status = call.buffers->filled();
          if (status.ok()) status = call.buffers->deliver();
        } else {
          EXPECT_EQ(call.spec.input, array.data()) << "nothing was changed";
          EXPECT_EQ(call.spec.wire, DataType::kBF16);
        }
        EXPECT_EQ(status.code(), Code::kUnavailable);
        EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
        fake_gpu().controls.release();
        call.buffers.reset();
        fresh.reset();
        // What a GPU that has failed may still use is not freed.
        if (staged) {
          EXPECT_EQ(fake_gpu().controls.calls("release") + fake_gpu().controls.calls("free_pinned"), freed);
        }
      }
    }
  }
}

TEST_F(Narrows, GiveUpAGpuThatHangs) {
  const DeviceArray<float> array(floats(2'000'000, 1));
  for (const int after : {0, 2}) {
    Staging impatient(fake_gpu().table, 64 * kMiB, 0, 0, after == 0 ? kShortMs : kAfterWorkMs);
    Call call;
    call.spec = wire_spec(Collective::kAllreduce, DataType::kF16, array.data(), array.data(), 2'000'000);
    ASSERT_TRUE(impatient.stage(call, kShape).ok());
    fake_gpu().controls.arm("stream.convert", after, FakeFault::kHang);
    call.spec.prepare(call.spec.prepare_context);
    Status status = call.buffers->filled();
    EXPECT_EQ(status.ok(), after == 2);
    if (status.ok()) status = call.buffers->deliver();
    EXPECT_EQ(status.code(), Code::kTimeout);
    fake_gpu().controls.release();
  }
}

// A large allreduce whose f32 are converted on the GPU while its round runs.
class WireStreams : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::size_t kCount = 2'500'001;  // some pieces
  static constexpr GroupShape kShape{1, 4};
  ~WireStreams() override {
    fake_gpu().controls.release();
    staging_.reset();
  }
  void stage(Call& call, const DeviceArray<float>& in, const DeviceArray<float>& out, void* stream = nullptr,
             std::int64_t stall_ms = kPatienceMs) {
    if (!staging_) staging_ = std::make_unique<Staging>(fake_gpu().table, 512 * kMiB, 0, 0, stall_ms);
    call.spec = wire_spec(Collective::kAllreduce, DataType::kBF16, in.data(), (GetParam() ? in : out).data(), kCount);
    call.spec.stream = stream;
    ASSERT_TRUE(staging_->stage(call, kShape).ok());
    ASSERT_NE(call.buffers->stream(), nullptr);
    BufferStream& buffers = *call.buffers->stream();
    std::vector<ByteRange> order;
    // From the end to the beginning.
    for (std::uint64_t end = kCount * 2; end != 0;) {
      const std::uint64_t bytes = std::min<std::uint64_t>(buffers.most_bytes(2), end);
      end -= bytes;
      order.push_back({end, bytes});
    }
    pieces_ = order;
    buffers.order(std::move(order));
  }
  static void begin(Call& call) { call.spec.prepare(call.spec.prepare_context); }
  static Status move(Call& call) { return move_all(*call.buffers->stream()); }
  static void give(Call& call, const std::vector<std::uint16_t>& result) {
    std::copy(result.begin(), result.end(), static_cast<std::uint16_t*>(call.spec.output));
    call.buffers->stream()->conclude();
  }

  std::vector<ByteRange> pieces_;
  const std::vector<float> values_ = floats(kCount, 1);
  std::unique_ptr<Staging> staging_;
};

TEST_P(WireStreams, NarrowPiecesComeInTheirOrderAndFinalsAreWidened) {
  const DeviceArray<float> in(values_), out(floats(kCount, 5));
  const auto before = (GetParam() ? in : out).read();
  Call call;
  stage(call, in, out);
  begin(call);
  ASSERT_TRUE(call.buffers->filled().ok());
  BufferStream& stream = *call.buffers->stream();
  const auto want = narrow_by_cpu(DataType::kBF16, values_);
  for (std::size_t seen = 0; !stream.all_arrived();) {
    ASSERT_TRUE(stream.move().ok());
    for (const std::size_t arrived = stream.arrived(); seen < arrived; seen++) {
      const ByteRange& p = pieces_[seen];
      EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(call.spec.input) + p.at, want.data() + p.at / 2, p.bytes), 0);
    }
  }
  EXPECT_FALSE(stream.moves());
  const auto result = narrow_by_cpu(DataType::kBF16, floats(kCount, 9));
  const auto wide = widen_by_cpu(DataType::kBF16, result);
  std::copy(result.begin(), result.end(), static_cast<std::uint16_t*>(call.spec.output));
  stream.landed({2'000, 3 * kMiB});
  ASSERT_TRUE(move(call).ok());
  auto expected = before;
  std::copy(wide.begin() + 1'000, wide.begin() + 1'000 + 3 * kMiB / 2, expected.begin() + 1'000);
  auto got = (GetParam() ? in : out).read();
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), kCount * sizeof(float)), 0) << "and nothing else";
  stream.conclude();
  ASSERT_TRUE(move(call).ok());
  got = (GetParam() ? in : out).read();
  EXPECT_EQ(std::memcmp(got.data(), wide.data(), kCount * sizeof(float)), 0);
}

TEST_P(WireStreams, PiecesAreWholeBlocks) {
  constexpr std::size_t kValues = 6'000'001;  // the last block has one of them
  const auto values = floats(kValues, 1), others = floats(kValues, 5), before = floats(kValues, 3);
  const DeviceArray<float> in(values), out(before);
  Staging staging(fake_gpu().table, 512 * kMiB, 0, 0, kPatienceMs);
  Call call;
  call.spec = wire_spec(Collective::kAllreduce, DataType::kI8, in.data(), (GetParam() ? in : out).data(), kValues);
  ASSERT_TRUE(staging.stage(call, kShape).ok());
  ASSERT_NE(call.buffers->stream(), nullptr);
  BufferStream& stream = *call.buffers->stream();
  const auto want = blocks_by_cpu(values), result = blocks_by_cpu(others);
  ASSERT_EQ(call.spec.count * kI8BlockBytes, want.size());
  const std::uint64_t most = stream.most_bytes(2) / kI8BlockBytes * kI8BlockBytes;
  std::vector<ByteRange> order;
  for (std::uint64_t end = want.size(); end != 0;) {
    const std::uint64_t bytes = std::min(most, end);
    end -= bytes;
    order.push_back({end, bytes});
  }
  EXPECT_GT(order.size(), 3u);
  stream.order(std::move(order));
  begin(call);
  while (!stream.all_arrived()) {
    ASSERT_TRUE(stream.move().ok());
    std::this_thread::yield();
  }
  EXPECT_EQ(std::memcmp(call.spec.input, want.data(), want.size()), 0);
  std::memcpy(call.spec.output, result.data(), result.size());
  // Three of the largest copies, then all others.
  constexpr std::size_t kFirst = 3, kBlocks = 3 * kDeviceChunkBytes / (256 * sizeof(float));
  stream.landed({kFirst * kI8BlockBytes, kBlocks * kI8BlockBytes});
  ASSERT_TRUE(move(call).ok());
  const auto wide = values_by_cpu(result, kValues);
  auto expected = GetParam() ? values : before;
  std::copy(wide.begin() + kFirst * 256, wide.begin() + (kFirst + kBlocks) * 256, expected.begin() + kFirst * 256);
  auto got = (GetParam() ? in : out).read();
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), kValues * sizeof(float)), 0) << "and nothing else";
  stream.conclude();
  ASSERT_TRUE(move(call).ok());
  got = (GetParam() ? in : out).read();
  EXPECT_EQ(std::memcmp(got.data(), wide.data(), kValues * sizeof(float)), 0);
}

// There is memory to convert for some flows at a time. Those that wait for the program's work have none of it.
TEST_P(WireStreams, ManyCallsShareTheMemoryInWhichTheyAreConverted) {
  const warren_device_table& table = fake_gpu().table;
  void *stuck = nullptr, *pinned = nullptr;
  ASSERT_EQ(table.make_stream(0, &stuck), WARREN_DEVICE_OK);
  ASSERT_EQ(table.allocate_pinned(4096, &pinned), WARREN_DEVICE_OK);
  const DeviceArray<float> in(values_), out(kCount);
  const DeviceArray<int> other(1);
  fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
  ASSERT_EQ(table.to_device(0, other.data(), pinned, 1, stuck), WARREN_DEVICE_OK);
  std::vector<std::unique_ptr<Call>> waiting, others;
  for (std::size_t i = 0; i < 2 * DeviceCopies::kScratches; i++) {
    waiting.push_back(std::make_unique<Call>());
    stage(*waiting.back(), in, out, stuck);
    begin(*waiting.back());
  }
  const std::uint64_t asked = fake_gpu().controls.calls("allocate");
  for (std::size_t i = 0; i < DeviceCopies::kScratches + 2; i++) {
    others.push_back(std::make_unique<Call>());
    stage(*others.back(), in, out);
    begin(*others.back());
  }
  // All of them at once, and nothing of those that wait.
  const auto all_come = [](const auto& calls) {
    return std::all_of(calls.begin(), calls.end(),
                       [](const auto& call) { return call->buffers->stream()->all_arrived(); });
  };
  const auto move_all = [](const auto& calls) {
    for (const auto& call : calls) ASSERT_TRUE(call->buffers->stream()->move().ok());
  };
  while (!all_come(others)) {
    move_all(waiting);
    move_all(others);
    std::this_thread::yield();
  }
  for (const auto& call : waiting) {
    EXPECT_EQ(call->buffers->stream()->arrived(), 0u);
    EXPECT_TRUE(call->buffers->stream()->moves());
  }
  const auto want = narrow_by_cpu(DataType::kBF16, values_);
  for (const auto& call : others) EXPECT_EQ(std::memcmp(call->spec.input, want.data(), kCount * 2), 0);
  fake_gpu().controls.release();
  ASSERT_EQ(table.end_stream(0, stuck), WARREN_DEVICE_OK);
  while (!all_come(waiting)) move_all(waiting);
  for (const auto& call : waiting) EXPECT_EQ(std::memcmp(call->spec.input, want.data(), kCount * 2), 0);
  EXPECT_EQ(fake_gpu().controls.calls("allocate"), asked);
  EXPECT_EQ(staging_->scratch_bytes(), DeviceCopies::kScratchBytes);
}

TEST_P(WireStreams, ARoundOfTheLogNeedsNoInput) {
  const DeviceArray<float> in(values_), out(kCount);
  Call call;
  stage(call, in, out);
  const std::uint64_t read = fake_gpu().controls.calls("to_host");
  const auto result = narrow_by_cpu(DataType::kBF16, floats(kCount, 9));
  give(call, result);
  ASSERT_TRUE(move(call).ok());
  const auto got = (GetParam() ? in : out).read(), wide = widen_by_cpu(DataType::kBF16, result);
  EXPECT_EQ(std::memcmp(got.data(), wide.data(), kCount * sizeof(float)), 0);
  EXPECT_EQ(fake_gpu().controls.calls("to_host"), read);
}

TEST_P(WireStreams, FailWithTheReasonOfAnyCallAndKeepTheMemory) {
  const DeviceArray<float> in(values_), out(kCount);
  for (const char* where : {"make_stream", "wait_for", "convert", "to_host", "record", "query", "stream.convert",
                            "stream.to_host", "to_device", "stream.to_device"}) {
    for (const bool widens : {false, true}) {
      if (widens && !std::string(where).ends_with("convert")) continue;
      staging_.reset();
      Call call;
      stage(call, in, out);
      // That of each piece narrows.
      const int after = widens ? static_cast<int>(pieces_.size()) : 0;
      SCOPED_TRACE(std::string(where) + " " + std::to_string(after));
      fake_gpu().controls.arm(where, after, FakeFault::kError);
      begin(call);
      Status status = call.buffers->filled();
      if (status.ok()) status = move(call);
      if (status.ok()) {
        call.buffers->stream()->conclude();
        status = move(call);
      }
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
      const bool goes_back = std::string(where).ends_with("device") || after != 0;
      EXPECT_THAT(status.describe(),
                  HasSubstr(goes_back ? "the result does not come back" : "the input does not come"));
      EXPECT_FALSE(call.buffers->stream()->moves());
      fake_gpu().controls.release();
      const std::uint64_t freed = fake_gpu().controls.calls("release") + fake_gpu().controls.calls("free_pinned");
      call.buffers.reset();
      staging_.reset();
      EXPECT_EQ(fake_gpu().controls.calls("release") + fake_gpu().controls.calls("free_pinned"), freed);
    }
  }
}

TEST_P(WireStreams, ThatHangAreGivenUp) {
  const DeviceArray<float> in(values_), out(kCount);
  for (const bool widens : {false, true}) {
    SCOPED_TRACE(widens);
    staging_.reset();
    Call call;
    stage(call, in, out, nullptr, widens ? kAfterWorkMs : kShortMs);
    const int after = widens ? static_cast<int>(pieces_.size()) : 1;
    fake_gpu().controls.arm("stream.convert", after, FakeFault::kHang);
    begin(call);
    Status status = move(call);
    EXPECT_EQ(status.ok(), widens);
    if (status.ok()) {
      call.buffers->stream()->conclude();
      status = move(call);
    }
    EXPECT_EQ(status.code(), Code::kTimeout);
    fake_gpu().controls.release();
  }
}

INSTANTIATE_TEST_SUITE_P(InPlace, WireStreams, testing::Bool());

// ---- snapshots

StatePiece piece_of(StateKind state, std::uint64_t at, std::span<const std::uint8_t> bytes) {
  return {state, at, std::as_bytes(bytes)};
}

class Snapshots : public Stages {
 protected:
  // What comes, put together by state; bytes that do not come stay zero.
  struct Came {
    std::vector<std::uint8_t> global, local;
    std::size_t pieces = 0;
    Status status;
  };
  static Came bring(Snapshot& snapshot, std::size_t global_bytes, std::size_t local_bytes) {
    Came came{std::vector<std::uint8_t>(global_bytes), std::vector<std::uint8_t>(local_bytes), 0, {}};
    while (!snapshot.done()) {
      const auto moved = snapshot.move();
      if (!moved.ok()) {
        came.status = moved.status();
        break;
      }
      if (const auto piece = snapshot.front()) {
        auto& to = piece->state == StateKind::kGlobal ? came.global : came.local;
        EXPECT_LE(piece->at + piece->bytes.size(), to.size());
        EXPECT_LE(piece->bytes.size(), kDeviceChunkBytes);
        std::memcpy(to.data() + piece->at, piece->bytes.data(), piece->bytes.size());
        snapshot.pop();
        came.pieces++;
      } else if (!moved.value()) {
        std::this_thread::yield();
      }
    }
    return came;
  }
  // Of one array, all of it.
  [[nodiscard]] Result<std::unique_ptr<Snapshot>> take(Staging& staging, std::span<const std::uint8_t> state,
                                                       void* stream = nullptr) {
    const StatePiece all[] = {piece_of(StateKind::kGlobal, 0, state)};
    return staging.snapshot(all, stream);
  }
};

TEST_F(Snapshots, AreOfTheTimeWhenTheyWereTaken) {
  // More pieces than there is pinned memory for at once.
  const auto values = numbered(3 * kDeviceChunkBytes + 77, 5);
  const DeviceArray<std::uint8_t> array(values);
  Staging staging(fake_gpu().table, 64 * kMiB, 64 * kMiB, 0, kPatienceMs);
  const std::uint64_t read = fake_gpu().controls.calls("to_host");
  auto taken = take(staging, array.span());
  ASSERT_TRUE(taken.ok()) << taken.status().describe();
  array.write(numbered(values.size(), 6));
  EXPECT_EQ(fake_gpu().controls.calls("to_host"), read) << "later";
  EXPECT_FALSE(taken.value()->front().has_value());
  const auto came = bring(*taken.value(), values.size(), 0);
  EXPECT_TRUE(came.status.ok());
  EXPECT_EQ(came.global, values);
  EXPECT_EQ(came.pieces, 4u);
  // What was used is used again.
  const std::uint64_t made = fake_gpu().controls.calls("allocate"), pinned = staging.pinned_bytes();
  taken.value().reset();
  auto again = take(staging, array.span());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(bring(*again.value(), values.size(), 0).global, array.read());
  EXPECT_EQ(fake_gpu().controls.calls("allocate"), made);
  EXPECT_EQ(staging.pinned_bytes(), pinned);
}

TEST_F(Snapshots, HavePinnedMemoryForSomePiecesAtOnce) {
  const auto values = numbered(2 * Snapshot::kSlots * kDeviceChunkBytes, 5);
  const DeviceArray<std::uint8_t> array(values);
  Staging staging(fake_gpu().table, 16 * kMiB, 64 * kMiB, 0, kPatienceMs);
  auto taken = take(staging, array.span());
  ASSERT_TRUE(taken.ok()) << taken.status().describe();
  Snapshot& snapshot = *taken.value();
  const std::uint64_t read = fake_gpu().controls.calls("to_host");
  // Nobody takes what has come: nothing is written over it.
  for (std::size_t come = 0; come < Snapshot::kSlots;) {
    const auto moved = snapshot.move();
    ASSERT_TRUE(moved.ok());
    come = fake_gpu().controls.calls("stream.to_host") - read;
  }
  fake_gpu().controls.release();
  while (snapshot.move().value()) {
  }
  EXPECT_EQ(fake_gpu().controls.calls("to_host") - read, Snapshot::kSlots);
  EXPECT_EQ(bring(snapshot, values.size(), 0).global, values);
}

// What a rank logs of states that lie in several places: its share of the one, all of the other.
TEST_F(Snapshots, BringTogetherWhatLiesInManyPlaces) {
  const auto a = numbered(1000, 1), b = numbered(5000, 2), c = numbered(300, 3), d = numbered(70, 4);
  const DeviceArray<std::uint8_t> on_gpu(a), also(b), local(d);
  const StatePiece pieces[] = {
      piece_of(StateKind::kGlobal, 500, std::span(on_gpu.span()).subspan(500)),
      piece_of(StateKind::kGlobal, 1000, also.span()),
      piece_of(StateKind::kGlobal, 6000, c),
      piece_of(StateKind::kLocal, 0, {}),
      piece_of(StateKind::kLocal, 0, local.span()),
  };
  const std::uint64_t read = fake_gpu().controls.calls("to_host");
  auto taken = staging_.snapshot(pieces, nullptr);
  ASSERT_TRUE(taken.ok()) << taken.status().describe();
  const auto came = bring(*taken.value(), 6300, 70);
  std::vector<std::uint8_t> expected(500, 0);
  expected.insert(expected.end(), a.begin() + 500, a.end());
  expected.insert(expected.end(), b.begin(), b.end());
  expected.insert(expected.end(), c.begin(), c.end());
  EXPECT_EQ(came.global, expected);
  EXPECT_EQ(came.local, d);
  EXPECT_EQ(fake_gpu().controls.calls("to_host"), read + 2) << "neighbours come together";
}

TEST_F(Snapshots, ComeAfterTheProgramsWork) {
  const DeviceArray<std::uint8_t> array(numbered(100, 1));
  void *stream = nullptr, *pinned = nullptr;
  ASSERT_EQ(fake_gpu().table.make_stream(0, &stream), WARREN_DEVICE_OK);
  ASSERT_EQ(fake_gpu().table.allocate_pinned(4096, &pinned), WARREN_DEVICE_OK);
  static_cast<std::uint8_t*>(pinned)[0] = 123;
  fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
  ASSERT_EQ(fake_gpu().table.to_device(0, array.data(), pinned, 1, stream), WARREN_DEVICE_OK);
  std::thread later([looked = fake_gpu().controls.calls("query")] {
    while (fake_gpu().controls.calls("query") < looked + 2) std::this_thread::yield();
    fake_gpu().controls.release();
  });
  const auto taken = take(staging_, array.span(), stream);
  later.join();
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(bring(*taken.value(), 100, 0).global[0], 123);
  ASSERT_EQ(fake_gpu().table.end_stream(0, stream), WARREN_DEVICE_OK);
}

TEST_F(Snapshots, AreOfOneGpuAtMost) {
  const auto on_cpu = numbered(10, 1);
  const StatePiece none[] = {piece_of(StateKind::kGlobal, 0, on_cpu), piece_of(StateKind::kLocal, 0, {})};
  EXPECT_FALSE(staging_.holds(none).value());
  EXPECT_EQ(bring(*staging_.snapshot(none, nullptr).value(), 10, 0).global, on_cpu) << "a share without the GPU's";
  const DeviceArray<std::uint8_t> first(10, 0), second(10, 1);
  const StatePiece pieces[] = {piece_of(StateKind::kGlobal, 0, first.span()),
                               piece_of(StateKind::kLocal, 0, second.span())};
  EXPECT_TRUE(staging_.holds(std::span(pieces).first(1)).value());
  const auto both = staging_.holds(pieces);
  EXPECT_EQ(both.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(both.status().describe(), HasSubstr("on GPU 0 and on GPU 1"));
}

// They go to the CPU at once, by way of little pinned memory.
TEST_F(Snapshots, WithoutRoomOnTheGpuAreOnTheCpu) {
  const auto large = numbered(40 * kMiB, 1), small = numbered(6 * kMiB, 2), medium = numbered(12 * kMiB, 3);
  const auto lies_on_cpu = [&](const std::vector<std::uint8_t>& values) {
    const DeviceArray<std::uint8_t> array(values);
    const auto taken = take(staging_, array.span());
    EXPECT_TRUE(taken.ok()) << taken.status().describe();
    array.write(std::vector<std::uint8_t>(values.size(), 0));
    const std::uint64_t read = fake_gpu().controls.calls("to_host");
    EXPECT_EQ(bring(*taken.value(), values.size(), 0).global, values);
    return fake_gpu().controls.calls("to_host") == read;
  };
  EXPECT_TRUE(lies_on_cpu(large)) << "the budget is 16 MiB";
  EXPECT_LE(staging_.pinned_bytes(), 24 * kMiB) << "a part of it at a time";
  fake_gpu().controls.arm("allocate", 1, FakeFault::kNoMemory);  // the next one is the array's
  EXPECT_TRUE(lies_on_cpu(small));
  EXPECT_EQ(staging_.snapshot_bytes(), 0u);
  {
    const DeviceArray<std::uint8_t> array(small);
    const auto first = take(staging_, array.span());
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE(lies_on_cpu(medium)) << "in use";
  }
  // What is only kept makes room.
  EXPECT_FALSE(lies_on_cpu(medium));
  EXPECT_EQ(staging_.snapshot_bytes(), 12 * kMiB);
}

TEST_F(Snapshots, FailWithTheReasonOfAnyCall) {
  const DeviceArray<std::uint8_t> array(6 * kMiB);
  for (const char* where : {"locate", "allocate", "allocate_pinned", "make_event", "record", "make_stream", "wait_for",
                            "copy", "stream.copy", "query", "to_host", "stream.to_host"}) {
    SCOPED_TRACE(where);
    auto fresh = std::make_unique<Staging>(fake_gpu().table, 64 * kMiB, 16 * kMiB, 0, kPatienceMs);
    fake_gpu().controls.arm(where, 0, FakeFault::kError);
    auto taken = take(*fresh, array.span());
    Status status = taken.status();
    const bool later = std::string(where).ends_with("to_host");
    EXPECT_EQ(status.ok(), later);
    if (status.ok()) status = bring(*taken.value(), 6 * kMiB, 0).status;
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
    fake_gpu().controls.release();
    if (taken.ok()) taken.value().reset();
    // What a GPU that has failed may still use is not freed.
    const bool used = later || std::string(where) == "copy" || std::string(where) == "stream.copy";
    const std::uint64_t freed = fake_gpu().controls.calls("release") + fake_gpu().controls.calls("free_pinned");
    fresh.reset();
    if (used) {
      EXPECT_EQ(fake_gpu().controls.calls("release") + fake_gpu().controls.calls("free_pinned"), freed);
    }
  }
}

TEST_F(Snapshots, GiveUpAGpuThatHangs) {
  const DeviceArray<std::uint8_t> array(6 * kMiB);
  for (const char* where : {"stream.copy", "stream.to_host"}) {
    SCOPED_TRACE(where);
    const bool works = std::string(where) == "stream.to_host";
    Staging impatient(fake_gpu().table, 64 * kMiB, 16 * kMiB, 0, works ? kAfterWorkMs : kShortMs);
    fake_gpu().controls.arm(where, 0, FakeFault::kHang);
    auto taken = take(impatient, array.span());
    EXPECT_EQ(taken.ok(), works);
    const Status status = taken.ok() ? bring(*taken.value(), 6 * kMiB, 0).status : taken.status();
    EXPECT_EQ(status.code(), Code::kTimeout);
    // It does not come any more.
    if (taken.ok()) taken.value()->settle();
    fake_gpu().controls.release();
  }
}

// A communicator that ends leaves nothing behind while its GPU works.
TEST_F(Snapshots, ThatNobodyWantsComeToAnEnd) {
  const DeviceArray<std::uint8_t> array(6 * kMiB);
  auto staging = std::make_unique<Staging>(fake_gpu().table, 64 * kMiB, 16 * kMiB, 0, kPatienceMs);
  auto taken = take(*staging, array.span());
  ASSERT_TRUE(taken.ok());
  fake_gpu().controls.arm("stream.to_host", 0, FakeFault::kHang);
  ASSERT_TRUE(taken.value()->move().ok());
  std::thread later([looked = fake_gpu().controls.calls("query")] {
    while (fake_gpu().controls.calls("query") < looked + 2) std::this_thread::yield();
    fake_gpu().controls.release();
  });
  taken.value()->settle();
  later.join();
  taken.value().reset();
  const std::uint64_t released = fake_gpu().controls.calls("release");
  staging.reset();
  EXPECT_EQ(fake_gpu().controls.calls("release"), released + 1);
}

TEST_F(Stages, StatesAreWrittenToWhereverTheyGo) {
  const auto values = numbered(9 * kDeviceChunkBytes + 77, 5);
  std::vector<std::uint8_t> here(values.size());
  ASSERT_TRUE(staging_.write(std::as_writable_bytes(std::span(here)), std::as_bytes(std::span(values)), nullptr).ok());
  EXPECT_EQ(here, values);
  EXPECT_EQ(staging_.pinned_bytes(), 0u);
  const DeviceArray<std::uint8_t> there(values.size());
  const auto write = [&](Staging& staging) {
    return staging.write(std::as_writable_bytes(there.span()), std::as_bytes(std::span(values)), nullptr);
  };
  ASSERT_TRUE(write(staging_).ok());
  EXPECT_EQ(there.read(), values);
  EXPECT_LE(staging_.pinned_bytes(), 16 * kMiB) << "a part of it at a time";
  for (const char* where : {"locate", "allocate_pinned", "make_event", "record", "make_stream", "wait_for", "query",
                            "to_device", "stream.to_device"}) {
    SCOPED_TRACE(where);
    Staging fresh(fake_gpu().table, 64 * kMiB, 0, 0, kPatienceMs);
    fake_gpu().controls.arm(where, 0, FakeFault::kError);
    EXPECT_THAT(write(fresh).describe(), HasSubstr(std::string("injected into ") + where));
    fake_gpu().controls.release();
  }
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

// Batches of allreduces whose buffers lie on GPUs: packed there, or each by itself, against the fake device.
#include "worker/device/packed_call.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/sanitized.h"
#include "tests/worker/device/gpu_tests.h"
#include "worker/device/staging.h"
#include "worker/session/fusion.h"

namespace warren::worker {
namespace {

constexpr GroupShape kShape{0, 1};

std::uint64_t calls(const char* where) {
  return fake_gpu().controls.calls(where);
}

// An allreduce of floats, from one array to another or in place, each on the CPU or on a GPU.
struct Piece {
  static constexpr std::int32_t kHost = WARREN_DEVICE_HOST;
  Piece(std::vector<float> values, std::int32_t from, std::int32_t to, bool in_place = false)
      : in(std::move(values)), out(in.size(), -1.0f) {
    if (from != kHost) gpu_in = std::make_unique<DeviceArray<float>>(in, from);
    if (to != kHost && !in_place) gpu_out = std::make_unique<DeviceArray<float>>(out, to);
    void* const input = gpu_in ? gpu_in->data() : in.data();
    void* const output = in_place ? input : gpu_out ? gpu_out->data() : out.data();
    lies_in_place = in_place;
    call->spec.collective = Collective::kAllreduce;
    call->spec.type = DataType::kF32;
    call->spec.op = ReduceOp::kSum;
    call->spec.input = input;
    call->spec.output = output;
    call->spec.count = in.size();
  }
  [[nodiscard]] std::vector<float> result() const {
    if (lies_in_place) return gpu_in ? gpu_in->read() : in;
    return gpu_out ? gpu_out->read() : out;
  }
  std::vector<float> in, out;
  bool lies_in_place = false;
  std::unique_ptr<DeviceArray<float>> gpu_in, gpu_out;
  std::shared_ptr<Call> call = std::make_shared<Call>();
};

class Batches : public ::testing::Test {
 protected:
  ~Batches() override { fake_gpu().controls.release(); }

  void begin(std::uint64_t gpu_bytes = 256 * kMiB, std::int64_t stall_ms = kPatienceMs) {
    pieces_.clear();
    staging_ = std::make_unique<Staging>(fake_gpu().table, 256 * kMiB, gpu_bytes, 0, stall_ms);
  }
  Piece& add(std::size_t count, std::int32_t from = 0, std::int32_t to = 0, bool in_place = false,
             void* stream = nullptr, DataType wire = {}) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), static_cast<float>(100 * pieces_.size()));
    Piece& piece = *pieces_.emplace_back(std::make_unique<Piece>(std::move(values), from, to, in_place));
    piece.call->spec.stream = stream;
    piece.call->spec.wire = wire;
    const auto lies = staging_->find(piece.call->spec, kShape);
    EXPECT_TRUE(lies.ok());
    auto after = staging_->mark(lies.value(), stream);
    EXPECT_TRUE(after.ok()) << after.status().describe();
    Staging::add(lies.value(), std::move(after).value(), batch_.on_gpu());
    batch_.add(kWorldGroup, kShape, piece.call);
    return piece;
  }
  // As many parts once more, or one of so many elements and one of twice as many.
  void begin_again(std::size_t count = 0) {
    const std::size_t before = pieces_.size();
    pieces_.clear();
    if (count != 0) {
      add(count);
      add(2 * count);
      return;
    }
    for (std::size_t i = 0; i < before; i++) add(i % 7, 0, 0, i % 2 == 0);
  }
  Result<std::shared_ptr<Call>> close() {
    lost_.clear();
    return batch_.close(memory_, staging_.get(), lost_);
  }
  static Status fill(Call& call) {
    call.spec.prepare(call.spec.prepare_context);
    return call.buffers->filled();
  }
  // What the engine would do of a call of floats, if sums were doubles of the input.
  static void make_doubles(const Call& call) {
    const auto* const in = static_cast<const float*>(call.spec.input);
    auto* const out = static_cast<float*>(call.spec.output);
    for (std::uint64_t i = 0; i < call.spec.count; i++) out[i] = 2 * in[i];
  }
  void expect_doubles() const {
    for (std::size_t p = 0; p < pieces_.size(); p++) {
      std::vector<float> expected(pieces_[p]->in.size());
      std::iota(expected.begin(), expected.end(), static_cast<float>(100 * p));
      for (float& value : expected) value *= 2;
      EXPECT_EQ(pieces_[p]->result(), expected) << "part " << p;
    }
  }
  void run(Call& call) {
    ASSERT_TRUE(fill(call).ok()) << call.buffers->filled().describe();
    make_doubles(call);
    ASSERT_TRUE(call.buffers->delivers());
    const Status delivered = call.buffers->deliver();
    ASSERT_TRUE(delivered.ok()) << delivered.describe();
    expect_doubles();
  }

  std::shared_ptr<CopyMemory> memory_ = std::make_shared<CopyMemory>();
  std::unique_ptr<Staging> staging_;
  Batch batch_;
  std::vector<std::shared_ptr<Call>> lost_;
  std::vector<std::unique_ptr<Piece>> pieces_;
};

TEST_F(Batches, OnOneGpuAreOneCopyEachWay) {
  begin();
  for (int i = 0; i < 500; i++) add(static_cast<std::size_t>(i % 7), 0, 0, i % 2 == 0);
  const std::uint64_t packs = calls("stream.pack"), unpacks = calls("stream.unpack"), to = calls("stream.to_host");
  const std::uint64_t back = calls("stream.to_device");
  auto call = close();
  ASSERT_TRUE(call.ok()) << call.status().describe();
  EXPECT_TRUE(lost_.empty());
  EXPECT_EQ(call.value()->parts.size(), 500u);
  run(*call.value());
  EXPECT_EQ(calls("stream.pack") - packs, 2u) << "429 pieces that have bytes";
  EXPECT_EQ(calls("stream.unpack") - unpacks, 2u);
  EXPECT_EQ(calls("stream.to_host") - to, 1u);
  EXPECT_EQ(calls("stream.to_device") - back, 1u);
  // The next one has the same memory.
  const std::uint64_t gpu = staging_->snapshot_bytes(), pinned = staging_->pinned_bytes();
  call.value().reset();
  begin_again();
  call = close();
  ASSERT_TRUE(call.ok());
  run(*call.value());
  EXPECT_EQ(staging_->snapshot_bytes(), gpu);
  EXPECT_EQ(staging_->pinned_bytes(), pinned);
}

TEST_F(Batches, LargeOnesComeInChunks) {
  begin();
  add(kMiB, 0, 0);
  add(kMiB + 13, 0, 0, true);
  add(3 * kMiB, 0, 0);
  const auto call = close();
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call.value()->buffers->stream(), nullptr) << "as a whole";
  run(*call.value());
}

TEST_F(Batches, OfOnePartAreThatPart) {
  begin();
  add(2 * kMiB);
  const auto call = close();
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call.value(), pieces_.front()->call);
  EXPECT_NE(call.value()->buffers->stream(), nullptr) << "it moves while its round runs";
}

TEST_F(Batches, WithoutRoomOnTheGpuEachPartIsCopied) {
  begin(0);
  for (int i = 0; i < 5; i++) add(static_cast<std::size_t>(1000 * i), 0, 0, i % 2 == 0);
  const std::uint64_t packs = calls("pack");
  const auto call = close();
  ASSERT_TRUE(call.ok()) << call.status().describe();
  run(*call.value());
  EXPECT_EQ(calls("pack"), packs);
}

TEST_F(Batches, PartsMayLieAnywhere) {
  constexpr std::int32_t kHost = WARREN_DEVICE_HOST;
  const std::vector<std::pair<std::int32_t, std::int32_t>> places[] = {{{0, 0}, {kHost, kHost}, {0, 0}},
                                                                       {{kHost, kHost}, {0, 0}},
                                                                       {{0, 0}, {1, 1}},
                                                                       {{0, kHost}, {0, 0}},
                                                                       {{0, 0}, {kHost, 0}},
                                                                       {{kHost, 1}, {1, kHost}}};
  for (const auto& parts : places) {
    begin();
    for (const auto& [from, to] : parts) add(1000, from, to);
    const auto call = close();
    ASSERT_TRUE(call.ok()) << call.status().describe();
    run(*call.value());
  }
}

TEST_F(Batches, AreNarrowedOnTheGpu) {
  for (const std::uint64_t gpu_bytes : {256 * kMiB, std::uint64_t{0}}) {
    begin(gpu_bytes);
    for (int i = 0; i < 4; i++) add(700, 0, 0, i == 2, nullptr, DataType::kBF16);
    const std::uint64_t converted = calls("stream.convert");
    const auto call = close();
    ASSERT_TRUE(call.ok());
    EXPECT_EQ(call.value()->spec.count, 2800u);
    EXPECT_EQ(call.value()->spec.type, narrow_type(DataType::kBF16));
    ASSERT_TRUE(fill(*call.value()).ok());
    // Powers of two are exact: the sum is the input, doubled by its exponent.
    const auto* const in = static_cast<const std::uint16_t*>(call.value()->spec.input);
    auto* const out = static_cast<std::uint16_t*>(call.value()->spec.output);
    std::vector<float> expected;
    for (std::size_t i = 0; i < 2800; i++) {
      const std::uint32_t bits = static_cast<std::uint32_t>(in[i]) << 16;
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      EXPECT_NEAR(value, static_cast<float>(100 * (i / 700) + i % 700), 4.0);
      expected.push_back(value);
      out[i] = in[i];
    }
    ASSERT_TRUE(call.value()->buffers->deliver().ok());
    for (std::size_t p = 0; p < 4; p++) {
      EXPECT_EQ(pieces_[p]->result(),
                std::vector<float>(expected.begin() + static_cast<std::ptrdiff_t>(700 * p),
                                   expected.begin() + static_cast<std::ptrdiff_t>(700 * (p + 1))));
    }
    EXPECT_EQ(calls("stream.convert") > converted, gpu_bytes != 0);
  }
}

// What was on a part's stream when it was made is waited for, and nothing that came later.
TEST_F(Batches, WaitForTheProgramsWorkBeforeTheCalls) {
  void* streams[2] = {};
  for (void*& stream : streams) ASSERT_EQ(fake_gpu().table.make_stream(0, &stream), WARREN_DEVICE_OK);
  begin();
  const DeviceArray<float> source(std::vector<float>(1, 50.0f));
  const DeviceArray<float> other(std::vector<float>(1, 0.0f));
  // The first copy waits until it is released.
  Piece& first = add(1, 0, 0, false, streams[0]);
  fake_gpu().controls.arm("stream.copy", 0, FakeFault::kHang);
  ASSERT_EQ(fake_gpu().table.copy(0, first.gpu_in->data(), source.data(), sizeof(float), streams[0]), WARREN_DEVICE_OK);
  add(1, 0, 0, false, streams[1]);
  add(1, 0, 0, false, streams[0]);  // behind the copy
  const auto call = close();
  ASSERT_TRUE(call.ok());
  std::atomic<bool> filled{false};
  std::thread filling([&] {
    EXPECT_TRUE(fill(*call.value()).ok());
    filled = true;
  });
  while (calls("pack") == 0) std::this_thread::yield();
  EXPECT_FALSE(filled);
  fake_gpu().controls.release();
  filling.join();
  EXPECT_EQ(static_cast<const float*>(call.value()->spec.input)[0], 50.0f) << "the copy was there first";
  // What comes later may hang.
  fake_gpu().controls.arm("stream.copy", 0, FakeFault::kHang);
  ASSERT_EQ(fake_gpu().table.copy(0, other.data(), source.data(), sizeof(float), streams[0]), WARREN_DEVICE_OK);
  EXPECT_TRUE(call.value()->buffers->deliver().ok());
  fake_gpu().controls.release();
  for (void* stream : streams) ASSERT_EQ(fake_gpu().table.end_stream(0, stream), WARREN_DEVICE_OK);
}

// The program may end a stream when it has made its calls: alone, or each by itself, or all in one.
TEST_F(Batches, OutliveTheirStreams) {
  for (const std::size_t parts : {1u, 3u}) {
    for (const std::uint64_t gpu_bytes : {256 * kMiB, std::uint64_t{0}}) {
      begin(gpu_bytes);
      for (std::size_t i = 0; i < parts; i++) {
        void* stream = nullptr;
        ASSERT_EQ(fake_gpu().table.make_stream(0, &stream), WARREN_DEVICE_OK);
        add(1000, 0, 0, false, stream);
        ASSERT_EQ(fake_gpu().table.end_stream(0, stream), WARREN_DEVICE_OK);
      }
      const auto call = close();
      ASSERT_TRUE(call.ok()) << call.status().describe();
      run(*call.value());
    }
  }
}

// A stream that is made when another one was ended may have its handle: what was on that is waited for too.
TEST_F(Batches, WaitForWorkOfAStreamWhoseHandleIsAnothersNow) {
  begin();
  void* ended = nullptr;
  ASSERT_EQ(fake_gpu().table.make_stream(0, &ended), WARREN_DEVICE_OK);
  const DeviceArray<float> source(std::vector<float>(1, 50.0f)), target(std::vector<float>(1, 0.0f));
  fake_gpu().controls.arm("stream.copy", 0, FakeFault::kHang);
  ASSERT_EQ(fake_gpu().table.copy(0, target.data(), source.data(), sizeof(float), ended), WARREN_DEVICE_OK);
  Piece& first = add(1, 0, 0, false, ended);
  first.call->spec.input = target.data();
  ASSERT_EQ(fake_gpu().table.end_stream(0, ended), WARREN_DEVICE_OK);
  std::vector<void*> streams;
  do {
    ASSERT_EQ(fake_gpu().table.make_stream(0, &streams.emplace_back()), WARREN_DEVICE_OK);
  } while (streams.back() != ended && streams.size() < 100);
  if (streams.back() == ended) {
    add(1, 0, 0, false, ended);
    const std::uint64_t packs = calls("pack");
    const auto call = close();
    ASSERT_TRUE(call.ok());
    std::thread filling([&] { EXPECT_TRUE(fill(*call.value()).ok()); });
    while (calls("pack") == packs) std::this_thread::yield();
    fake_gpu().controls.release();
    filling.join();
    EXPECT_EQ(static_cast<const float*>(call.value()->spec.input)[0], 50.0f) << "the copy was there first";
  }
  for (void* stream : streams) ASSERT_EQ(fake_gpu().table.end_stream(0, stream), WARREN_DEVICE_OK);
  // AddressSanitizer keeps what was freed from being used again.
  EXPECT_TRUE(streams.size() < 100 || kAddressSanitized) << "no stream had the handle of the one that was ended";
}

// A round that the log serves: nothing is packed.
TEST_F(Batches, OfTheLogAreUnpackedAlone) {
  begin();
  for (int i = 0; i < 3; i++) add(10);
  const std::uint64_t packs = calls("pack");
  const auto call = close();
  ASSERT_TRUE(call.ok());
  auto* const out = static_cast<float*>(call.value()->spec.output);
  for (std::size_t i = 0; i < 30; i++) out[i] = static_cast<float>(2 * (100 * (i / 10) + i % 10));
  ASSERT_TRUE(call.value()->buffers->deliver().ok());
  expect_doubles();
  EXPECT_EQ(calls("pack"), packs);
}

TEST_F(Batches, FailWithTheReasonOfAnyCall) {
  // When it closes.
  for (const char* where : {"allocate", "make_stream", "wait_for", "make_event", "allocate_pinned"}) {
    SCOPED_TRACE(where);
    begin();
    add(10);
    add(20);
    // Those that are kept from before are of another Staging.
    fake_gpu().controls.arm(where, where == std::string("make_event") ? 4 : 0, FakeFault::kError);
    const auto call = close();
    EXPECT_FALSE(call.ok());
    EXPECT_THAT(call.status().describe(), HasSubstr(std::string("injected into ") + where));
    EXPECT_THAT(call.status().describe(), HasSubstr("2 allreduces"));
    EXPECT_EQ(lost_.size(), 2u);
    fake_gpu().controls.release();
  }
  // When it is filled, or brought back.
  for (const char* where : {"pack", "stream.pack", "stream.to_host", "unpack", "stream.unpack", "stream.to_device"}) {
    SCOPED_TRACE(where);
    begin();
    add(1000);
    add(2000);
    auto call = close();
    ASSERT_TRUE(call.ok());
    fake_gpu().controls.arm(where, 0, FakeFault::kError);
    Status status = fill(*call.value());
    if (status.ok()) status = call.value()->buffers->deliver();
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
    const std::uint64_t gpu = staging_->snapshot_bytes();
    call.value().reset();
    fake_gpu().controls.release();
    begin_again(1000);
    call = close();
    if (call.ok() && std::string(where) != "stream.to_host" && std::string(where) != "stream.to_device") {
      EXPECT_GT(staging_->snapshot_bytes(), gpu) << "the GPU may still use what it failed with";
    }
  }
}

TEST_F(Batches, AGpuThatHangsIsGivenUp) {
  for (const char* where : {"stream.pack", "stream.unpack"}) {
    SCOPED_TRACE(where);
    begin(256 * kMiB, 150);
    add(1000);
    add(2000);
    auto call = close();
    ASSERT_TRUE(call.ok());
    fake_gpu().controls.arm(where, 0, FakeFault::kHang);
    std::thread ends([&] {
      // What packs is the program's work to those who copy, which may take for ever.
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      staging_->end();
    });
    Status status = fill(*call.value());
    if (status.ok()) status = call.value()->buffers->deliver();
    EXPECT_FALSE(status.ok());
    ends.join();
    call.value().reset();
    fake_gpu().controls.release();
  }
}

// What frees memory, of the CPU or the GPU, may wait for a GPU that hangs, and so for ever.
TEST_F(Batches, AfterAGpuThatHangsNothingIsFreed) {
  for (const char* where : {"stream.pack", "stream.unpack"}) {
    SCOPED_TRACE(where);
    begin(256 * kMiB, 150);
    add(10);
    add(20);
    auto call = close();
    ASSERT_TRUE(call.ok());
    run(*call.value());
    call.value().reset();  // its memory is kept
    begin_again(100'000);
    call = close();
    ASSERT_TRUE(call.ok());
    fake_gpu().controls.arm(where, 0, FakeFault::kHang);
    // What packs is the program's work to those who copy.
    if (std::string(where) == "stream.pack") staging_->end();
    Status status = fill(*call.value());
    if (status.ok()) status = call.value()->buffers->deliver();
    EXPECT_FALSE(status.ok());
    pieces_.clear();
    const auto freed = [] { return calls("release") + calls("free_pinned"); };
    const std::uint64_t before = freed();
    call.value().reset();
    staging_.reset();
    EXPECT_EQ(freed(), before);
    fake_gpu().controls.release();
  }
}

}  // namespace
}  // namespace warren::worker

// What needs a GPU: the module's kernels against their twins on the CPU, and a job whose buffers lie on one. Without
// the module or a GPU each case skips itself and says why; with WARREN_REQUIRE_GPU=1 in the environment it fails.
// WARREN_DEVICE_LIBRARY names another module than the build's: where this was copied to, or the fake device, which
// shows that the cases themselves do what they should.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "cuda/request.h"
#include "cuda/twins.h"
#include "tests/e2e/cluster.h"
#include "worker/device/device_library.h"
#include "worker/device/staging.h"

namespace warren {
namespace {

#ifdef WARREN_CUDA_MODULE
constexpr const char* kModule = WARREN_CUDA_MODULE;
#else
constexpr const char* kModule = nullptr;
#endif

// Before any thread: where workers find the module.
const bool kNamed = setenv("WARREN_DEVICE_LIBRARY", kModule == nullptr ? "none" : kModule, 0) == 0;

// With the module alone: nothing is on a GPU yet.
class GpuModule : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kNamed);
    std::string why = "this build has no CUDA module: there was no nvcc, or WARREN_CUDA was OFF";
    if (const std::string module = getenv("WARREN_DEVICE_LIBRARY"); module != "none") {
      auto library = worker::load_device_library(module);
      ASSERT_TRUE(library.ok()) << library.status().describe();
      table_ = library.value().table;
      why = library.value().says;
    }
    if (table_ != nullptr) return;
    const char* required = getenv("WARREN_REQUIRE_GPU");
    ASSERT_FALSE(required != nullptr && std::strcmp(required, "1") == 0) << "WARREN_REQUIRE_GPU=1, but " << why;
    GTEST_SKIP() << why;
  }
  // This program, as another process, with a case that is disabled.
  static int run_alone(const std::string& cases, const std::string& environment = "") {
    char self[4096] = {};
    EXPECT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    return std::system(
        (environment + " '" + self + "' --gtest_also_run_disabled_tests --gtest_filter=" + cases).c_str());
  }

  const warren_device_table* table_ = nullptr;
};

class Gpu : public GpuModule {
 protected:
  void SetUp() override {
    GpuModule::SetUp();
    if (table_ == nullptr) return;
    ASSERT_EQ(table_->make_stream(0, &stream_), WARREN_DEVICE_OK) << table_->error_text();
  }
  void TearDown() override {
    for (void* memory : memory_) EXPECT_EQ(table_->release(0, memory), WARREN_DEVICE_OK);
    if (stream_ == nullptr) return;
    EXPECT_EQ(table_->end_stream(0, stream_), WARREN_DEVICE_OK);
  }

  std::byte* on_gpu(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(table_->allocate(0, bytes, &memory), WARREN_DEVICE_OK) << table_->error_text();
    memory_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  // By way of pinned memory, as the core does.
  void copy(void* to, const void* from, std::size_t bytes, bool to_gpu) {
    void* pinned = nullptr;
    ASSERT_EQ(table_->allocate_pinned(bytes, &pinned), WARREN_DEVICE_OK) << table_->error_text();
    if (to_gpu) std::memcpy(pinned, from, bytes);
    ASSERT_EQ(
        to_gpu ? table_->to_device(0, to, pinned, bytes, stream_) : table_->to_host(0, pinned, from, bytes, stream_),
        WARREN_DEVICE_OK)
        << table_->error_text();
    finish();
    if (!to_gpu) std::memcpy(to, pinned, bytes);
    ASSERT_EQ(table_->free_pinned(pinned), WARREN_DEVICE_OK);
  }
  std::byte* put(const void* from, std::size_t bytes) {
    std::byte* const at = on_gpu(bytes);
    copy(at, from, bytes, true);
    return at;
  }
  void finish() {
    void* event = nullptr;
    ASSERT_EQ(table_->make_event(0, &event), WARREN_DEVICE_OK) << table_->error_text();
    ASSERT_EQ(table_->record(0, event, stream_), WARREN_DEVICE_OK) << table_->error_text();
    warren_device_code code = WARREN_DEVICE_NOT_READY;
    while (code == WARREN_DEVICE_NOT_READY) code = table_->query(0, event);
    ASSERT_EQ(code, WARREN_DEVICE_OK) << table_->error_text();
    ASSERT_EQ(table_->end_event(0, event), WARREN_DEVICE_OK);
  }

  void* stream_ = nullptr;
  std::vector<void*> memory_;
};

// Any bits: NaNs, infinities and denormals among them.
std::vector<std::uint8_t> any_bits(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> values(bytes);
  for (auto& v : values) v = static_cast<std::uint8_t>(random());
  return values;
}

// CUDA's driver, by the names in its library: a build without CUDA's headers has these cases, too.
class Driver {
 public:
  // Not of the fake device, which has no contexts and captures nothing.
  static bool is_below(const warren_device_table& table) { return std::string(table.name).starts_with("CUDA"); }
  // Whether the process has a context on the device, as the runtime makes them.
  bool has_context(int device) {
    unsigned flags = 0;
    int active = 0;
    EXPECT_EQ(call("cuDevicePrimaryCtxGetState", device, &flags, &active), 0);
    return active != 0;
  }
  // The calling thread's; null: none.
  void* current() {
    void* context = nullptr;
    EXPECT_EQ(call("cuCtxGetCurrent", &context), 0);
    return context;
  }
  // From here to end_capture(), in this thread, what is queued on the stream, of the first device, becomes a graph; in
  // the mode in which what other threads do may fail, and end it, too.
  void begin_capture(void* stream) {
    void* context = nullptr;
    ASSERT_EQ(call("cuDevicePrimaryCtxRetain", &context, 0), 0);
    ASSERT_EQ(call("cuCtxSetCurrent", context), 0);
    ASSERT_EQ(call("cuStreamBeginCapture_v2", stream, kGlobal), 0);
  }
  void end_capture(void* stream) {
    void* graph = nullptr;
    EXPECT_EQ(call("cuStreamEndCapture", stream, &graph), 0) << "the capture has come to nothing";
    if (graph != nullptr) (void)call("cuGraphDestroy", graph);
    EXPECT_EQ(call("cuCtxSetCurrent", static_cast<void*>(nullptr)), 0);
    EXPECT_EQ(call("cuDevicePrimaryCtxRelease_v2", 0), 0);
  }

 private:
  static constexpr int kGlobal = 0;
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) {
    void* const function = library_ == nullptr ? nullptr : dlsym(library_, name);
    return function == nullptr ? -1 : reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
  }
  void* const library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
};

// What a process finds that has done nothing else, which the test below starts.
TEST_F(GpuModule, DISABLED_HasAContextWhereItWorksAlone) {
  Driver driver;
  std::int32_t devices = 0;
  ASSERT_EQ(table_->init(&devices), WARREN_DEVICE_OK) << table_->error_text();
  const std::int32_t used = devices - 1;  // not the first, if there are several
  const auto buffers_on_the_cpu_are_told = [&] {
    int here = 0;
    std::int32_t device = 5;
    ASSERT_EQ(table_->locate(&here, &device), WARREN_DEVICE_OK) << table_->error_text();
    EXPECT_EQ(device, WARREN_DEVICE_HOST);
  };
  buffers_on_the_cpu_are_told();
  for (std::int32_t d = 0; d < devices; d++) EXPECT_FALSE(driver.has_context(d)) << d;

  void *stream = nullptr, *event = nullptr, *memory = nullptr, *shared = nullptr, *pinned = nullptr;
  std::size_t bytes = 1'000;
  int fd = -1;
  ASSERT_EQ(table_->make_stream(used, &stream), WARREN_DEVICE_OK) << table_->error_text();
  ASSERT_EQ(table_->make_event(used, &event), WARREN_DEVICE_OK) << table_->error_text();
  ASSERT_EQ(table_->allocate(used, bytes, &memory), WARREN_DEVICE_OK) << table_->error_text();
  ASSERT_EQ(table_->allocate_pinned(bytes, &pinned), WARREN_DEVICE_OK) << table_->error_text();
  ASSERT_EQ(table_->to_device(used, memory, pinned, bytes, stream), WARREN_DEVICE_OK) << table_->error_text();
  ASSERT_EQ(table_->load(used), WARREN_DEVICE_OK) << table_->error_text();
  ASSERT_EQ(table_->allocate_shared(used, &bytes, &shared, &fd), WARREN_DEVICE_OK) << table_->error_text();
  ::close(fd);
  EXPECT_EQ(driver.current(), nullptr);
  // One of Warren's own.
  std::thread([&] {
    ASSERT_EQ(table_->record(used, event, stream), WARREN_DEVICE_OK) << table_->error_text();
    warren_device_code code = WARREN_DEVICE_NOT_READY;
    while (code == WARREN_DEVICE_NOT_READY) code = table_->query(used, event);
    ASSERT_EQ(code, WARREN_DEVICE_OK) << table_->error_text();
    std::int32_t device = 5;
    ASSERT_EQ(table_->locate(memory, &device), WARREN_DEVICE_OK) << table_->error_text();
    EXPECT_EQ(device, used);
    ASSERT_EQ(table_->locate(pinned, &device), WARREN_DEVICE_OK) << table_->error_text();
    EXPECT_EQ(device, WARREN_DEVICE_HOST);
    buffers_on_the_cpu_are_told();
    EXPECT_EQ(table_->free_pinned(pinned), WARREN_DEVICE_OK) << table_->error_text();
    EXPECT_EQ(driver.current(), nullptr);
  }).join();
  EXPECT_EQ(table_->release_shared(used, shared, bytes), WARREN_DEVICE_OK) << table_->error_text();
  EXPECT_EQ(table_->release(used, memory), WARREN_DEVICE_OK) << table_->error_text();
  EXPECT_EQ(table_->end_event(used, event), WARREN_DEVICE_OK) << table_->error_text();
  EXPECT_EQ(table_->end_stream(used, stream), WARREN_DEVICE_OK) << table_->error_text();
  EXPECT_EQ(driver.current(), nullptr);
  for (std::int32_t d = 0; d < devices; d++) EXPECT_EQ(driver.has_context(d), d == used) << d;
}

TEST_F(GpuModule, MakesNoContextOnAGpuThatIsNotUsed) {
  if (!Driver::is_below(*table_)) GTEST_SKIP() << "there is no CUDA below " << table_->name;
  EXPECT_EQ(run_alone("GpuModule.DISABLED_HasAContext*"), 0);
}

// With itself.
TEST_F(Gpu, NcclLeavesAThreadTheContextThatItHas) {
  if (!Driver::is_below(*table_)) GTEST_SKIP() << "there is no CUDA below " << table_->name;
  std::int32_t version = 0;
  const char* file = nullptr;
  if (table_->nccl_version(&version, &file) != WARREN_DEVICE_OK) GTEST_SKIP() << table_->error_text();
  const auto values = any_bits(100'000, 7);
  std::byte *const from = put(values.data(), values.size()), *const to = on_gpu(values.size());
  Driver driver;
  void* communicator = nullptr;
  const auto well = [&](warren_device_code code) {
    EXPECT_EQ(driver.current(), nullptr);
    while (code == WARREN_DEVICE_NOT_READY) code = table_->nccl_state(communicator);
    ASSERT_EQ(code, WARREN_DEVICE_OK) << table_->error_text();
  };
  std::byte id[WARREN_DEVICE_NCCL_ID_BYTES] = {};
  well(table_->nccl_id(id));
  well(table_->nccl_join(0, id, 1, 0, &communicator));
  ASSERT_NE(communicator, nullptr);
  const warren_device_message messages[] = {{from, values.size(), 0, 1}, {to, values.size(), 0, 0}};
  well(table_->nccl_exchange(communicator, messages, 2, stream_));
  finish();
  (void)table_->nccl_revoke(communicator);
  EXPECT_NE(table_->nccl_abort(communicator), WARREN_DEVICE_FAILED) << table_->error_text();
  EXPECT_EQ(driver.current(), nullptr);
  std::vector<std::uint8_t> got(values.size());
  copy(got.data(), to, got.size(), false);
  EXPECT_EQ(got, values);
}

TEST_F(Gpu, PointersAreTold) {
  std::int32_t device = 5;
  int here = 0;
  ASSERT_EQ(table_->locate(&here, &device), WARREN_DEVICE_OK);
  EXPECT_EQ(device, WARREN_DEVICE_HOST);
  ASSERT_EQ(table_->locate(on_gpu(1'000) + 999, &device), WARREN_DEVICE_OK);
  EXPECT_EQ(device, 0);
}

TEST_F(Gpu, CopiesWithinItsMemory) {
  const auto values = any_bits(5'000'001, 3);
  std::byte* const from = put(values.data(), values.size());
  std::byte* const to = on_gpu(values.size());
  ASSERT_EQ(table_->copy(0, to, from, values.size(), stream_), WARREN_DEVICE_OK) << table_->error_text();
  std::vector<std::uint8_t> got(values.size());
  copy(got.data(), to, got.size(), false);
  EXPECT_EQ(got, values);
}

TEST_F(Gpu, ReduceGivesTheTwinsBits) {
  for (const auto& [type, width] : {std::pair(WARREN_F32, 4u), std::pair(WARREN_F16, 2u), std::pair(WARREN_BF16, 2u)}) {
    for (const warren_op op : {WARREN_SUM, WARREN_PRODUCT, WARREN_MIN, WARREN_MAX, WARREN_AVERAGE}) {
      for (const auto& [inputs, bracketing] :
           {std::pair(std::size_t{1}, WARREN_DEVICE_CHAIN), std::pair(std::size_t{2}, WARREN_DEVICE_CHAIN),
            std::pair(std::size_t{8}, WARREN_DEVICE_CHAIN), std::pair(std::size_t{64}, WARREN_DEVICE_CHAIN),
            std::pair(std::size_t{7}, WARREN_DEVICE_BALANCED), std::pair(std::size_t{64}, WARREN_DEVICE_BALANCED)}) {
        // An odd tail, and the same misaligned by an element.
        for (const std::size_t skip : {0u, 1u}) {
          const std::size_t count = 100'003;
          std::vector<std::vector<std::uint8_t>> in;
          std::vector<const void*> host, gpu;
          for (unsigned i = 0; i < inputs; i++) {
            in.push_back(any_bits((count + skip) * width, i));
            host.push_back(in.back().data() + skip * width);
            gpu.push_back(put(in.back().data(), in.back().size()) + skip * width);
          }
          const auto partial = any_bits((count + skip) * sizeof(float), 99);
          const std::pair<const void*, const void*> values{host[0], gpu[0]};
          for (const int forms : {0, 1, 2, 3}) {
            warren_device_reduction how{inputs, type, op, bracketing, forms & 1, forms / 2, 77};
            if (cuda::why_not_reduce(how) != nullptr) continue;
            std::tie(host[0], gpu[0]) = values;
            if (how.first_is_partial != 0) {
              host[0] = partial.data() + skip * sizeof(float);
              gpu[0] = put(partial.data(), partial.size()) + skip * sizeof(float);
            }
            const std::size_t bytes = cuda::reduced_bytes(how, count);
            std::vector<std::uint8_t> want(bytes), got(bytes);
            cuda::twins::reduce(want.data(), host.data(), count, how);
            std::byte* const out = on_gpu(bytes + 16) + skip * bytes / count;
            ASSERT_EQ(table_->reduce(0, out, gpu.data(), count, &how, stream_), WARREN_DEVICE_OK)
                << table_->error_text();
            copy(got.data(), out, got.size(), false);
            ASSERT_EQ(got, want) << "type " << type << ", op " << op << ", " << inputs << " inputs, from " << skip
                                 << ", forms " << forms;
            // In the place of the first one, where that is as wide.
            if (cuda::reduced_bytes(how, 0, count) != bytes) continue;
            auto* const first = static_cast<std::byte*>(const_cast<void*>(gpu[0]));
            const auto before = put(got.data(), got.size());
            ASSERT_EQ(table_->copy(0, before, first, bytes, stream_), WARREN_DEVICE_OK);
            ASSERT_EQ(table_->reduce(0, first, gpu.data(), count, &how, stream_), WARREN_DEVICE_OK);
            copy(got.data(), first, got.size(), false);
            ASSERT_EQ(table_->copy(0, first, before, bytes, stream_), WARREN_DEVICE_OK);
            ASSERT_EQ(got, want) << "in place";
          }
          for (void* memory : memory_) EXPECT_EQ(table_->release(0, memory), WARREN_DEVICE_OK);
          memory_.clear();
        }
      }
    }
  }
}

// Of numbers as gradients are, also large beside small ones: within what so many roundings may be off.
TEST_F(Gpu, SumsAreThoseOfF64) {
  constexpr std::size_t kCount = 200'003, kInputs = 8;
  std::mt19937 random(17);
  std::normal_distribution<float> values;
  for (const auto& [type, width] : {std::pair(WARREN_F32, 4u), std::pair(WARREN_BF16, 2u)}) {
    std::vector<double> sum(kCount), magnitudes(kCount);
    std::vector<const void*> in;
    for (std::size_t i = 0; i < kInputs; i++) {
      std::vector<std::uint32_t> wide(kCount);
      std::vector<std::uint16_t> narrow(kCount);
      for (std::size_t at = 0; at < kCount; at++) {
        const float value = values(random) * (at % 7 == i % 7 ? 1000.0f : 1.0f);
        // As bf16, so that neither type rounds its inputs.
        wide[at] = std::bit_cast<std::uint32_t>(value) & 0xffff0000u;
        narrow[at] = static_cast<std::uint16_t>(wide[at] >> 16);
        sum[at] += std::bit_cast<float>(wide[at]);
        magnitudes[at] += std::abs(std::bit_cast<float>(wide[at]));
      }
      in.push_back(put(type == WARREN_F32 ? static_cast<const void*>(wide.data()) : narrow.data(), kCount * width));
    }
    std::byte* const out = put(std::vector<std::uint8_t>(kCount * width, 0xa5).data(), kCount * width);
    const warren_device_reduction how{kInputs, type, WARREN_SUM, WARREN_DEVICE_CHAIN, 0, 0, kInputs};
    ASSERT_EQ(table_->reduce(0, out, in.data(), kCount, &how, stream_), WARREN_DEVICE_OK) << table_->error_text();
    std::vector<std::uint8_t> got(kCount * width);
    copy(got.data(), out, got.size(), false);
    for (std::size_t at = 0; at < kCount; at++) {
      std::uint32_t bits = 0;
      std::memcpy(reinterpret_cast<std::uint8_t*>(&bits) + 4 - width, &got[at * width], width);
      const double value = std::bit_cast<float>(bits);
      const double rounding = width == 2 ? std::abs(sum[at]) * 0x1p-8 : 0;
      ASSERT_LE(std::abs(value - sum[at]), rounding + magnitudes[at] * kInputs * 0x1p-24)
          << "type " << type << ", " << at;
    }
  }
}

TEST_F(Gpu, LoadsItsKernels) {
  EXPECT_EQ(table_->load(0), WARREN_DEVICE_OK) << table_->error_text();
}

TEST_F(Gpu, ConversionsAndChecksumsGiveTheTwinsBits) {
  // An odd tail, and the same misaligned by an element, which takes the way without vectors.
  const std::size_t most = 3'000'001;
  const auto wide = any_bits(most * 4, 1), narrow = any_bits(most * 2, 2);
  for (const std::size_t skip : {0u, 1u}) {
    const std::size_t count = most - skip;
    for (const warren_type half : {WARREN_F16, WARREN_BF16}) {
      std::vector<std::uint8_t> want(count * 2), got(count * 2), want_wide(count * 4), got_wide(count * 4);
      cuda::twins::convert(want.data(), half, wide.data() + skip * 4, WARREN_F32, count);
      std::byte* const out = on_gpu(most * 4);
      ASSERT_EQ(table_->convert(0, out, half, put(wide.data(), wide.size()) + skip * 4, WARREN_F32, count, stream_),
                WARREN_DEVICE_OK);
      copy(got.data(), out, got.size(), false);
      EXPECT_EQ(got, want);
      cuda::twins::convert(want_wide.data(), WARREN_F32, narrow.data() + skip * 2, half, count);
      ASSERT_EQ(table_->convert(0, out, WARREN_F32, put(narrow.data(), narrow.size()) + skip * 2, half, count, stream_),
                WARREN_DEVICE_OK);
      copy(got_wide.data(), out, got_wide.size(), false);
      EXPECT_EQ(got_wide, want_wide);
    }
  }
  // Aligned in any way; and with all kinds of ends.
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  for (std::size_t skip = 0; skip < 9; skip++) parts.emplace_back(skip, wide.size() - skip);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{24}, std::size_t{31},
                                  WARREN_DEVICE_CHECKSUM_BLOCK, WARREN_DEVICE_CHECKSUM_BLOCK + 8}) {
    parts.emplace_back(0, bytes);
  }
  for (const auto& [skip, bytes] : parts) {
    const std::size_t blocks = (bytes + WARREN_DEVICE_CHECKSUM_BLOCK - 1) / WARREN_DEVICE_CHECKSUM_BLOCK;
    std::vector<std::uint64_t> want(blocks), got(blocks);
    cuda::twins::checksum(want.data(), wide.data() + skip, bytes);
    std::byte* const sums = on_gpu(sizeof(std::uint64_t) * blocks);
    ASSERT_EQ(table_->checksum(0, reinterpret_cast<std::uint64_t*>(sums), put(wide.data(), wide.size()) + skip, bytes,
                               stream_),
              WARREN_DEVICE_OK);
    copy(got.data(), sums, sizeof(std::uint64_t) * blocks, false);
    EXPECT_EQ(got, want) << skip << ", " << bytes;
  }
}

TEST_F(Gpu, BlocksOfI8AreTheTwins) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{3'000'001}}) {
    // Misaligned by an element, which takes the way without vectors, too. Any bits have an infinity or NaN in almost
    // every block; others have none.
    for (const std::size_t skip : {0u, 1u}) {
      for (const bool finite : {false, true}) {
        SCOPED_TRACE(std::to_string(count) + " from " + std::to_string(skip) + (finite ? ", finite" : ""));
        auto wide = any_bits((count + skip) * 4, 5);
        for (std::size_t i = 3; finite && i < wide.size(); i += 4) wide[i] &= 0xbfu;
        const std::size_t bytes = cuda::converted_bytes(WARREN_I8, count);
        std::vector<std::uint8_t> want(bytes), got(bytes), want_wide(count * 4), got_wide(count * 4);
        cuda::twins::convert(want.data(), WARREN_I8, wide.data() + skip * 4, WARREN_F32, count);
        std::byte* const blocks = on_gpu(bytes);
        ASSERT_EQ(
            table_->convert(0, blocks, WARREN_I8, put(wide.data(), wide.size()) + skip * 4, WARREN_F32, count, stream_),
            WARREN_DEVICE_OK)
            << table_->error_text();
        copy(got.data(), blocks, bytes, false);
        EXPECT_EQ(got, want);
        // Any bits are blocks too.
        const auto any = any_bits(bytes, 6);
        cuda::twins::convert(want_wide.data(), WARREN_F32, any.data(), WARREN_I8, count);
        std::byte* const out = on_gpu((count + skip) * 4) + skip * 4;
        ASSERT_EQ(table_->convert(0, out, WARREN_F32, put(any.data(), bytes), WARREN_I8, count, stream_),
                  WARREN_DEVICE_OK)
            << table_->error_text();
        copy(got_wide.data(), out, got_wide.size(), false);
        EXPECT_EQ(got_wide, want_wide);
      }
    }
  }
}

TEST_F(Gpu, PacksAndUnpacks) {
  std::mt19937 random(4);
  for (const std::size_t packed_at : {0u, 4u, 7u}) {
    std::vector<warren_device_piece> from, to;
    std::vector<std::uint8_t> want;
    std::vector<std::vector<std::uint8_t>> pieces;
    for (std::size_t i = 0; i < WARREN_DEVICE_MAX_PIECES; i++) {
      const std::size_t bytes = i % 9 == 0 ? 0 : i % 50 == 1 ? 3'000'000 + random() % 100 : random() % 5'000;
      const std::size_t at = i % 4 == 0 ? random() % 16 : 0;
      pieces.push_back(any_bits(bytes + at + 1, static_cast<unsigned>(i)));
      from.push_back({put(pieces.back().data(), pieces.back().size()) + at, bytes});
      pieces.back().erase(pieces.back().begin(), pieces.back().begin() + static_cast<std::ptrdiff_t>(at));
      pieces.back().pop_back();
      to.push_back({on_gpu(bytes + at + 1) + at, bytes});
      want.insert(want.end(), pieces.back().begin(), pieces.back().end());
    }
    std::byte* const packed = on_gpu(want.size() + packed_at) + packed_at;
    ASSERT_EQ(table_->pack(0, packed, from.data(), from.size(), stream_), WARREN_DEVICE_OK) << table_->error_text();
    std::vector<std::uint8_t> got(want.size());
    copy(got.data(), packed, got.size(), false);
    EXPECT_EQ(got, want) << packed_at;
    ASSERT_EQ(table_->unpack(0, packed, to.data(), to.size(), stream_), WARREN_DEVICE_OK) << table_->error_text();
    for (std::size_t i = 0; i < to.size(); i++) {
      std::vector<std::uint8_t> came(to[i].bytes);
      if (!came.empty()) copy(came.data(), to[i].data, came.size(), false);
      ASSERT_EQ(came, pieces[i]) << i << " at " << packed_at;
    }
    const std::vector<warren_device_piece> many(WARREN_DEVICE_MAX_PIECES + 1, {packed, 0});
    EXPECT_EQ(table_->pack(0, packed, many.data(), many.size(), stream_), WARREN_DEVICE_FAILED);
    EXPECT_EQ(table_->pack(0, packed, many.data(), many.size() - 1, stream_), WARREN_DEVICE_OK);
  }
}

// What torch.cuda.graph does beside asynchronous calls: all functions that a job needs, those that wait included.
TEST_F(Gpu, AJobGoesOnWhileTheProgramCapturesAGraph) {
  if (!Driver::is_below(*table_)) GTEST_SKIP() << "there is no CUDA below " << table_->name;
  testing::Cluster cluster;
  const std::size_t count = 3'000'017;
  constexpr int kRanks = 2, kCalls = 20;
  const std::vector<float> ones(count, 1);
  std::vector<std::byte*> in, out;
  for (int rank = 0; rank < kRanks; rank++) {
    in.push_back(put(ones.data(), count * sizeof(float)));
    out.push_back(on_gpu(count * sizeof(float)));
  }
  Driver driver;
  void* captured = nullptr;
  ASSERT_EQ(table_->make_stream(0, &captured), WARREN_DEVICE_OK) << table_->error_text();
  ASSERT_NO_FATAL_FAILURE(driver.begin_capture(captured));
  cluster.run_well(kRanks, [&](Communicator& comm) {
    comm.use_stream(stream_);
    const auto rank = static_cast<std::size_t>(comm.rank());
    for (int i = 0; i < kCalls; i++) {
      comm.allreduce_async(std::span(reinterpret_cast<float*>(in[rank]), count),
                           std::span(reinterpret_cast<float*>(out[rank]), count))
          .wait();
    }
  });
  // The thread that captures may call, too.
  std::int32_t device = 5;
  EXPECT_EQ(table_->locate(out[0], &device), WARREN_DEVICE_OK) << table_->error_text();
  EXPECT_EQ(device, 0);
  std::vector<float> got(count);
  copy(got.data(), out[0], count * sizeof(float), false);
  driver.end_capture(captured);
  EXPECT_EQ(table_->end_stream(0, captured), WARREN_DEVICE_OK) << table_->error_text();
  EXPECT_EQ(got, std::vector<float>(count, kRanks));
}

// What another process finds, which the test below starts.
TEST_F(Gpu, DISABLED_ReadsMemoryOfAnotherProcess) {
  const char* const told = getenv("WARREN_TEST_SHARED");
  ASSERT_NE(told, nullptr);
  int fd = -1;
  std::size_t bytes = 0;
  ASSERT_EQ(std::sscanf(told, "%d %zu", &fd, &bytes), 2);
  void* memory = nullptr;
  ASSERT_EQ(table_->import_shared(0, fd, bytes, &memory), WARREN_DEVICE_OK) << table_->error_text();
  const auto want = any_bits(100'000, 3);
  std::vector<std::uint8_t> got(want.size());
  copy(got.data(), memory, got.size(), false);
  EXPECT_EQ(got, want);
  // A kernel reads it, too.
  const void* const in[] = {memory};
  std::byte* const out = on_gpu(want.size());
  const warren_device_reduction how{1, WARREN_F32, WARREN_SUM, WARREN_DEVICE_CHAIN, 0, 0, 1};
  ASSERT_EQ(table_->reduce(0, out, in, want.size() / 4, &how, stream_), WARREN_DEVICE_OK) << table_->error_text();
  copy(got.data(), out, got.size(), false);
  EXPECT_EQ(got, want);
  ASSERT_EQ(table_->release_shared(0, memory, bytes), WARREN_DEVICE_OK) << table_->error_text();
}

TEST_F(Gpu, GivesMemoryToAnotherProcess) {
  std::size_t bytes = 100'000;
  void* memory = nullptr;
  int fd = -1;
  ASSERT_EQ(table_->allocate_shared(0, &bytes, &memory, &fd), WARREN_DEVICE_OK) << table_->error_text();
  EXPECT_GE(bytes, 100'000u);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << "other programs that are started would have it, too";
  const auto values = any_bits(100'000, 3);
  copy(memory, values.data(), values.size(), true);
  const int passed = dup(fd);
  EXPECT_EQ(run_alone("Gpu.DISABLED_Reads*",
                      "WARREN_TEST_SHARED='" + std::to_string(passed) + " " + std::to_string(bytes) + "'"),
            0);
  ::close(passed);
  ::close(fd);
  ASSERT_EQ(table_->release_shared(0, memory, bytes), WARREN_DEVICE_OK) << table_->error_text();
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  EXPECT_EQ(table_->import_shared(0, pipes[0], bytes, &memory), WARREN_DEVICE_FAILED) << "that is none";
  for (const int end : pipes) ::close(end);
}

// Ranks that read each other's inputs there, as soon as they have each other's memory.
TEST_F(Gpu, RanksThatLendEachOtherInputsGiveTheBitsOfTheCpu) {
  testing::Cluster cluster;
  const std::size_t count = 3'000'017;
  constexpr int kRanks = 3, kCalls = 6;
  const auto values_of = [&](int rank) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; i++)
      values[i] = 1.0f / static_cast<float>(i % 1013 + static_cast<std::size_t>(rank) + 1);
    return values;
  };
  std::vector<float> on_cpu;
  std::vector<std::byte*> in, out;
  for (int rank = 0; rank < kRanks; rank++) {
    const auto values = values_of(rank);
    in.push_back(put(values.data(), count * sizeof(float)));
    for (int i = 0; i < kCalls; i++) out.push_back(on_gpu(count * sizeof(float)));
  }
  std::uint64_t lent[kRanks] = {}, finals[kRanks] = {};
  cluster.run_well(kRanks, [&](Communicator& comm) {
    const auto sum = comm.allreduce(values_of(comm.rank()));
    if (comm.rank() == 0) on_cpu = sum;
    comm.use_stream(stream_);
    const auto rank = static_cast<std::size_t>(comm.rank());
    const auto call = [&](std::size_t i) {
      comm.allreduce(std::span(reinterpret_cast<float*>(in[rank]), count),
                     std::span(reinterpret_cast<float*>(out[rank * kCalls + i]), count));
    };
    std::vector<int> knows = {0};
    for (int tries = 0; tries < 1000 && knows[0] == 0; tries++) {
      call(0);
      knows[0] = comm.gpu_readers() + 1 == kRanks ? 1 : 0;
      comm.allreduce(std::span(knows), Op::min);
    }
    for (std::size_t i = 0; i < kCalls; i++) call(i);
    lent[rank] = comm.inputs_lent();
    finals[rank] = comm.finals_from_gpus();
  });
  for (int rank = 0; rank < kRanks; rank++) {
    EXPECT_GE(lent[rank], std::uint64_t{kCalls});
    EXPECT_GT(finals[rank], 0u);
  }
  for (std::size_t i = 0; i < out.size(); i++) {
    std::vector<float> from_gpu(count);
    copy(from_gpu.data(), out[i], count * sizeof(float), false);
    EXPECT_EQ(from_gpu, on_cpu) << i;
  }
}

TEST_F(Gpu, AJobOnItGivesTheBitsOfTheCpu) {
  testing::Cluster cluster;
  const std::size_t count = 3'000'017;
  const auto values_of = [&](int rank) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; i++)
      values[i] = 1.0f / static_cast<float>(i % 1013 + static_cast<std::size_t>(rank) + 1);
    return values;
  };
  const std::vector<Wire> wires{Wire::f32, Wire::bf16, Wire::f16, Wire::i8};
  std::vector<std::vector<float>> on_cpu(wires.size());
  cluster.run_well(
      3,
      [&](Communicator& comm) {
        for (std::size_t w = 0; w < wires.size(); w++) {
          const auto sum = comm.wire(wires[w]).allreduce(values_of(comm.rank()), Op::average);
          if (comm.rank() == 0) on_cpu[w] = sum;
        }
      },
      [](int, Options& o) { o.job = "cpu"; });
  std::vector<std::byte*> in, out;
  for (int rank = 0; rank < 3; rank++) {
    const auto values = values_of(rank);
    in.push_back(put(values.data(), count * sizeof(float)));
    for (std::size_t w = 0; w < wires.size(); w++) out.push_back(on_gpu(count * sizeof(float)));
  }
  cluster.run_well(
      3,
      [&](Communicator& comm) {
        const auto rank = static_cast<std::size_t>(comm.rank());
        comm.use_stream(stream_);
        for (std::size_t w = 0; w < wires.size(); w++) {
          comm.wire(wires[w]).allreduce(std::span(reinterpret_cast<float*>(in[rank]), count),
                                        std::span(reinterpret_cast<float*>(out[rank * wires.size() + w]), count),
                                        Op::average);
        }
      },
      [](int, Options& o) { o.job = "gpu"; });
  for (std::size_t i = 0; i < out.size(); i++) {
    std::vector<float> from_gpu(count);
    copy(from_gpu.data(), out[i], count * sizeof(float), false);
    EXPECT_EQ(from_gpu, on_cpu[i % wires.size()]) << i;
  }
}

}  // namespace
}  // namespace warren

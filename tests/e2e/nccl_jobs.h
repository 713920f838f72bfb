// Jobs in one process whose large allreduces NCCL, here a fake, moves the bytes of, among GPUs of several hosts.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/worker/device/fake_gpu.h"

namespace warren::testing {

using test::Array;
using test::DeviceArray;
using test::fake_gpu;
using test::FakeFault;

// Before any thread: what loads in the place of libwarren_cuda.so.
inline const bool kFakeLoads = setenv("WARREN_DEVICE_LIBRARY", WARREN_FAKE_DEVICE, 1) == 0 &&
                               setenv("WARREN_NCCL_ROOT", WARREN_NCCL_ROOT_PROGRAM, 1) == 0;

// No whole number of anything.
inline constexpr std::size_t kLarge = 1'500'017;
inline constexpr std::size_t kWide = 2'200'003;  // as 16 bits, too

template <class T = float>
std::vector<T> values_of(int rank, std::size_t count = kLarge) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; i++) {
    values[i] = T(1.0f / static_cast<float>(i * 7 % 1009 + static_cast<std::size_t>(rank) + 1));
  }
  return values;
}

class NcclJobs : public ::testing::Test {
 protected:
  NcclJobs() {
    EXPECT_TRUE(kFakeLoads);
    EXPECT_EQ(setenv("WARREN_NCCL", "1", 1), 0);
  }
  ~NcclJobs() override {
    fake_gpu().controls.release();
    EXPECT_EQ(unsetenv("WARREN_NCCL"), 0);
  }

  using Results = std::vector<std::vector<std::byte>>;
  template <class T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }

  // Calls until NCCL moves the bytes; how many, which is the same on all ranks: it does for all or for none.
  static int warm_up(Communicator& comm, std::int32_t device) {
    const std::uint64_t before = comm.rounds_exchanged();
    for (int calls = 1; calls <= 1000; calls++) {
      warm_up_call(comm, device);
      if (comm.rounds_exchanged() != before) return calls;
      // Ranks join meanwhile, which nothing but a call tells of.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "NCCL does nothing";
    return 0;
  }
  // The same calls, of a life that comes after one that has made them.
  static void warm_up_again(Communicator& comm, std::int32_t device, int calls) {
    for (int i = 0; i < calls; i++) warm_up_call(comm, device);
  }
  static void warm_up_call(Communicator& comm, std::int32_t device) {
    Array<float> array(true, values_of(comm.rank()), device);
    comm.allreduce(array.span());
  }
  // Calls of a rank, on the CPU or on this GPU.
  Results calls(Communicator& comm, bool on_gpu, std::int32_t device, bool nccl) {
    const int rank = comm.rank();
    Results out;
    if (nccl) warm_up(comm, device);
    const std::uint64_t before = comm.rounds_exchanged();
    const auto call = [&]<class T>(const std::vector<T>& in, bool in_place, Op op, std::optional<Wire> wire) {
      Array<T> from(on_gpu, in, device), to(on_gpu, std::vector<T>(in.size(), T(-1.0f)), device);
      Calls calls = comm.wire(wire.value_or(Wire::f32));
      if (in_place) {
        calls.allreduce(from.span(), op);
      } else {
        calls.allreduce(from.span(), to.span(), op);
        EXPECT_EQ(bytes_of(from.read()), bytes_of(in)) << "the input stays";
      }
      out.push_back(bytes_of((in_place ? from : to).read()));
    };
    for (const bool in_place : {true, false}) {
      call(values_of(rank + 1), in_place, Op::sum, std::nullopt);
      call(values_of(rank + 2, 1'048'577), in_place, Op::average, std::nullopt);
      call(values_of<bfloat16>(rank + 3, kWide), in_place, Op::product, std::nullopt);
      call(values_of<float16>(rank + 3, 3'000'001), in_place, Op::sum, std::nullopt);
      call(values_of(rank + 3, kWide), in_place, Op::min, Wire::bf16);
      call(values_of(rank + 4, kWide), in_place, Op::average, Wire::f16);
    }
    exchanged_ = std::max<std::uint64_t>(exchanged_, comm.rounds_exchanged() - before);
    // Types and sizes that go by way of the CPU; and two calls at once.
    call(values_of(rank + 1, 5), true, Op::sum, std::nullopt);
    Array<int> ints(on_gpu, std::vector<int>(1'500'001, rank + 1), device);
    comm.allreduce(ints.span());
    EXPECT_EQ(ints.read()[1'500'000], comm.world_size() * (comm.world_size() + 1) / 2);
    Array<float> a(on_gpu, values_of(rank + 5), device), b(on_gpu, values_of(rank + 6), device);
    auto first = comm.allreduce_async(a.span()), second = comm.allreduce_async(b.span(), Op::max);
    first.wait();
    second.wait();
    out.push_back(bytes_of(a.read()));
    out.push_back(bytes_of(b.read()));
    return out;
  }
  void options(int rank, int ranks_a_host, Options& o) {
    o.host_id = o.domain_id = "host-" + std::to_string(rank / ranks_a_host);
    o.replicas = 2;
    o.round_timeout_ms = std::chrono::seconds(20);
    o.log_sink = [this](LogLevel level, std::string_view text) {
      if (level == LogLevel::info) return;
      const std::lock_guard lock(mutex_);
      warnings_.emplace_back(text);
    };
    o.log_level = LogLevel::warning;
  }
  // Of all ranks; those of `on_cpu` have their buffers on the CPU.
  std::vector<Results> job(const std::string& name, int ranks, int ranks_a_host, unsigned on_cpu,
                           const std::string& algorithm = "auto") {
    std::vector<Results> all(static_cast<std::size_t>(ranks));
    exchanged_ = 0;
    const bool nccl = on_cpu != ~0u;
    cluster_.run_well(
        ranks,
        [&](Communicator& comm) {
          const int rank = comm.rank();
          all[static_cast<std::size_t>(rank)] = calls(comm, (on_cpu >> rank & 1) == 0, rank % 2, nccl);
        },
        [&](int rank, Options& o) {
          o.job = name;
          o.algorithm = algorithm;
          options(rank, ranks_a_host, o);
        });
    return all;
  }
  std::string warned() {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& text : warnings_) all += text + "\n";
    return all;
  }

  Cluster cluster_;
  std::mutex mutex_;
  std::atomic<std::uint64_t> exchanged_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace warren::testing

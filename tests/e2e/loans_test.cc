// Ranks of one host whose large allreduces are made on the fake device, of inputs that they lend each other there:
// every result is that of the same job on the CPU, bit for bit, whatever happens to them.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "tests/e2e/cluster.h"
#include "tests/e2e/loan_jobs.h"
#include "tests/worker/device/fake_gpu.h"
#include "tracker/status.h"

namespace warren {
namespace {

using test::Array;
using test::DeviceArray;
using test::fake_gpu;
using test::FakeFault;
using testing::Cluster;
using ::testing::HasSubstr;

// Before any thread: what loads in the place of libwarren_cuda.so.
const bool kFakeLoads = setenv("WARREN_DEVICE_LIBRARY", WARREN_FAKE_DEVICE, 1) == 0;

// No whole number of anything.
constexpr std::size_t kLarge = 1'500'017;
constexpr std::size_t kWide = 2'200'003;  // as 16 bits, too

std::vector<float> values_of(int rank, std::size_t count = kLarge) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; i++) {
    values[i] = 1.0f / static_cast<float>(i * 7 % 1009 + static_cast<std::size_t>(rank) + 1);
  }
  return values;
}

// Of all ranks' values_of().
std::vector<float> greatest_of(int ranks) {
  std::vector<float> all = values_of(0);
  for (int rank = 1; rank < ranks; rank++) {
    const std::vector<float> other = values_of(rank);
    for (std::size_t i = 0; i < kLarge; i++) all[i] = std::max(all[i], other[i]);
  }
  return all;
}

using Results = std::vector<std::vector<float>>;

class Loans : public ::testing::Test {
 protected:
  Loans() { EXPECT_TRUE(kFakeLoads); }
  ~Loans() override { fake_gpu().controls.release(); }

  // Calls of a rank, on the CPU or on this GPU, after those in which ranks get to know each other's memory.
  Results calls(Communicator& comm, bool on_gpu, std::int32_t device) {
    const int rank = comm.rank();
    Results out;
    bool known = false;
    for (int tries = 0; tries < 1000 && !known; tries++) {
      Array<float> array(on_gpu || warms_up_, values_of(rank), device);
      comm.allreduce(array.span());
      if (tries == 0) out.push_back(array.read());
      known = all_know(comm);
    }
    EXPECT_TRUE(known);
    const std::uint64_t before = fake_gpu().controls.calls("stream.reduce");
    const std::uint64_t lent = comm.inputs_lent(), finals = comm.finals_from_gpus();
    comm.barrier();
    const auto call = [&](const std::vector<float>& in, bool in_place, Op op, std::optional<Wire> wire) {
      Array<float> from(on_gpu, in, device), to(on_gpu, std::vector<float>(in.size(), -1.0f), device);
      Calls calls = comm.wire(wire.value_or(Wire::f32));
      if (in_place) {
        calls.allreduce(from.span(), op);
      } else {
        calls.allreduce(from.span(), to.span(), op);
        EXPECT_EQ(from.read(), in) << "the input stays";
      }
      out.push_back((in_place ? from : to).read());
    };
    for (const bool in_place : {true, false}) {
      call(values_of(rank + 1), in_place, Op::sum, std::nullopt);
      call(values_of(rank + 2), in_place, Op::average, std::nullopt);
      call(values_of(rank + 3, kWide), in_place, Op::min, Wire::bf16);
      call(values_of(rank + 4, kWide), in_place, Op::average, Wire::f16);
      scatter(comm, on_gpu, device, in_place, Op::sum, std::nullopt, out);
      scatter(comm, on_gpu, device, in_place, Op::average, Wire::bf16, out);
      gather(comm, on_gpu, device, in_place, out);
    }
    for (int root = 0; root < 2; root++) {
      Array<float> array(on_gpu, rank == root ? values_of(7) : std::vector<float>(kLarge, -1.0f), device);
      comm.broadcast(array.span(), root);
      out.push_back(array.read());
    }
    // A type that a GPU does not combine, and two calls at once.
    Array<int> ints(on_gpu, std::vector<int>(1'500'001, rank + 1), device);
    comm.allreduce(ints.span());
    EXPECT_EQ(ints.read()[1'500'000], comm.world_size() * (comm.world_size() + 1) / 2);
    Array<float> a(on_gpu, values_of(rank + 5), device), b(on_gpu, values_of(rank + 6), device);
    auto first = comm.allreduce_async(a.span()), second = comm.allreduce_async(b.span(), Op::max);
    first.wait();
    second.wait();
    out.push_back(a.read());
    out.push_back(b.read());
    comm.barrier();
    const std::lock_guard lock(mutex_);
    combined_ = std::max(combined_, fake_gpu().controls.calls("stream.reduce") - before);
    lent_ = std::max(lent_, comm.inputs_lent() - lent);
    finals_ = std::max(finals_, comm.finals_from_gpus() - finals);
    return out;
  }
  // Reduced on the GPU, too.
  static void scatter(Communicator& comm, bool on_gpu, std::int32_t device, bool in_place, Op op,
                      std::optional<Wire> wire, Results& out) {
    const auto ranks = static_cast<std::size_t>(comm.world_size()), rank = static_cast<std::size_t>(comm.rank());
    const std::size_t count = kWide / ranks;
    const std::vector<float> in = values_of(comm.rank() + 8, ranks * count);
    Array<float> from(on_gpu, in, device), to(on_gpu, std::vector<float>(count, -1.0f), device);
    comm.wire(wire.value_or(Wire::f32))
        .reduce_scatter(from.span(), in_place ? from.span().subspan(rank * count, count) : to.span(), op);
    std::vector<float> after = from.read();
    const auto own = after.begin() + static_cast<std::ptrdiff_t>(rank * count);
    out.push_back(in_place ? std::vector<float>(own, own + static_cast<std::ptrdiff_t>(count)) : to.read());
    if (in_place) std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(rank * count), count, own);
    EXPECT_EQ(after, in) << "the input stays, but where the output is";
  }
  // Its pieces come and go while the round runs.
  static void gather(Communicator& comm, bool on_gpu, std::int32_t device, bool in_place, Results& out) {
    const auto ranks = static_cast<std::size_t>(comm.world_size()), rank = static_cast<std::size_t>(comm.rank());
    const std::vector<float> in = values_of(comm.rank() + 9, kWide / ranks);
    std::vector<float> whole(ranks * in.size(), -1.0f);
    std::ranges::copy(in, whole.begin() + static_cast<std::ptrdiff_t>(rank * in.size()));
    Array<float> from(on_gpu, in, device), to(on_gpu, whole, device);
    comm.allgather(in_place ? to.span().subspan(rank * in.size(), in.size()) : from.span(), to.span());
    out.push_back(to.read());
    EXPECT_EQ(from.read(), in);
  }
  // Whether all ranks' memory is read by all others, or that will not be.
  bool all_know(Communicator& comm) {
    const auto mates = hosts_.empty() ? comm.world_size() : std::ranges::count(hosts_, hosts_[index(comm.rank())]);
    std::vector<int> knows = {!warms_up_ || comm.gpu_readers() + 1 == static_cast<std::uint64_t>(mates)};
    {
      const std::lock_guard lock(mutex_);
      if (!warnings_.empty()) knows[0] = 1;
    }
    comm.allreduce(std::span(knows), Op::min);
    return knows[0] != 0;
  }
  // Of all ranks; those of `on_cpu` have their buffers on the CPU.
  std::vector<Results> job(const std::string& name, int ranks, unsigned on_cpu, int devices = 1) {
    std::vector<Results> all(static_cast<std::size_t>(ranks));
    combined_ = lent_ = finals_ = 0;
    cluster_.run_well(
        ranks,
        [&](Communicator& comm) {
          const int rank = comm.rank();
          all[static_cast<std::size_t>(rank)] = calls(comm, (on_cpu >> rank & 1) == 0, rank % devices);
        },
        [&](int worker, Options& o) {
          o.job = name;
          o.round_timeout_ms = std::chrono::seconds(20);
          o.algorithm = algorithm_;
          if (!hosts_.empty()) o.host_id = o.domain_id = hosts_[index(worker)];
          o.log_sink = [this](LogLevel level, std::string_view text) {
            if (level == LogLevel::info) return;
            const std::lock_guard lock(mutex_);
            warnings_.emplace_back(text);
          };
          o.log_level = LogLevel::warning;
        });
    return all;
  }
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  Cluster cluster_;
  bool warms_up_ = true;            // also those who call on the CPU later
  std::vector<std::string> hosts_;  // by rank; empty: one
  std::string algorithm_ = "auto";
  std::mutex mutex_;
  std::uint64_t combined_ = 0;           // kernels
  std::uint64_t lent_ = 0, finals_ = 0;  // of one rank: inputs; pieces that came from others' GPUs
  std::vector<std::string> warnings_;
};

TEST_F(Loans, GiveTheBitsOfTheCpu) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const std::string name = std::to_string(ranks);
    warms_up_ = false;
    const std::size_t shared = fake_gpu().controls.shared();
    const auto expected = job("cpu" + name, ranks, ~0u);
    EXPECT_EQ(fake_gpu().controls.shared(), shared) << "who does not use a GPU takes nothing of it";
    warms_up_ = true;
    EXPECT_EQ(job("gpu" + name, ranks, 0), expected);
    EXPECT_GT(combined_, 8u);
    EXPECT_EQ(lent_, 16u) << "all that GPUs combine, or copy";
    EXPECT_GT(finals_, 50u);
    // Each on a GPU of its own, as far as there are two.
    EXPECT_EQ(job("gpus" + name, ranks, 0, 2), expected);
    EXPECT_GT(combined_, 8u);
    EXPECT_GT(finals_, 50u);
    EXPECT_EQ(job("mixed" + name, ranks, 0b010), expected);
    EXPECT_GT(lent_, 0u);
    EXPECT_EQ(combined_ > 0, ranks == 3) << "where the one on the CPU is first, for some owner";
    EXPECT_TRUE(warnings_.empty()) << warnings_[0];
  }
}

// What a host makes of its inputs on a GPU goes to the next host, which goes on from there on one of its own.
TEST_F(Loans, AmongSeveralHostsGiveTheBitsOfTheCpu) {
  using Hosts = std::vector<std::string>;
  for (const char* algorithm : {"ring", "butterfly"}) {
    algorithm_ = algorithm;
    hosts_.clear();
    warms_up_ = false;
    const auto expected = job("cpu" + algorithm_, 4, ~0u);
    warms_up_ = true;
    for (const Hosts& hosts : {Hosts{"a", "a", "b", "b"}, Hosts{"a", "b", "b", "b"}}) {
      hosts_ = hosts;
      const std::string name = algorithm_ + hosts[1];
      SCOPED_TRACE(name);
      EXPECT_EQ(job("gpu" + name, 4, 0, 2), expected);
      EXPECT_GT(combined_, 8u);
      // By the direct reduce_scatter fewer bytes cross where two of bf16 are sent than where their sum is.
      const bool sends_both = algorithm_ == "butterfly" && hosts[1] == "a";
      EXPECT_EQ(lent_, sends_both ? 14u : 16u) << "all that GPUs combine, or copy";
      EXPECT_GT(finals_, 200u) << "those from the other host, too";
      EXPECT_EQ(job("mixed" + name, 4, 0b010), expected);
      EXPECT_TRUE(warnings_.empty()) << warnings_[0];
    }
  }
}

// What the ranks know of themselves, /status says too, and the sums of it.
TEST_F(Loans, AreInWhatTheTrackerShows) {
  constexpr int kRanks = 3;
  const auto counters_in = [](const nlohmann::json& j) {
    std::vector<std::uint64_t> all;
    for (const char* name : {"gpu_readers", "inputs_lent", "finals_from_gpus", "rounds_exchanged"})
      all.push_back(j.at(name));
    return all;
  };
  cluster_.run_well(kRanks, [&](Communicator& comm) {
    const auto lend = [&] {
      DeviceArray<float> in(values_of(comm.rank()));
      comm.allreduce(in.span(), Op::max);
    };
    for (int tries = 0; tries < 1000 && !all_know(comm); tries++) lend();
    lend();
    const std::vector<std::uint64_t> own = {comm.gpu_readers(), comm.inputs_lent(), comm.finals_from_gpus(),
                                            comm.rounds_exchanged()};
    EXPECT_EQ(own[0], kRanks - 1u);
    EXPECT_GT(own[1], 0u);
    EXPECT_GT(own[2], 0u);
    std::vector<std::uint64_t> sums = own;
    comm.allreduce(std::span(sums));
    const auto shown = [&] {
      const auto snapshot = cluster_.tracker().snapshot();
      if (!snapshot.ok()) return false;
      const nlohmann::json job = nlohmann::json::parse(tracker::to_json(*snapshot.value())).at("jobs").at(0);
      return counters_in(job.at("members").at(static_cast<std::size_t>(comm.rank()))) == own &&
             counters_in(job) == sums;
    };
    // Each heartbeat comes by itself, while the ranks call.
    const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::vector<int> known = {0};
    while (known[0] == 0) {
      known[0] = shown();
      comm.allreduce(std::span(known), Op::min);
      std::vector<int> late = {std::chrono::steady_clock::now() > latest};
      comm.allreduce(std::span(late), Op::max);
      ASSERT_EQ(late[0], 0);
    }
  });
}

// One that cannot map another's memory: those whose memory it is bring their inputs to the CPU, and say nothing.
TEST_F(Loans, ThatCannotBeMappedAreNotGiven) {
  warms_up_ = false;
  const auto expected = job("cpu", 3, ~0u);
  warms_up_ = true;
  for (const FakeFault fault : {FakeFault::kError, FakeFault::kNoMemory}) {
    for (const char* where : {"import_shared", "allocate_shared"}) {
      SCOPED_TRACE(where);
      warnings_.clear();
      fake_gpu().controls.arm(where, 0, fault);
      EXPECT_EQ(job(std::string(where) + std::to_string(static_cast<int>(fault)), 3, 0), expected);
      ASSERT_EQ(warnings_.size(), 1u) << "once";
      EXPECT_THAT(warnings_[0], HasSubstr(std::string("injected into ") + where));
      EXPECT_THAT(warnings_[0], HasSubstr("go by way of the CPU"));
      if (*where == 'a' && fault == FakeFault::kError) {
        EXPECT_EQ(combined_, 0u) << "who has no memory of its own maps none";
      }
    }
  }
}

TEST_F(Loans, AreSwitchedOff) {
  ASSERT_EQ(setenv("WARREN_DEVICE_SHARED_BYTES", "0", 1), 0);
  const std::size_t before = fake_gpu().controls.shared();
  warms_up_ = false;
  EXPECT_EQ(job("off", 3, 0)[0][0].size(), kLarge);
  ASSERT_EQ(unsetenv("WARREN_DEVICE_SHARED_BYTES"), 0);
  EXPECT_EQ(combined_, 0u);
  EXPECT_EQ(fake_gpu().controls.shared(), before);
}

// Larger than what there is: as without.
TEST_F(Loans, WithoutRoomForAnInputItGoesByWayOfTheCpu) {
  warms_up_ = false;
  const auto expected = job("cpu", 3, ~0u);
  warms_up_ = true;
  // Two at once do not fit.
  ASSERT_EQ(setenv("WARREN_DEVICE_SHARED_BYTES", "8M", 1), 0);
  EXPECT_EQ(job("small", 3, 0), expected);
  EXPECT_GT(combined_, 0u);
  ASSERT_EQ(unsetenv("WARREN_DEVICE_SHARED_BYTES"), 0);
}

// A reader whose GPU stands still for a while, and owners that go on with the calls of another communicator, and
// through all of their ring.
TEST_F(Loans, FinalsThatAreGoneWhenTheyAreReadComeFromTheLog) {
  ASSERT_EQ(setenv("WARREN_DEVICE_SHARED_BYTES", "16M", 1), 0);
  constexpr int kRanks = 3;
  const std::vector<float> expected = greatest_of(kRanks);
  std::atomic<std::uint64_t> finals = 0;
  cluster_.run_well(kRanks, [&](Communicator& comm) {
    const int rank = comm.rank();
    Communicator other = *comm.split(0, rank);
    DeviceArray<float> in(values_of(rank)), out(kLarge), ones(std::vector<float>(kLarge, 1.0f)), sum(kLarge);
    int tries = 0;
    do {
      other.allreduce(ones.span(), sum.span());
    } while (!all_know(comm) && ++tries < 1000);
    EXPECT_LT(tries, 1000);
    for (int i = 0; i < 8; i++) {
      std::thread late;
      if (rank == 0) {
        const int after = 12 + 4 * i;
        const std::uint64_t hangs = fake_gpu().controls.calls("stream.copy") + static_cast<std::uint64_t>(after);
        fake_gpu().controls.arm("stream.copy", after, FakeFault::kHang);
        late = std::thread([hangs] {
          while (fake_gpu().controls.calls("stream.copy") <= hangs)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          // For owners to come round. Some of these hangs hold up an input, and then nobody does: no event says when to
          // end.
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          fake_gpu().controls.release();
        });
      }
      comm.barrier();
      auto call = comm.allreduce_async(in.span(), out.span(), Op::max);
      for (int k = 0; k < 5; k++) other.allreduce(ones.span(), sum.span());
      call.wait();
      EXPECT_EQ(out.read(), expected) << i;
      EXPECT_EQ(sum.read(), std::vector<float>(kLarge, kRanks));
      if (late.joinable()) late.join();
      comm.barrier();
    }
    finals += comm.finals_from_gpus();
  });
  EXPECT_GT(finals, 100u);
  ASSERT_EQ(unsetenv("WARREN_DEVICE_SHARED_BYTES"), 0);
}

// The budget is for the buffers of one call: nothing is left for what its owners combine.
TEST_F(Loans, HavePinnedMemoryWhereBuffersTakeAllOfTheBudget) {
  ASSERT_EQ(setenv("WARREN_DEVICE_PINNED_BYTES", "12M", 1), 0);
  constexpr int kRanks = 3;
  const std::vector<float> expected = greatest_of(kRanks);
  const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
  cluster_.run_well(kRanks, [&](Communicator& comm) {
    DeviceArray<float> out(kLarge);
    for (int i = 0; i < 40; i++) {
      DeviceArray<float> in(values_of(comm.rank()));
      const bool in_place = i % 2 == 0;
      if (in_place) {
        comm.allreduce(in.span(), Op::max);
      } else {
        comm.allreduce(in.span(), out.span(), Op::max);
      }
      ASSERT_EQ((in_place ? in : out).read(), expected) << i;
      if (all_know(comm)) break;
    }
    EXPECT_TRUE(all_know(comm));
    for (int i = 0; i < 4; i++) {
      DeviceArray<float> in(values_of(comm.rank()));
      comm.allreduce(in.span(), out.span(), Op::max);
      EXPECT_EQ(out.read(), expected) << i;
    }
    EXPECT_GE(comm.inputs_lent(), 4u);
  });
  EXPECT_GT(fake_gpu().controls.calls("stream.reduce"), kernels);
  ASSERT_EQ(unsetenv("WARREN_DEVICE_PINNED_BYTES"), 0);
}

// As docs/gpu.md has it: calls until one is refused, which is made when another has ended.
TEST_F(Loans, GoOnWhereCallsAreMadeUntilOneIsRefused) {
  ASSERT_EQ(setenv("WARREN_DEVICE_PINNED_BYTES", "36M", 1), 0);
  constexpr int kRanks = 3;
  const std::vector<float> expected = greatest_of(kRanks);
  std::atomic<bool> full{false}, over{false};
  struct SaysThatItIsOver {
    std::atomic<bool>* over;
    ~SaysThatItIsOver() {
      if (over != nullptr) *over = true;
    }
  };
  cluster_.run_well(kRanks, [&](Communicator& comm) {
    const int rank = comm.rank();
    const SaysThatItIsOver says{rank == 0 ? &over : nullptr};
    {
      DeviceArray<float> first(values_of(rank));
      for (int tries = 0; tries < 1000; tries++) {
        comm.allreduce(first.span(), Op::max);
        if (all_know(comm)) break;
      }
    }
    // No call of rank 0 ends before one was refused.
    while (rank != 0 && !full && !over) std::this_thread::yield();
    struct Issued {
      explicit Issued(int of) : array(values_of(of)) {}
      DeviceArray<float> array;
      std::optional<Handle> handle;
    };
    std::deque<std::unique_ptr<Issued>> issued;
    const auto wait_for_one = [&] {
      ASSERT_FALSE(issued.empty());
      issued.front()->handle->wait();
      EXPECT_EQ(issued.front()->array.read(), expected);
      issued.pop_front();
    };
    for (int i = 0; i < 30; i++) {
      auto next = std::make_unique<Issued>(rank);
      while (!next->handle) {
        try {
          next->handle = comm.allreduce_async(next->array.span(), Op::max);
        } catch (const Error& e) {
          if (e.code() != ErrorCode::exhausted || issued.empty()) throw;
          full = true;
          wait_for_one();
        }
      }
      issued.push_back(std::move(next));
    }
    while (!issued.empty()) wait_for_one();
    EXPECT_GE(comm.inputs_lent(), 30u);
  });
  EXPECT_TRUE(full);
  ASSERT_EQ(unsetenv("WARREN_DEVICE_PINNED_BYTES"), 0);
}

// Large allreduces that are put together, or could have been, are made as all others are.
TEST_F(Loans, AreGivenInAFusionToo) {
  for (const std::size_t most_bytes : {std::size_t{1'000}, std::size_t{64} << 20}) {
    SCOPED_TRACE(most_bytes);
    constexpr int kRanks = 3;
    const std::vector<float> expected = greatest_of(kRanks);
    cluster_.run_well(
        kRanks,
        [&](Communicator& comm) {
          const Fusion fusion = comm.fuse(most_bytes);
          bool known = false;
          for (int tries = 0; tries < 200 && !known; tries++) {
            DeviceArray<float> in(values_of(comm.rank()));
            comm.allreduce_async(in.span(), Op::max).wait();
            ASSERT_EQ(in.read(), expected);
            std::vector<int> knows = {comm.gpu_readers() + 1 == kRanks};
            comm.allreduce_async(std::span(knows), Op::min).wait();
            known = knows[0] != 0;
          }
          EXPECT_TRUE(known) << comm.gpu_readers();
          if (!known) return;
          const std::uint64_t lent = comm.inputs_lent();
          DeviceArray<float> in(values_of(comm.rank()));
          comm.allreduce_async(in.span(), Op::max).wait();
          EXPECT_EQ(in.read(), expected);
          EXPECT_EQ(comm.inputs_lent(), lent + 1);
        },
        [&](int, Options& o) { o.job = std::to_string(most_bytes); });
  }
}

// Control messages, which interrupts come by, and other threads need the lock: a call into the driver that does not
// return must not have it.
TEST_F(Loans, AGpuThatHangsWhileCallsArePutTogetherHoldsUpNoOtherThread) {
  const std::vector<float> expected = greatest_of(2);
  for (const char* where : {"record", "make_event", "allocate", "allocate_pinned", "allocate_shared"}) {
    SCOPED_TRACE(where);
    std::atomic<bool> released{false};
    cluster_.run_well(
        2,
        [&](Communicator& comm) {
          DeviceArray<float> in(values_of(comm.rank())), small(std::vector<float>(100, 1.0f));
          comm.barrier();
          while (comm.rank() == 1 && !released) std::this_thread::yield();
          std::thread looks;
          if (comm.rank() == 0) {
            fake_gpu().controls.arm(where, 0, FakeFault::kHang);
            looks = std::thread([&, calls = fake_gpu().controls.calls(where)] {
              while (fake_gpu().controls.calls(where) == calls) std::this_thread::yield();
              auto version = std::async(std::launch::async, [&] { return comm.version(); });
              EXPECT_EQ(version.wait_for(std::chrono::seconds(10)), std::future_status::ready);
              fake_gpu().controls.release();
              EXPECT_EQ(version.get(), 0u);
              released = true;
            });
          }
          {
            const Fusion fusion = comm.fuse(std::size_t{64} << 20);
            auto one = comm.allreduce_async(in.span(), Op::max);
            std::optional<Handle> other;
            // One part alone is staged as any call is.
            if (where != std::string("allocate_shared")) other = comm.allreduce_async(small.span(), Op::max);
            one.wait();
            if (other) other->wait();
          }
          if (looks.joinable()) looks.join();
          EXPECT_EQ(in.read(), expected);
          EXPECT_EQ(small.read(), std::vector<float>(100, 1.0f));
        },
        [&](int, Options& o) {
          o.job = where;
          o.round_timeout_ms = std::chrono::seconds(20);
        });
  }
}

// Nobody who has mapped a life's memory has it for longer than that life by more than a call, of whatever kind.
TEST_F(Loans, OfALifeThatIsOverAreReleased) {
  constexpr int kRanks = 3;
  const std::vector<float> expected = greatest_of(kRanks);
  const std::size_t before = fake_gpu().controls.shared();
  std::atomic<int> finished{0};
  const auto lend = [&](Communicator& comm) {
    for (int tries = 0; tries < 1000; tries++) {
      DeviceArray<float> in(values_of(comm.rank()));
      comm.allreduce(in.span(), Op::max);
      ASSERT_EQ(in.read(), expected);
      if (all_know(comm)) return;
    }
    FAIL() << "ranks do not get to know each other's memory";
  };
  // On the CPU: nothing is prepared. The next life of rank 2 has replayed before.
  const auto go_on = [&](Communicator& comm) {
    std::vector<int> left = {1};
    for (int tries = 0; tries < 1000 && left[0] != 0; tries++) {
      // Of the two that have stayed, and what each has of the other.
      left[0] = comm.rank() == 0 && fake_gpu().controls.shared() != before + 4;
      comm.allreduce(std::span(left), Op::max);
    }
    EXPECT_EQ(left[0], 0) << fake_gpu().controls.shared() - before;
    comm.finalize();
    finished++;
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; rank++) {
    ranks.emplace_back([&, rank] {
      try {
        const Options o = cluster_.options(rank, kRanks);
        auto comm = std::make_unique<Communicator>(Communicator::create(o));
        (void)comm->load_checkpoint();
        lend(*comm);
        comm->checkpoint(std::vector<int>{1});
        while (rank == 2 && comm->committed_version() == 0) std::this_thread::yield();
        if (rank == 2) {
          comm.reset();
          comm = std::make_unique<Communicator>(Communicator::create(o));
          (void)comm->load_checkpoint();
        }
        go_on(*comm);
      } catch (const Error& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(finished, kRanks);
}

// ---- processes

std::vector<std::string> run_processes(const std::string& folder, const std::string& mode, const std::string& fault) {
  return testing::run_processes(folder, mode, 8, fault);
}

// What a job's workers have combined on their GPUs.
int combined(const std::string& folder) {
  return testing::counted(folder, ".count");
}

TEST(LoansOfProcesses, GiveTheBitsOfTheCpuWhateverHappens) {
  const testing::TempDir folder;
  const std::string none = "none none 0 none";
  const auto expected = run_processes(folder / "cpu", "cpu", none);
  for (const std::string& state : expected) {
    ASSERT_EQ(state.size(), 3'001 * sizeof(float));
    EXPECT_EQ(state, expected[0]);
  }
  EXPECT_EQ(combined(folder / "cpu"), 0);
  for (const char* mode : {"gpu", "mixed"}) {
    EXPECT_EQ(run_processes(folder / mode, mode, none), expected);
    EXPECT_GT(combined(folder / mode), 10) << mode;
    EXPECT_GT(testing::counted(folder / mode, ".finals"), 10) << mode;
  }
  struct Case {
    const char* fault;
    const char* says;  // in the log
  };
  for (const Case& c : {
           // The lender, while its input comes to what it lends; and while others read it.
           Case{"1 stream.copy 7 kill", "signal 9"},
           Case{"2 stream.copy 9 stop", "hung and was killed"},
           // The owner, at its kernel and behind it.
           Case{"0 stream.reduce 1 kill", "signal 9"},
           Case{"1 stream.reduce 2 stop", "hung and was killed"},
           Case{"2 reduce 1 error", "injected into reduce"},
           Case{"0 stream.reduce 2 error", "injected into stream.reduce"},
           Case{"1 stream.reduce 1 hang", "has not copied"},
           Case{"2 stream.reduce 3 late", ""},
           // Among inputs and finals that come from others' GPUs, a reader's; its owners meanwhile go on, or are lost.
           Case{"1 stream.copy 33 kill", "signal 9"},
           Case{"0 stream.copy 41 stop", "hung and was killed"},
           Case{"2 stream.copy 37 hang", "has not copied"},
           Case{"0 stream.copy 45 late", ""},
           Case{"1 copy 40 error", "injected into copy"},
           Case{"0 to_host 60 kill", "signal 9"},
           // Before there is anything to lend.
           Case{"0 allocate_shared 0 kill", "signal 9"},
           Case{"1 allocate_shared 0 error", "go by way of the CPU"},
           Case{"2 allocate_shared 0 late", ""},
           Case{"0 import_shared 1 kill", "signal 9"},
           Case{"1 import_shared 0 error", "go by way of the CPU"},
           Case{"2 import_shared 1 late", ""},
       }) {
    SCOPED_TRACE(c.fault);
    std::string name = c.fault;
    std::ranges::replace(name, ' ', '-');
    EXPECT_EQ(run_processes(folder / name, "gpu", c.fault), expected);
    EXPECT_THAT(testing::file_text(folder / name + "/log"), HasSubstr(c.says)) << "nothing has happened";
  }
}

TEST(LoansOfProcesses, OfSeveralHostsGiveTheBitsOfTheCpuWhateverHappens) {
  const testing::TempDir folder;
  const std::string none = "none none 0 none";
  const auto expected = run_processes(folder / "cpu", "cpu", none);
  EXPECT_EQ(run_processes(folder / "apart", "apart", none), expected);
  EXPECT_GT(combined(folder / "apart"), 10);
  for (const auto& [fault, says] : {
           // Of those who are on one host, while they lend, combine, and bring to the CPU what goes to the other.
           std::pair("1 stream.copy 7 kill", "signal 9"),
           std::pair("0 stream.reduce 2 kill", "signal 9"),
           std::pair("1 stream.reduce 1 stop", "hung and was killed"),
           std::pair("0 stream.to_host 11 kill", "signal 9"),
           std::pair("1 stream.to_device 9 hang", "has not copied"),
           // And the other.
           std::pair("2 to_device 3 kill", "signal 9"),
       }) {
    SCOPED_TRACE(fault);
    std::string name = fault;
    std::ranges::replace(name, ' ', '-');
    EXPECT_EQ(run_processes(folder / name, "apart", fault), expected);
    EXPECT_THAT(testing::file_text(folder / name + "/log"), HasSubstr(says)) << "nothing has happened";
  }
}

}  // namespace
}  // namespace warren

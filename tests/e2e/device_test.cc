// Jobs whose buffers lie on the fake device: every result is compared, bit for bit, with that of the same job on the
// CPU.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "tests/e2e/two_ranks.h"
#include "tests/sanitized.h"
#include "tests/worker/device/fake_gpu.h"

namespace warren {
namespace {

using test::Array;
using test::DeviceArray;
using test::fake_gpu;
using test::FakeFault;
using testing::apart;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::run_two_ranks;

// Before any thread: what loads in the place of libwarren_cuda.so.
const bool kFakeLoads = setenv("WARREN_DEVICE_LIBRARY", WARREN_FAKE_DEVICE, 1) == 0;

constexpr int kRanks = 4;

class Devices : public ::testing::Test {
 protected:
  Devices() { EXPECT_TRUE(kFakeLoads); }
  ~Devices() override { fake_gpu().controls.release(); }
  Cluster cluster_;
};

// Where a job's arrays lie.
enum class Where { kCpu, kGpu };

std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; i++)
    values[i] = 1.0f / static_cast<float>(i * 7 % 1009 + static_cast<std::size_t>(rank) + 1);
  return values;
}

using Results = std::vector<std::vector<float>>;

// Every collective, out of place and in place. `mixed`: inputs on the CPU.
Results every_collective(Communicator& comm, Where where, bool mixed, std::size_t n) {
  const int rank = comm.rank();
  const auto ranks = static_cast<std::size_t>(comm.world_size()), me = static_cast<std::size_t>(rank);
  const Where in_where = mixed ? Where::kCpu : where;
  Results out;
  const auto in = [&](std::size_t count) { return Array<float>(in_where == Where::kGpu, values_of(rank, count)); };
  const auto empty = [&](std::size_t count) {
    return Array<float>(where == Where::kGpu, std::vector<float>(count, -1.0f));
  };
  const auto whole = [&](std::size_t count) { return Array<float>(where == Where::kGpu, values_of(rank, count)); };
  {
    auto a = in(n), b = empty(n);
    comm.allreduce(a.span(), b.span());
    out.push_back(b.read());
    out.push_back(a.read());
  }
  {
    auto a = whole(n);
    comm.allreduce(a.span(), Op::product);
    out.push_back(a.read());
  }
  {
    auto a = whole(n);
    comm.allreduce(a.span(), [](const float& x, const float& y) { return std::min(x, y); });
    out.push_back(a.read());
  }
  for (int root = 0; root < comm.world_size(); root += 3) {
    auto a = in(n), b = empty(n);
    comm.reduce(a.span(), b.span(), root);
    out.push_back(b.read());
    auto c = whole(n);
    comm.broadcast(c.span(), root);
    out.push_back(c.read());
    auto d = in(n), e = empty(n * ranks);
    comm.gather(d.span(), e.span(), root);
    out.push_back(e.read());
    auto f = in(n * ranks), g = empty(n);
    comm.scatter(f.span(), g.span(), root);
    out.push_back(g.read());
  }
  {
    auto a = in(n), b = empty(n * ranks);
    comm.allgather(a.span(), b.span());
    out.push_back(b.read());
    auto c = whole(n * ranks);
    comm.allgather(c.span().subspan(me * n, n), c.span());
    out.push_back(c.read());
    std::vector<std::size_t> counts(ranks);
    for (std::size_t r = 0; r < ranks; r++) counts[r] = r * n;
    auto d = in(me * n), e = empty(n * ranks * (ranks - 1) / 2);
    comm.allgatherv(d.span(), e.span(), counts);
    out.push_back(e.read());
  }
  {
    auto a = in(n * ranks), b = empty(n);
    comm.reduce_scatter(a.span(), b.span());
    out.push_back(b.read());
    auto c = whole(n * ranks);
    comm.reduce_scatter(c.span(), c.span().subspan(me * n, n));
    const auto part = c.read();
    out.emplace_back(part.begin() + static_cast<std::ptrdiff_t>(me * n),
                     part.begin() + static_cast<std::ptrdiff_t>((me + 1) * n));
    auto d = in(n * ranks), e = empty(n * ranks);
    comm.all_to_all(d.span(), e.span());
    out.push_back(e.read());
  }
  // Narrow on their way; as i8 each share begins with a block, wherever on the GPU it begins.
  for (const Wire wire : {Wire::f16, Wire::bf16, Wire::i8}) {
    auto a = in(n), b = empty(n), c = whole(n);
    comm.wire(wire).allreduce(a.span(), b.span(), Op::average);
    out.push_back(b.read());
    out.push_back(a.read());
    comm.wire(wire).allreduce(c.span(), wire == Wire::i8 ? Op::sum : Op::max);
    out.push_back(c.read());
    auto d = in(n), e = empty(n * ranks);
    comm.wire(wire).allgather(d.span(), e.span());
    out.push_back(e.read());
    auto f = in(n * ranks), g = empty(n), h = whole(n * ranks);
    comm.wire(wire).reduce_scatter(f.span(), g.span());
    out.push_back(g.read());
    comm.wire(wire).reduce_scatter(h.span(), h.span().subspan(me * n, n));
    const auto part = h.read();
    out.emplace_back(part.begin() + static_cast<std::ptrdiff_t>(me * n),
                     part.begin() + static_cast<std::ptrdiff_t>((me + 1) * n));
    auto handle = comm.wire(wire).allreduce_async(a.span());
    handle.wait();
    out.push_back(a.read());
  }
  {
    auto a = in(n), b = empty(n);
    const int next = (rank + 1) % comm.world_size(), before = (rank + comm.world_size() - 1) % comm.world_size();
    auto sent = comm.send_async(a.span(), next, 5);
    comm.recv(b.span(), before, 5);
    sent.wait();
    out.push_back(b.read());
  }
  {
    auto a = in(n), b = empty(n), c = whole(n);
    auto first = comm.allreduce_async(a.span(), b.span());
    auto second = comm.allreduce_async(c.span(), Op::max);
    first.wait();
    out.push_back(b.read());
    while (!second.test()) std::this_thread::yield();
    out.push_back(c.read());
  }
  for (const Wire wire : {Wire::f32, Wire::f16, Wire::i8}) {
    auto a = in(n), b = empty(n), c = whole(n), d = whole(5), e = in(2 * n), f = empty(2 * n);
    {
      auto fusion = comm.fuse();
      Calls calls = comm.wire(wire);
      auto first = calls.allreduce_async(a.span(), b.span());
      auto second = calls.allreduce_async(c.span());
      auto third = calls.allreduce_async(d.span());
      auto fourth = calls.allreduce_async(e.span(), f.span());
      for (auto* call : {&first, &second, &third, &fourth}) call->wait();
    }
    for (auto* array : {&b, &c, &d, &f, &a}) out.push_back(array->read());
  }
  return out;
}

TEST_F(Devices, EveryCollectiveGivesTheBitsOfTheCpu) {
  for (const std::size_t n : {std::size_t{3}, std::size_t{2'048}, std::size_t{70'001}}) {
    std::map<std::string, std::vector<Results>> results;
    for (const auto& [name, where, mixed] :
         {std::tuple("cpu", Where::kCpu, false), std::tuple("gpu", Where::kGpu, false),
          std::tuple("mixed", Where::kGpu, true), std::tuple("ranks", Where::kGpu, false)}) {
      std::vector<Results>& all = results[name];
      all.resize(kRanks);
      const bool differ = std::string(name) == "ranks";  // those with odd numbers have a GPU
      cluster_.run_well(
          kRanks,
          [&, where = where, mixed = mixed](Communicator& comm) {
            all[static_cast<std::size_t>(comm.rank())] =
                every_collective(comm, differ && comm.rank() % 2 == 0 ? Where::kCpu : where, mixed, n);
          },
          [name = name, n](int, Options& o) { o.job = std::string(name) + std::to_string(n); });
    }
    EXPECT_EQ(results["gpu"], results["cpu"]);
    EXPECT_EQ(results["mixed"], results["cpu"]);
    EXPECT_EQ(results["ranks"], results["cpu"]);
  }
}

// Large enough to move in pieces, and no whole number of anything.
constexpr std::size_t kLarge = 3'000'017;
constexpr std::size_t kLargeI8 = 5'000'017;

TEST_F(Devices, LargeAllreducesGiveTheBitsOfTheCpu) {
  std::map<std::string, std::vector<Results>> results;
  for (const auto& [name, where, mixed] : {std::tuple("cpu", Where::kCpu, false), std::tuple("gpu", Where::kGpu, false),
                                           std::tuple("mixed", Where::kGpu, true)}) {
    if (kThreadSanitized && mixed) continue;
    std::vector<Results>& all = results[name];
    all.resize(3);
    cluster_.run_well(
        3,
        [&, where = where, mixed = mixed](Communicator& comm) {
          Results& out = all[static_cast<std::size_t>(comm.rank())];
          Array<float> in(!mixed && where == Where::kGpu, values_of(comm.rank(), kLarge));
          Array<float> sum(where == Where::kGpu, std::vector<float>(kLarge, -1.0f));
          comm.allreduce(in.span(), sum.span());
          out.push_back(sum.read());
          out.push_back(in.read());
          // In place, one after the other, while the one before is brought back.
          Array<float> a(where == Where::kGpu, values_of(comm.rank() + 1, kLarge)),
              b(where == Where::kGpu, values_of(comm.rank() + 2, kLarge));
          auto first = comm.allreduce_async(a.span(), Op::average);
          auto second = comm.allreduce_async(b.span(), [](const float& x, const float& y) { return std::min(x, y); });
          first.wait();
          out.push_back(a.read());
          while (!second.test()) std::this_thread::yield();
          out.push_back(b.read());
          // With a function that makes the input.
          comm.allreduce(b.span(), Op::max, [&] { b.write(values_of(comm.rank() + 3, kLarge)); });
          out.push_back(b.read());
          // As f16 and bf16 on their way, in place and not, also two at once.
          comm.wire(Wire::bf16).allreduce(in.span(), sum.span(), Op::average);
          out.push_back(sum.read());
          out.push_back(in.read());
          a.write(values_of(comm.rank() + 4, kLarge));
          auto third = comm.wire(Wire::f16).allreduce_async(a.span());
          auto fourth = comm.wire(Wire::bf16).allreduce_async(in.span());
          third.wait();
          out.push_back(a.read());
          fourth.wait();
          out.push_back(in.read());
          comm.wire(Wire::f16).allreduce(b.span(), Op::max, [&] { b.write(values_of(comm.rank() + 5, kLarge)); });
          out.push_back(b.read());
          Array<float> c(where == Where::kGpu, values_of(comm.rank() + 6, kLargeI8)),
              d(where == Where::kGpu, std::vector<float>(kLargeI8, -1.0f));
          comm.wire(Wire::i8).allreduce(c.span(), d.span());
          out.push_back(d.read());
          comm.wire(Wire::i8).allreduce(c.span(), Op::average);
          out.push_back(c.read());
        },
        [name = name](int, Options& o) { o.job = std::string(name) + "-large"; });
  }
  EXPECT_EQ(results["gpu"], results["cpu"]);
  if (!kThreadSanitized) {
    EXPECT_EQ(results["mixed"], results["cpu"]);
  }
}

// Rank 0's input stops coming; what was made of the part that is there is on the GPU by then.
TEST_F(Devices, ResultsComeBackWhileTheInputIsStillComing) {
  cluster_.run_well(2, [&](Communicator& comm) {
    const auto mine = values_of(comm.rank(), kLarge);
    Array<float> array(comm.rank() == 0, mine);
    const std::uint64_t before = fake_gpu().controls.calls("stream.to_device");
    if (comm.rank() == 0) fake_gpu().controls.arm("stream.to_host", 3, FakeFault::kHang);
    auto call = comm.allreduce_async(array.span());
    if (comm.rank() == 0) {
      while (fake_gpu().controls.calls("stream.to_device") == before) std::this_thread::yield();
      EXPECT_FALSE(call.test());
      fake_gpu().controls.release();
    }
    call.wait();
    const auto theirs = values_of(1 - comm.rank(), kLarge), sum = array.read();
    for (std::size_t i = 0; i < kLarge; i++) ASSERT_EQ(sum[i], mine[i] + theirs[i]) << i;
  });
}

// The program's kernel is still running when the call is made, and writes the input at its end.
TEST_F(Devices, ACallWaitsForTheProgramsStream) {
  const warren_device_table& table = fake_gpu().table;
  cluster_.run_well(2, [&](Communicator& comm) {
    void *stream = nullptr, *pinned = nullptr;
    ASSERT_EQ(table.make_stream(0, &stream), WARREN_DEVICE_OK);
    ASSERT_EQ(table.allocate_pinned(4096, &pinned), WARREN_DEVICE_OK);
    comm.use_stream(stream);
    const DeviceArray<int> values(std::vector<int>{0, 0}), out(std::vector<int>{0, 0});
    static_cast<int*>(pinned)[0] = static_cast<int*>(pinned)[1] = comm.rank() + 1;
    if (comm.rank() == 0) fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
    const std::uint64_t looked = fake_gpu().controls.calls("query");
    ASSERT_EQ(table.to_device(0, values.data(), pinned, 2 * sizeof(int), stream), WARREN_DEVICE_OK);
    auto call = comm.allreduce_async(values.span(), out.span());
    if (comm.rank() == 0) {
      while (fake_gpu().controls.calls("query") < looked + 300) std::this_thread::yield();
      EXPECT_FALSE(call.test());
      fake_gpu().controls.release();
    }
    call.wait();
    EXPECT_EQ(out.read(), (std::vector{3, 3}));
    ASSERT_EQ(table.end_stream(0, stream), WARREN_DEVICE_OK);
  });
}

TEST_F(Devices, ACallbackComesWhenTheResultIsOnTheGpu) {
  cluster_.run_well(2, [&](Communicator& comm) {
    const DeviceArray<int> values(std::vector<int>(100'000, comm.rank() + 1));
    std::promise<std::vector<int>> seen;
    auto call = comm.allreduce_async(values.span());
    call.on_complete([&](const Error* e) {
      EXPECT_EQ(e, nullptr);
      seen.set_value(values.read());
    });
    EXPECT_EQ(seen.get_future().get(), std::vector<int>(100'000, 3));
    call.wait();
  });
}

// Rank 1's GPU fails at the `after`-th `where` of the second round in its first life; the job goes on with its next
// one.
void fails_and_comes_back(Cluster& cluster, const char* where, FakeFault fault, const std::string& says,
                          std::size_t count = 5'000, int after = 0, std::optional<Wire> wire = std::nullopt) {
  SCOPED_TRACE(std::string(where) + " " + std::to_string(count));
  const std::string job = std::string("job-") + (fault == FakeFault::kHang ? "hang-" : "") + where +
                          std::to_string(count) + "-" + std::to_string(after) + (wire ? "-wire" : "");
  std::promise<void> failed, done;
  std::shared_future<void> has_failed = failed.get_future().share();
  const auto round = [count, wire](Communicator& comm, int number) {
    const DeviceArray<float> in(values_of(comm.rank() + number, count)), out(std::vector<float>(count, 0.0f));
    comm.wire(wire.value_or(Wire::f32)).allreduce(in.span(), out.span());
    return out.read();
  };
  Results seen[2];
  const auto rank_1 = [&](Options& o) {
    try {
      Communicator first = Communicator::create(o);
      seen[1].push_back(round(first, 0));
      // The fault is of the one device that both have: rank 0 must be done with it.
      EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
      const DeviceArray<float> in(values_of(2, count)), out(std::vector<float>(count, 0.0f));
      fake_gpu().controls.arm(where, after, fault);
      first.wire(wire.value_or(Wire::f32)).allreduce(in.span(), out.span());
      ADD_FAILURE() << "the GPU has failed";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(says));
      EXPECT_THAT(e.what(), HasSubstr(std::string("rank 1's allreduce(") + (wire ? "f32 as bf16" : "f32") +
                                      ", sum, count " + std::to_string(count)));
      EXPECT_THAT(e.what(), HasSubstr("round p.1"));
      EXPECT_THAT(e.what(), HasSubstr("its next life takes its place"));
    }
    fake_gpu().controls.release();
    failed.set_value();
    Communicator second = Communicator::create(o);
    for (int number = 0; number < 3; number++) {
      const auto values = round(second, number);
      if (number == 0) {
        EXPECT_EQ(values, seen[1][0]) << "replayed";
      } else {
        seen[1].push_back(values);
      }
    }
    second.finalize();
  };
  const auto rank_0 = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    seen[0].push_back(round(comm, 0));
    done.set_value();
    has_failed.wait();
    for (int number = 1; number < 3; number++) seen[0].push_back(round(comm, number));
    comm.finalize();
  };
  run_two_ranks(cluster, rank_0, rank_1, job);
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0].size(), 3u);
}

TEST_F(Devices, AGpuThatFailsEndsALifeAndTheNextOneReplays) {
  fails_and_comes_back(cluster_, "to_host", FakeFault::kError, "cannot read the input of");
  fails_and_comes_back(cluster_, "stream.to_host", FakeFault::kError, "injected into stream.to_host");
  fails_and_comes_back(cluster_, "stream.to_host", FakeFault::kHang, "has not copied");
}

TEST_F(Devices, AGpuThatFailsInMidRoundEndsALifeAndTheNextOneReplays) {
  fails_and_comes_back(cluster_, "to_host", FakeFault::kError, "cannot read the input of", kLarge);
  fails_and_comes_back(cluster_, "stream.to_host", FakeFault::kError, "the input does not come", kLarge, 3);
  fails_and_comes_back(cluster_, "stream.to_host", FakeFault::kHang, "has not copied", kLarge, 3);
  fails_and_comes_back(cluster_, "query", FakeFault::kError, "injected into query", kLarge, 2);
}

TEST_F(Devices, AGpuThatFailsToConvertEndsALifeAndTheNextOneReplays) {
  const auto fails = [&](const char* where, FakeFault fault, const std::string& says, std::size_t count, int after) {
    fails_and_comes_back(cluster_, where, fault, says, count, after, Wire::bf16);
  };
  fails("convert", FakeFault::kError, "cannot read the input of", 5'000, 0);
  fails("stream.convert", FakeFault::kHang, "has not copied", 5'000, 0);
  fails("stream.convert", FakeFault::kError, "the input does not come", kLarge, 1);
  fails("stream.convert", FakeFault::kHang, "has not copied", kLarge, 1);
}

// The result is there, at rank 0 too, and only its way to the GPU is not.
TEST_F(Devices, AGpuThatFailsAfterTheRoundEndsALifeToo) {
  std::promise<void> returned;
  const auto rank_1 = [&](Options& o) {
    for (int life = 0; life < 2; life++) {
      try {
        Communicator comm = Communicator::create(o);
        const DeviceArray<int> values(std::vector<int>(10, life == 0 ? 2 : 999));
        // Rank 0 has no array on the GPU, and returns while this waits for its round timeout.
        if (life == 0) fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
        comm.allreduce(values.span());
        EXPECT_EQ(life, 1);
        EXPECT_EQ(values.read(), std::vector<int>(10, 3)) << "from the log";
        EXPECT_EQ(comm.allreduce(2), 3);
        comm.finalize();
      } catch (const Error& e) {
        EXPECT_EQ(life, 0) << e.what();
        EXPECT_THAT(e.what(), HasSubstr("cannot write the result of rank 1's allreduce"));
        fake_gpu().controls.release();
        returned.get_future().wait();
      }
    }
  };
  const auto rank_0 = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    std::vector<int> values(10, 1);
    comm.allreduce(std::span(values));
    returned.set_value();
    EXPECT_EQ(comm.allreduce(1), 3);
    comm.finalize();
  };
  run_two_ranks(cluster_, rank_0, rank_1);
}

// Rank 1 is lost, and replaced, while rank 0's result is on its way to the GPU.
TEST_F(Devices, AResultIsBroughtBackThroughAnInterrupt) {
  std::promise<void> delivers, replaced;
  constexpr auto kTimeout = std::chrono::milliseconds(20'000);
  const auto rank_1 = [&](Options& o) {
    o.round_timeout_ms = kTimeout;
    {
      Communicator first = Communicator::create(o);
      EXPECT_EQ(first.allreduce(2), 3);
      delivers.get_future().wait();
    }
    Communicator second = Communicator::create(o);
    EXPECT_EQ(second.allreduce(99), 3);
    replaced.set_value();
    EXPECT_EQ(second.allreduce(5), 9);
    second.finalize();
  };
  const auto rank_0 = [&](Options& o) {
    o.round_timeout_ms = kTimeout;
    Communicator comm = Communicator::create(o);
    const DeviceArray<int> value(std::vector{1});
    fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
    const std::uint64_t before = fake_gpu().controls.calls("stream.to_device");
    auto call = comm.allreduce_async(value.span());
    while (fake_gpu().controls.calls("stream.to_device") == before) std::this_thread::yield();
    delivers.set_value();
    replaced.get_future().wait();
    EXPECT_FALSE(call.test());
    fake_gpu().controls.release();
    call.wait();
    EXPECT_EQ(value.read(), std::vector{3});
    EXPECT_EQ(comm.allreduce(4), 9);
    comm.finalize();
  };
  run_two_ranks(cluster_, rank_0, rank_1);
}

TEST_F(Devices, StatesOnTheGpuAreCheckpointed) {
  const auto take_two = [](Communicator& comm, std::uint64_t version, int local_value) {
    const DeviceArray<int> global(std::vector<int>{1, 2, 3}), local(std::vector<int>{local_value});
    if (version == 0) comm.checkpoint(std::as_bytes(global.span()), std::as_bytes(local.span()));
    global.write({4, 5, 6});  // after the snapshot
    // Returns when the first is committed.
    if (version <= 1) comm.checkpoint(std::as_bytes(global.span()), std::as_bytes(local.span()));
  };
  const auto lazily = [](Communicator& comm) {
    const DeviceArray<int> global(std::vector<int>{7, 8, 9});
    comm.lazy_checkpoint([&] { return global.span(); });
    EXPECT_EQ(comm.allreduce(1), 2);
    comm.checkpoint(std::vector{10});  // returns when the lazy one is committed
    EXPECT_GE(comm.committed_version(), 3u);
  };
  const auto rank_1 = [&](Options& o) {
    {
      Communicator first = Communicator::create(o);
      EXPECT_EQ(first.load_checkpoint().version, 0u);
      take_two(first, 0, 21);
    }
    {
      Communicator second = Communicator::create(o);
      const auto loaded = second.load_checkpoint();
      EXPECT_GE(loaded.version, 1u);
      EXPECT_EQ(loaded.global_as<int>(), loaded.version == 1 ? (std::vector{1, 2, 3}) : (std::vector{4, 5, 6}));
      int local = 0;
      ASSERT_EQ(loaded.local.size(), sizeof local);
      std::memcpy(&local, loaded.local.data(), sizeof local);
      EXPECT_EQ(local, 21);
      take_two(second, loaded.version, 21);
      EXPECT_EQ(second.allreduce(1), 2);
      lazily(second);
    }
    Communicator third = Communicator::create(o);
    const auto loaded = third.load_checkpoint();
    EXPECT_GE(loaded.version, 3u);
    EXPECT_EQ(loaded.global_as<int>(), loaded.version == 3 ? (std::vector{7, 8, 9}) : std::vector{10});
    if (loaded.version == 3) {
      EXPECT_EQ(third.allreduce(1), 2);
      third.checkpoint(std::vector{10});
    }
    third.barrier();
    third.finalize();
  };
  const auto rank_0 = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.load_checkpoint().version, 0u);
    take_two(comm, 0, 20);
    EXPECT_EQ(comm.allreduce(1), 2);
    lazily(comm);
    comm.barrier();
    comm.finalize();
  };
  run_two_ranks(cluster_, rank_0, rank_1);
}

// Rank 0's state lies on the GPU, rank 1's on the CPU: the same bytes.
constexpr std::size_t kState = 2'500'001;

std::vector<float> state_of(int checkpoint) {
  return values_of(100 * checkpoint, kState);
}

TEST_F(Devices, AStateComesFromTheGpuWhileTheProgramGoesOn) {
  const auto rank_1 = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.load_checkpoint().version, 0u);
    comm.checkpoint(state_of(1));
    EXPECT_EQ(comm.allreduce(2), 3);
    comm.checkpoint(state_of(2));
    EXPECT_EQ(comm.allreduce(2), 3);
    comm.finalize();
  };
  const auto rank_0 = [&](Options& o) {
    const DeviceArray<float> state(state_of(1));
    {
      Communicator comm = Communicator::create(o);
      EXPECT_EQ(comm.load_checkpoint().version, 0u);
      fake_gpu().controls.arm("stream.to_host", 1, FakeFault::kHang);
      comm.checkpoint(std::as_bytes(state.span()));
      EXPECT_EQ(comm.version(), 1u);
      // It is the program's again.
      state.write(state_of(2));
      EXPECT_EQ(comm.allreduce(1), 3);
      EXPECT_EQ(comm.committed_version(), 0u);
      fake_gpu().controls.release();
      // Returns when the one before is committed.
      comm.checkpoint(std::as_bytes(state.span()));
      EXPECT_EQ(comm.committed_version(), 1u);
    }
    Communicator next = Communicator::create(o);
    const auto loaded = next.load_checkpoint();
    EXPECT_GE(loaded.version, 1u);
    EXPECT_EQ(loaded.global_as<float>(), state_of(static_cast<int>(loaded.version)));
    if (loaded.version == 1) {
      EXPECT_EQ(next.allreduce(1), 3);
      next.checkpoint(std::as_bytes(state.span()));
    }
    EXPECT_EQ(next.allreduce(1), 3);
    next.finalize();
  };
  run_two_ranks(cluster_, rank_0, rank_1);
}

// Its next life takes it again.
TEST_F(Devices, ALifeMayEndBeforeItsStateHasCome) {
  // Until rank 1 has the result, too, nobody else need have it: the round may be run again, and a program that calls
  // with another value then, as this one does, gets that one's sum.
  std::promise<void> returned;
  const auto rank_1 = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.load_checkpoint().version, 0u);
    comm.checkpoint(state_of(1));
    EXPECT_EQ(comm.allreduce(2), 3);
    returned.set_value();
    comm.checkpoint(state_of(2));
    // The second may be as well: rank 0's state comes from its GPU while this goes on.
    EXPECT_GE(comm.committed_version(), 1u);
    EXPECT_EQ(comm.allreduce(5), 6);
    comm.finalize();
  };
  const auto rank_0 = [&](Options& o) {
    const DeviceArray<float> state(state_of(1));
    {
      Communicator first = Communicator::create(o);
      EXPECT_EQ(first.load_checkpoint().version, 0u);
      fake_gpu().controls.arm("stream.to_host", 1, FakeFault::kHang);
      first.checkpoint(std::as_bytes(state.span()));
      EXPECT_EQ(first.allreduce(1), 3);
      EXPECT_EQ(returned.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    }
    fake_gpu().controls.release();
    Communicator second = Communicator::create(o);
    EXPECT_EQ(second.load_checkpoint().version, 0u) << "nobody could commit it";
    second.checkpoint(std::as_bytes(state.span()));
    EXPECT_EQ(second.allreduce(999), 3) << "from the log";
    second.checkpoint(std::as_bytes(DeviceArray<float>(state_of(2)).span()));
    EXPECT_EQ(second.allreduce(1), 6);
    second.finalize();
  };
  run_two_ranks(cluster_, rank_0, rank_1);
}

// As where a call's buffers cannot be read; also one that fails when the program has gone on.
TEST_F(Devices, AGpuThatFailsWithAStateEndsALife) {
  const auto rank_1 = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.load_checkpoint().version, 0u);
    comm.checkpoint(state_of(1));
    EXPECT_EQ(comm.allreduce(2), 3);
    comm.finalize();
  };
  struct Case {
    const char* where;
    FakeFault fault;
    const char* says;
  };
  const auto rank_0 = [&](Options& o) {
    for (const Case& c : {Case{"stream.copy", FakeFault::kError, "injected into stream.copy"},
                          Case{"stream.copy", FakeFault::kHang, "has not copied"},
                          Case{"stream.to_host", FakeFault::kError, "injected into stream.to_host"},
                          Case{"stream.to_host", FakeFault::kHang, "has not copied"}, Case{"", {}, ""}}) {
      SCOPED_TRACE(c.where);
      const DeviceArray<float> state(state_of(1));
      const bool fails = *c.where != 0;
      try {
        Communicator comm = Communicator::create(o);
        EXPECT_EQ(comm.load_checkpoint().version, 0u);
        if (fails) fake_gpu().controls.arm(c.where, 0, c.fault);
        comm.checkpoint(std::as_bytes(state.span()));
        // The next call may come before it is known.
        if (fails) comm.checkpoint(std::as_bytes(state.span()));
        EXPECT_FALSE(fails);
        EXPECT_EQ(comm.allreduce(1), 3);
        comm.finalize();
      } catch (const Error& e) {
        EXPECT_TRUE(fails) << e.what();
        EXPECT_THAT(e.what(), HasSubstr("cannot read the state for a checkpoint"));
        EXPECT_THAT(e.what(), HasSubstr(c.says));
      }
      fake_gpu().controls.release();
    }
  };
  run_two_ranks(cluster_, rank_0, rank_1);
}

// A call that comes after it is told, and waits for its next life: nothing of it is committed.
TEST_F(Devices, ALogWithoutRoomForAStateIsToldToTheNextCall) {
  Options o = cluster_.options(0, 1);
  o.replicas = 1;
  o.log_memory_bytes = 4 << 20;
  const DeviceArray<float> state(state_of(1));
  ASSERT_GT(std::as_bytes(state.span()).size(), o.log_memory_bytes);
  try {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.load_checkpoint().version, 0u);
    comm.checkpoint(std::as_bytes(state.span()));
    for (int i = 0; i < 2; i++) {
      try {
        comm.checkpoint(std::as_bytes(state.span()));
        ADD_FAILURE() << "it does not fit";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::exhausted);
        EXPECT_THAT(e.what(), HasSubstr("cannot take checkpoint 1"));
        EXPECT_THAT(e.what(), HasSubstr("--log_memory_bytes"));
      }
    }
    EXPECT_EQ(comm.committed_version(), 0u);
  } catch (const Error& e) {
    ADD_FAILURE() << e.what();
  }
}

// Of one state a half each lies on the CPU and on the GPU; of the other one all, in pieces. Four hosts hold half of it
// each.
TEST_F(Devices, StatesInSeveralPlacesComeBackToThem) {
  const auto weights = values_of(1, kState), moments = values_of(2, 1001);
  const auto noise_of = [](int rank) { return values_of(10 + rank, 777); };
  const testing::TempDir folder;
  const auto with_disk = [&](int rank, Options& o) {
    apart(rank, o);
    o.data_dir = folder / std::to_string(rank);
    // Four ranks copy and store 10 MB each on a core or two, ten times slower under a sanitizer. Nothing hangs here.
    o.round_timeout_ms = std::chrono::seconds(20);
  };
  // Who has gone would be waited for.
  std::barrier all_done(kRanks);
  struct Done {
    std::barrier<>& all;
    ~Done() { all.arrive_and_wait(); }
  };
  const auto errors = cluster_.run(
      kRanks,
      [&](Communicator& comm) {
        const Done done{all_done};
        const DeviceArray<float> on_gpu(weights), noise(noise_of(comm.rank()));
        std::vector<float> on_cpu = moments;
        const std::span<float> a = noise.span().first(300), b = noise.span().subspan(300);
        const Communicator::Loaded none = comm.load_checkpoint_into({on_gpu.span(), on_cpu}, {a, b});
        EXPECT_EQ(none.version, 0u);
        EXPECT_EQ(on_cpu, moments);
        comm.checkpoint_places({on_gpu.span(), on_cpu}, {a, b});
        on_gpu.write(std::vector<float>(kState, 0.0f));
        on_cpu.assign(moments.size(), 0.0f);
        noise.write(std::vector<float>(777, 0.0f));
        // Returns when the first is committed.
        comm.checkpoint_places({on_gpu.span(), on_cpu}, {a, b});
        EXPECT_EQ(comm.committed_version(), 1u);
      },
      with_disk, false);
  for (const auto& e : errors) EXPECT_FALSE(e.has_value()) << e->what();
  // Also where the bytes of all places are as many but for 2^64.
  for (const bool wraps : {false, true}) {
    const auto misfits = cluster_.run(
        kRanks,
        [&](Communicator& comm) {
          const Done done{all_done};
          const DeviceArray<std::byte> small(400);
          std::vector<Place> places{small.span()};
          if (wraps) {
            places.emplace_back(std::span(small.data(), ~std::size_t{0} - 799));
            places.emplace_back(std::span(small.data(), 4 * (kState + 1001) + 400));
          }
          try {
            comm.load_checkpoint_into(places);
            ADD_FAILURE() << "the state is larger";
          } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
            EXPECT_THAT(e.what(), HasSubstr("the places of the global state have " +
                                            std::to_string(wraps ? ~std::uint64_t{0} : 400) + " bytes"));
          }
        },
        with_disk, false);
    for (const auto& e : misfits) EXPECT_FALSE(e.has_value()) << e->what();
  }
  const auto again = cluster_.run(
      kRanks,
      [&](Communicator& comm) {
        const DeviceArray<float> first(100), rest(kState + 1001 - 100), noise(777);
        const Communicator::Loaded loaded = comm.load_checkpoint_into({first.span(), rest.span()}, {noise.span()});
        EXPECT_GE(loaded.version, 1u);
        EXPECT_EQ(loaded.world_size, static_cast<std::uint32_t>(kRanks));
        std::vector<float> global(first.read());
        const auto others = rest.read();
        global.insert(global.end(), others.begin(), others.end());
        std::vector<float> expected(weights);
        expected.insert(expected.end(), moments.begin(), moments.end());
        if (loaded.version > 1) expected.assign(expected.size(), 0.0f);
        EXPECT_EQ(global, expected);
        EXPECT_EQ(noise.read(), loaded.version > 1 ? std::vector<float>(777, 0.0f) : noise_of(comm.rank()));
      },
      with_disk);
  for (const auto& e : again) EXPECT_FALSE(e.has_value()) << e->what();
}

// Half of the ranks log nothing of it.
TEST_F(Devices, AStateOfLessBytesThanRanksIsACheckpointToo) {
  const auto errors = cluster_.run(
      kRanks,
      [&](Communicator& comm) {
        const DeviceArray<float> step(std::vector<float>{1});
        EXPECT_EQ(comm.load_checkpoint().version, 0u);
        const auto state = std::as_bytes(step.span()).first(1);
        for (int i = 0; i < 3; i++) comm.checkpoint(state);
        EXPECT_EQ(comm.allreduce(1), kRanks);
        EXPECT_GE(comm.committed_version(), 2u);
      },
      [&](int rank, Options& o) { apart(rank, o); });
  for (const auto& e : errors) EXPECT_FALSE(e.has_value()) << e->what();
}

// ---- processes

}  // namespace
}  // namespace warren

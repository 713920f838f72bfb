// Small asynchronous allreduces that are put together: results, how many rounds, where a batch ends, and ranks that end
// it elsewhere.
#include <atomic>
#include <future>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "tests/e2e/cluster.h"

namespace warren {
namespace {

using testing::Cluster;

std::vector<int> filled(int rank, int which) {
  std::vector<int> v(static_cast<std::size_t>(which * 7 % 40));
  std::iota(v.begin(), v.end(), rank * 1000 + which);
  return v;
}

std::vector<int> expected(int ranks, int which) {
  std::vector<int> sum = filled(0, which);
  for (int r = 1; r < ranks; r++) {
    const std::vector<int> v = filled(r, which);
    for (std::size_t i = 0; i < sum.size(); i++) sum[i] += v[i];
  }
  return sum;
}

// Issues so many and gives their buffers.
struct Burst {
  Burst(Communicator& comm, int calls) : values(static_cast<std::size_t>(calls)) {
    for (int c = 0; c < calls; c++) {
      values[static_cast<std::size_t>(c)] = filled(comm.rank(), c);
      handles.push_back(comm.allreduce_async(std::span(values[static_cast<std::size_t>(c)])));
    }
  }
  void check(Communicator& comm) {
    for (Handle& h : handles) h.wait();
    for (std::size_t c = 0; c < values.size(); c++) {
      ASSERT_EQ(values[c], expected(comm.world_size(), static_cast<int>(c))) << "call " << c;
    }
  }
  std::vector<std::vector<int>> values;
  std::vector<Handle> handles;
};

std::uint64_t rounds_of(Communicator& comm, const std::function<void()>& body) {
  const std::uint64_t before = comm.rounds_finished();
  body();
  return comm.rounds_finished() - before;
}

TEST(Fusion, MakesOneRoundOfMany) {
  for (const int size : {1, 2, 3}) {
    Cluster cluster;
    cluster.run_well(size, [](Communicator& comm) {
      EXPECT_EQ(rounds_of(comm, [&] { Burst(comm, 300).check(comm); }), 300u);
      EXPECT_EQ(rounds_of(comm,
                          [&] {
                            const Fusion fusion = comm.fuse();
                            Burst(comm, 300).check(comm);
                          }),
                1u);
      EXPECT_EQ(rounds_of(comm,
                          [&] {
                            const Fusion fusion = comm.fuse(0);
                            Burst(comm, 10).check(comm);
                          }),
                10u);
      // 300 calls of 0 to 39 elements are 5,850 elements: at most 1,000 B at once.
      const std::uint64_t rounds = rounds_of(comm, [&] {
        const Fusion fusion = comm.fuse(1000);
        Burst(comm, 300).check(comm);
      });
      EXPECT_GE(rounds, 24u);
      EXPECT_LE(rounds, 30u);
      EXPECT_EQ(rounds_of(comm,
                          [&] {
                            const Fusion fusion = comm.fuse();
                            Burst(comm, 1500).check(comm);
                          }),
                2u)
          << "1,024 at most";
    });
  }
}

TEST(Fusion, ABatchEndsWhereTheProgramDoesSomethingElse) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    (void)comm.load_checkpoint();
    const Fusion fusion = comm.fuse();
    const auto ends = [&](const char* what, std::uint64_t rounds, const std::function<void()>& other) {
      SCOPED_TRACE(what);
      EXPECT_EQ(rounds_of(comm,
                          [&] {
                            Burst before(comm, 5);
                            other();
                            Burst after(comm, 5);
                            before.check(comm);
                            after.check(comm);
                          }),
                rounds);
    };
    ends("nothing", 1, [] {});
    ends("a blocking call", 3, [&] { EXPECT_EQ(comm.allreduce(1), 2); });
    ends("another collective", 3, [&] { (void)comm.allgather(1); });
    ends("a checkpoint", 2, [&] { comm.checkpoint(std::vector<int>{1}); });
    std::vector<double> other(3, 1.0);
    ends("another type", 3, [&] {
      comm.allreduce_async(std::span(other)).wait();
      EXPECT_EQ(other[0], 2.0);
      other.assign(3, 1.0);
    });
    std::vector<int> tested{1};
    ends("a test", 2, [&] {
      Handle h = comm.allreduce_async(std::span(tested));
      (void)h.test();
      h.wait();
    });
    Handle done = comm.allreduce_async(std::span(tested));
    done.wait();
    ends("a wait for what has finished", 1, [&] { done.wait(); });
    ends("a prepare function", 3, [&] {
      comm.allreduce(std::span(tested), Op::sum, [&] { tested[0] = 3; });
      EXPECT_EQ(tested[0], 6);
    });
  });
}

TEST(Fusion, CallbacksAndHandlesThatNobodyWaitsForEnd) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    std::promise<void> called;
    std::vector<float> a{1, 2}, b{3}, c{4};
    {
      const Fusion fusion = comm.fuse();
      Handle first = comm.allreduce_async(std::span(a));
      Handle second = comm.wire(Wire::bf16).allreduce_async(std::span(b));
      second.on_complete([&](const Error* e) {
        EXPECT_EQ(e, nullptr);
        called.set_value();
      });
      Handle third = comm.allreduce_async(std::span(c));
    }
    called.get_future().wait();
    EXPECT_EQ(a, (std::vector<float>{2, 4}));
    EXPECT_EQ(b, std::vector<float>{6});
    EXPECT_EQ(c, std::vector<float>{8});
    EXPECT_THROW(
        {
          const Fusion one = comm.fuse();
          const Fusion two = comm.fuse();
        },
        Error);
  });
}

TEST(Fusion, RanksThatEndABatchElsewhereAreTold) {
  Cluster cluster;
  const auto errors = cluster.run(
      2,
      [](Communicator& comm) {
        const Fusion fusion = comm.fuse();
        std::vector<int> a{1, 2}, b{3};
        Handle one = comm.allreduce_async(std::span(a));
        Handle two = comm.allreduce_async(std::span(b));
        if (comm.rank() == 0) one.wait();
        Handle three = comm.allreduce_async(std::span(a));
        three.wait();
      },
      {}, false);
  for (const auto& e : errors) {
    ASSERT_TRUE(e.has_value());
    EXPECT_EQ(e->code(), ErrorCode::desync) << e->what();
    EXPECT_NE(std::string(e->what()).find("hash of parts"), std::string::npos) << e->what();
  }
}

TEST(Fusion, HandlesKeepWhatWasPutTogether) {
  Cluster cluster;
  std::atomic<int> failed{0};
  (void)cluster.run(
      1,
      [&](Communicator& comm) {
        std::vector<int> a{1}, b{2};
        Handle one, two;
        {
          Communicator gone = std::move(comm);
          Fusion fusion = gone.fuse();
          one = gone.allreduce_async(std::span(a));
          one.on_complete([&](const Error* e) { failed += e == nullptr ? 0 : 1; });
          two = gone.allreduce_async(std::span(b));
        }
        one.wait();
        two.wait();
      },
      {}, false);
  EXPECT_EQ(failed.load(), 0);
}

// A life that is over has sent batches; its next one cuts them alike.
TEST(Fusion, IsReplayed) {
  Cluster cluster;
  const auto options = [&](int r) {
    Options o = cluster.options(r, 2);
    o.host_id = o.domain_id = "host-" + std::to_string(r);
    o.replicas = 2;
    return o;
  };
  const auto bursts = [](Communicator& comm) {
    const Fusion fusion = comm.fuse(2000);
    Burst(comm, 200).check(comm);
  };
  std::promise<void> done;
  std::thread other([&] {
    Communicator comm = Communicator::create(options(0));
    bursts(comm);
    done.get_future().wait();
    bursts(comm);
    comm.finalize();
  });
  {
    Communicator first = Communicator::create(options(1));
    bursts(first);
  }
  done.set_value();
  Communicator second = Communicator::create(options(1));
  bursts(second);
  bursts(second);
  second.finalize();
  other.join();
}

// Sums of floats too: each of another size, which alone would be made by other algorithms, in one round.
TEST(Fusion, BitsAreThoseOfOneCallOfAllElements) {
  for (const int ranks : {2, 3, 4, 5}) {
    Cluster cluster;
    std::mutex mutex;
    std::set<std::vector<float>> results;
    cluster.run_well(ranks, [&](Communicator& comm) {
      std::vector<std::vector<float>> parts;
      std::vector<float> one;
      std::uint32_t x = 7 + static_cast<std::uint32_t>(comm.rank());
      for (const std::size_t n : {1u, 3u, 900u, 5000u, 10'000u, 5000u, 10'000u, 60'000u, 10u, 11u}) {
        auto& values = parts.emplace_back(n);
        for (float& v : values) v = static_cast<float>((x = x * 1664525u + 1013904223u) >> 8) * 1e-5f;
        one.insert(one.end(), values.begin(), values.end());
      }
      comm.allreduce(std::span(one));
      EXPECT_EQ(rounds_of(comm,
                          [&] {
                            const Fusion fusion = comm.fuse();
                            std::vector<Handle> handles;
                            for (auto& values : parts) handles.push_back(comm.allreduce_async(std::span(values)));
                            for (Handle& h : handles) h.wait();
                          }),
                1u);
      std::vector<float> together;
      for (const auto& values : parts) together.insert(together.end(), values.begin(), values.end());
      EXPECT_EQ(together, one);
      const std::lock_guard lock(mutex);
      results.insert(together);
    });
    EXPECT_EQ(results.size(), 1u) << "the same on all ranks";
  }
}

// What one life alone makes ends no batch: the others have made it long ago.
TEST(Fusion, ASetupRoundOfANewLifeCutsNothing) {
  Cluster cluster;
  const auto options = [&](int r) {
    Options o = cluster.options(r, 2);
    o.host_id = o.domain_id = "host-" + std::to_string(r);
    o.replicas = 2;
    return o;
  };
  const auto step = [](Communicator& comm, bool& known) {
    const Fusion fusion = comm.fuse();
    std::vector<int> a{1}, b{2};
    Handle one = comm.allreduce_async(std::span(a));
    if (!std::exchange(known, true)) {
      EXPECT_EQ(comm.once("width").allreduce(1), 2);
    }
    Handle two = comm.allreduce_async(std::span(b));
    one.wait();
    two.wait();
    EXPECT_EQ(a[0], 2);
    EXPECT_EQ(b[0], 4);
  };
  std::promise<void> over;
  std::thread other([&] {
    Communicator comm = Communicator::create(options(0));
    (void)comm.load_checkpoint();
    bool known = false;
    step(comm, known);
    comm.checkpoint(std::vector<int>{1});
    over.get_future().wait();
    step(comm, known);
    comm.finalize();
  });
  {
    Communicator first = Communicator::create(options(1));
    (void)first.load_checkpoint();
    bool known = false;
    step(first, known);
    first.checkpoint(std::vector<int>{1});
  }
  over.set_value();
  Communicator second = Communicator::create(options(1));
  (void)second.load_checkpoint();
  bool known = false;
  if (second.version() == 0) {
    // The checkpoint was not committed when the first life ended.
    step(second, known);
    second.checkpoint(std::vector<int>{1});
  }
  step(second, known);
  second.finalize();
  other.join();
}

TEST(Fusion, WhatSomeRanksAloneDoIsRefused) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    auto group = comm.split(0);
    std::vector<int> a{1}, b{2}, m{3};
    const auto invalid = [](auto call) {
      try {
        call();
        ADD_FAILURE() << "was taken";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << e.what();
      }
    };
    auto doomed = comm.split(0);
    const Fusion fusion = comm.fuse();
    Handle one = comm.allreduce_async(std::span(a));
    invalid([&] { comm.send(m, 1 - comm.rank()); });
    invalid([&] { (void)comm.recv_async(std::span(m), 1 - comm.rank()); });
    invalid([&] { (void)group->allreduce(1); });
    invalid([&] { (void)group->fuse(); });
    std::vector<float> f{1};
    invalid([&] { (void)comm.allreduce_async(std::span(f), Op::bit_and); });
    if (comm.rank() == 0) doomed.reset();  // another group's end ends nothing
    Handle two = comm.allreduce_async(std::span(b));
    two.wait();
    one.wait();
    EXPECT_EQ(a[0] + b[0], 6);
  });
}

}  // namespace
}  // namespace warren

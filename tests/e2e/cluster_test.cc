// What a user sees when all goes well: communicators, collectives, groups, asynchronous calls.
#include "tests/e2e/cluster.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <numeric>

#include "tests/flipping_proxy.h"
#include "tests/sanitized.h"
#include "tests/strangers.h"

namespace warren {
namespace {

using testing::Cluster;

TEST(Cluster, TheShortestProgram) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    const std::vector<int> mine = comm.rank() == 0 ? std::vector{1, 2, 3} : std::vector{1, 0, 1};
    EXPECT_EQ(comm.allreduce(mine), (std::vector{2, 2, 4}));
  });
}

// A connection takes descriptors, and programs start with a limit that is meant for others.
TEST(Cluster, ACommunicatorMayHaveAsManyDescriptorsAsTheSystemAllows) {
  rlimit usual{}, now{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit low = usual;
  low.rlim_cur = std::min<rlim_t>(usual.rlim_max, 256);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  Cluster cluster;
  cluster.run_well(1, [&](Communicator&) { EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0); });
  EXPECT_EQ(now.rlim_cur, usual.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
}

TEST(Cluster, RanksFollowWorkerIdsAndHostsStandTogether) {
  Cluster cluster;
  cluster.run_well(
      4,
      [](Communicator& comm) {
        EXPECT_EQ(comm.world_size(), 4);
        EXPECT_EQ(comm.local_size(), 2);
        EXPECT_EQ(comm.local_rank(), comm.rank() % 2);
      },
      // Workers 0 and 2 on host a, 1 and 3 on host b.
      [](int r, Options& o) { o.host_id = r % 2 == 0 ? "a" : "b"; });
}

TEST(Cluster, EveryCollectiveThroughThePublicInterface) {
  for (const std::string algorithm : {"auto", "ring"}) {
    Cluster cluster;
    cluster.run_well(
        3,
        [](Communicator& comm) {
          const int me = comm.rank(), size = comm.world_size();
          std::vector<float> big(100000, static_cast<float>(me + 1));
          comm.allreduce(std::span(big));
          EXPECT_EQ(big, std::vector<float>(100000, 6.0f));
          comm.allreduce(std::span(big), Op::average);
          EXPECT_EQ(big[77], 6.0f);
          EXPECT_EQ(comm.allreduce(std::vector<double>{1.5 * me}, Op::max), std::vector<double>{3.0});
          std::vector<std::int64_t> reduced = comm.reduce(std::vector<std::int64_t>{me, 10 * me}, 1);
          if (me == 1) {
            EXPECT_EQ(reduced, (std::vector<std::int64_t>{3, 30}));
          }
          std::vector<int> sent(5, me == 2 ? 42 : 0);
          comm.broadcast(sent, 2);
          EXPECT_EQ(sent, std::vector<int>(5, 42));
          comm.barrier();
          EXPECT_EQ(comm.allgather(std::vector<int>{me, -me}), (std::vector<int>{0, 0, 1, -1, 2, -2}));
          const std::vector<std::size_t> counts{1, 0, 2};
          std::vector<int> mine(counts[static_cast<std::size_t>(me)], me);
          EXPECT_EQ(comm.allgatherv(mine, std::span<const std::size_t>(counts)), (std::vector<int>{0, 2, 2}));
          std::vector<int> wide(static_cast<std::size_t>(2 * size));
          std::iota(wide.begin(), wide.end(), me);
          EXPECT_EQ(comm.reduce_scatter(wide), (std::vector<int>{3 + 6 * me, 6 + 6 * me}));
          std::vector<std::int16_t> uneven(3, static_cast<std::int16_t>(me + 1));
          EXPECT_EQ(comm.reduce_scatterv(uneven, counts, Op::product),
                    std::vector<std::int16_t>(counts[static_cast<std::size_t>(me)], 6));
          EXPECT_EQ(comm.allreduce(me == 1, Op::sum), true);
          EXPECT_EQ(comm.allreduce(me == 1, Op::product), false);
          const std::vector<int> gathered = comm.gather(std::vector<int>{me}, 0);
          if (me == 0) {
            EXPECT_EQ(gathered, (std::vector<int>{0, 1, 2}));
          }
          std::vector<int> part(2), whole = me == 1 ? std::vector<int>{1, 2, 3, 4, 5, 6} : std::vector<int>();
          comm.scatter(whole, part, 1);
          EXPECT_EQ(part, (std::vector<int>{2 * me + 1, 2 * me + 2}));
          std::vector<int> to_all(static_cast<std::size_t>(size), me);
          EXPECT_EQ(comm.all_to_all(to_all), (std::vector<int>{0, 1, 2}));
          // Rank r sends j elements to rank j, but for itself, and to the last one, none.
          const auto sends = [&](int from, int to) {
            return from == to || to == 2 ? 0u : static_cast<unsigned>(to + 1);
          };
          std::vector<std::size_t> goes, comes;
          std::vector<std::uint16_t> out, expected;
          for (int r = 0; r < size; r++) {
            goes.push_back(sends(me, r));
            comes.push_back(sends(r, me));
            out.insert(out.end(), goes.back(), static_cast<std::uint16_t>(10 * me + r));
            expected.insert(expected.end(), comes.back(), static_cast<std::uint16_t>(10 * r + me));
          }
          EXPECT_EQ(comm.all_to_allv(out, goes, comes), expected);
          std::vector<std::uint16_t> later(expected.size());
          auto exchange = comm.all_to_allv_async(out, goes, later, comes);
          EXPECT_EQ(comm.allreduce(1), 3);
          exchange.wait();
          EXPECT_EQ(later, expected);
          std::vector<int> ring(4, me), got(4);
          auto handle = comm.send_async(ring, (me + 1) % size, 9);
          comm.recv(got, (me + size - 1) % size, 9);
          handle.wait();
          EXPECT_EQ(got, std::vector<int>(4, (me + size - 1) % size));
          EXPECT_GT(comm.rounds_finished(), 10u);
          EXPECT_GT(comm.bytes_sent(), 100000u);
        },
        [&](int, Options& o) { o.algorithm = algorithm; });
  }
}

// A function that is neither commutative nor associative shows the order of ranks, wherever they sit.
TEST(Cluster, AReductionOfUnevenSharesIsMadeInTheOrderOfRanks) {
  struct Word {
    char text[12];
  };
  for (const int hosts : {1, 2, 4}) {
    for (const std::size_t scale : {std::size_t{1}, std::size_t{40'000}}) {
      SCOPED_TRACE(std::to_string(hosts) + " hosts, times " + std::to_string(scale));
      Cluster cluster;
      cluster.run_well(
          4,
          [&](Communicator& comm) {
            const int me = comm.rank();
            const std::vector<std::size_t> counts{2 * scale, 0, scale, 3 * scale};
            Word own{};
            own.text[0] = static_cast<char>('a' + me);
            const std::vector<Word> in(6 * scale, own);
            std::vector<Word> out(counts[static_cast<std::size_t>(me)]);
            const auto appends = [](const Word& a, const Word& b) {
              Word both = a;
              std::strncat(both.text, b.text, sizeof both.text - 1 - std::strlen(both.text));
              return both;
            };
            comm.reduce_scatterv(in, out, counts, appends);
            for (const Word& word : out) ASSERT_STREQ(word.text, "abcd");
            std::ranges::fill(out, Word{});
            comm.reduce_scatterv_async(in, out, counts, appends).wait();
            for (const Word& word : out) ASSERT_STREQ(word.text, "abcd");
            EXPECT_THROW(comm.algorithm("ring").reduce_scatterv(in, out, counts, appends), Error);
          },
          [&](int r, Options& o) {
            o.host_id = "host-" + std::to_string(r * hosts / 4);
            o.algorithm = "ring";  // of all that has one
          });
      if (HasFailure()) return;
    }
  }
}

// All ranks hear it, and nobody gets a number.
TEST(Cluster, CountsThatDisagreeAreADesyncOnAllRanks) {
  for (const bool exchanges : {false, true}) {
    for (const int replicas : {0, 2}) {
      SCOPED_TRACE(std::string(exchanges ? "all_to_allv" : "reduce_scatterv") + ", replicas " +
                   std::to_string(replicas));
      Cluster cluster;
      const auto errors = cluster.run(
          3,
          [&](Communicator& comm) {
            EXPECT_EQ(comm.allreduce(1), 3);
            const std::vector<std::size_t> ones(3, 1),
                others{comm.rank() == 1 ? 2u : 1u, 1, comm.rank() == 1 ? 0u : 1u};
            if (exchanges) {
              (void)comm.all_to_allv(std::vector<int>(3, 7), others, ones);
            } else {
              (void)comm.reduce_scatterv(std::vector<int>(3, 7), others);
            }
            comm.barrier();
            ADD_FAILURE() << "rank " << comm.rank() << " has got a number";
          },
          [&](int, Options& o) {
            o.replicas = replicas;
            o.on_rollback = "error";
          },
          false);
      for (const auto& error : errors) {
        ASSERT_TRUE(error.has_value());
        EXPECT_EQ(error->code(), ErrorCode::desync) << error->what();
      }
      if (HasFailure()) return;
    }
  }
}

// Each rank's input and output is of either kind, by round.
TEST(Cluster, AllocatedAndPrivateBuffersGiveTheSameBits) {
  constexpr std::size_t kCount = 700'001;
  const auto input = [](int rank, std::size_t i) {
    return 1.0f / static_cast<float>(1 + (i * 7 + static_cast<std::size_t>(rank) * 31) % 1000);
  };
  for (const std::string algorithm : {"ring", "butterfly"}) {
    for (const int size : {2, 3, 4}) {
      SCOPED_TRACE(algorithm + " on " + std::to_string(size));
      Cluster cluster;
      cluster.run_well(
          size,
          [&](Communicator& comm) {
            const int me = comm.rank();
            std::vector<float> in(kCount), out(kCount), expected(kCount);
            for (std::size_t i = 0; i < kCount; i++) in[i] = input(me, i);
            comm.allreduce(in, expected);
            Memory<float> lent_in = allocate<float>(comm, kCount), lent_out = allocate<float>(comm, kCount);
            EXPECT_EQ(lent_in[kCount - 1], 0.0f);
            for (int round = 0; round < (kThreadSanitized || kAddressSanitized ? 8 : 40); round++) {
              const int draw = (round * 5 + me * 3 + round * me) % 6;
              const std::span<float> from = draw % 2 == 0 ? std::span(lent_in) : std::span(in);
              const std::span<float> to = draw / 2 == 0 ? from : draw / 2 == 1 ? std::span(lent_out) : std::span(out);
              for (std::size_t i = 0; i < kCount; i++) from[i] = input(me, i);
              if (from.data() == to.data()) {
                comm.allreduce(to);
              } else {
                comm.allreduce(from, to);
              }
              ASSERT_EQ(std::memcmp(to.data(), expected.data(), kCount * sizeof(float)), 0) << "round " << round;
              // A result may change as soon as the call has returned.
              std::ranges::fill(from, -1.0f);
              std::ranges::fill(to, -1.0f);
            }
          },
          [&](int, Options& o) { o.algorithm = algorithm; });
    }
  }
}

TEST(Cluster, MemoryIsFreedAndHasLimits) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    const auto code_of = [](const auto& f) {
      try {
        f();
      } catch (const Error& e) {
        return e.code();
      }
      return ErrorCode{};
    };
    std::vector<float> expected(1 << 20, 3.0f);
    for (int round = 0; round < 20; round++) {
      Memory<float> buffer = allocate<float>(comm, expected.size());
      std::ranges::fill(buffer, static_cast<float>(comm.rank() + 1));
      comm.allreduce(std::span(buffer));
      ASSERT_TRUE(std::ranges::equal(buffer, expected)) << round;
    }
    EXPECT_EQ(code_of([&] { (void)allocate<float>(comm, 0); }), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of([&] { (void)allocate<char>(comm, std::size_t{1} << 45); }), ErrorCode::unavailable);
    std::vector<Memory<char>> many;
    for (int i = 0; i < 256; i++) many.push_back(allocate<char>(comm, 1));
    EXPECT_EQ(code_of([&] { (void)allocate<char>(comm, 1); }), ErrorCode::exhausted);
    many.pop_back();
    many.push_back(allocate<char>(comm, 1));
    // In a callback too: it is given back with the next call.
    std::vector<float> data(100, 1.0f);
    Handle handle = comm.allreduce_async(std::span(data));
    handle.on_complete([&](const Error*) { many.pop_back(); });
    handle.wait();
    many.push_back(allocate<char>(comm, 1));
    comm.barrier();
  });
}

TEST(Cluster, AsynchronousCallsFinishWhileTheProgramDoesOtherThings) {
  Cluster cluster;
  cluster.run_well(3, [](Communicator& comm) {
    std::atomic<int> called{0};
    std::vector<std::vector<float>> data;
    std::vector<Handle> handles;
    for (int i = 0; i < 20; i++) data.emplace_back(static_cast<std::size_t>(1000 * i + 1), static_cast<float>(i));
    for (auto& d : data) {
      handles.push_back(comm.allreduce_async(std::span(d)));
      handles.back().on_complete([&](const Error* e) {
        EXPECT_EQ(e, nullptr);
        called.fetch_add(1);
        called.notify_one();
      });
    }
    // Nobody waits for the handles: the callbacks come all the same.
    for (int n = called; n < 20; n = called) called.wait(n);
    // A call is over when its callback has returned, which may be a moment after the count.
    for (auto& h : handles) {
      h.wait();
      EXPECT_TRUE(h.test());
    }
    for (int i = 0; i < 20; i++) EXPECT_EQ(data[static_cast<std::size_t>(i)].back(), static_cast<float>(3 * i));
    // Blocking calls between asynchronous ones keep their order.
    std::vector<float> a(50000, 1.0f), b(3, 2.0f);
    Handle h = comm.allreduce_async(std::span(a));
    comm.allreduce(std::span(b));
    EXPECT_EQ(b[0], 6.0f);
    EXPECT_TRUE(h.test());
    h.wait();
    EXPECT_EQ(a[49999], 3.0f);
  });
}

TEST(Cluster, GroupsAreCommunicators) {
  Cluster cluster;
  cluster.run_well(5, [](Communicator& comm) {
    auto half = comm.split(comm.rank() % 2, -comm.rank());
    ASSERT_TRUE(half.has_value());
    const int size = comm.rank() % 2 == 0 ? 3 : 2;
    EXPECT_EQ(half->world_size(), size);
    EXPECT_EQ(half->rank(), size - 1 - comm.rank() / 2);  // ordered by the key, here backwards
    EXPECT_EQ(half->allreduce(comm.rank()), comm.rank() % 2 == 0 ? 6 : 4);
    const auto none = comm.split(comm.rank() == 0 ? 0 : -1);
    EXPECT_EQ(none.has_value(), comm.rank() == 0);
    auto quarter = half->split(half->rank() == 0 ? 0 : 1);
    EXPECT_EQ(quarter->allreduce(1), half->rank() == 0 ? 1 : size - 1);
    EXPECT_EQ(comm.allreduce(1), 5);
  });
}

// Links belong to channels, which groups take in turn: a program that takes checkpoints may make and destroy groups for
// ever. (Until the commit, messages of a group that is gone may have to be sent again.)
TEST(Cluster, GroupsThatComeAndGoLeaveNothingBehind) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  Cluster cluster;
  cluster.run_well(3, [&](Communicator& comm) {
    std::ptrdiff_t after_first = 0;
    (void)comm.load_checkpoint();
    std::optional<Communicator> kept;
    for (int i = 0; i < 50; i++) {
      auto half = comm.split(comm.rank() == i % 3 ? 0 : 1);
      EXPECT_EQ(half->allreduce(1), comm.rank() == i % 3 ? 1 : 2);
      std::vector<int> ring(3, comm.rank()), got(3, -1);
      if (half->world_size() == 2) {
        Handle sent = half->send_async(ring, 1 - half->rank());
        half->recv(got, 1 - half->rank());
        sent.wait();
        EXPECT_NE(got[0], comm.rank());
      }
      // Every other time the old group goes only when the next is there.
      kept = i % 2 == 0 ? std::move(half) : std::nullopt;
      half.reset();
      comm.barrier();
      if (i % 5 == 4) {
        half.reset();
        kept.reset();
        comm.checkpoint(std::span<const std::byte>());
      }
      // Every pair has met by then. One rank counts while the others wait.
      if (i == 15 && comm.rank() == 0) after_first = descriptors();
      comm.barrier();
    }
    // The 34 groups made since then would hold four each. Those of the last two checkpoints may.
    if (comm.rank() == 0) {
      EXPECT_LE(descriptors(), after_first + 60);
    }
    comm.barrier();
  });
}

TEST(Cluster, WaitReturnsAfterTheCallbackHas) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    for (int i = 0; i < 200; i++) {
      std::vector<float> v(1000, 1.0f);
      bool called = false;  // written by whichever thread finishes the call, read after wait()
      {
        Handle h = comm.allreduce_async(std::span(v));
        h.on_complete([&](const Error*) {
          std::this_thread::yield();
          called = true;
        });
        h.wait();
      }
      ASSERT_TRUE(called);
    }
  });
}

// Also where it is called at once, by who gives it. What is wrong there is AddressSanitizer's to see.
TEST(Cluster, ACallbackMayFreeItsHandle) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    for (const bool finished : {true, false}) {
      std::vector<float> v(1000, 1.0f);
      std::promise<void> freed;
      auto kept = std::make_unique<Handle>(comm.allreduce_async(std::span(v)));
      while (finished && !kept->test()) std::this_thread::yield();
      Handle& handle = *kept;
      handle.on_complete([&freed, kept = std::make_shared<std::unique_ptr<Handle>>(std::move(kept))](const Error*) {
        kept->reset();
        freed.set_value();
      });
      freed.get_future().wait();
    }
  });
}

// The buffers of a call that has not finished are in use; another job's callback is no reason not to wait for it.
TEST(Cluster, ACallbackThatFreesAnotherJobsHandleWaitsForIt) {
  Cluster cluster;
  std::promise<void> frees;
  cluster.run_well(2, [&](Communicator& comm) {
    std::vector<float> v(1000, 1.0f), one{1.0f};
    if (comm.rank() == 1) {
      frees.get_future().wait();
      return comm.allreduce(std::span(v));
    }
    Communicator other = Communicator::create(cluster.options(0, 1, "other"));
    auto pending = std::make_unique<Handle>(comm.allreduce_async(std::span(v)));
    Handle call = other.allreduce_async(std::span(one));
    float seen = 0;
    call.on_complete([&](const Error*) {
      frees.set_value();
      pending.reset();
      seen = v[0];
    });
    call.wait();
    EXPECT_EQ(seen, 2.0f);
    other.finalize();
  });
}

// Within a host a link has one stream.
void on_a_host_of_its_own(int rank, Options& o) {
  o.host_id = "host-" + std::to_string(rank);
}

TEST(Cluster, AResultSaysWhoseInputsAreInIt) {
  Cluster cluster;
  cluster.run_well(3, [](Communicator& comm) {
    const std::vector all = {0, 1, 2};
    EXPECT_EQ(comm.min_workers(), 0);
    EXPECT_THROW((void)comm.contributors(), Error) << "there is no result yet";
    (void)comm.allreduce(1);
    EXPECT_EQ(comm.contributors(), all);
    auto group = comm.split(comm.rank() == 0 ? 0 : 1);
    EXPECT_THROW((void)group->contributors(), Error) << "each communicator has its own";
    group->barrier();
    EXPECT_EQ(group->contributors(), comm.rank() == 0 ? std::vector{0} : std::vector({0, 1})) << "ranks of the group";
    std::vector<int> seen;
    int one = 1;
    Handle sum = comm.allreduce_async(std::span(&one, 1));
    sum.on_complete([&](const Error*) { seen = sum.contributors(); });
    sum.wait();
    EXPECT_EQ(seen, all);
    // One that has not finished, and messages, have none.
    Handle unfinished;
    if (comm.rank() == 0) {
      unfinished = comm.barrier_async();
      EXPECT_THROW((void)unfinished.contributors(), Error);
      for (const int peer : {1, 2}) {
        Handle sent = comm.send_async(all, peer);
        sent.wait();
        EXPECT_THROW((void)sent.contributors(), Error);
      }
    } else {
      std::vector<int> received(3);
      comm.recv(received, 0);
      unfinished = comm.barrier_async();
    }
    EXPECT_EQ(group->contributors().size(), comm.rank() == 0 ? 1u : 2u);
    unfinished.wait();
    EXPECT_EQ(comm.contributors(), unfinished.contributors());
  });
}

TEST(Cluster, PointToPointOverSeveralStreams) {
  Cluster cluster;
  cluster.run_well(
      2,
      [](Communicator& comm) {
        for (const std::size_t n : {1u, 100000u, 3000000u}) {
          std::vector<std::int32_t> out(n), in(n, -1);
          std::iota(out.begin(), out.end(), comm.rank());
          Handle a = comm.send_async(out, 1 - comm.rank(), 1);
          Handle b = comm.send_async(out, 1 - comm.rank(), 1);
          for (int i = 0; i < 2; i++) {
            comm.recv(in, 1 - comm.rank(), 1);
            EXPECT_EQ(in[0], 1 - comm.rank());
            EXPECT_EQ(in[n - 1], static_cast<std::int32_t>(n) - comm.rank());
          }
          a.wait();
          b.wait();
        }
      },
      [](int rank, Options& o) {
        on_a_host_of_its_own(rank, o);
        o.streams = 3;
        o.chunk_bytes = 4096;
      });
}

template <class... T>
void exchange_each(Communicator& comm) {
  const auto exchange = [&](auto value) {
    std::vector<decltype(value)> out(5, value), in(5);
    Handle sent = comm.send_async(out, 1 - comm.rank());
    comm.recv(in, 1 - comm.rank());
    sent.wait();
    EXPECT_EQ(std::memcmp(in.data(), out.data(), sizeof(value) * in.size()), 0);
  };
  (exchange(T{1}), ...);
}

// An element type that the receiver does not know is damage to it, and is asked for again in each generation.
TEST(Cluster, MessagesOfEachElementType) {
  Cluster cluster;
  cluster.run_well(2, exchange_each<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                                    std::int64_t, std::uint64_t, float16, bfloat16, float, double>);
  cluster.run_well(2,
                   [](Communicator& comm) {
                     bool out[] = {true, false, true}, in[3] = {};
                     Handle sent = comm.send_async(std::span(out), 1 - comm.rank());
                     comm.recv(std::span(in), 1 - comm.rank());
                     sent.wait();
                     EXPECT_TRUE(std::ranges::equal(in, out));
                   },
                   {});
}

// The log has each message: a send waits for its receive for a moment, and then leaves it there.
TEST(Cluster, RanksMaySendToEachOtherBeforeTheyReceive) {
  const auto circle = [](Communicator& comm) {
    const std::int32_t ranks = comm.world_size();
    const std::int32_t next = (comm.rank() + 1) % ranks, before = (comm.rank() + ranks - 1) % ranks;
    (void)comm.load_checkpoint();
    auto at_last = comm.within(std::chrono::seconds(60));
    std::vector<std::int32_t> large(2000000), small(10, comm.rank()), in(large.size());
    std::iota(large.begin(), large.end(), comm.rank());
    at_last.send(large, next, 1);
    std::ranges::fill(large, -1);
    at_last.send(small, next, 2);
    at_last.recv(in, before, 1);
    at_last.recv(small, before, 2);
    std::iota(large.begin(), large.end(), before);
    EXPECT_EQ(in, large);
    EXPECT_EQ(small, std::vector<std::int32_t>(10, before));
    comm.checkpoint(std::as_bytes(std::span("all have received")));
    comm.barrier();
  };
  Cluster cluster;
  cluster.run_well(3, circle);
  Cluster apart;
  apart.run_well(2, circle, [](int rank, Options& o) {
    on_a_host_of_its_own(rank, o);
    o.streams = 2;
  });
}

// A rank may compute for much longer than the round timeout, before its first round and between others, in whichever
// order ranks come: the timeout is for ranks that are not heard.
TEST(Cluster, ARankThatComputesForLongIsNotTakenForLost) {
  for (const int late : {0, 1}) {
    Cluster cluster;
    cluster.run_well(
        2,
        [&](Communicator& comm) {
          const auto compute = [&] {
            // Time itself is what is tested: nothing happens meanwhile that could be awaited.
            if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          };
          compute();
          EXPECT_EQ(comm.allreduce(1), 2);
          compute();
          // More than the kernel's buffers hold: the sender is stuck until the other rank reads.
          std::vector<float> big(16000000, 1.0f);
          comm.allreduce(std::span(big));
          EXPECT_EQ(big.back(), 2.0f);
          if (comm.rank() != late) {
            comm.send(big, late);
          } else {
            compute();
            comm.recv(big, 1 - late);
          }
        },
        // With 300 ms a machine whose cores others keep busy was silent for longer, and rightly taken for lost.
        [](int, Options& o) { o.round_timeout_ms = std::chrono::milliseconds(600); });
  }
}

TEST(Cluster, AUsersReduction) {
  struct Best {
    float score;
    std::int32_t who;
  };
  Cluster cluster;
  cluster.run_well(4, [](Communicator& comm) {
    std::vector<Best> best(100, Best{static_cast<float>(comm.rank() * 7 % 4), comm.rank()});
    comm.allreduce(std::span(best), [](const Best& a, const Best& b) { return a.score >= b.score ? a : b; });
    EXPECT_EQ(best[50].who, 1);
    EXPECT_EQ(best[50].score, 3.0f);
  });
}

TEST(Cluster, OneRankAlone) {
  Cluster cluster;
  cluster.run_well(1, [](Communicator& comm) {
    EXPECT_EQ(comm.allreduce(std::vector{4}), std::vector{4});
    comm.barrier();
  });
}

TEST(Cluster, SeveralStreamsAndNoChecksums) {
  Cluster cluster;
  cluster.run_well(
      3,
      [](Communicator& comm) {
        std::vector<double> v(300000, 1.0);
        comm.allreduce(std::span(v));
        EXPECT_EQ(v, std::vector<double>(300000, 3.0));
      },
      [](int rank, Options& o) {
        on_a_host_of_its_own(rank, o);
        o.streams = 4;
        o.no_checksums = true;
        o.chunk_bytes = 65536;
      });
}

TEST(Cluster, OverIpv6) {
  Cluster cluster("::1");
  cluster.run_well(2, [](Communicator& comm) { EXPECT_EQ(comm.allreduce(1), 2); });
}

TEST(Cluster, WithoutAuthenticationWhenAskedFor) {
  Cluster cluster("127.0.0.1", true);
  cluster.run_well(2, [](Communicator& comm) { EXPECT_EQ(comm.allreduce(1), 2); });
}

TEST(Cluster, JobsRunSideBySideAndOneAfterTheOther) {
  Cluster cluster;
  const auto job = [&](const std::string& name, int size) {
    cluster.run_well(
        size,
        [&](Communicator& comm) {
          for (int i = 0; i < 50; i++) EXPECT_EQ(comm.allreduce(1), size);
        },
        [&](int r, Options& o) { o = cluster.options(r, size, name); });
  };
  std::thread a(job, "a", 2), b(job, "b", 3);
  a.join();
  b.join();
  job("c", 2);
}

// The members of a generation that has ended form the next one; ranks stay with their worker ids.
TEST(Cluster, RanksAreKeptOverLives) {
  Cluster cluster;
  std::vector<int> ranks(3, -1);
  const auto hosts = [](int r, Options& o) {
    o.host_id = r == 1 ? "a" : "b";
    o.replicas = 0;  // with a log, who leaves without finalize is waited for
  };
  auto errors = cluster.run(
      3, [&](Communicator& comm) { comm.barrier(); }, hosts, false);
  cluster.run_well(
      3,
      [&](Communicator& comm) {
        const std::vector<int> all = comm.allgather(comm.rank());
        EXPECT_EQ(all, (std::vector<int>{0, 1, 2}));
      },
      hosts);
}

TEST(Cluster, AFlippedBitBetweenAWorkerAndTheTrackerCostsAConnectionAndNoGeneration) {
  std::mutex mutex;
  std::vector<std::string> events;
  Cluster cluster("127.0.0.1", false, [&](std::string_view, const LogEvent& e) {
    const std::lock_guard lock(mutex);
    events.push_back(e.name);
  });
  FlippingProxy wire(cluster.tracker().port());
  cluster.run_well(
      2,
      [&](Communicator& comm) {
        (void)comm.load_checkpoint();
        for (std::uint64_t version = 1; version <= 2; ++version) {
          EXPECT_EQ(comm.allreduce(1), 2);
          if (comm.rank() == 0) version == 1 ? wire.flip_next_to_target() : wire.flip_next_from_target();
          comm.checkpoint(std::vector<std::byte>(8));
          while (comm.committed_version() < version) std::this_thread::yield();  // its vote has come through
        }
      },
      [&](int rank, Options& o) {
        o.round_timeout_ms = std::chrono::seconds(10);
        if (rank == 0) o.tracker = "127.0.0.1:" + std::to_string(wire.port());
      });
  const std::lock_guard lock(mutex);
  EXPECT_THAT(events, ::testing::Not(::testing::Contains("interrupted")));
}

// The control thread took connections as long as there were any, and came to no heartbeat meanwhile.
TEST(Cluster, StrangersAtEveryDoorHoldUpNoHeartbeat) {
  std::mutex mutex;
  std::vector<std::string> interrupts;
  Cluster cluster("127.0.0.1", false, [&](std::string_view, const LogEvent& e) {
    const std::lock_guard lock(mutex);
    if (e.name == "interrupted") interrupts.push_back(e.text);
  });
  cluster.run_well(
      2,
      [&](Communicator& comm) {
        comm.barrier();
        std::optional<Strangers> strangers;
        // The tracker's port; and of each rank those for links, logged results, links of the host, and segments.
        if (comm.rank() == 0) {
          EXPECT_EQ(strangers.emplace(4).doors(), 1u + 2 * 4);
        }
        std::uint64_t rounds = 1;
        for (int beats = 0; beats < 5; ++beats) {
          EXPECT_EQ(comm.allreduce(1), 2);
          ++rounds;
          // A heartbeat of each rank that tells of this round.
          const auto told = [&] {
            const auto seen = cluster.tracker().snapshot();
            return seen.ok() && !seen.value()->jobs.empty() &&
                   std::ranges::all_of(seen.value()->jobs[0].view.members,
                                       [&](const auto& m) { return m.rounds_finished >= rounds; });
          };
          const auto interrupted = [&] {
            const std::lock_guard lock(mutex);
            return !interrupts.empty();
          };
          while (!told() && !interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        comm.barrier();
      },
      // Long enough for a machine that is busy besides: a worker that never comes to its heartbeats is lost all the
      // same.
      [](int, Options& o) { o.round_timeout_ms = std::chrono::seconds(10); });
  const std::lock_guard lock(mutex);
  EXPECT_THAT(interrupts, ::testing::IsEmpty());
}

// ZeroMQ never connects again after such a handshake: the worker has to (warren chaos --seed=22 hung).
TEST(Cluster, AWorkerJoinsAfterAHandshakeThatEndedItsConnection) {
  Cluster cluster;
  Options o = cluster.options(0, 1);
  o.round_timeout_ms = std::chrono::seconds(1);
  const std::uint16_t port = cluster.tracker().port();
  cluster.stop_tracker();
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ASSERT_EQ(::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  std::thread worker([&] {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.allreduce(3), 3);
    comm.finalize();
  });
  const int connection = ::accept(listener, nullptr, nullptr);
  ASSERT_GE(connection, 0);
  // A greeting of ZMTP 3.0 without authentication, which the worker does not accept.
  std::string greeting(64, '\0');
  greeting[0] = '\xff';
  greeting[9] = '\x7f';
  greeting[10] = 3;
  greeting.replace(12, 4, "NULL");
  greeting[32] = 1;
  ASSERT_EQ(::send(connection, greeting.data(), greeting.size(), MSG_NOSIGNAL), std::ssize(greeting));
  char byte = 0;
  while (::recv(connection, &byte, 1, 0) > 0) continue;  // until it hangs up
  ::close(connection);
  ::close(listener);
  cluster.start_tracker(port);
  worker.join();
}

}  // namespace
}  // namespace warren

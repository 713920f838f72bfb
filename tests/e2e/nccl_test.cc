// Large allreduces whose bytes NCCL, here a fake, moves among GPUs of several hosts: every result is that of the same
// job on the CPU, bit for bit, whatever happens to NCCL or to a rank.
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "tests/e2e/cluster.h"
#include "tests/worker/device/fake_gpu.h"

namespace warren {
namespace {

using test::Array;
using test::DeviceArray;
using test::fake_gpu;
using test::FakeFault;
using ::testing::AnyOf;
using testing::Cluster;
using ::testing::HasSubstr;
using ::testing::Not;

// Before any thread: what loads in the place of libwarren_cuda.so.
const bool kFakeLoads = setenv("WARREN_DEVICE_LIBRARY", WARREN_FAKE_DEVICE, 1) == 0 &&
                        setenv("WARREN_NCCL_ROOT", WARREN_NCCL_ROOT_PROGRAM, 1) == 0;

// No whole number of anything.
constexpr std::size_t kLarge = 1'500'017;
constexpr std::size_t kWide = 2'200'003;  // as 16 bits, too

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

  // Until NCCL moves the bytes.
  void warm_up(Communicator& comm, std::int32_t device) {
    const std::uint64_t before = comm.rounds_exchanged();
    for (int tries = 0; tries < 1000; tries++) {
      Array<float> array(true, values_of(comm.rank()), device);
      comm.allreduce(array.span());
      if (comm.rounds_exchanged() != before) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "NCCL does nothing";
  }
  // Calls of a rank, on the CPU or on this GPU.
  Results calls(Communicator& comm, bool on_gpu, std::int32_t device, bool nccl) {
    const int rank = comm.rank();
    Results out;
    if (nccl) warm_up(comm, device);
    const std::uint64_t before = comm.rounds_exchanged();
    const auto call = [&]<class T>(const std::vector<T>& in, bool in_place, Op op, std::optional<Wire> wire) {
      Array<T> from(on_gpu, in, device), to(on_gpu, std::vector<T>(in.size(), T(-1.0f)), device);
      if (wire) comm.wire(*wire);
      if (in_place) {
        comm.allreduce(from.span(), op);
      } else {
        comm.allreduce(from.span(), to.span(), op);
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

TEST_F(NcclJobs, GiveTheBitsOfTheCpu) {
  struct Case {
    int ranks, ranks_a_host;
    const char* algorithm;
  };
  for (const Case& c : {Case{2, 1, "auto"}, Case{3, 1, "ring"}, Case{4, 2, "butterfly"}, Case{5, 5, "ring"}}) {
    SCOPED_TRACE(std::to_string(c.ranks) + c.algorithm);
    const std::string name = std::to_string(c.ranks);
    const auto expected = job("cpu" + name, c.ranks, c.ranks_a_host, ~0u, c.algorithm);
    EXPECT_EQ(exchanged_, 0u);
    const std::uint64_t before = fake_gpu().controls.calls("stream.nccl_exchange");
    EXPECT_EQ(job("gpu" + name, c.ranks, c.ranks_a_host, 0, c.algorithm), expected);
    EXPECT_EQ(exchanged_, 12u) << "all that a GPU combines";
    EXPECT_GT(fake_gpu().controls.calls("stream.nccl_exchange"), before + 12);
    // One says no: all take the other way.
    EXPECT_EQ(job("mixed" + name, c.ranks, c.ranks_a_host, 0b010, c.algorithm), expected);
    EXPECT_EQ(exchanged_, 0u);
    EXPECT_EQ(warned(), "");
  }
}

// ---- agreement

TEST_F(NcclJobs, AreRefusedWhereVersionsDiffer) {
  std::atomic<bool> joined = false;
  std::thread first([&] {
    try {
      Options o = cluster_.options(0, 2);
      options(0, 1, o);
      o.log_level = LogLevel::info;
      o.log_sink = [&](LogLevel, std::string_view text) {
        if (text.find("has 1 of its 2 workers") == text.npos) return;
        joined = true;
        joined.notify_all();
      };
      o.join_timeout_ms = std::chrono::seconds(3);
      (void)Communicator::create(o);
      ADD_FAILURE() << "nobody else comes";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("1 of its 2 workers"));
    }
  });
  // The word of who comes first is the job's.
  joined.wait(false);
  fake_gpu().controls.say_nccl(23002);
  const auto refused = [&](const char* says) {
    try {
      Options o = cluster_.options(1, 2);
      options(1, 1, o);
      (void)Communicator::create(o);
      ADD_FAILURE() << "it is not the job's";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(says));
    }
  };
  refused("NCCL 2.30.2 is not the job's 2.28.9, which worker 0 on host host-0 set");
  fake_gpu().controls.say_nccl(22809);
  ASSERT_EQ(setenv("WARREN_NCCL", "0", 1), 0);
  refused("NCCL off is not the job's 2.28.9");
  ASSERT_EQ(setenv("WARREN_NCCL", "1", 1), 0);
  fake_gpu().controls.arm("init", 0, FakeFault::kNone);
  refused("this worker has no GPU: GPU buffers: ");
  fake_gpu().controls.arm("nccl_version", 0, FakeFault::kNone);
  refused("NCCL is to move what GPUs exchange (WARREN_NCCL), and this worker has none");
  for (const char* blocks : {"1", "01", "0x1"}) {
    ASSERT_EQ(setenv("NCCL_COMM_BLOCKING", blocks, 1), 0);
    refused("NCCL_COMM_BLOCKING=1 has its calls wait for peers");
  }
  ASSERT_EQ(unsetenv("NCCL_COMM_BLOCKING"), 0);
  ASSERT_EQ(setenv("WARREN_DEVICE_LIBRARY", "none", 1), 0);
  refused("NCCL is to move what GPUs exchange (WARREN_NCCL), and this worker has no GPU");
  ASSERT_EQ(setenv("WARREN_DEVICE_LIBRARY", WARREN_FAKE_DEVICE, 1), 0);
  first.join();
}

// Rank 1's kernel is still running, for longer than anything else may take, and writes the input at its end.
TEST_F(NcclJobs, WaitForTheProgramsWork) {
  const warren_device_table& table = fake_gpu().table;
  cluster_.run_well(
      2,
      [&](Communicator& comm) {
        const int rank = comm.rank();
        warm_up(comm, rank);
        void *stream = nullptr, *pinned = nullptr;
        ASSERT_EQ(table.make_stream(rank, &stream), WARREN_DEVICE_OK);
        ASSERT_EQ(table.allocate_pinned(4096, &pinned), WARREN_DEVICE_OK);
        comm.use_stream(stream);
        const DeviceArray<float> array(std::vector<float>(kLarge, 1.0f), rank);
        *static_cast<float*>(pinned) = 5.0f;
        if (rank == 1) fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
        comm.barrier();
        const std::uint64_t before = comm.rounds_exchanged();
        ASSERT_EQ(table.to_device(rank, array.data() + kLarge - 1, pinned, sizeof(float), stream), WARREN_DEVICE_OK);
        auto call = comm.allreduce_async(array.span());
        std::thread late([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(4500));
          fake_gpu().controls.release();
        });
        call.wait();
        late.join();
        std::vector<float> expected(kLarge, 2.0f);
        expected.back() = 10.0f;
        EXPECT_EQ(array.read(), expected);
        EXPECT_EQ(comm.rounds_exchanged(), before + 1);
        ASSERT_EQ(table.end_stream(rank, stream), WARREN_DEVICE_OK);
      },
      [&](int rank, Options& o) {
        options(rank, 1, o);
        o.round_timeout_ms = std::chrono::milliseconds(1500);
      });
  EXPECT_EQ(warned(), "");
}

// What NCCL cannot be brought up for goes by way of the CPU, with a word in the log.
TEST_F(NcclJobs, ThatDoNotBeginGoByWayOfTheCpu) {
  const auto expected = job("cpu", 3, 1, ~0u);
  struct Case {
    const char* where;
    const char* says;
  };
  for (const Case& c : {Case{"nccl_join", "injected into nccl_join"}, Case{"nccl_state", "injected into nccl_state"}}) {
    SCOPED_TRACE(c.where);
    warnings_.clear();
    fake_gpu().controls.arm(c.where, 0, FakeFault::kError);
    std::vector<Results> all(3);
    cluster_.run_well(
        3,
        [&](Communicator& comm) {
          Array<float> array(true, values_of(comm.rank()), 0);
          for (int i = 0; i < 8; i++) {
            Array<float> again(true, values_of(comm.rank()), 0);
            comm.allreduce(again.span());
          }
          all[static_cast<std::size_t>(comm.rank())] = calls(comm, true, 0, false);
          EXPECT_EQ(comm.rounds_exchanged(), 0u);
        },
        [&](int rank, Options& o) {
          o.job = c.where;
          options(rank, 1, o);
          o.round_timeout_ms = std::chrono::seconds(2);
        });
    EXPECT_EQ(all, expected);
    EXPECT_THAT(warned(), HasSubstr(c.says));
    EXPECT_THAT(warned(), HasSubstr("by way of the CPU until the next epoch"));
  }
  warnings_.clear();
  ASSERT_EQ(setenv("WARREN_NCCL_ROOT", "/nowhere/warren_nccl_root", 1), 0);
  cluster_.run_well(
      2,
      [&](Communicator& comm) {
        for (int i = 0; i < 3; i++) {
          Array<float> again(true, values_of(comm.rank()), 0);
          comm.allreduce(again.span());
        }
        EXPECT_EQ(comm.rounds_exchanged(), 0u);
      },
      [&](int rank, Options& o) {
        o.job = "rootless";
        options(rank, 1, o);
      });
  ASSERT_EQ(setenv("WARREN_NCCL_ROOT", WARREN_NCCL_ROOT_PROGRAM, 1), 0);
  EXPECT_THAT(warned(), HasSubstr("cannot start /nowhere/warren_nccl_root"));
}

// ---- faults in the middle

// Rank 1's first life ends in the round that meets the fault, or NCCL fails there; the job goes on, with another
// communicator, and the result is what it would have been.
class NcclFaults : public NcclJobs {
 protected:
  // `ends`: the call with the fault ends rank 1's life, and says so.
  void meets(const char* where, int after, FakeFault fault, const char* ends, std::chrono::milliseconds timeout) {
    SCOPED_TRACE(std::string(where) + " " + std::to_string(after));
    const std::string name = std::string(where) + std::to_string(after) + std::to_string(static_cast<int>(fault));
    const std::uint64_t joined = fake_gpu().controls.calls("nccl_join");
    std::vector<float> expected(kLarge);
    for (int rank = 0; rank < 2; rank++) {
      const auto values = values_of(7 * rank + 1);
      for (std::size_t i = 0; i < kLarge; i++) expected[i] += values[i];
    }
    std::atomic<int> entered = 0;
    std::atomic<bool> armed = false;
    const auto life = [&](int rank, bool first) {
      Options o = cluster_.options(rank, 2, name);
      options(rank, 1, o);
      o.round_timeout_ms = timeout;
      Communicator comm = Communicator::create(o);
      for (int i = 0; i < 10; i++) {
        Array<float> array(true, values_of(rank), rank);
        comm.allreduce(array.span());
        std::this_thread::sleep_for(std::chrono::milliseconds(first ? 10 : 0));
      }
      if (first) {
        EXPECT_GT(comm.rounds_exchanged(), 0u);
        // The fault is of the one device that both have.
        entered++;
        while (entered < 2) std::this_thread::yield();
        if (rank == 1) {
          fake_gpu().controls.arm(where, after, fault);
          armed = true;
        }
        while (!armed) std::this_thread::yield();
      }
      Array<float> array(true, values_of(7 * rank + 1), rank);
      comm.allreduce(array.span());
      EXPECT_EQ(array.read(), expected);
      const std::uint64_t before = comm.rounds_exchanged();
      for (int i = 0; i < 12; i++) {
        Array<float> more(true, values_of(rank), rank);
        comm.allreduce(more.span());
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_GT(comm.rounds_exchanged(), before) << "with another communicator";
      comm.finalize();
    };
    const auto lives = [&](int rank) {
      bool again = false;
      try {
        life(rank, true);
        EXPECT_TRUE(ends == nullptr);
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr(ends == nullptr ? "nothing" : ends));
        again = true;
      }
      if (!again) return;
      fake_gpu().controls.release();
      try {
        life(rank, false);
      } catch (const Error& e) {
        ADD_FAILURE() << e.what();
      }
    };
    std::thread other([&] { lives(1); });
    lives(0);
    other.join();
    fake_gpu().controls.release();
    EXPECT_EQ(fake_gpu().controls.calls("nccl_join"), joined + 4) << "two communicators";
  }
};

// Which rank's call it is nobody can say; the other one's waits until the epoch ends.
TEST_F(NcclFaults, AnErrorEndsTheEpochAndNoLife) {
  for (const int after : {0, 1, 3, 5})
    meets("nccl_exchange", after, FakeFault::kError, nullptr, std::chrono::seconds(8));
  for (const int after : {0, 3, 9}) meets("nccl_state", after, FakeFault::kError, nullptr, std::chrono::seconds(8));
  EXPECT_THAT(warned(), HasSubstr("injected into nccl_exchange"));
  EXPECT_THAT(warned(), HasSubstr("injected into nccl_state"));
}

// The abort of an epoch's communicator, which another rank's loss has ended, hangs: this life cannot go on, either.
TEST_F(NcclFaults, AnAbortThatHangsEndsTheLife) {
  const auto options_of = [&](int rank) {
    Options o = cluster_.options(rank, 2);
    options(rank, 1, o);
    o.round_timeout_ms = std::chrono::seconds(3);
    return o;
  };
  std::atomic<bool> lost = false, ended = false;
  std::thread other([&] {
    try {
      {
        Communicator first = Communicator::create(options_of(1));
        warm_up(first, 1);
        while (!lost) std::this_thread::yield();
        // Rank 0's, whose epoch ends because this life does.
        fake_gpu().controls.arm("nccl_abort.0", 0, FakeFault::kHang);
      }
      Communicator second = Communicator::create(options_of(1));
      ended.wait(false);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  });
  try {
    Communicator comm = Communicator::create(options_of(0));
    warm_up(comm, 0);
    lost = true;
    for (int i = 0; i < 1000; i++) {
      Array<float> array(true, values_of(0), 0);
      comm.allreduce(array.span());
    }
    ADD_FAILURE() << "its GPU is of no more use";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("NCCL's communicator of an epoch that is over has not ended in 3000 ms"));
    EXPECT_THAT(e.what(), HasSubstr("this worker's life in the job is over"));
  }
  ended = true;
  ended.notify_all();
  fake_gpu().controls.release();
  other.join();
}

// Whoever has given NCCL a turn does not come back, and is the only thread that calls anything. The life ends all the
// same, so that others go on with the next one.
TEST_F(NcclFaults, AHangInsideOfNcclEndsTheLife) {
  const auto options_of = [&](int rank) {
    Options o = cluster_.options(rank, 2);
    options(rank, 1, o);
    o.round_timeout_ms = std::chrono::seconds(2);
    o.on_rollback = "error";  // and no launcher: the process stays
    return o;
  };
  // The same calls in each life.
  const auto begin = [](Communicator& comm, int rank) {
    for (int i = 0; i < 10; i++) {
      Array<float> array(true, values_of(rank), rank);
      comm.allreduce(array.span());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  std::atomic<int> entered = 0;
  std::atomic<bool> over = false;
  std::thread other([&] {
    try {
      Communicator comm = Communicator::create(options_of(1));
      begin(comm, 1);
      entered++;
      while (entered < 2) std::this_thread::yield();
      Array<float> array(true, values_of(1), 1);
      comm.allreduce(array.span());  // with rank 0's next life
      comm.finalize();
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  });
  const char* const kSays = "NCCL's communicator of an epoch that is over has not ended in 2000 ms";
  std::thread watch([&] {
    for (int i = 0; i < 4000 && warned().find(kSays) == std::string::npos; i++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_THAT(warned(), HasSubstr(kSays));
    over = true;
    fake_gpu().controls.release();
  });
  try {
    Communicator comm = Communicator::create(options_of(0));
    begin(comm, 0);
    EXPECT_GT(comm.rounds_exchanged(), 0u);
    fake_gpu().controls.arm("nccl_exchange.0", 0, FakeFault::kHang);
    entered++;
    Array<float> array(true, values_of(0), 0);
    comm.allreduce(array.span());
    ADD_FAILURE() << "it hangs";
  } catch (const Error& e) {
    EXPECT_TRUE(over) << "not before";
    EXPECT_THAT(e.what(), HasSubstr(kSays));
    EXPECT_THAT(e.what(), HasSubstr("this worker's life in the job is over"));
  }
  try {
    Communicator comm = Communicator::create(options_of(0));
    begin(comm, 0);
    Array<float> array(true, values_of(0), 0);
    comm.allreduce(array.span());
    comm.finalize();
  } catch (const Error& e) {
    ADD_FAILURE() << e.what();
  }
  other.join();
  watch.join();
}

// ---- aborts that peers take for all that was to come

// In one round after the other, and in another turn of it each time, rank 1's NCCL aborts, or what it receives is not
// what was sent. Nobody hears of it; for that other ranks have all the time until rank 1 has waited for a round
// timeout.
class NcclLies : public NcclJobs {
 protected:
  void go_on(const std::vector<int>& turns, FakeFault fault, std::uint32_t replicas, bool checksums, const char* says) {
    constexpr int kRanks = 3;
    std::vector<std::vector<float>> on_cpu(turns.size());
    for (const bool gpu : {false, true}) {
      std::atomic<int> arrived = 0;
      cluster_.run_well(
          kRanks,
          [&](Communicator& comm) {
            const int rank = comm.rank();
            for (std::size_t i = 0; i < turns.size(); i++) {
              if (gpu) warm_up(comm, rank % 2);
              const int all = static_cast<int>(i + 1) * kRanks;
              arrived++;
              while (arrived < all) std::this_thread::yield();
              if (gpu && rank == 1) fake_gpu().controls.arm("stream.nccl_exchange.1", turns[i], fault);
              comm.barrier();
              const std::uint64_t before = comm.rounds_exchanged();
              Array<float> array(gpu, values_of(rank + 3 * static_cast<int>(i)), rank % 2);
              comm.allreduce(array.span());
              if (gpu) {
                EXPECT_TRUE(array.read() == on_cpu[i]) << "rank " << rank << ", turn " << turns[i];
                EXPECT_EQ(comm.rounds_exchanged(), before + 1);
              } else if (rank == 0) {
                on_cpu[i] = array.read();
              }
            }
          },
          [&](int rank, Options& o) {
            o.job = gpu ? "gpu" : "cpu";
            options(rank, 1, o);
            o.replicas = replicas;
            o.no_checksums = !checksums;
            o.round_timeout_ms = std::chrono::milliseconds(1500);
          });
    }
    EXPECT_THAT(warned(), HasSubstr(says));
  }
  static constexpr const char* kNothingCame = "nothing has come of a turn for 1500 ms";
};

// (a) Rank 0 has all inputs of its pieces, as it looks.
TEST_F(NcclLies, AnAbortInATurnOfInputsMakesNoFinal) {
  go_on({0, 1, 3}, FakeFault::kAbort, 2, true, kNothingCame);
}

// (b) One of the others keeps a copy of rank 1's finals, the other one brings them to its output.
TEST_F(NcclLies, AnAbortInATurnOfFinalsIsNeitherKeptNorBrought) {
  go_on({2, 4}, FakeFault::kAbort, 2, true, kNothingCame);
}

// (c) Nothing but the last turn is left for any rank.
TEST_F(NcclLies, AnAbortInTheLastTurnLetsNobodyReturn) {
  go_on({5}, FakeFault::kAbort, 1, true, kNothingCame);
}

// What NCCL says of its own end is no checksum.
TEST_F(NcclLies, AnAbortIsNoticedWithoutChecksumsToo) {
  go_on({0, 2, 5}, FakeFault::kAbort, 2, false, kNothingCame);
}

TEST_F(NcclLies, AFlippedBitCostsAnEpoch) {
  go_on({0, 1, 2, 3, 4, 5}, FakeFault::kFlip, 2, true, "has another checksum than what was sent");
  EXPECT_THAT(warned(), HasSubstr("NCCL has failed: what came from the GPU of rank"));
  // Its word has come well.
  EXPECT_THAT(warned(), HasSubstr("reports: what came from the GPU of rank"));
  EXPECT_THAT(warned(), Not(HasSubstr("lost its link")));
}

// Turns that NCCL does well do not make up for a round that was something else each time.
TEST_F(NcclLies, AMoverThatIsWrongInEveryRoundIsGivenUp) {
  std::atomic<bool> given_up = false;
  cluster_.run_well(
      2,
      [&](Communicator& comm) {
        const int rank = comm.rank();
        std::vector<float> first;
        for (int i = 0; i < 1000; i++) {
          if (rank == 1) {
            given_up = warned().find("for the rest of this life") != std::string::npos;
            fake_gpu().controls.arm("stream.nccl_exchange.1", 0, FakeFault::kFlip);
          }
          std::vector<float> over = {given_up ? 1.0f : 0.0f};
          comm.broadcast(std::span(over), 1);
          if (over[0] != 0) break;
          Array<float> array(true, values_of(rank), rank);
          comm.allreduce(array.span());
          if (first.empty()) first = array.read();
          EXPECT_TRUE(array.read() == first);
        }
        EXPECT_EQ(comm.rounds_exchanged(), 3u);
      },
      [&](int rank, Options& o) { options(rank, 1, o); });
  EXPECT_TRUE(given_up);
}

// ---- processes

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr int kWorkers = 3;

// Runs the job by `warren run` and returns what each of its workers wrote.
std::vector<std::string> run_processes(const std::string& folder, const std::string& mode, const std::string& fault,
                                       const std::string& flag = "") {
  std::filesystem::create_directories(folder);
  const std::string command = std::string(WARREN_CLI) + " run -n " + std::to_string(kWorkers) +
                              " --round_timeout_ms=4000 " + flag + " -- " + WARREN_LOAN_WORKER + " " + mode + " 12 " +
                              folder + " " + fault + " >" + folder + "/log 2>&1";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << file_text(folder + "/log");
  std::vector<std::string> out;
  for (int worker = 0; worker < kWorkers; worker++) out.push_back(file_text(folder + "/" + std::to_string(worker)));
  return out;
}

// Rounds that NCCL has moved the bytes of, in the workers' last lives.
int exchanged(const std::string& folder) {
  int all = 0;
  for (int worker = 0; worker < kWorkers; worker++) {
    all += std::atoi(file_text(folder + "/" + std::to_string(worker) + ".exchanged").c_str());
  }
  return all;
}

TEST(NcclProcesses, GiveTheBitsOfTheCpuWhateverHappens) {
  const testing::TempDir folder;
  const std::string none = "none none 0 none";
  const auto expected = run_processes(folder / "cpu", "cpu", none);
  for (const std::string& state : expected) {
    ASSERT_EQ(state.size(), 3'001 * sizeof(float));
    EXPECT_EQ(state, expected[0]);
  }
  EXPECT_EQ(exchanged(folder / "cpu"), 0);
  for (const char* mode : {"nccl", "nccl-mixed"}) {
    EXPECT_EQ(run_processes(folder / mode, mode, none), expected);
    EXPECT_GT(exchanged(folder / mode), 2) << mode;
  }
  struct Case {
    const char* fault;
    const char* says;  // in the log
  };
  // A round has six turns: inputs, inputs, finals, inputs, finals, finals.
  for (const Case& c : {
           Case{"1 stream.nccl_exchange 0 kill", "signal 9"},
           Case{"0 stream.nccl_exchange 8 kill", "signal 9"},  // with the id's process
           Case{"2 stream.nccl_exchange 11 kill", "signal 9"},
           Case{"1 nccl_exchange 9 kill", "signal 9"},
           Case{"2 stream.nccl_exchange 7 stop", "hung and was killed"},
           Case{"0 stream.nccl_exchange 10 stop", "hung and was killed"},
           Case{"1 stream.nccl_exchange 6 late", ""},
           Case{"2 stream.nccl_exchange 2 late", ""},
           // Neither a revoke nor an abort ends what the GPU is at.
           Case{"0 stream.nccl_exchange 7 hang", "nothing has come of a turn for 4000 ms"},
           // Their peers take it for all that was to come.
           Case{"0 stream.nccl_exchange 6 abort", "nothing has come of a turn for 4000 ms"},
           Case{"2 stream.nccl_exchange 8 abort", "nothing has come of a turn for 4000 ms"},
           Case{"1 stream.nccl_exchange 11 abort", "nothing has come of a turn for 4000 ms"},
           Case{"1 stream.nccl_exchange 9 flip", "has another checksum than what was sent"},
           Case{"1 stream.nccl_exchange 4 error", "injected into stream.nccl_exchange"},
           Case{"2 nccl_exchange 3 error", "NCCL does not take messages among GPUs: injected into nccl_exchange"},
           Case{"0 nccl_state 60 error", "injected into nccl_state"},
           // What is made of inputs that have come so.
           Case{"0 stream.reduce 3 kill", "signal 9"},
           Case{"1 stream.reduce 2 stop", "hung and was killed"},
           Case{"2 reduce 1 error", "injected into reduce"},
           // When it is brought up.
           Case{"0 nccl_join 0 kill", "signal 9"},
           Case{"1 nccl_join 0 late", ""},
           Case{"2 nccl_join 0 hang", ""},
       }) {
    SCOPED_TRACE(c.fault);
    std::string name = c.fault;
    std::ranges::replace(name, ' ', '-');
    EXPECT_EQ(run_processes(folder / name, "nccl", c.fault), expected);
    EXPECT_THAT(file_text(folder / name + "/log"), HasSubstr(c.says)) << "nothing has happened";
  }
}

// Nothing ever lets go of the thread that has given NCCL a turn: the program's, or the engine's. The process ends all
// the same, and the job goes on with its next life.
TEST(NcclProcesses, AThreadThatNeverComesBackFromNcclEndsItsProcess) {
  const testing::TempDir folder;
  const auto expected = run_processes(folder / "cpu", "cpu", "none none 0 none");
  struct Case {
    const char* mode;
    const char* flag;
    const char* says;
  };
  for (const Case& c : {
           Case{"nccl", "", "ended with exit code 76"},
           Case{"nccl-async", "", "ended with exit code 76"},
           Case{"nccl", "--on_rollback=error", "hung and was killed"},
           Case{"nccl-async", "--on_rollback=error", "hung and was killed"},
       }) {
    SCOPED_TRACE(std::string(c.mode) + c.flag);
    const std::string here = folder / (std::string(c.mode) + c.flag);
    EXPECT_EQ(run_processes(here, c.mode, "1 nccl_exchange 4 hang", c.flag), expected);
    EXPECT_THAT(file_text(here + "/log"), HasSubstr(c.says));
    EXPECT_THAT(file_text(here + "/log"), HasSubstr("has not ended in 4000 ms"));
  }
}

}  // namespace
}  // namespace warren

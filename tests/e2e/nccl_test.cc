// Large allreduces whose bytes NCCL, here a fake, moves among GPUs of several hosts: every result is that of the same
// job on the CPU, bit for bit; and what ranks agree on before.
#include <gmock/gmock.h>

#include <thread>

#include "tests/e2e/nccl_jobs.h"

namespace warren {
namespace {

using test::Array;
using test::DeviceArray;
using test::fake_gpu;
using test::FakeFault;
using ::testing::HasSubstr;
using testing::kLarge;
using testing::NcclJobs;
using testing::values_of;

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
    if (HasFailure()) return;  // it would make a thousand calls in each of the others
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
      Communicator::create(o).finalize();
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
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
  refused("nccl 2.30.2 is not the job's 2.28.9, which worker 0 on host host-0 set");
  fake_gpu().controls.say_nccl(22809);
  ASSERT_EQ(setenv("WARREN_NCCL", "0", 1), 0);
  refused("nccl off is not the job's 2.28.9");
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
  // The place of who was refused is still free.
  try {
    Options o = cluster_.options(1, 2);
    options(1, 1, o);
    Communicator::create(o).finalize();
  } catch (const Error& e) {
    ADD_FAILURE() << e.what();
  }
  first.join();
}

// Rank 1's kernel is still running, for longer than anything else may take, and writes the input at its end.
TEST_F(NcclJobs, WaitForTheProgramsWork) {
  constexpr std::chrono::milliseconds kTimeout(1500);
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
        comm.barrier();  // until then rank 0 may still have its last result copied, which is not what is to hang
        if (rank == 1) fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
        comm.barrier();
        const std::uint64_t before = comm.rounds_exchanged();
        ASSERT_EQ(table.to_device(rank, array.data() + kLarge - 1, pinned, sizeof(float), stream), WARREN_DEVICE_OK);
        auto call = comm.allreduce_async(array.span());
        std::thread late([&] {
          // A turn that has not waited fails meanwhile, on a slow machine too; no event says that none has begun.
          std::this_thread::sleep_for(kTimeout * 5 / 3);
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
        o.round_timeout_ms = kTimeout;
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
    EXPECT_THAT(warned(), HasSubstr("by way of the CPU until the next generation"));
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

}  // namespace
}  // namespace warren

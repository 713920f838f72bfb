// NCCL, here a fake, fails, hangs, or brings what was not sent, in the middle of large allreduces among GPUs: every
// result is what it would have been.
#include <gmock/gmock.h>

#include <thread>

#include "tests/e2e/nccl_jobs.h"

namespace warren {
namespace {

using test::Array;
using test::fake_gpu;
using test::FakeFault;
using ::testing::HasSubstr;
using testing::kLarge;
using testing::NcclJobs;
using ::testing::Not;
using testing::values_of;

// ---- faults in the middle

// NCCL fails in a round that rank 1 or rank 0 has given it; the job goes on, with another communicator, and the result
// is what it would have been.
class NcclFaults : public NcclJobs {
 protected:
  void meets(const char* where, int after, FakeFault fault) {
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
    cluster_.run_well(
        2,
        [&](Communicator& comm) {
          const int rank = comm.rank();
          warm_up(comm, rank);
          // The fault is of the one device that both have.
          entered++;
          while (entered < 2) std::this_thread::yield();
          if (rank == 1) {
            fake_gpu().controls.arm(where, after, fault);
            armed = true;
          }
          while (!armed) std::this_thread::yield();
          Array<float> array(true, values_of(7 * rank + 1), rank);
          comm.allreduce(array.span());
          EXPECT_EQ(array.read(), expected);
          warm_up(comm, rank);  // with another communicator
        },
        [&](int rank, Options& o) {
          o.job = name;
          options(rank, 1, o);
          o.round_timeout_ms = std::chrono::seconds(8);
        });
    fake_gpu().controls.release();
    EXPECT_EQ(fake_gpu().controls.calls("nccl_join"), joined + 4) << "two communicators";
  }
};

// Which rank's call it is nobody can say; the other one's waits until the generation ends.
TEST_F(NcclFaults, AnErrorEndsTheGenerationAndNoLife) {
  for (const int after : {0, 1, 3, 5}) meets("nccl_exchange", after, FakeFault::kError);
  for (const int after : {0, 3, 9}) meets("nccl_state", after, FakeFault::kError);
  EXPECT_THAT(warned(), HasSubstr("injected into nccl_exchange"));
  EXPECT_THAT(warned(), HasSubstr("injected into nccl_state"));
}

// The abort of a generation's communicator, which another rank's loss has ended, hangs: this life cannot go on, either.
TEST_F(NcclFaults, AnAbortThatHangsEndsTheLife) {
  const auto options_of = [&](int rank) {
    Options o = cluster_.options(rank, 2);
    options(rank, 1, o);
    o.round_timeout_ms = std::chrono::seconds(2);
    return o;
  };
  std::atomic<bool> lost = false, ended = false;
  std::thread other([&] {
    try {
      {
        Communicator first = Communicator::create(options_of(1));
        warm_up(first, 1);
        while (!lost) std::this_thread::yield();
        // Rank 0's, whose generation ends because this life does.
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
    EXPECT_THAT(e.what(), HasSubstr("NCCL's communicator of a generation that is over has not ended in 2000 ms"));
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
  std::atomic<int> entered = 0;
  std::atomic<bool> over = false;
  std::thread other([&] {
    try {
      Communicator comm = Communicator::create(options_of(1));
      warm_up(comm, 1);
      entered++;
      while (entered < 2) std::this_thread::yield();
      Array<float> array(true, values_of(1), 1);
      comm.allreduce(array.span());  // with rank 0's next life
      comm.finalize();
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  });
  const char* const kSays = "NCCL's communicator of a generation that is over has not ended in 2000 ms";
  std::thread watch([&] {
    for (int i = 0; i < 4000 && warned().find(kSays) == std::string::npos; i++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_THAT(warned(), HasSubstr(kSays));
    over = true;
    fake_gpu().controls.release();
  });
  int calls = 0;
  try {
    Communicator comm = Communicator::create(options_of(0));
    calls = warm_up(comm, 0);
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
    warm_up_again(comm, 0, calls);
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

TEST_F(NcclLies, AFlippedBitCostsAGeneration) {
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

}  // namespace
}  // namespace warren

// Waits that a program ends: by abort, after a time, or because somebody has pressed Ctrl-C.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"

namespace warren {
namespace {

using namespace std::chrono_literals;

class Abort : public ::testing::Test {
 protected:
  // Both ranks add 1 from their next life on, or from this one.
  static void expect_whole(Communicator& comm) { EXPECT_EQ(comm.allreduce(1), comm.world_size()); }

  testing::Cluster cluster_;
};

TEST_F(Abort, EndsACallThatWaitsAndTheNextLifeTakesItsPlace) {
  const auto errors = cluster_.run(2, [&](Communicator& comm) {
    if (comm.rank() == 1) return expect_whole(comm);
    std::thread other([&] { comm.abort("the user has had enough"); });
    EXPECT_THROW(
        {
          try {
            std::vector<int> never(1);
            comm.recv(never, 1);
          } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::closed);
            EXPECT_NE(std::string(e.what()).find("the user has had enough"), std::string::npos) << e.what();
            throw;
          }
        },
        Error);
    other.join();
    EXPECT_THROW((void)comm.allreduce(1), Error);
    comm = Communicator::create(cluster_.options(0, 2));
    expect_whole(comm);
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

TEST_F(Abort, MayBeCalledInACallback) {
  const auto errors = cluster_.run(
      1,
      [&](Communicator& comm) {
        std::vector<int> value{1};
        Handle handle = comm.allreduce_async(std::span(value));
        handle.wait();
        handle.on_complete([&](const Error*) { comm.abort("no more"); });
        // The library's thread hears of it in its own time.
        while (true) (void)comm.allreduce(1);
      },
      {}, false);
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_EQ(errors[0]->code(), ErrorCode::closed);
}

TEST_F(Abort, AWaitForSoLongLeavesTheCallUnderWay) {
  std::promise<void> waited;
  const auto errors = cluster_.run(2, [&](Communicator& comm) {
    if (comm.rank() == 1) waited.get_future().wait();
    std::vector<int> value{1};
    Handle handle = comm.allreduce_async(std::span(value));
    if (comm.rank() == 0) {
      EXPECT_FALSE(handle.wait_for(0ms));
      EXPECT_FALSE(handle.wait_for(30ms));
      waited.set_value();
      while (!handle.wait_for(10s)) {
      }
      EXPECT_TRUE(handle.wait_for(0ms));
    }
    handle.wait();
    EXPECT_EQ(value[0], 2);
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

void expect_timeout(const Error& e) {
  EXPECT_EQ(e.code(), ErrorCode::timeout);
  EXPECT_NE(std::string(e.what()).find("has not finished within the 50 ms"), std::string::npos) << e.what();
}

TEST_F(Abort, ACallThatDoesNotFinishInItsTimeEndsThisLifeAlone) {
  std::promise<void> over;
  const auto errors = cluster_.run(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) {
          over.get_future().wait();
          return expect_whole(comm);
        }
        expect_whole(comm);
      },
      [&](int rank, Options& o) {
        if (rank != 0) return;
        // The life before, which waits for a message that nobody sends.
        std::thread first([&, o] {
          Communicator comm = Communicator::create(o);
          try {
            std::vector<int> never(1);
            comm.within(50ms).recv(never, 1);
            ADD_FAILURE() << "nobody sent it";
          } catch (const Error& e) {
            expect_timeout(e);
          }
          over.set_value();
        });
        first.join();
      });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

TEST_F(Abort, ATimeoutCountsAlsoWhileNobodyWaits) {
  std::promise<void> over;
  const auto errors = cluster_.run(
      2,
      [&](Communicator& comm) {
        // Were rank 1 to leave at once, rank 0 could still wait for its plan, and for rank 1's next life.
        if (comm.rank() == 1) return over.get_future().wait();
        std::promise<ErrorCode> ended;
        std::vector<int> value{1};
        Handle handle = comm.within(50ms).allreduce_async(std::span(value));
        handle.on_complete([&](const Error* e) { ended.set_value(e == nullptr ? ErrorCode{} : e->code()); });
        EXPECT_EQ(ended.get_future().get(), ErrorCode::timeout);
        over.set_value();
      },
      {}, false);
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

TEST_F(Abort, ACallInItsTimeIsAnOrdinaryOne) {
  const auto errors = cluster_.run(2, [&](Communicator& comm) {
    for (int i = 0; i < 100; i++) EXPECT_EQ(comm.within(60s).allreduce(1), 2);
    EXPECT_EQ(comm.within(60s).once("sketch").allreduce(1), 2);
  });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

class Interrupt : public Abort {
 protected:
  // Rank 0 is told to stop when it has been asked so often.
  auto at(int asks) {
    return [this, asks](int rank, Options& o) {
      if (rank == 0) o.interrupt = [this, asks] { return ++asked_ >= asks; };
    };
  }
  static void expect_interrupted(const std::optional<Error>& error) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::closed);
    EXPECT_NE(std::string(error->what()).find("interrupted"), std::string::npos) << error->what();
  }

  std::atomic<int> asked_{0};
};

TEST_F(Interrupt, EndsTheWaitForAJobThatIsNotWhole) {
  Options o = cluster_.options(0, 2);
  at(2)(0, o);
  std::optional<Error> error;
  try {
    (void)Communicator::create(o);
  } catch (const Error& e) {
    error = e;
  }
  expect_interrupted(error);
  EXPECT_EQ(asked_, 2);
}

TEST_F(Interrupt, EndsACallThatWaits) {
  std::promise<void> over;
  const auto errors = cluster_.run(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) return over.get_future().wait();
        try {
          (void)comm.allreduce(1);
        } catch (const Error&) {
          over.set_value();
          throw;
        }
      },
      at(2), false);
  expect_interrupted(errors[0]);
  EXPECT_FALSE(errors[1].has_value());
}

TEST_F(Interrupt, EndsFinalize) {
  std::promise<void> over;
  const auto errors = cluster_.run(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) return over.get_future().wait();
        try {
          comm.finalize();
        } catch (const Error&) {
          over.set_value();
          throw;
        }
      },
      at(2), false);
  expect_interrupted(errors[0]);
}

// A binding asks under an interpreter's lock, which another thread may hold for long.
TEST_F(Interrupt, AProgramThatAnswersLateHoldsUpNoOtherRank) {
  std::promise<void> asked, others_done;
  std::atomic<bool> first{true};
  // More than a link takes at once: it arrives only where rank 0 goes on.
  const auto add = [](Communicator& comm) {
    std::vector<float> values(std::size_t{4} << 20, 1.0F);
    comm.allreduce(std::span(values));
    EXPECT_EQ(values.back(), 2.0F);
  };
  const auto errors = cluster_.run(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) asked.get_future().wait();
        add(comm);
        if (comm.rank() == 1) others_done.set_value();
      },
      [&](int rank, Options& o) {
        o.transport = "tcp";
        o.chunk_bytes = 65536;
        if (rank != 0) return;
        o.interrupt = [&] {
          if (first.exchange(false)) {
            asked.set_value();
            EXPECT_EQ(others_done.get_future().wait_for(10s), std::future_status::ready);
          }
          return false;
        };
      });
  for (const auto& error : errors) EXPECT_FALSE(error.has_value()) << error->what();
}

}  // namespace
}  // namespace warren

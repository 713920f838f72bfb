// Calls that may be made while a fusion has begun, and the moments at which its batch is sent.
#include "worker/session/batches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tests/worker/sum_call.h"

namespace warren::worker {
namespace {

constexpr GroupShape kTwoRanks{0, 2};
constexpr GroupId kOther{7};

std::shared_ptr<Call> part_of(std::vector<float>& values) {
  auto call = std::make_shared<Call>();
  make_sum(call->spec, values.data(), values.size());
  return call;
}

TEST(Batches, OneFusionAtATime) {
  Batches batches;
  EXPECT_FALSE(batches.fuses());
  ASSERT_TRUE(batches.begin(kWorldGroup).ok());
  EXPECT_TRUE(batches.fuses(kWorldGroup));
  EXPECT_FALSE(batches.fuses(kOther));
  EXPECT_EQ(batches.begin(kOther).code(), Code::kInvalidArgument);
  batches.end();
  EXPECT_TRUE(batches.begin(kOther).ok());
}

TEST(Batches, CallsThatOtherRanksMayNotMakeAreRefused) {
  Batches batches;
  std::vector<float> values(2);
  const auto call = part_of(values);
  EXPECT_TRUE(batches.may_call(kOther, *call).ok());
  ASSERT_TRUE(batches.begin(kWorldGroup).ok());
  EXPECT_TRUE(batches.may_call(kWorldGroup, *call).ok());
  EXPECT_EQ(batches.may_call(kOther, *call).code(), Code::kInvalidArgument);
  call->spec.collective = Collective::kPoint;
  EXPECT_EQ(batches.may_call(kWorldGroup, *call).code(), Code::kInvalidArgument);
}

TEST(Batches, ACallWaitsForTheTurnOfAnotherThread) {
  Batches batches;
  std::vector<float> values(2);
  std::mutex mutex;
  std::unique_lock lock(mutex);
  batches.add(kWorldGroup, kTwoRanks, part_of(values), std::nullopt, nullptr);
  ASSERT_TRUE(batches.await_turn(lock));
  bool waits = false;  // under the lock
  std::atomic<bool> came{false};
  std::thread other;
  {
    Batches::Turn turn(batches, lock);
    Batch batch = turn.take();
    EXPECT_TRUE(batches.has_unsent());  // the engine does not have it yet
    other = std::thread([&] {
      std::unique_lock its(mutex);
      waits = true;                           // it lets go of the lock only as it waits
      EXPECT_FALSE(batches.await_turn(its));  // the batch was sent meanwhile
      came = true;
    });
    while (!waits) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    EXPECT_FALSE(came);
    lock.unlock();
    EXPECT_EQ(batch.take().size(), 1u);
  }  // takes the lock again
  ASSERT_TRUE(lock.owns_lock());
  EXPECT_FALSE(batches.has_unsent());
  lock.unlock();
  other.join();
  EXPECT_TRUE(came);
}

}  // namespace
}  // namespace warren::worker

// A life's way to its first plan, and to the life that takes its place where there is no plan for it.
#include "worker/session/join.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <thread>

#include "recovery/decide/verdict.h"
#include "tests/worker/session/idle_control.h"
#include "tests/worker/session/parts.h"

namespace warren::worker {
namespace {

class JoinTest : public ::testing::Test {
 protected:
  // The control thread hears something while the program waits for its plan. Returns what the wait comes to.
  template <class Hears>
  Status wait_until(Hears hears) {
    std::thread control([&] {
      const auto lock = parts_.driver.lock_before_callers();
      hears();
    });
    Status status = join_.await_plan(*control_.control);
    control.join();
    return status;
  }

  testing::SessionParts parts_;
  Settings settings_ = testing::settings_of_one();
  testing::IdleControl control_{settings_, parts_.log};
  LifeStorage storage_{settings_, parts_.log};
  Join join_{settings_, parts_.log, parts_.driver, parts_.life, storage_};
};

TEST_F(JoinTest, AWorkerHasItsFirstPlan) {
  join_.begin(false, false);
  const Status status = wait_until([&] {
    parts_.begin();
    parts_.driver.notify();
  });
  EXPECT_TRUE(status.ok()) << status.describe();
  EXPECT_FALSE(join_.is_to_begin_again());
  EXPECT_FALSE(join_.is_spare());
}

TEST_F(JoinTest, AnErrorBeforeTheFirstPlanIsThePrograms) {
  join_.begin(false, false);
  const Status status = wait_until([&] {
    parts_.life.failed(Status(Code::kRefused, "the job has another world size"));
    parts_.driver.notify();
  });
  EXPECT_EQ(status.code(), Code::kRefused) << status.describe();
}

TEST_F(JoinTest, ALifeThatIsOverBeforeItsPlanIsFollowedByAnother) {
  join_.begin(false, false);
  const Status status = wait_until([&] { join_.begin_again(Status(Code::kTimeout, "it was too slow")); });
  EXPECT_TRUE(status.ok()) << status.describe();
  EXPECT_TRUE(join_.is_to_begin_again());
  EXPECT_EQ(join_.over().code(), Code::kTimeout);
  EXPECT_FALSE(join_.is_spare());
}

TEST_F(JoinTest, ASpareThatHasLookedAtItsHostIsFollowedByOneThatHasNot) {
  join_.begin(false, false);
  const Status status = wait_until([&] { join_.waits_as_spare(true); });
  EXPECT_TRUE(status.ok()) << status.describe();
  EXPECT_TRUE(join_.is_to_begin_again());
  EXPECT_TRUE(join_.is_spare());
  EXPECT_TRUE(join_.over().ok()) << join_.over().describe();
}

TEST_F(JoinTest, ASpareWaitsOnAfterACallUntilItHasARank) {
  join_.begin(true, false);
  const Status status = wait_until([&] {
    join_.waits_as_spare(false);
    join_.called({});  // nothing is logged, and so nothing looked at
    parts_.begin();
  });
  EXPECT_TRUE(status.ok()) << status.describe();
  EXPECT_FALSE(join_.is_to_begin_again());
}

TEST_F(JoinTest, AProgramThatHasGivenUpMeanwhileHearsSoAndDoesNotBeginAgain) {
  join_.begin(false, false);
  const Status status = wait_until([&] {
    parts_.driver.end_life(Status(Code::kClosed, "the program has aborted"), Blame::kProgram);
    join_.begin_again(Status(Code::kTimeout, "it was too slow"));
  });
  EXPECT_EQ(status.code(), Code::kClosed) << status.describe();
}

TEST_F(JoinTest, AJobThatHasEndedEndsTheProcessOfASpare) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  settings_.on_rollback = OnRollback::kExit;
  const auto waits = [&](bool spare) {
    join_.begin(spare, false);
    parts_.life.failed(Status(Code::kFinished, "the job has finished"));
    return join_.await_plan(*control_.control);
  };
  EXPECT_EXIT((void)waits(true), ::testing::ExitedWithCode(kExitFinished), "");
  EXPECT_EQ(waits(false).code(), Code::kFinished) << "a worker that was never lost hears that it came too late";
}

}  // namespace
}  // namespace warren::worker

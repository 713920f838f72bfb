#include "worker/system/run_delay.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace warren::worker {
namespace {

TEST(RunDelay, OfAThreadThatIsGoneOrNoneIsNothing) {
  RunDelay delay;
  EXPECT_EQ(delay.since_last(0), 0);
  pid_t gone = 0;
  std::thread([&] { gone = gettid(); }).join();
  EXPECT_EQ(delay.since_last(gone), 0);
  EXPECT_EQ(delay.since_last(gettid()), 0) << "what was before the first look";
}

// Two threads share one core until this one has waited for it.
TEST(RunDelay, CountsTheTimeInWhichAnotherThreadHasTheCore) {
  std::atomic<bool> over{false};
  std::int64_t waited_ms = 0;
  std::thread shares([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    std::thread hog([&] {
      while (!over) {
      }
    });
    RunDelay delay;
    (void)delay.since_last(gettid());
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (waited_ms < 20 && std::chrono::steady_clock::now() < until) waited_ms += delay.since_last(gettid());
    over = true;
    hog.join();
  });
  shares.join();
  EXPECT_GE(waited_ms, 20);
}

}  // namespace
}  // namespace warren::worker

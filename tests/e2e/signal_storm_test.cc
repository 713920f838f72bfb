// Communicators in a program whose threads get signals all the time, as under a profiler.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

#include "tests/e2e/cluster.h"

namespace warren {
namespace {

using testing::Cluster;

// ZeroMQ's calls end early when a signal handler runs in their thread.
TEST(SignalStorm, FailsNoCreateAndLeavesNoThreadBehind) {
  Cluster cluster;
  struct sigaction count {
  }, before{};
  static std::atomic<int> signals;
  count.sa_handler = [](int) { ++signals; };
  ASSERT_EQ(::sigaction(SIGUSR1, &count, &before), 0);
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto cycle = [&](int i) {
    Communicator comm = Communicator::create(cluster.options(0, 1, "job" + std::to_string(i)));
    EXPECT_EQ(comm.allreduce(1), 1);
    comm.finalize();
  };
  cycle(0);
  const auto usual = threads();
  std::atomic<bool> over{false};
  std::thread storm([&over, program = ::pthread_self()] {
    while (!over) {
      ::pthread_kill(program, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (int i = 1; i <= 40; ++i) EXPECT_NO_THROW(cycle(i));
  over = true;
  storm.join();
  EXPECT_GT(signals, 40);
  EXPECT_EQ(threads(), usual);
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
}

}  // namespace
}  // namespace warren

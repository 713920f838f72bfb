// What the threads of a program are at.
#include "worker/system/stacks.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "storage/start_thread.h"

namespace warren::worker {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kTimeoutMs = 10'000;

TEST(Stacks, NameEachThreadOfTheProgramAndWhereItIs) {
  prepare_stacks();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::latch begun(1);
  pid_t number = 0;
  std::thread hung([&] {
    number = ::gettid();
    begun.count_down();
    char c = 0;
    while (::read(ends[0], &c, 1) != 1) continue;
  });
  begun.wait();
  std::vector<std::string> lines;
  std::thread own;
  ASSERT_TRUE(start_thread(own, [&] { lines = stacks_of_program(kTimeoutMs); }).ok());
  own.join();
  EXPECT_EQ(::write(ends[1], "x", 1), 1);
  hung.join();
  ::close(ends[0]);
  ::close(ends[1]);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), HasSubstr("thread " + std::to_string(::getpid()) + " (")) << "the main thread comes first";
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("thread " + std::to_string(number) + " ("), Not(HasSubstr("cannot")))));
  EXPECT_THAT(lines, Contains(HasSubstr("read")));
}

// It is named all the same, and nobody waits for it.
TEST(Stacks, AThreadThatHoldsSignalsBackHasNone) {
  prepare_stacks();
  std::latch begun(1), over(1);
  pid_t number = 0;
  std::thread deaf;
  {
    const SignalsBlocked here;
    deaf = std::thread([&] {
      number = ::gettid();
      begun.count_down();
      over.wait();
    });
  }
  begun.wait();
  std::vector<std::string> lines;
  std::thread own;
  ASSERT_TRUE(start_thread(own, [&] { lines = stacks_of_program(50); }).ok());
  own.join();
  over.count_down();
  deaf.join();
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("thread " + std::to_string(number) + " ("), HasSubstr("cannot be had"))));
}

}  // namespace
}  // namespace warren::worker

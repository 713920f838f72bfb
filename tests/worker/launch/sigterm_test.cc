#include "worker/launch/sigterm.h"

#include <gtest/gtest.h>

#include <csignal>

namespace warren::worker {
namespace {

int of_the_program = 0;
void count_for_the_program(int) {
  ++of_the_program;
}

TEST(SigtermCount, TheSignalIsTheProgramsAgainAfterTheLastHolder) {
  std::signal(SIGTERM, count_for_the_program);
  {
    auto first = SigtermCount::take();
    ASSERT_TRUE(first.ok());
    std::raise(SIGTERM);
    auto second = SigtermCount::take();
    ASSERT_TRUE(second.ok());
    std::raise(SIGTERM);
    EXPECT_EQ(first.value()->count(), 2);
    EXPECT_EQ(second.value()->count(), 1) << "from when it was taken";
    first.value().reset();
    std::raise(SIGTERM);
    EXPECT_EQ(second.value()->count(), 2);
    EXPECT_EQ(of_the_program, 0);
  }
  std::raise(SIGTERM);
  EXPECT_EQ(of_the_program, 1);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace
}  // namespace warren::worker

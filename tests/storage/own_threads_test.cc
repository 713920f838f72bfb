// Which threads are the library's.
#include "storage/own_threads.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <latch>
#include <thread>

#include "storage/start_thread.h"

namespace warren {
namespace {

TEST(OwnThreads, ThreadsOfTheLibraryAreNotTheProgramsOwn) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto read_one = [&](pid_t& thread, std::latch& begun) {
    thread = ::gettid();
    begun.count_down();
    char c = 0;
    EXPECT_EQ(::read(ends[0], &c, 1), 1);
  };
  std::latch both(2);
  pid_t of_library = 0, of_program = 0;
  std::thread own;
  ASSERT_TRUE(start_thread(own, [&] { read_one(of_library, both); }).ok());
  std::thread other([&] { read_one(of_program, both); });
  both.wait();
  const auto threads = program_threads();
  EXPECT_THAT(threads, ::testing::Contains(::getpid()));
  EXPECT_THAT(threads, ::testing::Contains(of_program));
  EXPECT_THAT(threads, ::testing::Not(::testing::Contains(of_library)));
  EXPECT_EQ(::write(ends[1], "xx", 2), 2);
  own.join();
  other.join();
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace warren

// A system that allows no more threads.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <cstddef>

namespace warren::testing {

// While one lives, no thread of this process can start another: there is no room for its stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_getattr_default_np(&attributes), 0);
    EXPECT_EQ(pthread_attr_getstacksize(&attributes, &before_), 0);
    set(std::size_t{1} << 60);
  }
  ~NoThreads() { set(before_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  static void set(std::size_t stack_bytes) {
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_getattr_default_np(&attributes), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, stack_bytes), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }

  std::size_t before_ = 0;
};

// How many signals the calling thread does not take.
inline int blocked_signals() {
  sigset_t now;
  sigemptyset(&now);
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  int blocked = 0;
  for (int s = 1; s < NSIG; s++) blocked += sigismember(&now, s) == 1 ? 1 : 0;
  return blocked;
}

}  // namespace warren::testing

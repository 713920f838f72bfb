// Threads of the library.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "recovery/base/result.h"
#include "storage/own_threads.h"

namespace warren {

// While one lives the calling thread takes no signals, nor do threads that it starts.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Runs `body` in `thread`, which is none so far and takes no signals: they belong to the program. kUnavailable: the
// system allows no more threads; `thread` is none then.
template <class Body>
[[nodiscard]] Status start_thread(std::thread& thread, Body body) {
  const SignalsBlocked here;
  try {
    thread = std::thread([body = std::move(body)]() mutable {
      const OwnThread own;
      body();
    });
  } catch (const std::system_error& e) {
    return {Code::kUnavailable, std::string("cannot start a thread: ") + e.what() +
                                    "; the limit of this user (`ulimit -u`), or that of the container, allows no more"};
  }
  return {};
}

}  // namespace warren

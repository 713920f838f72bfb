// A process that gets too little of a CPU.
#pragma once

#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace warren::testing {

// Runs so much of the time, until this object ends. Kills nobody.
class Starved {
 public:
  // `signal`: sends one to the process.
  Starved(std::function<void(int)> signal, std::chrono::milliseconds on, std::chrono::milliseconds off)
      : thread_([this, signal = std::move(signal), on, off] {
          std::unique_lock lock(mutex_);
          while (!over_) {
            signal(SIGSTOP);
            wake_.wait_for(lock, off, [this] { return over_; });
            signal(SIGCONT);
            wake_.wait_for(lock, on, [this] { return over_; });
          }
        }) {}
  ~Starved() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Starved(const Starved&) = delete;
  Starved& operator=(const Starved&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace warren::testing

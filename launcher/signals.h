// The signals that the launcher passes on to its workers.
#pragma once

#include <signal.h>

namespace warren::worker {

// Whether whoever started this process has it ignore `signal`, as nohup does, or the & of a shell without job control.
// Once blocked, such a signal would be queued and taken all the same.
[[nodiscard]] bool is_ignored(int signal);

// Takes the signals that the launcher passes on, but for those that it is to ignore, out of the calling thread and of
// those that it starts from here on. Make it in the main thread before any other thread exists. Restores the mask when
// it goes, and drops what no launch has taken.
class LauncherSignals {
 public:
  LauncherSignals();
  ~LauncherSignals();
  LauncherSignals(const LauncherSignals&) = delete;
  LauncherSignals& operator=(const LauncherSignals&) = delete;

  // A signalfd; -1 if the system gave none.
  [[nodiscard]] int fd() const { return fd_; }

 private:
  sigset_t blocked_{}, before_{};
  int fd_ = -1;
};

}  // namespace warren::worker

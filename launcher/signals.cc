#include "launcher/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <ctime>

namespace warren::worker {
namespace {

constexpr std::array<int, 5> kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

}  // namespace

bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

LauncherSignals::LauncherSignals() {
  sigset_t passed_on;
  sigemptyset(&passed_on);
  for (const int signal : kPassedOn) {
    if (!is_ignored(signal)) sigaddset(&passed_on, signal);
  }
  blocked_ = passed_on;
  sigaddset(&blocked_, SIGPIPE);  // a reader of our output that goes away is an error of write
  pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
  fd_ = signalfd(-1, &passed_on, SFD_CLOEXEC | SFD_NONBLOCK);
}

LauncherSignals::~LauncherSignals() {
  if (fd_ >= 0) close(fd_);
  // Signals that have come since the launch ended would kill the process now, and take the place of its exit code.
  const timespec now{};
  while (sigtimedwait(&blocked_, nullptr, &now) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace warren::worker

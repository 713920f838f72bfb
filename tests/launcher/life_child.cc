// What the launcher's tests start in the place of a worker that is in a job: it shows life, and then does as it is
// told.
//   life_child stop    stops itself (SIGSTOP), still in its job
//   life_child soon    says that it hangs when it is silent for 150 ms, and stops itself
//   life_child works   takes part in a round and is killed, five times
//   life_child aborts  takes part in a round and aborts
//   life_child stuck   beats once and then waits for ever, as a deadlocked control thread does
//   life_child crashes dumps core for half a second, as $PROC says, and is ended by SIGSEGV
//   life_child left    leaves its job and then waits until somebody opens the FIFO named by $FIFO for writing
//   life_child never   does so without having been in a job
//   life_child beat    beats until somebody opens the FIFO
//   life_child drains  beats, says "ready", and drains when its launcher asks it to
//   life_child deaf    beats, says "ready", and does not
//   life_child preempted  takes part in a round and drains, three times
//   life_child unwilling  drains at once, three times
//   life_child waits   says that it has no place, and fails with exit code 5
//   life_child member  says that it had none, and has one since, and fails with exit code 6
//   life_child fenced  takes part in a round and is given up by its job, three times
//   life_child over    says that its life is over, and ends as $HOW says: fails (exit code 5), aborts, leaves (0)
//   life_child blamed  says that its life is over for a fault of the program's, and fails
//   life_child resolves NAME  prints what a name server says of NAME within 300 ms; it needs no launcher
// In its second life (WARREN_ATTEMPT is 1) it does nothing but open the FIFO for writing, if there is one.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "worker/launch/life_sign.h"
#include "worker/system/netinfo.h"

namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread yet
  return value != nullptr ? value : "";
}

int wait_at_fifo(int flags) {
  const int fd = open(variable("FIFO").data(), flags);
  return fd < 0 ? 3 : 0;
}

// $PROC says of this process what /proc says of one that dumps core.
[[noreturn]] void crash_slowly() {
  std::signal(SIGSEGV, SIG_DFL);  // AddressSanitizer would report it, and exit
  const std::string folder = std::string(variable("PROC")) + "/" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/status") << "Name:\tlife_child\nCoreDumping:\t1\nThreads:\t1\n";
  const pid_t self = getpid();
  if (fork() == 0) {
    usleep(500'000);  // as a slow disk
    kill(self, SIGSEGV);
    _exit(0);
  }
  while (true) pause();
}

}  // namespace

int main(int, char** argv) {
  const std::string_view what = argv[1];
  if (what == "resolves") {
    const auto addresses = warren::worker::resolve_host(argv[2], std::chrono::milliseconds(300));
    std::puts((addresses.ok() ? addresses.value()[0] : addresses.status().describe()).c_str());
    return 0;
  }
  if (what == "works" && variable("WARREN_ATTEMPT") != "5") {
    warren::worker::LifeSign::from_environment().worked();
    std::raise(SIGKILL);
  }
  if (what == "aborts" && variable("WARREN_ATTEMPT") == "0") {
    warren::worker::LifeSign::from_environment().worked();
    std::raise(SIGABRT);
  }
  if (what == "preempted" || what == "unwilling") {
    if (variable("WARREN_ATTEMPT") == "3") return 0;
    if (what == "preempted") warren::worker::LifeSign::from_environment().worked();
    warren::worker::LifeSign::from_environment().drained();
    return warren::worker::kExitPreempted;
  }
  if (what == "waits" || what == "member") {
    const auto sign = warren::worker::LifeSign::from_environment();
    sign.waits();
    if (what == "member") sign.placed();
    return what == "member" ? 6 : 5;
  }
  if (what == "fenced") {
    if (variable("WARREN_ATTEMPT") == "3") return 0;
    warren::worker::LifeSign::from_environment().worked();
    return warren::worker::kExitFenced;
  }
  const bool always = what == "disagrees_always";
  if (variable("WARREN_ATTEMPT") != "0" && !always) return variable("FIFO").empty() ? 0 : wait_at_fifo(O_WRONLY);
  warren::worker::LifeSign sign = warren::worker::LifeSign::from_environment();
  if (!sign.shown()) return 2;
  if (what == "deserts") {
    sign.beat();
    return 0;
  }
  if (what == "disagrees" || always || what == "full") {
    sign.beat();
    sign.worked();
    std::string disagreement = "rank 1 calls something else";
    if (always) disagreement = "round 0.7 on timeline " + std::string(variable("WARREN_ATTEMPT")) + ": " + disagreement;
    sign.ended(what == "full" ? warren::Status(warren::Code::kExhausted, "the log is full")
                              : warren::Status(warren::Code::kDesync, disagreement),
               false);
    sign.ended(warren::Status(warren::Code::kClosed, "later"), true);
    std::raise(SIGABRT);
  }
  if (what == "over" || what == "blamed") {
    sign.beat();
    sign.ended(warren::Status(warren::Code::kClosed, "out of the job"), what == "over");
    if (variable("HOW") == "aborts") std::raise(SIGABRT);
    return variable("HOW") == "leaves" ? 0 : 5;
  }
  if (what == "never") return wait_at_fifo(O_RDONLY);
  if (what == "beat") {
    std::atomic<bool> over{false};
    std::thread control([&] {
      while (!over) {
        sign.beat();
        usleep(1000);  // the interval of heartbeats
      }
    });
    const int code = wait_at_fifo(O_RDONLY);
    over = true;
    control.join();
    sign.finished();
    return code;
  }
  if (what == "drains" || what == "deaf") {
    sign.beat();
    std::puts("ready");
    std::fflush(stdout);
    while (what == "deaf" || sign.leave_by_ms() == 0) {
      sign.beat();
      usleep(1000);
    }
    sign.drained();
    return warren::worker::kExitPreempted;
  }
  if (what == "soon") sign.limit(150);
  sign.beat();
  if (what == "crashes") crash_slowly();
  if (what == "left") {
    sign.finished();
    sign.leave();
    return wait_at_fifo(O_RDONLY);
  }
  if (what == "stop" || what == "soon") std::raise(SIGSTOP);
  while (true) pause();
}

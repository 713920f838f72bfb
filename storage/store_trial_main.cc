// warren_store_trial DIRECTORY: opens the result store's database, or the journal, there as another life does, in a
// child, and writes to descriptor kTrialSays how that has ended (storage/store_trial.h). Changes nothing in the
// directory.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "storage/rocks_process.h"
#include "storage/rocks_source.h"
#include "storage/store_trial.h"

namespace {

using namespace warren::storage;

// 0: it has been opened, or is refused with an error. An exception is no such death as this looks for.
int open_it(const char* directory) try {
  if (!prepare_rocks().ok()) return 1;
  OpenDatabase opened;
  if (open_database(directory, Opening::kRead, opened).ok()) look_at_tables(opened);
  return 0;
} catch (...) {
  return 1;
}

Trial trial_of(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? Trial::kOpens : Trial::kUnknown;
  const int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return by == SIGABRT || by == SIGSEGV || by == SIGBUS ? Trial::kDies : Trial::kUnknown;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  alarm(kLongestTrialSeconds);
  const rlimit no_core{0, 0};
  (void)setrlimit(RLIMIT_CORE, &no_core);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    close(kTrialSays);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(getppid() == parent ? open_it(argv[1]) : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 1;
  }
  const char word = static_cast<char>(trial_of(status));
  return write(kTrialSays, &word, 1) == 1 ? 0 : 1;
}

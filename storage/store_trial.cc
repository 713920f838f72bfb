#include "storage/store_trial.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "storage/fork_guard.h"

namespace warren::storage {
namespace {

// Beside the library that this code is in, or in the folder of libraries that belongs to this program's.
std::string installed_program() {
  const std::string name = "warren_store_trial";
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&try_to_open), &here) == 0 || here.dli_fname == nullptr) return name;
  std::error_code error;
  // Of a program it is how the program was called.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const std::string& file : {std::string(here.dli_fname), self}) {
    const std::string folder = file.substr(0, file.rfind('/') + 1);
    for (const char* at : {"", "../lib/", "../" WARREN_LIBDIR "/"}) {
      std::string program = folder;
      program.append(at).append(name);
      if (::access(program.c_str(), X_OK) == 0) return program;
    }
  }
  return name;
}

// -1: it cannot be started. Its standard input and output are this process's.
pid_t start(std::string program, std::string directory, int says) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, says, kTrialSays);
  posix_spawn_file_actions_addclosefrom_np(&actions, kTrialSays + 1);  // what the user's program lets its children have
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  char* const arguments[] = {program.data(), directory.data(), nullptr};
  pid_t started = -1;
  const int error = posix_spawn(&started, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? started : -1;
}

// The user's program may have done it, as it may wait for any of its children.
void collect(int process_fd) {
  constexpr auto kPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which older headers lack
  siginfo_t how{};
  while (waitid(kPidfd, static_cast<id_t>(process_fd), &how, WEXITED) < 0 && errno == EINTR) {
  }
}

}  // namespace

Trial try_to_open(const std::string& program, const std::string& directory) {
  int says[2];
  if (pipe2(says, O_CLOEXEC) != 0) return Trial::kUnknown;
  (void)not_for_children(says[0]);
  (void)not_for_children(says[1]);
  const pid_t trying = start(program.empty() ? installed_program() : program, directory, says[1]);
  ::close(says[1]);
  char word = 0;
  if (trying >= 0) {
    const int process_fd = static_cast<int>(syscall(SYS_pidfd_open, trying, 0));
    // The program ends itself when it takes too long, which closes its end.
    while (::read(says[0], &word, 1) < 0 && errno == EINTR) {
    }
    if (process_fd >= 0) {
      collect(process_fd);
      ::close(process_fd);
    }
  }
  ::close(says[0]);
  const auto trial = static_cast<Trial>(word);
  return trial == Trial::kOpens || trial == Trial::kDies ? trial : Trial::kUnknown;
}

}  // namespace warren::storage

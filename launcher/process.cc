#include "launcher/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string_view>

extern char** environ;

namespace warren::worker {

Status system_failure(const std::string& what) {
  return {Code::kInternal, what + ": " + std::strerror(errno)};
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("cannot make a pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

bool same_file(int a, int b) {
  struct stat x {
  }, y{};
  return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

ChildEnvironment::ChildEnvironment(const std::map<std::string, std::optional<std::string>>& changes) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) strings_.emplace_back(text);
  }
  for (const auto& [name, value] : changes) {
    if (value) strings_.push_back(name + "=" + *value);
  }
  for (std::string& s : strings_) pointers_.push_back(s.data());
  pointers_.push_back(nullptr);
}

void become_worker(const char* const* program, char* const* environment, pid_t launcher, const cpu_set_t* core,
                   const rlimit* open_files, int output, int error, int life, int failed) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  sigset_t none;  // a signal that the launcher was started with blocked would end no worker
  sigemptyset(&none);
  // The launcher may have died before the death signal was asked for.
  if (getppid() == launcher && nothing >= 0 && dup2(nothing, 0) >= 0 && dup2(output, 1) >= 0 && dup2(error, 2) >= 0 &&
      (life < 0 || fcntl(life, F_SETFD, 0) == 0) &&
      (core == nullptr || sched_setaffinity(0, sizeof *core, core) == 0) &&
      (open_files == nullptr || setrlimit(RLIMIT_NOFILE, open_files) == 0) &&
      sigprocmask(SIG_SETMASK, &none, nullptr) == 0) {
    execvpe(program[0], const_cast<char* const*>(program), environment);
  }
  const int why = errno;
  // If nobody reads this any more, nobody waits for it either.
  [[maybe_unused]] const ssize_t told = write(failed, &why, sizeof why);
  _exit(127);
}

// glibc 2.36 declares pidfd_open without C linkage.
int open_pidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

bool is_dumping_core(const std::string& proc, pid_t pid) {
  std::ifstream status(proc + "/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("CoreDumping:")) return line.ends_with('1');
  }
  return false;
}

}  // namespace warren::worker

#include "chaos/process/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

extern char** environ;

namespace warren::chaos::process {
namespace {

Status system_failure(const std::string& what) {
  return {Code::kInternal, what + ": " + std::strerror(errno)};
}

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() { opened = pipe2(ends, O_CLOEXEC) == 0; }
  ~Pipe() {
    for (int i : {0, 1}) close_end(i);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(int i) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
  bool opened;
};

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& w : words) out.push_back(const_cast<char*>(w.c_str()));
  out.push_back(nullptr);
  return out;
}

std::vector<char*> environment_of_children() {
  std::vector<char*> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view variable = *e;
    const bool of_gpus = variable.starts_with("WARREN_DEVICE_") || variable.starts_with("WARREN_NCCL");
    if (!variable.starts_with("WARREN_") || of_gpus) out.push_back(*e);
  }
  out.push_back(nullptr);
  return out;
}

}  // namespace

Result<std::unique_ptr<Child>> Child::start(const Setup& setup) {
  const std::vector<char*> argv = pointers(setup.arguments), env = environment_of_children();
  Pipe ready, go;
  if (!ready.opened || !go.opened) return system_failure("cannot make a pipe");
  const bool apart = static_cast<bool>(setup.wire);
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) return system_failure("cannot start " + setup.arguments[0]);
  if (pid == 0) {
    // Only calls that are safe in a process that had threads.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const int log = open(setup.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    bool good = getppid() == parent && log >= 0 && dup2(log, 1) >= 0 && dup2(log, 2) >= 0;
    char byte = 0;
    if (good && apart) {
      good = unshare(CLONE_NEWNET) == 0 && write(ready.ends[1], "r", 1) == 1;
      close(go.ends[1]);
      good = good && read(go.ends[0], &byte, 1) == 1;
    }
    if (good) execve(argv[0], argv.data(), env.data());
    _exit(127);
  }
  setpgid(pid, pid);
  std::unique_ptr<Child> child(new Child(pid));
  if (apart) {
    ready.close_end(1);
    char byte = 0;
    if (read(ready.ends[0], &byte, 1) != 1) {
      return Status(Code::kUnavailable, "a process cannot have a network namespace of its own");
    }
    if (Status s = setup.wire(pid); !s.ok()) return s;
    if (write(go.ends[1], "g", 1) != 1) return system_failure("cannot start " + setup.arguments[0]);
  }
  return child;
}

Child::~Child() {
  if (status_) return;
  kill_group(SIGKILL);
  wait();
}

void Child::kill_group(int signal) const {
  if (!status_) kill(-pid_, signal);
}

std::optional<int> Child::ended() {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return status_;
}

int Child::wait() {
  int status = 0;
  while (!status_) {
    if (waitpid(pid_, &status, 0) == pid_) status_ = status;
  }
  return *status_;
}

Status run_program(const std::vector<std::string>& arguments) {
  const std::vector<char*> argv = pointers(arguments);
  Pipe output;
  if (!output.opened) return system_failure("cannot make a pipe");
  const pid_t pid = fork();
  if (pid < 0) return system_failure("cannot start " + arguments[0]);
  if (pid == 0) {
    dup2(output.ends[1], 1);
    dup2(output.ends[1], 2);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  output.close_end(1);
  std::string text;
  char bytes[512];
  ssize_t n;
  while ((n = read(output.ends[0], bytes, sizeof bytes)) > 0) text.append(bytes, static_cast<std::size_t>(n));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  std::string command;
  for (const std::string& a : arguments) command += (command.empty() ? "" : " ") + a;
  return {Code::kUnavailable, command + (text.empty() ? " failed" : ": " + text)};
}

bool signal_marked(pid_t pid, const std::string& mark, int signal) {
  if (pid <= 0) return false;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return false;
  // Looked at after the descriptor was opened: it is the process that the descriptor stands for.
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const bool sent = line.find(mark) != std::string::npos && syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0) == 0;
  close(fd);
  return sent;
}

}  // namespace warren::chaos::process

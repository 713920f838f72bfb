#include "worker/device/nccl_root.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

namespace warren::worker {
namespace {

// Of the program: what it reads until this process is no more, and what it writes the id to. Not its standard output,
// where NCCL may write what it does.
constexpr int kLives = 0, kSays = 3;

struct Actions {
  Actions() { posix_spawn_file_actions_init(&actions); }
  ~Actions() { posix_spawn_file_actions_destroy(&actions); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  posix_spawn_file_actions_t actions{};
};

struct Attributes {
  Attributes() { posix_spawnattr_init(&attributes); }
  ~Attributes() { posix_spawnattr_destroy(&attributes); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  posix_spawnattr_t attributes{};
};

Status cannot(const std::string& program, int error) {
  return {Code::kUnavailable, "cannot start " + program + ", which makes NCCL's ids: " + std::strerror(error)};
}

}  // namespace

Result<std::unique_ptr<NcclRoot>> NcclRoot::start(const std::string& program, const std::string& library,
                                                  const NcclLibrary& nccl, std::int64_t timeout_ms) {
  int lives[2], says[2];
  if (pipe2(lives, O_CLOEXEC) != 0) return cannot(program, errno);
  OwnedFd lives_there(lives[0]), lives_here(lives[1]);
  if (pipe2(says, O_CLOEXEC | O_NONBLOCK) != 0) return cannot(program, errno);
  OwnedFd says_here(says[0]), says_there(says[1]);
  Actions a;
  posix_spawn_file_actions_adddup2(&a.actions, lives_there.get(), kLives);
  posix_spawn_file_actions_adddup2(&a.actions, 2, 1);
  posix_spawn_file_actions_adddup2(&a.actions, says_there.get(), kSays);
  posix_spawn_file_actions_addclosefrom_np(&a.actions, kSays + 1);  // what the program lets its children have
  Attributes b;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&b.attributes, &none);
  posix_spawnattr_setsigdefault(&b.attributes, &all);
  posix_spawnattr_setflags(&b.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = program, what = library, version = std::to_string(nccl.version), file = nccl.file;
  char* const arguments[] = {name.data(), what.data(), version.data(), file.data(), nullptr};
  pid_t process = -1;
  if (const int error = posix_spawn(&process, program.c_str(), &a.actions, &b.attributes, arguments, environ);
      error != 0) {
    return cannot(program, error);
  }
  OwnedFd is(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!is.open()) {
    const int error = errno;
    // Nobody else would collect it. ESRCH: the program has, and the number may be another one's.
    if (error != ESRCH && kill(process, SIGKILL) == 0) (void)waitpid(process, nullptr, 0);
    return cannot(program, error);
  }
  return std::unique_ptr<NcclRoot>(
      new NcclRoot(program, process, std::move(is), std::move(lives_here), std::move(says_here), timeout_ms));
}

NcclRoot::NcclRoot(std::string program, pid_t process, OwnedFd is, OwnedFd lives, OwnedFd says, std::int64_t timeout_ms)
    : program_(std::move(program)),
      process_(process),
      is_(std::move(is)),
      lives_(std::move(lives)),
      says_(std::move(says)),
      until_(std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms)) {}

NcclRoot::~NcclRoot() {
  lives_ = OwnedFd();
  (void)syscall(SYS_pidfd_send_signal, is_.get(), SIGKILL, nullptr, 0);
  // Unless the program has done it, which may wait for any of its children.
  const auto collect = [](const OwnedFd& is) {
    constexpr auto kPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which older headers lack
    siginfo_t how{};
    while (waitid(kPidfd, static_cast<id_t>(is.get()), &how, WEXITED) < 0 && errno == EINTR) {
    }
  };
  // Whoever lets go of it may hold a lock, and a process may take a while to end.
  try {
    std::thread(collect, std::move(is_)).detach();
  } catch (const std::system_error&) {
    collect(is_);
  }
}

Result<std::optional<GpuExchange::Word::Id>> NcclRoot::id() {
  while (read_ < id_.size()) {
    const ssize_t n = read(says_.get(), id_.data() + read_, id_.size() - read_);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) return Status(Code::kUnavailable, program_ + " has ended without an id of NCCL; it has said why");
    if (n < 0 && std::chrono::steady_clock::now() < until_) return std::optional<GpuExchange::Word::Id>();
    if (n < 0) return Status(Code::kTimeout, program_ + " has made no id of NCCL in time");
    read_ += static_cast<std::size_t>(n);
  }
  return std::optional(id_);
}

}  // namespace warren::worker

#include "worker/system/stacks.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>

#include "storage/own_threads.h"

namespace warren::worker {
namespace {

constexpr int kMostFrames = 64;
constexpr int kFramesOfHandler = 2;  // its own, and the kernel's trampoline
constexpr auto kPause = std::chrono::milliseconds(1);

// Of the thread that is asked; one at a time.
std::atomic<pid_t> asked{0};
std::atomic<int> answers_to{-1};  // a file
std::atomic<bool> answered{false};

void answer(int) {
  const int before = errno;
  if (asked.load() == static_cast<pid_t>(::syscall(SYS_gettid))) {
    void* frames[kMostFrames];
    const int n = ::backtrace(frames, kMostFrames);
    const int skipped = std::min(n, kFramesOfHandler);
    ::backtrace_symbols_fd(frames + skipped, n - skipped, answers_to.load());
    answered.store(true);
  }
  errno = before;
}

// A signal that this program leaves alone.
std::optional<int> free_signal() {
  for (int s = SIGRTMAX; s >= SIGRTMIN; s--) {
    struct sigaction now {};
    if (::sigaction(s, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) return s;
  }
  return std::nullopt;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string describe(pid_t thread) {
  const std::string folder = "/proc/self/task/" + std::to_string(thread) + "/";
  std::string text = "thread " + std::to_string(thread) + " (" + text_of(folder + "comm") + ")";
  if (const std::string where = text_of(folder + "wchan"); !where.empty() && where != "0") {
    text += " waits in the kernel, in " + where;
  }
  return text;
}

bool ask(pid_t thread, int with_signal, std::int64_t timeout_ms) {
  answered = false;
  asked = thread;
  if (::syscall(SYS_tgkill, ::getpid(), thread, with_signal) != 0) return false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!answered && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kPause);
  return answered;
}

}  // namespace

void prepare_stacks() {
  void* frame = nullptr;
  (void)::backtrace(&frame, 1);  // loads the unwinder
}

std::vector<std::string> stacks_of_program(std::int64_t timeout_ms) {
  std::vector<pid_t> threads = program_threads();
  std::ranges::sort(threads);  // the main thread has the lowest number
  const std::size_t most = kMostStacks;
  std::vector<std::string> lines;
  const auto number = free_signal();
  const int file = ::memfd_create("warren-stacks", MFD_CLOEXEC);
  struct sigaction before {};
  if (number && file >= 0) {
    struct sigaction action {};
    action.sa_handler = answer;
    action.sa_flags = SA_RESTART;
    sigfillset(&action.sa_mask);
    (void)::sigaction(*number, &action, &before);
    answers_to = file;
  }
  for (std::size_t i = 0; i < threads.size() && i < most; i++) {
    const off_t begin = file < 0 ? 0 : ::lseek(file, 0, SEEK_END);
    const bool has_stack = number && file >= 0 && ask(threads[i], *number, timeout_ms);
    lines.push_back(describe(threads[i]) + (has_stack ? ":" : "; its stack cannot be had"));
    if (!has_stack) continue;
    std::string stack(static_cast<std::size_t>(std::max<off_t>(0, ::lseek(file, 0, SEEK_END) - begin)), '\0');
    const ssize_t n = ::pread(file, stack.data(), stack.size(), begin);
    stack.resize(static_cast<std::size_t>(std::max<ssize_t>(0, n)));
    std::istringstream frames(stack);
    for (std::string frame; std::getline(frames, frame);) lines.push_back("  " + frame);
  }
  if (threads.size() > most) lines.push_back("and " + std::to_string(threads.size() - most) + " threads more");
  asked = 0;
  // A late answer finds a handler and a file still.
  return lines;
}

}  // namespace warren::worker

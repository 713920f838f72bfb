#include "storage/own_threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warren {
namespace {

// Never destroyed: threads end later than static objects. Entries of a parent process are those of another `process`.
struct Registry {
  std::mutex mutex;
  std::vector<std::pair<pid_t, pid_t>> threads;  // process, thread
};
Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

// Threads of ZeroMQ, which name themselves and make no calls.
constexpr std::string_view kZeroMqThreads = "ZMQbg/";

std::optional<std::string> read_start(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::array<char, 256> text{};
  const ssize_t n = ::read(fd, text.data(), text.size());
  ::close(fd);
  if (n < 0) return std::nullopt;
  return std::string(text.data(), static_cast<std::size_t>(n));
}

std::optional<std::vector<pid_t>> threads_of_process() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/task"), ::closedir);
  if (folder == nullptr) return std::nullopt;
  std::vector<pid_t> threads;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc()) threads.push_back(thread);
  }
  return threads;
}

std::vector<pid_t> own_threads() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<pid_t> own;
  for (const auto& [process, thread] : all.threads) {
    if (process == ::getpid()) own.push_back(thread);
  }
  return own;
}

// Nothing: it has ended.
std::optional<bool> is_own(pid_t thread, std::span<const pid_t> registered) {
  if (std::ranges::find(registered, thread) != registered.end()) return true;
  const auto name = read_start("/proc/self/task/" + std::to_string(thread) + "/comm");
  if (!name) return std::nullopt;
  return name->starts_with(kZeroMqThreads);
}

}  // namespace

OwnThread::OwnThread() : thread_(::gettid()) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.threads.emplace_back(::getpid(), thread_);
}

OwnThread::~OwnThread() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase(all.threads, std::pair(::getpid(), thread_));
}

std::vector<pid_t> program_threads() {
  auto threads = threads_of_process().value_or(std::vector<pid_t>());
  const std::vector<pid_t> own = own_threads();
  std::erase_if(threads, [&](pid_t thread) { return is_own(thread, own).value_or(true); });
  return threads;
}

}  // namespace warren

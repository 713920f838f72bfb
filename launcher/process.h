// Processes as the system has them: how one becomes a worker, and what its launcher holds of it.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/result.h"

namespace warren::worker {

// A failure of the system call before, which has set errno.
[[nodiscard]] Status system_failure(const std::string& what);
[[nodiscard]] std::int64_t now_ms();

// A descriptor, which is closed with it.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read_end, write_end;
};
[[nodiscard]] Result<Pipe> make_pipe();
[[nodiscard]] bool same_file(int a, int b);

// NAME=value strings and the pointers that exec takes.
class ChildEnvironment {
 public:
  // No value: removed.
  explicit ChildEnvironment(const std::map<std::string, std::optional<std::string>>& changes);
  [[nodiscard]] char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> strings_;
  std::vector<char*> pointers_;
};

// Between fork and exec of a process that may have threads: only calls that are safe in a signal handler. `core` and
// `open_files` may be null, `life` negative. To `failed` it writes errno where there is no such program.
[[noreturn]] void become_worker(const char* const* program, char* const* environment, pid_t launcher,
                                const cpu_set_t* core, const rlimit* open_files, int output, int error, int life,
                                int failed);
// -1, with errno: refused.
[[nodiscard]] int open_pidfd(pid_t pid);
// Whether the process is dead, and the kernel writes its memory to a core file. Its descriptor tells the end of that.
// `proc`: where the system tells of processes.
[[nodiscard]] bool is_dumping_core(const std::string& proc, pid_t pid);

}  // namespace warren::worker

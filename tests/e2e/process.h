// A worker that a test starts, signals and listens to.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace warren::testing {

class Process {
 public:
  // `arguments`: the program and its arguments. `variables`: "NAME=value", before this process's own.
  explicit Process(std::vector<std::string> arguments, std::vector<std::string> variables = {}) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    std::vector<char*> argv, env;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    for (std::string& variable : variables) env.push_back(variable.data());
    for (char** v = environ; *v != nullptr; v++) env.push_back(*v);
    argv.push_back(nullptr);
    env.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), env.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    out_ = ends[0];
  }
  ~Process() {
    if (pid_ > 0) {
      kill(SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }
  // Until it ends: its exit code, or 128 and the signal that ended it.
  int wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // The next line of output; "" when it ends or a minute has passed.
  std::string line() {
    while (true) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string text = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return text;
      }
      pollfd p{out_, POLLIN, 0};
      if (::poll(&p, 1, 60'000) <= 0) return "";
      char chunk[4096];
      const ssize_t n = ::read(out_, chunk, sizeof chunk);
      if (n <= 0) return "";
      buffer_.append(chunk, static_cast<std::size_t>(n));
    }
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string buffer_;
};

}  // namespace warren::testing

// Processes that a chaos run starts, each the leader of a group of its own that ends with the runner.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/result.h"

namespace warren::chaos::process {

class Child {
 public:
  struct Setup {
    std::vector<std::string> arguments;  // the program's path first
    std::string log_file;                // gets standard output and error, appended
    // A network namespace of its own: `wire` is called with the child's process id when it has one, before the program
    // runs; the program begins with `sh` and its arguments.
    std::function<Status(pid_t)> wire;
  };
  // Variables WARREN_* are not inherited, but for those that say how GPUs are used. kInternal, or what `wire` says.
  static Result<std::unique_ptr<Child>> start(const Setup& setup);
  // Kills the group and reaps.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill_group(int signal) const;
  // The wait status, once it has ended.
  [[nodiscard]] std::optional<int> ended();
  int wait();

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  pid_t pid_;
  std::optional<int> status_;
};

// Runs a program to its end; its output is in the failure's text.
[[nodiscard]] Status run_program(const std::vector<std::string>& arguments);

// Signals a process that no child of this one, if it is still the one whose command line holds `mark`. False: it is
// not.
[[nodiscard]] bool signal_marked(pid_t pid, const std::string& mark, int signal);

}  // namespace warren::chaos::process

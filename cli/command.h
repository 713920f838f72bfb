// The subcommands of `warren`, and how their words are read.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warren::cli {

// Exit codes, besides those of a program that `warren run` started.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

struct Command {
  std::string_view name;
  std::string_view summary;  // one line, for the list
  std::string_view usage;    // what follows "warren <name> "
  std::string_view text;     // for `warren help <name>`, after the summary
  // The gflags that it takes, by name; all others are refused.
  std::vector<std::string_view> flags;
  // Settings of workers that it takes as flags too (setting_flags.h).
  std::vector<std::string_view> settings = {};
  // Whether words that are no flags may follow. If so, flags end at the first of them, or at "--".
  bool takes_words = false;
  // The words, without flags. Returns the exit code.
  int (*run)(const std::vector<std::string>& words) = nullptr;
};

// In the order in which they are listed.
[[nodiscard]] std::span<const Command* const> commands();
// Null: there is none of that name.
[[nodiscard]] const Command* find_command(std::string_view name);

// Sets the flags that `arguments` (what follows the subcommand) gives, and returns the words that are left. What is
// wrong is said on standard error; then false.
struct Parsed {
  bool ok = false;
  bool help = false;  // --help was among them
  std::vector<std::string> words;
};
[[nodiscard]] Parsed parse_arguments(const Command& command, std::span<const std::string> arguments);

// The page of one command, and the list of all.
[[nodiscard]] std::string help_page(const Command& command);
[[nodiscard]] std::string overview();

// Says `message` on standard error, with the command to ask for help, and returns kExitUsage.
int usage_error(const Command& command, std::string_view message);
// Says why on standard error and returns kExitFailed.
int failure(std::string_view message);

}  // namespace warren::cli

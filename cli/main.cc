#include <gflags/gflags.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/command.h"
#include "storage/standard_descriptors.h"
#include "worker/system/text.h"

namespace warren::cli {
namespace {

// Takes back what whoever started this program may have changed by mistake. Where SIGCHLD is ignored, as some
// supervisors leave it, the kernel throws away how children end: every failure of a worker would count as success.
void begin_afresh() {
  open_standard_descriptors();
  (void)std::signal(SIGCHLD, SIG_DFL);
}

int unknown(const std::string& name) {
  std::vector<std::string_view> names = {"help"};
  for (const Command* c : commands()) names.push_back(c->name);
  std::fprintf(stderr, "warren: there is no command %s%s\n`warren help` lists them\n", worker::in_quotes(name).c_str(),
               worker::did_you_mean(name, names).c_str());
  return kExitUsage;
}

int show(const std::string& page) {
  std::fputs(page.c_str(), stdout);
  return kExitOk;
}

int dispatch(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") return show(overview());
  if (words[0] == "--version" || words[0] == "version") return show("warren " WARREN_VERSION "\n");
  if (words[0] == "help") {
    if (words.size() == 1) return show(overview());
    const Command* about = find_command(words[1]);
    return about != nullptr ? show(help_page(*about)) : unknown(words[1]);
  }
  const Command* command = find_command(words[0]);
  if (command == nullptr) return unknown(words[0]);
  const Parsed parsed = parse_arguments(*command, std::span(words).subspan(1));
  if (!parsed.ok) return kExitUsage;
  if (parsed.help) return show(help_page(*command));
  return command->run(parsed.words);
}

}  // namespace
}  // namespace warren::cli

int main(int argc, char** argv) {
  warren::cli::begin_afresh();
  try {
    return warren::cli::dispatch(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  } catch (const std::exception& e) {
    return warren::cli::failure(std::string("unexpected: ") + e.what());
  }
}

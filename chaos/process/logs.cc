#include "chaos/process/logs.h"

#include <cstddef>
#include <cstdio>
#include <deque>
#include <fstream>

namespace warren::chaos::process {
namespace {

constexpr std::size_t kMostOfALine = 600;

}  // namespace

std::vector<std::string> lines_of(const std::string& log_file, const std::string& text) {
  std::ifstream log(log_file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);) {
    if (line.find(text) != std::string::npos) lines.push_back(line.substr(0, kMostOfALine));
  }
  return lines;
}

void show_logs(const std::string& folder, std::uint32_t hosts) {
  static constexpr std::size_t kLines = 25, kBytes = 300;
  std::vector<std::string> names{"tracker"};
  for (std::uint32_t h = 0; h < hosts; h++) names.push_back("host-" + std::to_string(h));
  for (const std::string& name : names) {
    std::ifstream log(folder + "/" + name + ".log");
    std::deque<std::string> lines;
    for (std::string line; std::getline(log, line);) {
      lines.push_back(line.substr(0, kBytes));
      if (lines.size() > kLines) lines.pop_front();
    }
    std::fprintf(stderr, "the end of %s.log:\n", name.c_str());
    for (const std::string& line : lines) std::fprintf(stderr, "  %s\n", line.c_str());
  }
}

}  // namespace warren::chaos::process

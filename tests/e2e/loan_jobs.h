// Jobs of loan_worker, which `warren run` starts on the fake device with a fault of choice.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace warren::testing {

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline constexpr int kWorkers = 3;

// Returns what each worker of the job wrote. `fault` and `mode` are loan_worker's, `flag` one more of `warren run`.
inline std::vector<std::string> run_processes(const std::string& folder, const std::string& mode, int rounds,
                                              const std::string& fault, const std::string& flag = "") {
  std::filesystem::create_directories(folder);
  const std::string command = std::string(WARREN_CLI) + " run -n " + std::to_string(kWorkers) +
                              " --round_timeout_ms=2000 " + flag + " -- " + WARREN_LOAN_WORKER + " " + mode + " " +
                              std::to_string(rounds) + " " + folder + " " + fault + " >" + folder + "/log 2>&1";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << file_text(folder + "/log");
  std::vector<std::string> out;
  for (int worker = 0; worker < kWorkers; worker++) out.push_back(file_text(folder + "/" + std::to_string(worker)));
  return out;
}

// The sum of what the workers' last lives have counted, in files of this ending.
inline int counted(const std::string& folder, const std::string& ending) {
  int all = 0;
  for (int worker = 0; worker < kWorkers; worker++) {
    all += std::atoi(file_text(folder + "/" + std::to_string(worker) + ending).c_str());
  }
  return all;
}

}  // namespace warren::testing

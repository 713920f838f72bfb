// The judge of a run with real processes, in a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "chaos/process/judge.h"
#include "chaos/process/program.h"
#include "chaos/process/records.h"
#include "recovery/base/result.h"

namespace warren::chaos::process {

// Of the texts that a run prints: so many of a kind.
inline constexpr std::size_t kMostPrinted = 20;

// Judges the records at the lowest priority: the thread may fall behind, the files wait for it.
class JudgeThread {
 public:
  static Result<std::unique_ptr<JudgeThread>> start(const Program& program, const std::string& folder, bool forgiving);
  ~JudgeThread() { finish(); }
  JudgeThread(const JudgeThread&) = delete;
  JudgeThread& operator=(const JudgeThread&) = delete;

  // Judges what is left, and ends.
  void finish() {
    last_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  // After finish().
  [[nodiscard]] const Judge& judge() const { return judge_; }
  // The verdict on all records together, of a job that has finished. After finish().
  void conclude() {
    if (const auto wrong = judge_.conclude()) say(*wrong);
  }
  [[nodiscard]] std::uint64_t divergences() const { return divergences_.load(); }
  // Some of them. After finish().
  [[nodiscard]] const std::vector<std::string>& first() const { return first_; }

 private:
  explicit JudgeThread(const Program& program) : judge_(program), workers_(program.shape().ranks) {}

  void run();
  void say(const std::string& wrong);

  Judge judge_;
  const std::uint32_t workers_;
  std::vector<RecordReader> readers_;
  std::atomic<bool> last_{false};
  std::atomic<std::uint64_t> divergences_{0};
  std::vector<std::string> first_;
  std::thread thread_;
};

}  // namespace warren::chaos::process

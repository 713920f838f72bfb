// Compares what workers recorded with the oracle: every result of every life, in the order of the program.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chaos/process/agreement.h"
#include "chaos/process/oracle.h"
#include "chaos/process/records.h"

namespace warren::chaos::process {

class Judge {
 public:
  // The program must outlive this.
  explicit Judge(const Program& program);

  // The next record of this worker. Returns what is wrong with it; nothing: all is as it must be.
  [[nodiscard]] std::optional<std::string> take(std::uint32_t worker, const Record& record);
  // The job was rolled back beyond its copies: decisions may be made anew, and older versions be loaded.
  void forgive_rollback() { rolled_back_ = true; }

  struct Progress {
    std::uint64_t done = 0;      // results by some life: those of the program before this position; as in Page
    std::uint64_t rounds = 0;    // results that no earlier life of this worker had
    std::uint64_t replayed = 0;  // others
    std::uint64_t version = 0;   // the newest that some life has taken
    std::uint64_t loaded = 0;    // the newest that some life has loaded: it was committed
    std::uint32_t lives = 0;
    bool finished = false;
  };
  [[nodiscard]] const Progress& progress(std::uint32_t worker) const { return workers_[worker].progress; }
  [[nodiscard]] bool all_finished() const;
  // After the last record, of a job that has finished: what is wrong with all of them together.
  [[nodiscard]] std::optional<std::string> conclude() const;

 private:
  struct Life {
    std::uint64_t iteration = 0;  // of the next result
    std::uint32_t call = 0;
    bool loaded = false;
    std::uint32_t rank = 0;
  };
  struct Worker {
    Progress progress;
    std::map<std::uint32_t, Life> lives;
  };

  std::optional<std::string> judge_result(Worker& worker, Life& life, const Record& record);
  std::optional<std::string> judge_load(Worker& worker, Life& life, const Record& record);
  [[nodiscard]] std::size_t calls_of(std::uint64_t iteration);

  const Program& program_;
  Oracle oracle_;
  std::optional<Agreement> agreement_;  // mode shrink: instead of the oracle
  std::vector<Worker> workers_;
  std::map<std::uint64_t, std::uint64_t> decisions_;  // by iteration
  std::map<std::uint32_t, std::uint32_t> worker_of_;  // by rank
  bool rolled_back_ = false;
};

// "worker 3, life 1, iteration 7, call 2"
[[nodiscard]] std::string describe(std::uint32_t worker, const Record& record);

}  // namespace warren::chaos::process

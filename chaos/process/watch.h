// Follows the records of a run as they come, without judging them: who got how far and when, how long each fault
// stopped the job.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chaos/process/records.h"

namespace warren::chaos::process {

class Watch {
 public:
  static Result<Watch> open(const std::string& folder, std::uint32_t workers);

  // Takes what was recorded since.
  void look();

  // Opens the measurement of a stall: from the last new result of any worker until `at_ns` to the first after it of the
  // worker that is last to have one. Returns its number.
  std::size_t fault(std::uint64_t at_ns);
  // Whether a worker has no new result yet since some fault.
  [[nodiscard]] bool recovering() const;
  [[nodiscard]] std::optional<double> stall_ms(std::size_t fault) const;

  // Results that no earlier life of that worker had: the smallest number over all workers.
  [[nodiscard]] std::uint64_t rounds() const;
  // When the worker that is last in this had its newest new result; 0: one has none yet.
  [[nodiscard]] std::uint64_t last_progress_ns() const;
  [[nodiscard]] bool all_finished() const;
  [[nodiscard]] std::uint32_t lives() const;
  // In which phase a life ended, once the next one has begun.
  [[nodiscard]] std::optional<Phase> ended_in(std::uint32_t worker, std::uint32_t life) const;
  // warren::ErrorCode and how many lives ended with it.
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& failures() const { return failures_; }
  // Of all workers, inside rounds over 1 MiB and in all.
  [[nodiscard]] double big_share() const;

 private:
  struct Worker {
    std::uint64_t done = 0, rounds = 0, last_ns = 0;
    std::uint32_t lives = 0;
    bool finished = false;
    std::uint64_t begin_ns = 0, begin_bytes = 0;
    std::deque<std::uint64_t> recent_ns;  // of new results, the newest last
    std::map<std::uint32_t, Phase> ended_in;
  };
  struct Stall {
    std::uint64_t at_ns = 0, before_ns = 0;
    std::vector<std::uint64_t> after_ns;  // by worker; 0: none yet
    [[nodiscard]] bool over() const;
  };

  void new_result(std::uint32_t worker, std::uint64_t at_ns);
  static void see(Stall& stall, std::uint32_t worker, std::uint64_t at_ns);

  std::vector<RecordReader> readers_;
  std::vector<Worker> workers_;
  std::vector<Stall> stalls_;
  std::map<std::uint64_t, std::uint64_t> failures_;
  std::uint64_t big_ns_ = 0, first_ns_ = 0, last_ns_ = 0;
};

}  // namespace warren::chaos::process

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

#include "chaos/process/program.h"
#include "chaos/process/records.h"

namespace warren::chaos::process {

class Watch {
 public:
  // `shrinks`: the job goes on without workers that are lost.
  static Result<Watch> open(const std::string& folder, std::uint32_t workers, bool shrinks = false);

  // Takes what was recorded since.
  void look();

  // Opens the measurement of a stall: from the last new result of any worker until `at_ns` to the first after it of the
  // worker that is last to have one. In mode shrink to when all contributors to one call have its result, which none of
  // them had before: of a call that a lost worker contributed to, that one never has. `killed`: the life that the fault
  // ends, which may still have a result after `at_ns`, a moment before it dies. Returns its number.
  struct Life {
    std::uint32_t worker = 0, number = 0;
  };
  std::size_t fault(std::uint64_t at_ns, std::optional<Life> killed = std::nullopt);
  // Whether a stall is not over.
  [[nodiscard]] bool recovering() const;
  [[nodiscard]] std::optional<double> stall_ms(std::size_t fault) const;
  // Whether no other fault struck while the stall lasted, nor lasted when it began.
  [[nodiscard]] bool alone(std::size_t fault) const { return stalls_[fault].alone; }
  // Mode shrink: the contributors to the call that ended the stall; none before it is over.
  [[nodiscard]] Contributors ended_with(std::size_t fault) const { return stalls_[fault].over_with; }

  // Results that no earlier life of that worker had: the smallest number over all workers. In mode shrink: calls of
  // which any worker has a result.
  [[nodiscard]] std::uint64_t rounds() const;
  // When the worker that is last in this had its newest new result; 0: one has none yet. In mode shrink: the newest
  // result of all if all workers contributed to it; otherwise when the contributors changed last, as those who are
  // missing are to come in.
  [[nodiscard]] std::uint64_t last_progress_ns() const;
  // Mode shrink: who contributed to the newest call.
  [[nodiscard]] Contributors there() const { return there_; }
  [[nodiscard]] bool all_there() const { return there_ == (Contributors{1} << workers_.size()) - 1; }
  [[nodiscard]] bool all_finished() const;
  [[nodiscard]] std::uint32_t lives() const;
  // In which phase a life ended, once the next one has begun.
  [[nodiscard]] std::optional<Phase> ended_in(std::uint32_t worker, std::uint32_t life) const;
  // The number of the process that a life was of; none: it has not joined.
  [[nodiscard]] std::optional<std::uint32_t> process_of(std::uint32_t worker, std::uint32_t life) const;
  // From the end of its load until a life had the last result that another one before it had had.
  [[nodiscard]] double replay_ms(std::uint32_t worker, std::uint32_t life) const;
  // warren::ErrorCode and how many lives ended with it.
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& failures() const { return failures_; }
  // Of all workers, inside rounds over 1 MiB and in all.
  [[nodiscard]] double big_share() const;

 private:
  struct NewResult {
    std::uint64_t at_ns = 0, position = 0;
    Contributors contributors = 0;
    std::uint32_t life = 0;
  };
  struct Worker {
    std::uint64_t done = 0, rounds = 0, last_ns = 0;
    std::uint32_t lives = 0;
    bool finished = false;
    std::uint64_t begin_ns = 0, begin_bytes = 0;
    std::deque<NewResult> recent;  // the newest last
    std::map<std::uint32_t, Phase> ended_in;
    std::map<std::uint32_t, std::uint32_t> processes;  // by life
    std::uint64_t loaded_ns = 0;                       // the newest life
    std::map<std::uint32_t, std::uint64_t> replay_ns;  // by life: until its last result that one before it had
  };
  struct Stall {
    std::uint64_t at_ns = 0, before_ns = 0;
    std::optional<Life> killed;
    std::vector<std::uint64_t> after_ns;  // by worker; 0: none yet
    // Mode shrink, by position: who has a result since, and when the last of them got it.
    struct Call {
      Contributors contributors = 0, have = 0;
      std::uint64_t last_ns = 0;
    };
    std::map<std::uint64_t, Call> calls;
    std::uint64_t over_ns = 0;  // 0: it is not over
    bool alone = true;
    Contributors over_with = 0;
  };

  void new_result(std::uint32_t worker, const NewResult& result);
  void see(Stall& stall, std::uint32_t worker, const NewResult& result) const;
  void close_stalls();

  std::vector<RecordReader> readers_;
  std::vector<Worker> workers_;
  std::vector<Stall> stalls_;
  std::map<std::uint64_t, std::uint64_t> failures_;
  bool shrinks_ = false;
  std::uint64_t newest_ = 0, calls_ = 0;  // mode shrink: behind the newest position; how many calls
  std::uint64_t newest_ns_ = 0, changed_ns_ = 0;
  Contributors there_ = 0;
  std::uint64_t big_ns_ = 0, first_ns_ = 0, last_ns_ = 0;
};

}  // namespace warren::chaos::process

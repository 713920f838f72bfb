// What every collective of a chaos program must give, computed with plain loops from the seed alone: no code of
// Warren's data path takes part.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "chaos/process/program.h"

namespace warren::chaos::process {

class Oracle {
 public:
  explicit Oracle(const Program& program);

  // By rank: the digest of its output; 0 where it has none.
  using Digests = std::vector<std::uint64_t>;
  [[nodiscard]] Digests preamble() const;
  [[nodiscard]] std::vector<Digests> setups() const;
  // Call by call. Iterations are asked for in turn, from 0 on; those that were are kept.
  [[nodiscard]] const std::vector<Digests>& iteration(std::uint64_t index);
  // The digests of the states that load must give for this version (>= 1); iterations before it have been asked for.
  struct StateDigests {
    std::uint64_t global = 0;
    Digests local;
  };
  [[nodiscard]] const StateDigests& version(std::uint64_t version);
  // After the last iteration that was asked for.
  [[nodiscard]] const ProgramState& state(std::uint32_t rank) const { return states_[rank]; }

 private:
  void next();
  [[nodiscard]] Digests from_the_beginning(const Call& call, std::uint32_t number) const;

  const Program& program_;
  std::vector<ProgramState> states_;
  std::vector<std::vector<Digests>> iterations_;
  std::vector<StateDigests> versions_;  // [0] is version 1
};

// The same for a job in mode shrink, whose results and states depend on who contributed: call by call, in the order of
// the program.
class ShrinkOracle {
 public:
  explicit ShrinkOracle(const Program& program);

  [[nodiscard]] std::uint64_t preamble(Contributors contributors) const;
  // What the next call gives, the same on all ranks; 0 of a decision. Contributors: at least one.
  std::uint64_t next(Contributors contributors);
  // Which is the next.
  [[nodiscard]] std::uint64_t iteration() const { return iteration_; }
  [[nodiscard]] std::uint32_t call() const { return static_cast<std::uint32_t>(at_); }
  // The state that is checkpointed before it.
  [[nodiscard]] const ProgramState& state() const { return states_[0]; }

 private:
  struct Folded {
    std::uint64_t digest = 0;
    Contributors contributors = 0;
  };
  void fold_all();

  const Program& program_;
  std::vector<ProgramState> states_;
  std::uint64_t iteration_ = 0;
  std::vector<Call> calls_;      // of this iteration
  std::size_t at_ = 0;           // the next of them
  std::deque<Folded> unfolded_;  // the newest ones: results of calls in flight are known only when they are awaited
};

}  // namespace warren::chaos::process

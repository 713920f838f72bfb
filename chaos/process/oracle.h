// What every collective of a chaos program must give, computed with plain loops from the seed alone: no code of
// Warren's data path takes part.
#pragma once

#include <cstdint>
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

}  // namespace warren::chaos::process

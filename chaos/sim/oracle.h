// What every call of a program must give, computed by running the program without faults, one step after the other. One
// for each timeline: what a rollback undid may come out differently (a program may read something from outside), and
// so does what is computed without the inputs of ranks that were lost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "chaos/sim/program.h"

namespace warren::chaos {

class Oracle {
 public:
  struct Expected {
    std::vector<std::uint64_t> keys;              // by place
    std::vector<Rank> contributors;               // whose inputs are in the result, by place
    std::vector<std::uint64_t> contributed;       // their keys
    std::vector<std::vector<std::byte>> outputs;  // by place; one if all ranks get the same
    [[nodiscard]] const std::vector<std::byte>& of(std::int32_t place) const {
      return outputs[outputs.size() == 1 ? 0 : static_cast<std::size_t>(place)];
    }
  };
  // What set-up rounds of earlier timelines have given, and rounds that keep the names of those, by step.
  using Kept = std::map<std::size_t, Expected>;

  // `base`: the version that the timeline starts from, which `from` has computed; without it, the job's beginning.
  // `absent`: without whose inputs its rounds are computed; of the world's collectives that all receive alike.
  Oracle(const Program& program, std::uint64_t salt, Kept kept = {}, std::optional<Version> base = std::nullopt,
         Oracle* from = nullptr, std::set<Rank> absent = {});

  // Null: in this timeline nobody gets there. Of a set-up round, what its name has given.
  [[nodiscard]] const Expected* expected(std::size_t step);
  // What a rank's state is when this version begins by a checkpoint, or by loading it; null: it does not.
  [[nodiscard]] const ProgramState* state_at(Version version, Rank rank);
  [[nodiscard]] std::uint64_t salt() const { return salt_; }

 private:
  void run_to(std::size_t step);
  void run(const ProgramStep& step);
  void settle();

  const Program& program_;
  const std::uint64_t salt_;
  const std::set<Rank> absent_;
  std::size_t next_ = 0;
  std::vector<ProgramState> states_, deferred_;  // by rank; results that the next wait makes known
  std::map<Version, std::vector<ProgramState>> saved_;
  std::map<std::size_t, Expected> expected_;
  std::optional<Version> base_;
  const Kept kept_;
};

}  // namespace warren::chaos

// The program that a simulated job runs: rounds of a preamble, load, then versions of rounds with checkpoints between,
// drawn from the seed, the same at all ranks; and what each call must give, computed one element after the other
// without any of the code under test.
//
// What a rank does depends on its state alone: a running hash over the results that it has received, saved in
// checkpoints. Each input is derived from it, so that a wrong result of a replay changes what follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chaos/sim/program_step.h"
#include "chaos/sim/random.h"
#include "recovery/base/ids.h"
#include "worker/rounds/call.h"

namespace warren::chaos {

struct ProgramGroup {
  GroupId id;
  std::vector<Rank> members;   // in the order of group ranks
  std::size_t made_at = 0;     // before this step; the world is made before all
  std::size_t end = SIZE_MAX;  // it is destroyed before this step; it does not last over a checkpoint
  std::size_t split = 0;       // groups of one split have the same number, and the same channel
  bool by_members = false;     // its members alone make it, and its channel is their own
};

// What a rank knows. `global` comes from results that all ranks share and is equal on all; `local` from the others;
// `setup` from set-up rounds, and is in no checkpoint.
struct ProgramState {
  std::uint64_t global = 0, local = 0, setup = 0;
  friend bool operator==(const ProgramState&, const ProgramState&) = default;
};

class Program {
 public:
  struct Shape {
    std::uint32_t world_size = 1;
    bool least = false;     // a short program, for large worlds
    bool messages = false;  // point to point too
    bool groups = true;
    bool fresh = false;                                  // broadcasts and messages of another value in each life
    std::optional<Collective> collective{};              // all rounds are of it, and there are no messages
    bool setups = false;                                 // set-up rounds
    bool inferred = false;                               // set-up rounds without names, and rounds that recur
    bool local = false;                                  // checkpoints may have local states
    std::uint64_t most_bytes = std::uint64_t{48} << 10;  // of one rank's larger buffer
    bool long_allreduces = false;                        // many have so many bytes
    bool on_gpus = false;                                // most are what NCCL moves the bytes of
    bool repeats = false;                                // small calls are made several times in a row
    bool many_versions = false;                          // ten or more, of a few rounds
    bool long_versions = false;                          // of many rounds
    // Allreduces and barriers of the world, and checkpoints of the global state: what a job that goes on without lost
    // ranks has.
    bool shrinks = false;
  };
  struct Burst {  // of messages
    std::size_t first, end;
    Rank receiver;
  };
  struct Made {
    std::vector<ProgramGroup> groups;
    std::vector<ProgramStep> steps;
    std::vector<Burst> reversed;
    std::size_t setup_end = 0;
    // Of an iteration, as XGBoost's, which has one for the update and one for the evaluation; and which version has the
    // rounds that a process makes once.
    std::uint64_t versions_an_iteration = 1, once_in = 0;
  };
  Program(Random& random, const Shape& shape);

  [[nodiscard]] const std::vector<ProgramGroup>& groups() const { return made_.groups; }
  [[nodiscard]] const std::vector<ProgramStep>& steps() const { return made_.steps; }
  // Collectives on the world alone.
  [[nodiscard]] bool one_group() const;
  [[nodiscard]] bool has_messages() const;
  [[nodiscard]] bool loads() const;
  // Where a program goes on that has loaded this version, once it has run its set-up rounds again: the steps between
  // the load and setup_end().
  [[nodiscard]] std::size_t position_after_load(Version version) const;
  [[nodiscard]] std::size_t setup_end() const { return made_.setup_end; }
  // The steps that a process makes once, at a version's beginning or end. They stand in the first version that has
  // them; a process that has loaded a later one makes them in the first such version that it goes through.
  [[nodiscard]] std::vector<std::size_t> made_again(ProgramStep::Inferred when) const;
  [[nodiscard]] bool infers() const;  // has such steps, or ones that recur
  [[nodiscard]] bool makes_once_rounds(Version version) const;
  [[nodiscard]] bool has_made_once_rounds_before(Version loaded) const;
  [[nodiscard]] static std::string setup_name(std::size_t step) { return "step " + std::to_string(step); }
  // Bytes of all results together, or of those that stay in memory: set-up rounds and states.
  [[nodiscard]] std::uint64_t result_bytes(bool lasting = false) const;
  // Bytes of the results of so many steps that follow each other, at the most.
  [[nodiscard]] std::uint64_t most_result_bytes(std::size_t steps) const;
  // The steps in this rank's order: a receiver may ask for messages in another order than they were sent.
  [[nodiscard]] std::vector<std::size_t> order_of(Rank rank) const;
  [[nodiscard]] const std::vector<Rank>& members(const ProgramStep& step) const {
    return made_.groups[step.group].members;
  }
  // This rank's place in the step's group; nullopt: it has no part in the step.
  [[nodiscard]] std::optional<std::int32_t> place(const ProgramStep& step, Rank rank) const;

  // Elements of a group rank's buffers.
  // all_to_allv: by rank.
  [[nodiscard]] std::vector<std::uint64_t> sent_by(const ProgramStep& step, std::int32_t place) const;
  [[nodiscard]] std::vector<std::uint64_t> got_by(const ProgramStep& step, std::int32_t place) const;
  [[nodiscard]] std::uint64_t in_count(const ProgramStep& step, std::int32_t place) const;
  [[nodiscard]] std::uint64_t out_count(const ProgramStep& step, std::int32_t place) const;
  // Where the input stands in the output when in place, in elements.
  [[nodiscard]] std::int64_t in_place_at(const ProgramStep& step, std::int32_t place) const;
  // What the input of a rank in this state is made of. `salt`: what the program reads from outside, once a timeline.
  [[nodiscard]] std::uint64_t input_key(const ProgramStep& step, std::int32_t place, const ProgramState& state,
                                        std::uint64_t salt) const;
  [[nodiscard]] std::vector<std::byte> input(const ProgramStep& step, std::int32_t place, std::uint64_t key) const;

  // The output's bytes; for kRough and kAffine something to compare with by judge() only. `keys` by place; of an
  // allreduce, those of the contributors alone.
  using Keys = std::span<const std::uint64_t>;
  [[nodiscard]] std::vector<std::byte> expected(const ProgramStep& step, std::int32_t place, Keys keys) const;
  // Empty if `got` may be the result, else what is wrong.
  [[nodiscard]] std::string judge(const ProgramStep& step, std::int32_t place, Keys keys,
                                  std::span<const std::byte> got, std::span<const std::byte> expected) const;
  // What a result makes of who received it. In any order.
  static void fold(const ProgramStep& step, std::span<const std::byte> output, ProgramState& state);
  // What a checkpoint makes of the state, as if it were loaded again.
  static void settle(const ProgramStep& checkpoint, ProgramState& state);
  [[nodiscard]] std::vector<std::byte> saved_global(Version version, const ProgramState& state) const;
  [[nodiscard]] std::vector<std::byte> saved_local(Version version, Rank rank, const ProgramState& state) const;
  // kCorrupt-like: nullopt if these are not what the two functions above make.
  [[nodiscard]] std::optional<ProgramState> restored(Version version, Rank rank, std::span<const std::byte> global,
                                                     std::span<const std::byte> local) const;

 private:
  [[nodiscard]] std::uint64_t result_bytes(const ProgramStep& step) const;

  std::uint64_t seed_;
  Made made_;  // by ProgramMaker
};

}  // namespace warren::chaos

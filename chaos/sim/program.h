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
#include <string>
#include <vector>

#include "chaos/sim/random.h"
#include "recovery/base/ids.h"
#include "recovery/wire/frame.h"
#include "worker/rounds/call.h"

namespace warren::chaos {

// How inputs are chosen, and so how results can be judged.
enum class Values : std::uint8_t {
  kExact,   // no result is rounded: compared with the expected bytes
  kRough,   // any fraction: the same bits wherever and whenever it is computed, and near the expected value
  kAffine,  // maps x → m·x + c of u64, chained: c shows the order, which is that of ranks from any rank on
  kFresh,  // of a broadcast or a message: who sends reads something else in each life; once it has returned anywhere it
           // stays
};

struct ProgramGroup {
  GroupId id;
  std::vector<Rank> members;   // in the order of group ranks
  std::size_t made_at = 0;     // before this step; the world is made before all
  std::size_t end = SIZE_MAX;  // it is destroyed before this step; it does not last over a checkpoint
  std::size_t split = 0;       // groups of one split have the same number, and the same channel
  bool by_members = false;     // its members alone make it, and its channel is their own
};

enum class StepKind : std::uint8_t { kRound, kLoad, kCheckpoint };

struct ProgramStep {
  StepKind kind = StepKind::kRound;
  std::size_t index = 0;
  Version version;                 // kRound: in which it is; kCheckpoint: which it begins
  bool local = false;              // kCheckpoint: with a local state
  bool lazy = false;               // kCheckpoint: the state is given later
  std::optional<Rank> state_from;  // kCheckpoint: this rank alone has the global state
  // kRound: a set-up round; the step that names it first. Later ones of the name must give the same.
  std::optional<std::size_t> setup;
  // kRound, where set-up rounds are inferred: one that each process makes once, at the beginning or at the end of a
  // version (Program::makes_once_rounds); what it gives depends on nothing else. Or one that recurs every so many
  // versions, from the same place of the source.
  enum class Inferred : std::uint8_t { kNot, kOnceFirst, kOnceLast, kRecurs };
  Inferred inferred = Inferred::kNot;
  [[nodiscard]] bool once() const { return inferred == Inferred::kOnceFirst || inferred == Inferred::kOnceLast; }
  bool prepares = false;  // kRound: the input is made by a prepare function
  std::size_t group = 0;
  Collective collective{};
  DataType type = DataType::kU8;
  ReduceOp op = ReduceOp::kNone;
  Values values = Values::kExact;
  std::int32_t root = -1;  // group rank; of a message: who sends
  std::int32_t receiver = -1, tag = -1;
  std::uint64_t count = 0;
  // allgatherv, reduce_scatterv: by rank; all_to_allv: what rank s sends to rank r, at s · size + r.
  std::vector<std::uint64_t> counts;
  bool in_place = false;
  bool blocking = true;      // else the next wait ends it
  bool wait_before = false;  // for all that is outstanding
  std::uint64_t site = 0;
};

// One element type's width in the program; kCustom stands for the affine maps, and kF32AsI8 is drawn as what narrow()
// makes of calls, whose elements are blocks.
[[nodiscard]] std::size_t width_of(const ProgramStep& step);

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
  Program(Random& random, const Shape& shape);

  [[nodiscard]] const std::vector<ProgramGroup>& groups() const { return groups_; }
  [[nodiscard]] const std::vector<ProgramStep>& steps() const { return steps_; }
  // Collectives on the world alone.
  [[nodiscard]] bool one_group() const;
  [[nodiscard]] bool has_messages() const;
  [[nodiscard]] bool loads() const;
  // Where a program goes on that has loaded this version, once it has run its set-up rounds again: the steps between
  // the load and setup_end().
  [[nodiscard]] std::size_t position_after_load(Version version) const;
  [[nodiscard]] std::size_t setup_end() const { return setup_end_; }
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
  [[nodiscard]] const std::vector<Rank>& members(const ProgramStep& step) const { return groups_[step.group].members; }
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
  // All ranks that get a result get the same one.
  [[nodiscard]] static bool shared_result(Collective collective);
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
  std::uint64_t seed_;
  std::vector<ProgramGroup> groups_;
  std::vector<ProgramStep> steps_;
  struct Burst {
    std::size_t first, end;
    Rank receiver;
  };
  std::vector<Burst> reversed_;
  std::size_t setup_end_ = 0;
  // Of an iteration, as XGBoost's, which has one for the update and one for the evaluation; and which version has the
  // rounds that a process makes once.
  std::uint64_t versions_an_iteration_ = 1, once_in_ = 0;

  [[nodiscard]] std::uint64_t result_bytes(const ProgramStep& step) const;
  void draw_version(Random& random, const Shape& shape, Version version, std::size_t length);
  void draw_inferred(Random& random, const Shape& shape, Version version, ProgramStep::Inferred what);
  void draw_setup(Random& random, const Shape& shape, Version version);
  void draw_empty(Random& random, Version version);
  [[nodiscard]] bool draw_repeat(Random& random, Version version);
  void draw_groups(Random& random, const Shape& shape, std::size_t first, std::size_t length);
  void append(ProgramStep step);
  ProgramStep draw_step(Random& random, const Shape& shape, std::size_t group) const;
  static void vary(Random random, const Shape& shape, std::uint64_t size, std::uint64_t most, ProgramStep& step);
  // Of a reduction whose results differ by rank: where a rank's begins in what is reduced.
  [[nodiscard]] static std::uint64_t first_of(const ProgramStep& step, std::int32_t place);
  void draw_messages(Random& random, const Shape& shape, std::size_t group, Version version);
  [[nodiscard]] bool chained_in_order(const ProgramStep& step, std::uint64_t i, Keys keys, const std::byte* got) const;
  void write_element(const ProgramStep& step, std::uint64_t key, std::uint64_t i, std::byte* to) const;
};

// The custom operation: inout = a after inout. `context` not null swaps the operands (Mutant::operands_swapped).
struct Affine {
  std::uint64_t m, c;
};
std::int32_t chain_affine(const void* a, void* inout, std::size_t n, void* context);

}  // namespace warren::chaos

// The program that a simulated job runs: a random sequence of collectives, drawn from the seed, the same at all ranks;
// and what each call must give, computed one element after the other without any of the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/random.h"
#include "recovery/frame.h"
#include "recovery/ids.h"
#include "worker/call.h"

namespace warren::chaos {

// How inputs are chosen, and so how results can be judged.
enum class Values : std::uint8_t {
  kExact,   // no result is rounded: compared with the expected bytes
  kRough,   // any fraction: the same bits wherever and whenever it is computed, and near the expected value
  kAffine,  // maps x → m·x + c of u64, chained: c shows the order, which is that of ranks from any rank on
};

struct ProgramGroup {
  GroupId id;
  std::vector<Rank> members;  // in the order of group ranks
  std::size_t made_at = 0;    // before this step; the world is made before all
};

struct ProgramStep {
  std::size_t index = 0;
  std::size_t group = 0;
  Collective collective{};
  DataType type = DataType::kU8;
  ReduceOp op = ReduceOp::kNone;
  Values values = Values::kExact;
  std::int32_t root = -1;  // group rank; of a message: who sends
  std::int32_t receiver = -1, tag = -1;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> counts;  // allgatherv
  bool in_place = false;
  bool blocking = true;      // else the next wait ends it
  bool wait_before = false;  // for all that is outstanding
  std::uint64_t site = 0;
};

// One element type's width in the program; kCustom stands for the affine maps.
[[nodiscard]] std::size_t width_of(const ProgramStep& step);

class Program {
 public:
  // `least`: a short program, for large worlds.
  Program(Random& random, std::uint32_t world_size, bool least);

  [[nodiscard]] const std::vector<ProgramGroup>& groups() const { return groups_; }
  [[nodiscard]] const std::vector<ProgramStep>& steps() const { return steps_; }
  // Collectives on the world alone.
  [[nodiscard]] bool one_group() const;
  // The steps in this rank's order: a receiver may ask for messages in another order than they were sent.
  [[nodiscard]] std::vector<std::size_t> order_of(Rank rank) const;
  [[nodiscard]] const std::vector<Rank>& members(const ProgramStep& step) const { return groups_[step.group].members; }
  // This rank's place in the step's group; nullopt: it has no part in the step.
  [[nodiscard]] std::optional<std::int32_t> place(const ProgramStep& step, Rank rank) const;

  // Elements of a group rank's buffers.
  [[nodiscard]] std::uint64_t in_count(const ProgramStep& step, std::int32_t place) const;
  [[nodiscard]] std::uint64_t out_count(const ProgramStep& step, std::int32_t place) const;
  // Where the input stands in the output when in place, in elements.
  [[nodiscard]] std::int64_t in_place_at(const ProgramStep& step, std::int32_t place) const;
  [[nodiscard]] std::vector<std::byte> input(const ProgramStep& step, std::int32_t place) const;

  // The output's bytes; for kRough and kAffine something to compare with by judge() only.
  [[nodiscard]] std::vector<std::byte> expected(const ProgramStep& step, std::int32_t place) const;
  // Empty if `got` may be the result, else what is wrong.
  [[nodiscard]] std::string judge(const ProgramStep& step, std::int32_t place, std::span<const std::byte> got,
                                  std::span<const std::byte> expected) const;
  // All ranks that get a result get the same one.
  [[nodiscard]] static bool shared_result(Collective collective);

 private:
  std::uint64_t seed_;
  std::vector<ProgramGroup> groups_;
  std::vector<ProgramStep> steps_;
  struct Burst {
    std::size_t first, end;
    Rank receiver;
  };
  std::vector<Burst> reversed_;

  ProgramStep draw_step(Random& random, std::size_t group) const;
  void draw_messages(Random& random, std::size_t group);
  [[nodiscard]] bool chained_in_order(const ProgramStep& step, std::uint64_t i, const std::byte* got) const;
  void write_element(const ProgramStep& step, std::int32_t place, std::uint64_t i, std::byte* to) const;
};

// The custom operation: inout = a after inout. `context` not null swaps the operands (Mutant::operands_swapped).
struct Affine {
  std::uint64_t m, c;
};
void chain_affine(const void* a, void* inout, std::size_t n, void* context);

}  // namespace warren::chaos

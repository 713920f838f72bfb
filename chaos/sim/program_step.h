// One step of the program of a simulated job, and the sizes of its buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/wire/frame.h"

namespace warren::chaos {

// How inputs are chosen, and so how results can be judged.
enum class Values : std::uint8_t {
  kExact,   // no result is rounded: compared with the expected bytes
  kRough,   // any fraction: the same bits wherever and whenever it is computed, and near the expected value
  kAffine,  // maps x → m·x + c of u64, chained: c shows the order, which is that of ranks from any rank on
  kFresh,  // of a broadcast or a message: who sends reads something else in each life; once it has returned anywhere it
           // stays
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

// All ranks that get a result get the same one.
[[nodiscard]] bool shared_result(Collective collective);
// The collective combines the inputs of its ranks.
[[nodiscard]] bool reduces(Collective collective);

// Elements of the buffers of a group rank, `place`, of `size`.
// all_to_allv: by rank.
[[nodiscard]] std::vector<std::uint64_t> sent_by(const ProgramStep& step, std::size_t size, std::int32_t place);
[[nodiscard]] std::vector<std::uint64_t> got_by(const ProgramStep& step, std::size_t size, std::int32_t place);
[[nodiscard]] std::uint64_t in_count(const ProgramStep& step, std::size_t size, std::int32_t place);
[[nodiscard]] std::uint64_t out_count(const ProgramStep& step, std::size_t size, std::int32_t place);
// Where the input stands in the output when in place.
[[nodiscard]] std::int64_t in_place_at(const ProgramStep& step, std::int32_t place);
// Of a reduction whose results differ by rank: where a rank's begins in the whole.
[[nodiscard]] std::uint64_t first_of(const ProgramStep& step, std::int32_t place);
// The elements that ranks before this one have, in one row of counts.
[[nodiscard]] std::uint64_t below(std::span<const std::uint64_t> counts, std::size_t place);

}  // namespace warren::chaos

// What the buffers of a collective are and what they must hold in the end, written down anew from schedule.h and
// docs/algorithms.md, so that a mistake of the generators is not repeated here.
#pragma once

#include "tests/worker/schedule/symbolic.h"

namespace warren::schedule::symbolic {

// A rank's buffers as cells of one memory: input and output overlap when they are in place. Scratch follows.
struct Layout {
  std::uint64_t input_at = 0, input_count = 0;
  std::uint64_t output_at = 0, output_count = 0;
  std::uint64_t user_cells = 0;
  std::uint64_t result_at = 0;  // of the output in the whole result

  // The cell of a place, scratch included.
  [[nodiscard]] std::uint64_t cell(const Place& place) const {
    if (place.space == Space::kScratch) return user_cells + place.at + place.skip;
    return place.at + (place.space == Space::kInput ? input_at : output_at);
  }
};

[[nodiscard]] Layout layout_of(const World& world, std::int32_t rank);

// The final value of each element of a rank's output.
[[nodiscard]] std::vector<Expression> expected_output(const World& world, std::int32_t rank, Expressions& expressions);

// The final value of each element of the whole result.
[[nodiscard]] std::vector<Expression> expected_result(const World& world, Expressions& expressions);

// Whether every rank receives the whole result.
[[nodiscard]] bool all_receive(Collective collective);

// What each cell of the user's memory holds at the start; kNothing where a read is a mistake.
[[nodiscard]] std::vector<Expression> initial_cells(const World& world, std::int32_t rank, Expressions& expressions);

}  // namespace warren::schedule::symbolic

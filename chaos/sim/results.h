// The inputs of a simulated program's calls, and the results that they must give.
//
// `size`: the ranks of the step's group; `place`: one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chaos/sim/program_step.h"

namespace warren::chaos {

// `key`: what the input is made of (Program::input_key).
[[nodiscard]] std::vector<std::byte> input_of(const ProgramStep& step, std::size_t size, std::int32_t place,
                                              std::uint64_t key);
// As Program::expected() and judge().
[[nodiscard]] std::vector<std::byte> expected_of(const ProgramStep& step, std::size_t size, std::int32_t place,
                                                 std::span<const std::uint64_t> keys);
[[nodiscard]] std::string judge_result(const ProgramStep& step, std::size_t size, std::int32_t place,
                                       std::span<const std::uint64_t> keys, std::span<const std::byte> got,
                                       std::span<const std::byte> expected);

}  // namespace warren::chaos

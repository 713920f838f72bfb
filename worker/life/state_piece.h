// Pieces of the states of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace warren::worker {

enum class StateKind : std::uint8_t { kGlobal, kLocal };

// Some bytes of a state, and where in it they begin. Where the program has them they may lie on a GPU.
struct StatePiece {
  StateKind state = StateKind::kGlobal;
  std::uint64_t at = 0;
  std::span<const std::byte> bytes;
};

}  // namespace warren::worker

// The hashes of a checkpoint's global state, by which the tracker finds out whether all ranks have given the same: of
// each block its XXH3, which is never 0 here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "worker/life/placed_state.h"

namespace warren::worker {

// Of bytes in one piece; never 0.
[[nodiscard]] std::uint64_t hash_of_state(std::span<const std::byte> bytes);
// The same number for the same bytes, wherever they lie.
[[nodiscard]] std::uint64_t hash_of_placed(const PlacedState& state);

class StateHashes {
 public:
  // So small that a block is still in the processor's own cache when it is copied after it was hashed; as large as the
  // largest pieces in which the log holds states.
  static constexpr std::uint64_t kBlockBytes = std::uint64_t{256} << 10;

  StateHashes() = default;
  // Has no hash yet.
  explicit StateHashes(std::uint64_t state_bytes);
  // Hashes all of this state.
  explicit StateHashes(const PlacedState& state);

  // Hashes that another rank has made of all blocks of a state of this size. kCorrupt: they are not that.
  [[nodiscard]] static Result<StateHashes> of(std::uint64_t state_bytes, std::vector<std::uint64_t> hashes);

  [[nodiscard]] std::uint64_t state_bytes() const { return state_bytes_; }
  [[nodiscard]] const std::vector<std::uint64_t>& hashes() const { return hashes_; }
  friend bool operator==(const StateHashes&, const StateHashes&) = default;
  [[nodiscard]] std::uint64_t blocks() const { return hashes_.size(); }
  [[nodiscard]] Interval block(std::uint64_t index) const;
  [[nodiscard]] bool has(std::uint64_t index) const { return hashes_[index] != 0; }
  // `bytes`: all of this block.
  void add(std::uint64_t index, std::span<const std::byte> bytes);
  // Hashes the blocks of `state` of which something lies outside `bytes`.
  void add_outside(const Ranges& bytes, const PlacedState& state);
  // Whether `bytes`, which begin at `at`, hold a block of another hash than it has here.
  [[nodiscard]] bool contradicts(std::uint64_t at, std::span<const std::byte> bytes) const;
  // Makes what a vote says: one hash stands for several blocks.
  [[nodiscard]] wire::StateDigest digest(bool has_local, std::uint32_t world_size) const;

 private:
  std::uint64_t state_bytes_ = 0;
  std::vector<std::uint64_t> hashes_;  // by block; 0: none
};

}  // namespace warren::worker

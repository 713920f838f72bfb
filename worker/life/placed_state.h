// A state of a checkpoint where the program has it: in one piece, or in several places whose bytes follow each other.
// Refers to the program's memory, which lies on the CPU.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace warren::worker {

class PlacedState {
 public:
  // In one piece.
  template <std::convertible_to<std::span<const std::byte>> All>
  PlacedState(const All& all)  // NOLINT(google-explicit-constructor): a state in one place is one
      : PlacedState(std::vector{std::span<const std::byte>(all)}) {}
  explicit PlacedState(std::vector<std::span<const std::byte>> places);

  [[nodiscard]] std::uint64_t size() const { return begins_.back(); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  // At least one.
  [[nodiscard]] const std::vector<std::span<const std::byte>>& places() const { return places_; }
  // The bytes from `begin` to `end` in one piece: where they lie, or a copy in `scratch` where several places have
  // them.
  [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t begin, std::uint64_t end,
                                                 std::vector<std::byte>& scratch) const;

 private:
  std::vector<std::span<const std::byte>> places_;
  std::vector<std::uint64_t> begins_;  // of each place, and the end of the last one
};

}  // namespace warren::worker

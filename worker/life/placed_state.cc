#include "worker/life/placed_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "recovery/base/check.h"

namespace warren::worker {

PlacedState::PlacedState(std::vector<std::span<const std::byte>> places) : places_(std::move(places)), begins_{0} {
  if (places_.empty()) places_.emplace_back();  // it lies somewhere
  for (const auto& place : places_) begins_.push_back(begins_.back() + place.size());
}

std::span<const std::byte> PlacedState::bytes(std::uint64_t begin, std::uint64_t end,
                                              std::vector<std::byte>& scratch) const {
  WARREN_CHECK(begin <= end && end <= size(), "these bytes are in the state");
  if (begin == end) return {};
  // The last place that does not begin behind `begin`: one that has bytes.
  auto at = static_cast<std::size_t>(std::ranges::upper_bound(begins_, begin) - begins_.begin()) - 1;
  if (end <= begins_[at + 1]) return places_[at].subspan(begin - begins_[at], end - begin);
  scratch.resize(end - begin);
  for (std::uint64_t copied = begin; copied < end; ++at) {
    const std::uint64_t to = std::min(end, begins_[at + 1]);
    if (to > copied) std::memcpy(&scratch[copied - begin], &places_[at][copied - begins_[at]], to - copied);
    copied = to;
  }
  return scratch;
}

}  // namespace warren::worker

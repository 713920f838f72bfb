#include "worker/life/placed_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "recovery/base/ranges.h"
#include "worker/life/state_hashes.h"

namespace warren::worker {
namespace {

std::vector<std::byte> some_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; i++) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

// The same bytes, in places of these sizes.
PlacedState cut(std::span<const std::byte> bytes, const std::vector<std::size_t>& sizes) {
  std::vector<std::span<const std::byte>> places;
  for (const std::size_t size : sizes) {
    places.push_back(bytes.first(size));
    bytes = bytes.subspan(size);
  }
  EXPECT_TRUE(bytes.empty());
  return PlacedState(std::move(places));
}

TEST(PlacedState, GivesAnyOfItsBytesInOnePiece) {
  const auto bytes = some_bytes(20);
  const PlacedState state = cut(bytes, {0, 3, 0, 0, 9, 1, 7, 0});
  ASSERT_EQ(state.size(), bytes.size());
  std::vector<std::byte> scratch;
  for (std::size_t begin = 0; begin <= bytes.size(); begin++) {
    for (std::size_t end = begin; end <= bytes.size(); end++) {
      const auto got = state.bytes(begin, end, scratch);
      EXPECT_TRUE(std::ranges::equal(got, std::span(bytes).subspan(begin, end - begin))) << begin << " to " << end;
    }
  }
}

TEST(PlacedState, CopiesNothingThatLiesInOnePlace) {
  const auto bytes = some_bytes(20);
  const PlacedState state = cut(bytes, {5, 10, 5});
  std::vector<std::byte> scratch;
  EXPECT_EQ(state.bytes(5, 15, scratch).data(), &bytes[5]);
  EXPECT_EQ(PlacedState(bytes).bytes(0, 20, scratch).data(), bytes.data());
  EXPECT_TRUE(scratch.empty());
}

TEST(PlacedState, HasTheHashesOfItsBytesWhereverTheyAreCut) {
  constexpr std::size_t kBlock = StateHashes::kBlockBytes;
  const auto bytes = some_bytes(3 * kBlock + 17);
  const PlacedState whole(bytes);
  for (const std::vector<std::size_t>& sizes :
       {std::vector<std::size_t>{bytes.size()}, {kBlock, 2 * kBlock, 17}, {1, 2 * kBlock, 0, kBlock - 1, 17}}) {
    const PlacedState state = cut(bytes, sizes);
    EXPECT_EQ(hash_of_placed(state), hash_of_state(bytes));
    EXPECT_EQ(StateHashes(state).digest(false, 2).SerializeAsString(),
              StateHashes(whole).digest(false, 2).SerializeAsString());
  }
  EXPECT_EQ(hash_of_placed(PlacedState(std::vector<std::span<const std::byte>>())), hash_of_state({}));
}

}  // namespace
}  // namespace warren::worker

// Which states differ, and what the error says of it.
#include "recovery/wire/state_digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "recovery/base/limits.h"

namespace warren {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kMiB = limits::kStatePieceBytes;

std::string rank_name(std::size_t rank) {
  return "rank " + std::to_string(rank) + " (worker worker-" + std::to_string(rank) +
         " on host machine-of-the-cluster)";
}

wire::StateDigest two_pieces(std::uint64_t first, std::uint64_t second) {
  wire::StateDigest d;
  d.set_global_bytes(kMiB + 7);
  d.set_piece_bytes(kMiB);
  d.add_hashes(first);
  d.add_hashes(second);
  return d;
}

TEST(StateDigests, OfEqualStatesDoNotDiffer) {
  EXPECT_THAT(difference_of_states({{0, two_pieces(1, 2)}, {1, two_pieces(1, 2)}}, rank_name), IsEmpty());
  // A piece that a rank has not hashed says nothing.
  EXPECT_THAT(difference_of_states({{0, two_pieces(1, 2)}, {1, two_pieces(1, 0)}}, rank_name), IsEmpty());
}

TEST(StateDigests, NameTheFirstPieceThatDiffers) {
  const std::string text = difference_of_states({{0, two_pieces(1, 2)}, {1, two_pieces(1, 3)}}, rank_name);
  EXPECT_THAT(text, HasSubstr("MiB 1 (bytes 1048576 to 1048582)"));
  EXPECT_THAT(text, HasSubstr("rank 0 "));
  EXPECT_THAT(text, HasSubstr("rank 1 "));
}

// The tracker cuts texts off: the place has to fit, however many ranks have a state of their own.
TEST(StateDigests, OfManyRanksThatAllDifferLeaveRoomForThePlace) {
  std::map<std::size_t, wire::StateDigest> bytes, lengths;
  for (std::size_t rank = 0; rank < 1000; ++rank) {
    bytes[rank] = two_pieces(1, 2 + rank);
    lengths[rank] = two_pieces(1, 2 + rank);
    lengths[rank].set_global_bytes(kMiB + 1 + rank);
  }
  for (const auto& digests : {bytes, lengths}) {
    const std::string text = difference_of_states(digests, rank_name);
    EXPECT_LT(text.size(), 1000u);
    EXPECT_THAT(text, HasSubstr("996 more different ones"));
    EXPECT_THAT(text, HasSubstr("MiB 1 "));
  }
}

}  // namespace
}  // namespace warren

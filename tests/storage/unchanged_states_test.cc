#include "storage/unchanged_states.h"

#include <gtest/gtest.h>

namespace warren::storage {
namespace {

constexpr std::uint32_t kPiece = 1 << 20;
constexpr Hash128 kSame{1, 2};

Bin states(std::uint64_t version, std::uint32_t timeline = 1) {
  return {Bin::Kind::kStates, Timeline(timeline), Version(version)};
}
UnchangedStates::Place place(std::uint64_t at) {
  return {RecordKind::kGlobal, Sequence(0), at * kPiece, kPiece};
}

struct UnchangedStatesTest : testing::Test {
  // As the store does with these pieces: where each lies then.
  std::vector<std::uint64_t> put(std::uint64_t version, const std::vector<Hash128>& hashes) {
    std::vector<std::uint64_t> lie_in;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const Bin bin = unchanged.find(place(i), hashes[i]).value_or(states(version));
      lie_in.push_back(bin.version.value);
      found.emplace_back(place(i), hashes[i], bin);
    }
    for (const auto& [where, hash, bin] : found) unchanged.wrote(states(version), where, hash, bin);
    found.clear();
    return lie_in;
  }
  void commit(std::uint64_t version) {
    unchanged.drop([&](const Bin& bin) { return bin.version.value < version; });
  }
  UnchangedStates unchanged;
  std::vector<std::tuple<UnchangedStates::Place, Hash128, Bin>> found;
};
using Versions = std::vector<std::uint64_t>;

TEST_F(UnchangedStatesTest, OnlyLargePiecesOfStatesAreKeptTrackOf) {
  const RoundId round{Timeline(1), kWorldGroup, Version(2), Sequence(3)};
  const auto least = static_cast<std::uint32_t>(UnchangedStates::kLeastBytes);
  EXPECT_EQ(UnchangedStates::place_of({RecordKind::kRound, round}, 0, kPiece), std::nullopt);
  EXPECT_EQ(UnchangedStates::place_of({RecordKind::kSetup, round}, 0, kPiece), std::nullopt);
  EXPECT_EQ(UnchangedStates::place_of({RecordKind::kGlobal, round}, 0, least - 1), std::nullopt);
  const UnchangedStates::Place want{RecordKind::kLocal, Sequence(3), 7, least};
  EXPECT_EQ(UnchangedStates::place_of({RecordKind::kLocal, round}, 7, least), want);
}

TEST_F(UnchangedStatesTest, WhatIsTheSameAtTheSamePlaceIsFound) {
  EXPECT_EQ(put(1, {kSame, kSame}), (Versions{1, 1}));
  EXPECT_EQ(unchanged.find(place(2), kSame), std::nullopt) << "another place";
  EXPECT_EQ(unchanged.find(place(0), {1, 3}), std::nullopt) << "other bytes";
  EXPECT_EQ(unchanged.find({RecordKind::kLocal, Sequence(0), 0, kPiece}, kSame), std::nullopt);
  EXPECT_EQ(unchanged.find({RecordKind::kGlobal, Sequence(0), 0, kPiece - 1}, kSame), std::nullopt);
  EXPECT_EQ(put(2, {kSame, {5, 5}}), (Versions{1, 2}));
  EXPECT_EQ(put(3, {kSame, {5, 5}}), (Versions{1, 2}));
  EXPECT_TRUE(unchanged.referred_to(states(1)));
  commit(3);
  EXPECT_TRUE(unchanged.referred_to(states(1)));
  EXPECT_TRUE(unchanged.referred_to(states(2)));
  EXPECT_EQ(unchanged.bytes_in(states(1)), 2 * kPiece);
  EXPECT_EQ(unchanged.bytes_in(states(2)), kPiece);
  EXPECT_EQ(unchanged.bytes_in(states(3)), 0u);
  // What comes back from an older version is not known any more.
  EXPECT_EQ(put(4, {{6, 6}, kSame}), (Versions{4, 4}));
  commit(4);
  EXPECT_FALSE(unchanged.referred_to(states(1)));
  EXPECT_FALSE(unchanged.referred_to(states(2)));
  EXPECT_EQ(unchanged.bytes_in(states(1)), 0u);
}

TEST_F(UnchangedStatesTest, WhatHasLittleInUseIsLeftBehind) {
  put(1, {kSame, kSame, kSame, kSame});
  EXPECT_EQ(put(2, {kSame, {2, 2}, {2, 2}, {2, 2}}), (Versions{1, 2, 2, 2}));
  commit(2);
  EXPECT_TRUE(unchanged.referred_to(states(1)));
  EXPECT_EQ(put(3, {kSame, {2, 2}, {2, 2}, {2, 2}}), (Versions{3, 2, 2, 2})) << "a quarter is little";
  commit(3);
  EXPECT_FALSE(unchanged.referred_to(states(1)));
  // Three of three, and half of it.
  EXPECT_EQ(put(4, {kSame, {2, 2}, {4, 4}, {2, 2}}), (Versions{3, 2, 4, 2}));
  commit(4);
  EXPECT_EQ(put(5, {kSame, {2, 2}, {4, 4}, {2, 2}}), (Versions{3, 2, 4, 2}));
}

// Each is a family of the database.
TEST_F(UnchangedStatesTest, FewOlderVersionsAreReferredTo) {
  constexpr std::size_t kPieces = 2 * UnchangedStates::kMostOrigins;
  std::vector<Hash128> hashes(kPieces, kSame);
  std::set<std::uint64_t> used;
  for (std::uint64_t version = 1; version < 100; ++version) {
    hashes[version % kPieces].high = version;  // one changes
    const Versions lie_in = put(version, hashes);
    used = {lie_in.begin(), lie_in.end()};
    commit(version);
    // Those that are too many go with the next version.
    ASSERT_LE(used.size(), UnchangedStates::kMostOrigins + 2) << version;
  }
  EXPECT_GT(used.size(), 2u);
}

TEST_F(UnchangedStatesTest, WhatWasWrittenLongAgoIsWrittenAgain) {
  put(1, {kSame, kSame});
  std::uint64_t version = 2;
  while (version < 1000 && put(version, {kSame, kSame}) == Versions{1, 1}) commit(version++);
  EXPECT_EQ(version, UnchangedStates::kMostCommits + 3);
  commit(version);
  EXPECT_FALSE(unchanged.referred_to(states(1)));
  EXPECT_TRUE(unchanged.referred_to(states(version)));
}

// It may be there all the same.
TEST_F(UnchangedStatesTest, WhatAFailedWriteRefersToStays) {
  put(1, {kSame});
  unchanged.refer(states(2), place(0), states(1));
  commit(2);
  EXPECT_TRUE(unchanged.referred_to(states(1)));
  EXPECT_EQ(unchanged.find(place(0), kSame), states(1));
  unchanged.refer(states(3), place(1), states(3));
  EXPECT_EQ(unchanged.find(place(1), kSame), std::nullopt) << "it may not be there";
}

TEST_F(UnchangedStatesTest, WhatIsPutTwiceCountsOnce) {
  for (int i = 0; i < 3; ++i) put(1, {kSame, kSame, kSame, kSame});
  EXPECT_EQ(unchanged.bytes_in(states(1)), 4 * kPiece);
  for (int i = 0; i < 3; ++i) put(2, {kSame, {2, 2}, {2, 2}, {2, 2}});
  commit(2);
  EXPECT_EQ(put(3, {kSame, {2, 2}, {2, 2}, {2, 2}}), (Versions{3, 2, 2, 2})) << "a quarter is in use, and not three";
}

TEST_F(UnchangedStatesTest, UndoneVersionsAreNoOrigins) {
  put(1, {kSame});
  unchanged.wrote(states(2, 1), place(0), {2, 2}, states(2, 1));
  unchanged.drop([](const Bin& bin) { return bin == states(2, 1); });
  EXPECT_EQ(unchanged.find(place(0), {2, 2}), std::nullopt);
  EXPECT_EQ(unchanged.find(place(0), kSame), std::nullopt) << "the newest is known, and it has gone";
  EXPECT_TRUE(unchanged.referred_to(states(1)));
}

}  // namespace
}  // namespace warren::storage

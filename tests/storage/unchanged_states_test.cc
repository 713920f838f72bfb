#include "storage/unchanged_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <vector>

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
  // What is put once more, by number.
  std::vector<std::uint64_t> complete(std::uint64_t version, const std::vector<Hash128>& hashes) {
    std::vector<std::uint64_t> again;
    for (const UnchangedStates::Place& p : unchanged.worn(states(version))) {
      again.push_back(p.first_byte / kPiece);
      EXPECT_EQ(unchanged.find(p, hashes[again.back()]), std::nullopt);
      unchanged.wrote(states(version), p, hashes[again.back()], states(version));
    }
    return again;
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

TEST_F(UnchangedStatesTest, WhatHasLittleInUseIsWrittenOnceMoreAndGoes) {
  put(1, {kSame, kSame, kSame, kSame});
  const std::vector<Hash128> second{kSame, {2, 2}, {2, 2}, {2, 2}};
  EXPECT_EQ(put(2, second), (Versions{1, 2, 2, 2}));
  EXPECT_EQ(complete(2, second), Versions{0}) << "a quarter is little";
  EXPECT_EQ(complete(2, second), Versions{});
  EXPECT_TRUE(unchanged.referred_to(states(1)));
  commit(2);
  EXPECT_FALSE(unchanged.referred_to(states(1)));
  // Half of it.
  const std::vector<Hash128> third{kSame, {2, 2}, {3, 3}, {3, 3}};
  EXPECT_EQ(put(3, third), (Versions{2, 2, 3, 3}));
  EXPECT_EQ(complete(3, third), Versions{});
  commit(3);
  EXPECT_EQ(put(4, third), (Versions{2, 2, 3, 3}));
  EXPECT_EQ(complete(4, third), Versions{});
}

TEST_F(UnchangedStatesTest, WhatIsNotKeptTrackOfCountsForWear) {
  put(1, {kSame, kSame});
  unchanged.wrote_apart(states(1), 2 * kPiece + 2);
  EXPECT_EQ(unchanged.bytes_in(states(1)), 4 * kPiece + 2);
  EXPECT_EQ(put(2, {kSame, kSame}), (Versions{1, 1}));
  EXPECT_EQ(complete(2, {kSame, kSame}), (Versions{0, 1})) << "less than half of all";
  // What comes before the first piece does.
  unchanged.wrote_apart(states(3), 3 * kPiece);
  commit(2);
  EXPECT_EQ(put(3, {{3, 3}, {3, 3}}), (Versions{3, 3}));
  EXPECT_EQ(unchanged.bytes_in(states(3)), 5 * kPiece);
}

// Nothing of what is worn may be lost by a write that fails; it is tried again with the next version.
TEST_F(UnchangedStatesTest, WhatCouldNotBeWrittenOnceMoreStaysReferredTo) {
  put(1, {kSame, kSame, kSame});
  const std::vector<Hash128> second{kSame, {2, 2}, {2, 2}};
  put(2, second);
  ASSERT_EQ(unchanged.worn(states(2)).size(), 1u);
  unchanged.refer(states(2), place(0), states(2));  // and no wrote()
  commit(2);
  EXPECT_TRUE(unchanged.referred_to(states(1)));
  EXPECT_EQ(put(3, second), (Versions{3, 2, 2}));
  EXPECT_EQ(complete(3, second), Versions{});
  commit(3);
  EXPECT_FALSE(unchanged.referred_to(states(1)));
}

// Each is a family of the database.
TEST_F(UnchangedStatesTest, FewOlderVersionsAreReferredTo) {
  constexpr std::size_t kPieces = 2 * UnchangedStates::kMostOrigins;
  std::vector<Hash128> hashes(kPieces, kSame);
  std::size_t most = 0;
  for (std::uint64_t version = 1; version < 100; ++version) {
    hashes[version % kPieces].high = version;  // one changes
    put(version, hashes);
    complete(version, hashes);
    commit(version);
    std::size_t origins = 0;
    for (std::uint64_t older = 1; older < version; ++older) origins += unchanged.referred_to(states(older)) ? 1 : 0;
    ASSERT_LE(origins, UnchangedStates::kMostOrigins) << version;
    most = std::max(most, origins);
  }
  EXPECT_GT(most, 2u);
}

// However versions change: what is kept is at most twice a version when one is committed, and three times before.
TEST_F(UnchangedStatesTest, RoomIsBounded) {
  constexpr std::uint64_t kPieces = 64;
  std::mt19937_64 random(7);
  std::vector<Hash128> hashes(kPieces, kSame);
  std::set<std::uint64_t> live;
  const auto kept = [&] {
    std::uint64_t bytes = 0;
    for (const std::uint64_t v : live) bytes += unchanged.bytes_in(states(v));
    return bytes / kPiece;
  };
  std::uint64_t next = 2;
  for (std::uint64_t version = 1; version < 3000; ++version) {
    // A few, many, all but a few, none.
    const std::uint64_t changed = random() % 4 == 0 ? kPieces - random() % 4 : random() % (version % 3 == 0 ? 48 : 4);
    for (std::uint64_t i = 0; i < changed; ++i) hashes[(version % 2 == 0 ? i : random()) % kPieces].high = next++;
    live.insert(version);
    put(version, hashes);
    complete(version, hashes);
    ASSERT_LE(kept(), 3 * kPieces) << version;
    commit(version);
    std::erase_if(live, [&](std::uint64_t v) { return !unchanged.referred_to(states(v)); });
    ASSERT_LE(kept(), 2 * kPieces) << version;
  }
}

// A frozen layer among weights that all change kept the version before the last: three times a version.
TEST_F(UnchangedStatesTest, AFrozenPieceKeepsNoOlderVersion) {
  for (std::uint64_t version = 1; version < 10; ++version) {
    const std::vector<Hash128> hashes{kSame, {version, 1}, {version, 2}, {version, 3}};
    put(version, hashes);
    complete(version, hashes);
    EXPECT_LE(unchanged.bytes_in(states(version)) + unchanged.bytes_in(states(version - 1)), 8 * kPiece);
    commit(version);
    EXPECT_FALSE(unchanged.referred_to(states(version - 1))) << version;
  }
}

TEST_F(UnchangedStatesTest, WhatWasWrittenLongAgoIsWrittenAgain) {
  const std::vector<Hash128> hashes{kSame, kSame};
  put(1, hashes);
  std::uint64_t version = 2;
  for (; version < 1000; ++version) {
    ASSERT_EQ(put(version, hashes), (Versions{1, 1}));
    if (!complete(version, hashes).empty()) break;
    commit(version);
    commit(version);  // tried again, as a full disk has it: no commit
  }
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
  EXPECT_EQ(unchanged.worn(states(2)).size(), 1u) << "a quarter is in use, and not three";
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

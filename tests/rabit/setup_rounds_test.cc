// Which rounds are taken for set-up rounds, and what a state begins with.
#include "rabit/setup_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace rabit::layer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;

using Result = SetupRound::Result;

// A result that goes into the log when it has been kept long enough.
constexpr std::size_t kLarge = SetupRounds::kMaxSmallBytes + 1;

CallPlace line(int number) {
  return {"program.cc", number, "main"};
}
std::vector<std::byte> bytes(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}
// A call that makes a round like any other, and gives `value`.
void make(SetupRounds& rounds, int at, int value, std::size_t size = 3) {
  EXPECT_EQ(rounds.call(line(at)).kept, nullptr) << "line " << at;
  rounds.gave(bytes(size, value));
}
// What a job of these ranks does at the end of a version. What goes into the log now.
std::vector<SetupRound> end_version(std::vector<SetupRounds*> ranks) {
  const auto combined = [&](auto words_of, auto combine) {
    auto all = words_of(*ranks[0]);
    for (SetupRounds* r : ranks) {
      const auto words = words_of(*r);
      EXPECT_EQ(words.size(), all.size());
      for (std::size_t i = 0; i < words.size(); ++i) all[i] = combine(all[i], words[i]);
    }
    return all;
  };
  if (std::ranges::any_of(ranks, &SetupRounds::has_news)) {
    const auto names = combined([](const SetupRounds& r) { return r.names(); },
                                [](std::uint64_t a, std::uint64_t b) { return std::max(a, b); });
    for (SetupRounds* r : ranks) r->match(names);
    const auto facts = combined([](const SetupRounds& r) { return r.facts(); },
                                [](std::uint64_t a, std::uint64_t b) { return a | b; });
    for (SetupRounds* r : ranks) r->learn(facts);
  }
  const auto due = ranks[0]->due();
  for (SetupRounds* r : ranks) {
    EXPECT_EQ(r->due(), due) << "they are logged by all together";
    r->logged();
    EXPECT_EQ(r->table(), ranks[0]->table()) << "it is part of the global state";
    r->next_version();
  }
  return due;
}
std::vector<SetupRound> end_version(SetupRounds& rounds) {
  return end_version(std::vector<SetupRounds*>{&rounds});
}
std::vector<std::pair<std::uint64_t, std::uint64_t>> names(const std::vector<SetupRound>& rounds) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
  for (const SetupRound& r : rounds) all.emplace_back(r.version, r.index);
  return all;
}
std::vector<std::pair<std::uint64_t, std::uint64_t>> kept(const SetupRounds& rounds) {
  return names(rounds.table().kept);
}
// A process that has loaded the version that `of` begins.
SetupRounds next_life(const SetupRounds& of, std::uint64_t version) {
  return SetupRounds::loaded(version, of.table());
}
// What such a process is given when the others make another round, or none; nullopt: it makes a round like any other.
std::optional<std::vector<std::byte>> given(SetupRounds& rounds, int at) {
  const SetupRounds::Call call = rounds.call(line(at));
  if (call.kept == nullptr) return std::nullopt;
  EXPECT_TRUE(rounds.decided(call, false));
  return call.kept->result;
}
// A round that it meets, and makes with the others.
void meet(SetupRounds& rounds, int at, int value, std::size_t size = 3) {
  const SetupRounds::Call call = rounds.call(line(at));
  ASSERT_NE(call.kept, nullptr) << "line " << at;
  EXPECT_TRUE(rounds.decided(call, true));
  rounds.gave(bytes(size, value));
}

TEST(SetupRounds, ARoundIsKeptUntilAProcessCallsItsPlaceInTwoVersions) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1);  // round 0: set-up
  make(rounds, 20, 2);
  make(rounds, 10, 3);  // round 2: set-up, the same place again
  make(rounds, 20, 4);
  end_version(rounds);
  EXPECT_THAT(kept(rounds), SizeIs(4));
  SetupRounds young = next_life(rounds, 1);
  make(rounds, 20, 5);
  end_version(rounds);
  EXPECT_THAT(kept(rounds), ElementsAre(Pair(0, 0), Pair(0, 2)));

  // One that is new in version 1, where 20 might be either.
  EXPECT_EQ(given(young, 10), bytes(3, 1));
  meet(young, 20, 5);
  SetupRounds later = next_life(rounds, 2);
  EXPECT_EQ(given(later, 10), bytes(3, 1));
  make(later, 20, 6);
  EXPECT_EQ(given(later, 10), bytes(3, 3));
  EXPECT_EQ(given(later, 10), std::nullopt) << "once more than the first life made it";
}

// As XGBoost: update and evaluation are a version each, and a process that loads an evaluation makes its set-up rounds
// in the version after it.
TEST(SetupRounds, AProcessAsksInEachVersionUntilItHasCalledThePlace) {
  SetupRounds rounds = SetupRounds::first(0);
  for (std::uint64_t v = 0; v < 4; ++v) {
    if (v == 0) make(rounds, 10, 1);
    make(rounds, v % 2 == 0 ? 20 : 30, 2);
    end_version(rounds);
  }
  EXPECT_THAT(kept(rounds), ElementsAre(Pair(0, 0)));
  EXPECT_THAT(rounds.table().regular, SizeIs(2));
  SetupRounds young = next_life(rounds, 3);
  for (std::uint64_t v = 3; v < 7; ++v) {
    if (v == 4) {
      EXPECT_EQ(given(young, 10), bytes(3, 1));
    }
    make(young, v % 2 == 0 ? 20 : 30, 2);
    end_version(young);
  }
  EXPECT_EQ(young.call(line(10)).kept, nullptr);
}

TEST(SetupRounds, ARoundOfALaterVersionIsKeptToo) {
  SetupRounds rounds = SetupRounds::first(0);
  for (std::uint64_t v = 0; v < 4; ++v) {
    if (v == 2) make(rounds, 10, 7);
    make(rounds, 20, 2);
    end_version(rounds);
  }
  EXPECT_THAT(kept(rounds), ElementsAre(Pair(2, 0)));
  SetupRounds young = next_life(rounds, 4);
  EXPECT_EQ(given(young, 10), bytes(3, 7));
}

TEST(SetupRounds, WhatAllMakeAgainTogetherReplacesWhatWasKept) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1);
  make(rounds, 20, 2);
  end_version(rounds);
  SetupRounds a = next_life(rounds, 1), b = next_life(rounds, 1);
  for (SetupRounds* r : {&a, &b}) {
    meet(*r, 10, 5);
    meet(*r, 20, 6);
  }
  end_version({&a, &b});
  EXPECT_THAT(kept(a), ElementsAre(Pair(1, 0), Pair(1, 1))) << "none of them has seen a place twice";
  for (SetupRounds* r : {&a, &b}) make(*r, 20, 7);
  end_version({&a, &b});
  EXPECT_THAT(kept(a), ElementsAre(Pair(1, 0)));
  SetupRounds c = next_life(a, 3);
  EXPECT_EQ(given(c, 10), bytes(3, 5));
}

TEST(SetupRounds, WhatWasGivenCountsAsCalled) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1);
  end_version(rounds);
  SetupRounds young = next_life(rounds, 1);
  EXPECT_EQ(given(young, 10), bytes(3, 1));
  end_version({&young});
  make(young, 10, 2);
  end_version({&young});
  EXPECT_THAT(kept(young), IsEmpty()) << "it recurs";
}

TEST(SetupRounds, PlacesDifferByFileLineAndFunction) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1);
  end_version(rounds);
  SetupRounds young = next_life(rounds, 1);
  EXPECT_EQ(young.call({"program.cc", 10, "other"}).kept, nullptr);
  EXPECT_EQ(young.call({"other.cc", 10, "main"}).kept, nullptr);
  EXPECT_NE(young.call({"program.cc", 10, "main"}).kept, nullptr);
}

TEST(SetupRounds, NowhereIsNoPlace) {
  SetupRounds rounds = SetupRounds::first(0);
  EXPECT_EQ(rounds.call({nullptr, 0, nullptr}).kept, nullptr);
  rounds.gave(bytes(1, 1));
  EXPECT_FALSE(rounds.has_news());
  end_version(rounds);
  EXPECT_EQ(rounds.table(), SetupTable());
}

TEST(SetupRounds, WhatOneRankSeesAgainIsNone) {
  SetupRounds a = SetupRounds::first(0), b = SetupRounds::first(0);
  for (SetupRounds* r : {&a, &b}) {
    make(*r, 10, 1);
    make(*r, 11, 1);
  }
  end_version({&a, &b});
  SetupRounds young = next_life(a, 1);
  meet(young, 10, 1);
  make(b, 10, 1);
  end_version({&young, &b});
  EXPECT_THAT(kept(b), ElementsAre(Pair(0, 1)));
}

// As a root and the others do. Not from three.
TEST(SetupRounds, RanksMayCallARoundFromTwoPlaces) {
  SetupRounds a = SetupRounds::first(0), b = SetupRounds::first(0), c = SetupRounds::first(0);
  int at = 30;
  for (SetupRounds* r : {&a, &b, &c}) {
    make(*r, r == &b ? 10 : 11, 1);
    make(*r, at++, 1);
  }
  end_version({&a, &b, &c});
  ASSERT_THAT(kept(a), ElementsAre(Pair(0, 0)));
  for (const int from : {10, 11}) {
    SetupRounds later = next_life(a, 1);
    EXPECT_EQ(given(later, from), bytes(3, 1)) << "line " << from;
  }
  for (SetupRounds* r : {&a, &b, &c}) make(*r, r == &b ? 10 : 11, 1);
  end_version({&a, &b, &c});
  EXPECT_THAT(kept(a), IsEmpty()) << "whichever place is called again";
  EXPECT_THAT(a.table().regular, SizeIs(2));
}

TEST(SetupRounds, APlaceOfBothKindsIsNoticed) {
  SetupRounds rounds = SetupRounds::first(0);
  for (int i = 0; i < 3; ++i) make(rounds, 10, i);
  end_version(rounds);
  SetupRounds wrong = next_life(rounds, 1);
  EXPECT_TRUE(wrong.decided(wrong.call(line(10)), false));
  EXPECT_TRUE(wrong.decided(wrong.call(line(10)), true));
  EXPECT_FALSE(wrong.decided(wrong.call(line(10)), false)) << "the one before may have been meant";
  SetupRounds right = next_life(rounds, 1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(right.decided(right.call(line(10)), true));
}

TEST(SetupRounds, WhatIsTooLargeIsLeftOut) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1, SetupRounds::kMaxKeptBytes);
  make(rounds, 11, 1, 1);
  make(rounds, 12, 1, 0);
  end_version(rounds);
  EXPECT_EQ(rounds.take_left_out(), 1u);
  EXPECT_EQ(rounds.take_left_out(), 0u) << "it is said once";
  SetupRounds young = next_life(rounds, 1);
  EXPECT_EQ(given(young, 10)->size(), SetupRounds::kMaxKeptBytes);
  EXPECT_EQ(given(young, 11), std::nullopt) << "it makes a round, and the others do not";
  EXPECT_EQ(given(young, 12)->size(), 0u);
  make(young, 13, 1, 1);
  end_version(young);
  EXPECT_EQ(young.take_left_out(), 1u) << "what is kept counts";
}

// A rank whose process is new may have room that the others have not.
TEST(SetupRounds, WhatOneRankCouldNotRememberIsLeftOutByAll) {
  SetupRounds a = SetupRounds::first(0), b = SetupRounds::first(0);
  for (SetupRounds* r : {&a, &b}) {
    make(*r, r == &a ? 10 : 11, 1, SetupRounds::kMaxKeptBytes - 1);
    make(*r, 12, 1, 2);
  }
  end_version({&a, &b});
  EXPECT_EQ(a.table().kept.back().where, Result::kNone);
}

TEST(SetupRounds, AfterSomeVersionsTheLogHasThem) {
  SetupRounds a = SetupRounds::first(0), b = SetupRounds::first(0);
  for (std::uint64_t v = 0; v < 6; ++v) {
    for (SetupRounds* r : {&a, &b}) {
      if (v < 2) make(*r, 10 + static_cast<int>(v), 1, kLarge);
      make(*r, 20, 2);
    }
    const auto due = end_version({&a, &b});
    if (v < 4) {
      EXPECT_THAT(due, IsEmpty()) << v;
    } else {
      ASSERT_THAT(names(due), ElementsAre(Pair(v - 4, 0)));
      EXPECT_EQ(due[0].result, bytes(kLarge, 1));
    }
  }
  EXPECT_THAT(kept(a), ElementsAre(Pair(0, 0), Pair(1, 0)));
  for (const SetupRound& r : a.table().kept) {
    EXPECT_EQ(r.where, Result::kLogged);
    EXPECT_THAT(r.result, IsEmpty()) << "checkpoints carry it no more";
  }
  EXPECT_EQ(a.table().logged_rounds, 2u);
  EXPECT_EQ(a.table().logged_bytes, 2 * kLarge);
  SetupRounds young = next_life(a, 6);
  const auto call = young.call(line(10));
  ASSERT_NE(call.kept, nullptr);
  EXPECT_EQ(call.kept->where, Result::kLogged);
}

// Each vote names each round that the log has: a thousand of eight bytes made a checkpoint of 0.2 ms one of 0.9 ms.
TEST(SetupRounds, ManySmallResultsStayInCheckpointsAndLeaveVotesShort) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 9, 3, SetupRounds::kMaxSmallBytes + 1);
  for (int i = 0; i < 1000; ++i) make(rounds, 10, i % 100, i == 0 ? SetupRounds::kMaxSmallBytes : 8);
  std::size_t logged = 0;
  for (int v = 0; v < 8; ++v) logged += end_version(rounds).size();
  EXPECT_EQ(logged, 1u);
  EXPECT_EQ(rounds.table().logged_rounds, 1u);
  SetupRounds young = next_life(rounds, 8);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(given(young, 10), bytes(i == 0 ? SetupRounds::kMaxSmallBytes : 8, i % 100)) << i;
  }
}

TEST(SetupRounds, ResultsOfOneNameThatDifferHaveDifferentDigests) {
  std::vector<std::uint64_t> digests;
  for (const int value : {1, 2}) {
    SetupRounds rounds = SetupRounds::first(0);
    make(rounds, 10, value, kLarge);
    for (int v = 0; v < 4; ++v) end_version(rounds);
    digests.push_back(end_version(rounds).at(0).digest);
  }
  EXPECT_NE(digests[0], digests[1]);
}

TEST(SetupRounds, WhatTheLogMayGetIsBounded) {
  SetupRounds rounds = SetupRounds::first(0);
  for (int i = 0; i <= static_cast<int>(SetupRounds::kMaxLogged); ++i) make(rounds, 1000 + i, 1, kLarge);
  for (int v = 0; v < 4; ++v) end_version(rounds);
  EXPECT_THAT(end_version(rounds), SizeIs(SetupRounds::kMaxLogged));
  EXPECT_THAT(end_version(rounds), IsEmpty());
  EXPECT_EQ(rounds.table().kept.back().where, Result::kHere) << "checkpoints carry it on";
}

TEST(SetupRounds, RegularPlacesCostNoExchange) {
  SetupRounds rounds = SetupRounds::first(0);
  for (int v = 0; v < 3; ++v) {
    make(rounds, 20, 1);
    EXPECT_EQ(rounds.has_news(), v < 2);
    end_version(rounds);
  }
}

TEST(SetupRounds, WhoWatchesNothingKnowsNothing) {
  SetupRounds rounds;
  make(rounds, 10, 1);
  EXPECT_FALSE(rounds.watches());
  EXPECT_FALSE(rounds.has_news());
  end_version(rounds);
  EXPECT_EQ(rounds.table(), SetupTable());
}

StateHead head_of() {
  StateHead head{7, {}, true};
  head.table.kept.push_back({2, 3, {11, 12}, {21, 22}, 4, Result::kHere, 0, bytes(4, 9)});
  head.table.kept.push_back({2, 5, {13, 13}, {23, 23}, 1, Result::kLogged, 99, {}});
  head.table.kept.push_back({3, 0, {14, 14}, {24, 24}, 1 << 30, Result::kNone, 0, {}});
  head.table.regular = {31, 32};
  head.table.logged_rounds = 1;
  head.table.logged_bytes = 1;
  return head;
}
std::string written(const StateHead& head) {
  std::string state;
  write_head(head.version, head.table, head.no_local, state);
  return state;
}

TEST(StateHead, IsReadAsItWasWritten) {
  for (const bool no_local : {false, true}) {
    StateHead expected = head_of();
    expected.no_local = no_local;
    const std::string state = written(expected);
    StateHead head;
    EXPECT_EQ(read_head(state + "model", head), state.size());
    EXPECT_EQ(head.version, 7u);
    EXPECT_EQ(head.table, expected.table);
    EXPECT_EQ(head.no_local, no_local);
  }
}

TEST(StateHead, WhatIsNoneIsRefused) {
  const std::string state = written(head_of());
  StateHead head;
  for (std::size_t n = 0; n < state.size(); ++n) EXPECT_EQ(read_head(state.substr(0, n), head), 0u) << n;
  const auto changed = [&](std::size_t word, std::uint64_t to) {
    std::string other = state;
    other.replace(8 * word, 8, reinterpret_cast<const char*>(&to), 8);
    return read_head(other, head);
  };
  EXPECT_NE(changed(1, 8), 0u);
  EXPECT_EQ(changed(0, 0), 0u) << "no state of rabit's";
  EXPECT_EQ(changed(2, 2), 0u) << "neither with local models nor without";
  EXPECT_EQ(changed(3, SetupRounds::kMaxLogged + 1), 0u);
  EXPECT_EQ(changed(4, SetupRounds::kMaxLoggedBytes + 1), 0u);
  EXPECT_EQ(changed(5, UINT64_MAX / 4), 0u) << "more places than there can be";
  EXPECT_EQ(changed(6, UINT64_MAX / 4), 0u) << "more rounds";
  EXPECT_EQ(changed(8, 31), 0u) << "a place twice";
  constexpr std::size_t kFirst = 9;
  EXPECT_EQ(changed(kFirst + 1, SetupRounds::kMaxRounds), 0u) << "a round of a number that is not";
  EXPECT_EQ(changed(kFirst + 6, UINT64_MAX), 0u) << "a result that is not there";
  EXPECT_EQ(changed(kFirst + 7, 3), 0u) << "is nowhere";
}

}  // namespace
}  // namespace rabit::layer

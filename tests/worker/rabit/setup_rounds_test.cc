// Which rounds are taken for set-up rounds, and what a state begins with.
#include "worker/rabit/setup_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rabit::layer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

using Phase = SetupTable::Phase;

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
// What a job of these ranks does at the end of a version. Those that were decided on now.
std::vector<SetupRound> end_version(std::vector<SetupRounds*> ranks) {
  std::vector<SetupRound> kept;
  const auto combined = [&](auto words_of, auto combine) {
    auto all = words_of(*ranks[0]);
    for (SetupRounds* r : ranks) {
      const auto words = words_of(*r);
      EXPECT_EQ(words.size(), all.size());
      for (std::size_t i = 0; i < words.size(); ++i) all[i] = combine(all[i], words[i]);
    }
    return all;
  };
  const auto either = [](std::uint64_t a, std::uint64_t b) { return a | b; };
  const auto against = [](const SetupRounds& r) { return r.against(); };
  if (ranks[0]->gathering()) {
    const auto names = combined([](const SetupRounds& r) { return r.names(); },
                                [](std::uint64_t a, std::uint64_t b) { return std::max(a, b); });
    for (SetupRounds* r : ranks) r->match(names);
    const auto bits = combined(against, either);
    for (SetupRounds* r : ranks) r->keep(bits);
  } else if (ranks[0]->watching()) {
    const auto bits = combined(against, either);
    for (SetupRounds* r : ranks) {
      kept.clear();
      (void)r->decide(bits, kept);
    }
  }
  for (SetupRounds* r : ranks) {
    EXPECT_EQ(*r->table(), *ranks[0]->table()) << "it is part of the global state";
    r->next_version();
  }
  return kept;
}
std::vector<SetupRound> end_version(SetupRounds& rounds) {
  return end_version(std::vector<SetupRounds*>{&rounds});
}
std::vector<std::uint64_t> indices(const std::vector<SetupRound>& rounds) {
  std::vector<std::uint64_t> all;
  for (const SetupRound& r : rounds) all.push_back(r.index);
  return all;
}

TEST(SetupRounds, ARoundOfTheFirstVersionThatDoesNotComeBackIsOne) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1);  // round 0: set-up
  make(rounds, 20, 2);
  make(rounds, 10, 3);  // round 2: set-up, the same place again
  make(rounds, 20, 4);
  EXPECT_THAT(end_version(rounds), IsEmpty());
  EXPECT_EQ(rounds.table()->phase, Phase::kCandidates);
  EXPECT_THAT(rounds.table()->rounds, SizeIs(4));
  make(rounds, 20, 5);
  const auto kept = end_version(rounds);
  ASSERT_THAT(indices(kept), ElementsAre(0, 2));
  EXPECT_EQ(kept[0].result, bytes(3, 1));
  EXPECT_EQ(kept[1].result, bytes(3, 3));
  EXPECT_EQ(rounds.table()->phase, Phase::kDecided);
  EXPECT_THAT(rounds.table()->rounds[0].result, IsEmpty()) << "the log has it";

  SetupRounds later = SetupRounds::loaded(rounds.table());
  const auto first = later.call(line(10));
  ASSERT_NE(first.kept, nullptr);
  EXPECT_EQ(first.kept->index, 0u);
  EXPECT_TRUE(later.decided(first, false));
  EXPECT_EQ(later.call(line(20)).kept, nullptr);
  const auto second = later.call(line(10));
  ASSERT_NE(second.kept, nullptr);
  EXPECT_EQ(second.kept->index, 2u);
  EXPECT_EQ(later.call(line(10)).kept, nullptr) << "once more than the first life made it";
  end_version(later);
  EXPECT_EQ(later.call(line(10)).kept, nullptr) << "it is not new any more";
}

TEST(SetupRounds, WhoIsNewInTheSecondVersionAsksForCandidates) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1);
  make(rounds, 20, 2);
  end_version(rounds);
  SetupRounds young = SetupRounds::loaded(rounds.table());
  const auto call = young.call(line(10));
  ASSERT_NE(call.kept, nullptr);
  EXPECT_EQ(call.kept->result, bytes(3, 1));
  const auto other = young.call(line(20));
  ASSERT_NE(other.kept, nullptr);
  EXPECT_TRUE(young.decided(other, true));
  // What a new process calls says nothing about what recurs.
  make(rounds, 20, 3);
  EXPECT_THAT(indices(end_version({&rounds, &young})), ElementsAre(0));
}

TEST(SetupRounds, WhereAllAreNewNothingIsDecided) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1);
  make(rounds, 20, 2);
  end_version(rounds);
  SetupRounds a = SetupRounds::loaded(rounds.table()), b = SetupRounds::loaded(rounds.table());
  for (SetupRounds* r : {&a, &b}) {
    EXPECT_TRUE(r->decided(r->call(line(10)), true));
    EXPECT_TRUE(r->decided(r->call(line(20)), true));
  }
  EXPECT_THAT(end_version({&a, &b}), IsEmpty());
  EXPECT_EQ(a.table()->phase, Phase::kCandidates);
  make(a, 20, 3);
  make(b, 20, 3);
  EXPECT_THAT(indices(end_version({&a, &b})), ElementsAre(0));
}

TEST(SetupRounds, PlacesDifferByFileLineAndFunction) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1);
  end_version(rounds);
  EXPECT_EQ(rounds.call({"program.cc", 10, "other"}).kept, nullptr);
  EXPECT_EQ(rounds.call({"other.cc", 10, "main"}).kept, nullptr);
  EXPECT_THAT(end_version(rounds), SizeIs(1));
}

TEST(SetupRounds, NowhereIsNoPlace) {
  SetupRounds rounds = SetupRounds::first(0);
  EXPECT_EQ(rounds.call({nullptr, 0, nullptr}).kept, nullptr);
  rounds.gave(bytes(1, 1));
  end_version(rounds);
  EXPECT_THAT(rounds.table()->rounds, IsEmpty());
}

TEST(SetupRounds, WhatOneRankSeesAgainIsNone) {
  SetupRounds a = SetupRounds::first(0), b = SetupRounds::first(0);
  for (SetupRounds* r : {&a, &b}) {
    make(*r, 10, 1);
    make(*r, 11, 1);
  }
  end_version({&a, &b});
  make(b, 10, 1);
  EXPECT_THAT(indices(end_version({&a, &b})), ElementsAre(1));
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
  ASSERT_THAT(a.table()->rounds, SizeIs(1));
  for (const int from : {10, 11}) {
    SetupRounds later = SetupRounds::loaded(a.table());
    EXPECT_NE(later.call(line(from)).kept, nullptr) << "line " << from;
  }
  SetupRounds old = a;
  make(old, 10, 1);
  EXPECT_THAT(end_version(old), IsEmpty()) << "whichever place is called again";
}

TEST(SetupRounds, APlaceOfBothKindsIsNoticed) {
  SetupRounds rounds = SetupRounds::first(0);
  for (int i = 0; i < 3; ++i) make(rounds, 10, i);
  end_version(rounds);
  end_version(rounds);
  SetupRounds wrong = SetupRounds::loaded(rounds.table());
  EXPECT_TRUE(wrong.decided(wrong.call(line(10)), false));
  EXPECT_TRUE(wrong.decided(wrong.call(line(10)), true));
  EXPECT_FALSE(wrong.decided(wrong.call(line(10)), false)) << "the one before may have been meant";
  SetupRounds right = SetupRounds::loaded(rounds.table());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(right.decided(right.call(line(10)), true));
}

TEST(SetupRounds, WhatIsTooLargeIsLeftOut) {
  SetupRounds rounds = SetupRounds::first(0);
  make(rounds, 10, 1, SetupRounds::kMaxKeptBytes);
  make(rounds, 11, 1, 1);
  make(rounds, 12, 1, 0);
  end_version(rounds);
  SetupRounds young = SetupRounds::loaded(rounds.table());
  EXPECT_NE(young.call(line(10)).kept, nullptr);
  EXPECT_EQ(young.call(line(11)).kept, nullptr);
  EXPECT_THAT(indices(end_version(rounds)), ElementsAre(0));
  EXPECT_EQ(rounds.left_out(), 1u);
}

TEST(SetupRounds, WhoWatchesNothingKnowsNothing) {
  SetupRounds rounds;
  make(rounds, 10, 1);
  EXPECT_FALSE(rounds.gathering());
  EXPECT_FALSE(rounds.watching());
  end_version(rounds);
  EXPECT_EQ(rounds.table()->phase, Phase::kOff);
}

StateHead head_of(Phase phase, bool no_local = false) {
  auto table = std::make_shared<SetupTable>();
  table->phase = phase;
  table->first = 2;
  table->rounds.push_back({3, {11, 12}, {21, 22}, 4, phase == Phase::kCandidates ? bytes(4, 9) : bytes(0, 0)});
  table->rounds.push_back({5, {13, 13}, {23, 23}, 1, {}});
  return {7, table, no_local};
}

TEST(StateHead, IsReadAsItWasWritten) {
  for (const Phase phase : {Phase::kCandidates, Phase::kDecided}) {
    std::string state;
    const StateHead written = head_of(phase, phase == Phase::kDecided);
    write_head(written, state);
    const std::size_t head_bytes = state.size();
    state += "model";
    StateHead head;
    EXPECT_EQ(read_head(state, head), head_bytes);
    EXPECT_EQ(head.version, 7u);
    EXPECT_EQ(*head.table, *written.table);
    EXPECT_EQ(head.no_local, written.no_local);
  }
}

TEST(StateHead, WhatIsNoneIsRefused) {
  std::string state;
  write_head(head_of(Phase::kCandidates), state);
  StateHead head;
  for (std::size_t n = 0; n < state.size(); ++n) EXPECT_EQ(read_head(state.substr(0, n), head), 0u) << n;
  const auto changed = [&](std::size_t at, char to) {
    std::string other = state;
    other[at] = to;
    return read_head(other, head);
  };
  EXPECT_EQ(changed(0, 'R'), 0u);
  EXPECT_EQ(changed(7, 4), 0u) << "a later format";
  EXPECT_EQ(changed(16, 3), 0u) << "no phase";
  EXPECT_EQ(changed(16, 2), 0u) << "a result where it is decided";
  EXPECT_EQ(changed(39, '\x7f'), 0u) << "more rounds than there can be";
  EXPECT_EQ(changed(42, '\x7f'), 0u) << "a round of a number that is not";
  EXPECT_EQ(changed(40 + 6 * 8, 3), 0u) << "a part of a result";
}

}  // namespace
}  // namespace rabit::layer

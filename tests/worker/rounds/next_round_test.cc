// Set-up rounds, and how a life that comes back learns which round is next.
#include "tests/worker/rounds/recovery_world.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace warren::worker::recovering {
namespace {

// One rank's call of a sum, in or out of a set-up round.
struct Sum {
  Sum(World& world, int rank, const std::string& setup, std::uint64_t value, std::uint64_t count = 3000,
      std::uint64_t site = 0)
      : in(count, value), out(count, 0) {
    call.setup = setup;
    call.spec.site = site;
    make_sum(call.spec, in.data(), out.data(), count);
    submitted = world.engine(rank).submit(kWorldGroup, call);
  }
  bool gives(std::uint64_t value) const {
    return call.finished && call.status.ok() && std::count(out.begin(), out.end(), value) == std::ssize(out);
  }
  std::vector<std::uint64_t> in, out;
  Call call;
  Status submitted;
};

constexpr RoundId kAsked{Timeline(1), kWorldGroup, Version(2), Sequence(5)};

// Asks for kAsked from sites 7 and 8, and hears this word.
struct Asking {
  explicit Asking(RoundWord word, std::uint64_t site = 0, const KnownRounds::Known& known = {}) {
    next.ask({kAsked, {7, 8}});
    Inquiry::Answer answer{word, {}};
    answer.round.site = site;
    gap = next.hear(answer, known);
  }
  NextRound next;
  std::optional<NextRound::Gap> gap;
};

TEST(Question, IsMetByARoundFromOneOfItsSites) {
  EXPECT_EQ(Asking(RoundWord::kRound, 8).next.take_answer(), true);
  EXPECT_EQ(Asking(RoundWord::kRound, 8 | kSiteCompared).next.take_answer(), true);
  EXPECT_EQ(Asking(RoundWord::kRound, 9).next.take_answer(), false);
  EXPECT_EQ(Asking(RoundWord::kOver).next.take_answer(), false);
  Asking all(RoundWord::kAsks);
  EXPECT_EQ(all.next.take_answer(), true);
  EXPECT_EQ(all.next.take_answer(), std::nullopt) << "once";
  EXPECT_EQ(all.next.question(), nullptr);
}

TEST(Question, IsAGapWhereNobodyKnowsTheRound) {
  KnownRounds::Known begun;
  begun.final = Ranges(0, 8);
  for (const Asking& asking : {Asking(RoundWord::kGone), Asking(RoundWord::kAsks, 0, begun)}) {
    ASSERT_TRUE(asking.gap);
    EXPECT_TRUE(asking.gap->renumbers);
    EXPECT_NE(asking.next.question(), nullptr) << "it stays for the next generation";
  }
}

TEST(Question, IsAnsweredHereByWhatThisLifeAndThePlanKnow) {
  NextRound next;
  next.ask({kAsked, {7}});
  EXPECT_FALSE(next.answer_here({RoundWord::kLater, {}}, {}));
  KnownRounds::Known beyond;
  beyond.beyond = true;
  EXPECT_TRUE(next.answer_here({RoundWord::kLater, {}}, beyond));
  EXPECT_EQ(next.take_answer(), false);
  next.ask({kAsked, {7}});
  EXPECT_TRUE(next.answer_here({RoundWord::kOver, {}}, {}));
  next.ask_nobody();
  EXPECT_EQ(next.take_answer(), true);
}

TEST(Question, TellsOthersThatItAsksAndWhatItHasHeard) {
  NextRound next;
  const std::vector<std::uint64_t> same = {3, 8}, others = {3};
  EXPECT_FALSE(next.say(kAsked, same)) << "nothing is asked";
  next.ask({kAsked, {7, 8}});
  EXPECT_EQ(next.say(kAsked, same)->word, RoundWord::kAsks);
  EXPECT_EQ(next.say(kAsked, others)->word, RoundWord::kOther);
  EXPECT_FALSE(next.say({Timeline(1), kWorldGroup, Version(2), Sequence(6)}, same));
  EXPECT_FALSE(next.hear({RoundWord::kOver, {}}, {}));
  EXPECT_EQ(next.say(kAsked, others)->word, RoundWord::kOver);
  next.begin_version();
  EXPECT_FALSE(next.say(kAsked, others));
}

// A process that is started again in a later version gets what its first life got, alone, while the others are in
// the middle of that version.
TEST(SetupRounds, AreKeptForLivesThatComeLater) {
  for (const bool two_hosts : {false, true}) {
    World::Options options;
    options.size = 3;
    if (two_hosts) options.hosts = {0, 1, 1};
    World world(options);
    load_all(world, {0, 1, 2});
    {
      Sum a(world, 0, "sketch", 1), b(world, 1, "sketch", 10), c(world, 2, "sketch", 100);
      ASSERT_TRUE(world.run([&] { return a.gives(111) && b.gives(111) && c.gives(111); }));
      // Again in the same life, whatever is given.
      Sum again(world, 1, "sketch", 77);
      ASSERT_TRUE(world.run([&] { return again.gives(111); }));
      EXPECT_EQ(world.engine(1).next_round(kWorldGroup).sequence, Sequence(0)) << "it takes no number";
    }
    for (int n = 0; n < 3; n++) take_all(world, 3);
    Sum a(world, 0, "", 2), b(world, 1, "", 20);
    (void)world.run([&] { return false; });
    ASSERT_FALSE(a.call.finished) << "rank 2 is missing";
    (void)next_life(world, 2);
    Sum setup(world, 2, "sketch", 5000);
    ASSERT_TRUE(world.run([&] { return setup.gives(111); })) << "the others are elsewhere";
    Sum c(world, 2, "", 200);
    ASSERT_TRUE(world.run([&] { return a.gives(222) && b.gives(222) && c.gives(222); }));
    // Twice: a rank that has it from the log, and one that has not called it in its new life.
    world.kill(0);
    world.kill(1);
    world.next_generation({0, 1});
    load_all(world, {0, 1});
    Sum d(world, 0, "sketch", 1), e(world, 1, "sketch", 2);
    ASSERT_TRUE(world.run([&] { return d.gives(111) && e.gives(111); }));
    EXPECT_EQ(world.gaps, std::vector<std::string>());
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

TEST(SetupRounds, InterruptedOnesAreResumed) {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    std::mt19937 random(static_cast<unsigned>(seed));
    World::Options options;
    options.size = 3;
    options.hosts = {0, 1, 2};
    options.algorithm = schedule::Algorithm::kRing;
    World world(options);
    load_all(world, {0, 1, 2});
    std::vector<std::unique_ptr<Sum>> sums;
    for (int r = 0; r < 3; r++) sums.push_back(std::make_unique<Sum>(world, r, "big", 1u << r, 30'000));
    for (std::uint64_t steps = random() % 60; steps > 0; steps--) (void)world.step();
    const int lost = static_cast<int>(seed) % 3;
    world.kill(lost);
    sums[static_cast<std::size_t>(lost)].reset();
    world.next_generation({lost});
    load_all(world, {lost});
    sums[static_cast<std::size_t>(lost)] = std::make_unique<Sum>(world, lost, "big", 1u << lost, 30'000);
    ASSERT_TRUE(world.run([&] { return sums[0]->gives(7) && sums[1]->gives(7) && sums[2]->gives(7); })) << seed;
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

TEST(SetupRounds, OfEarlierTimelinesThoseOfThePlanAreInUse) {
  LinkTransport transport([](GroupId, Rank) {});
  RoundBoard board;
  Engine engine(transport, board);
  Engine::Plan p;
  p.generation = Generation(1);
  p.timeline = Timeline(3);
  p.self = Rank(0);
  p.chunk_bytes = 1 << 18;
  p.hosts = p.domains = {0};
  p.present = {Rank(0)};
  const auto name = [](std::uint64_t n) { return Sequence(kSetupBit | n); };
  p.setups = {{GroupId(4), name(7), Timeline(2), true, {}},
              {kWorldGroup, name(8), Timeline(3), false, {}},
              {kWorldGroup, name(9), Timeline(1), true, {}}};
  transport.open(p.generation, 1, false);
  engine.install(p);
  const SetupsInUse in_use = engine.setups_in_use();
  const auto has = [&](std::uint32_t timeline, std::uint64_t group, std::uint64_t n) {
    return in_use.has({Timeline(timeline), GroupId(group), kPreamble, name(n)});
  };
  EXPECT_EQ(in_use.earlier.size(), 2u);
  EXPECT_TRUE(has(2, 4, 7) && has(1, 0, 9));
  EXPECT_FALSE(has(1, 4, 7)) << "begun in timeline 1, and again in 2";
  EXPECT_FALSE(has(2, 0, 7) || has(2, 0, 8));
  EXPECT_TRUE(has(3, 0, 8) && has(3, 4, 7)) << "in this timeline others may be in whatever they like";
}

constexpr std::uint64_t kHere = 111, kThere = 222;

// Two hosts in their second version.
struct SecondVersion : World {
  SecondVersion() : World(two_hosts()) {
    load_all(*this, {0, 1});
    take_all(*this, 2);
  }
};
// What rank's new life hears of its next round, if it calls from kHere; nullopt: nothing yet.
std::optional<bool> hears(World& world, int rank) {
  std::optional<bool> met;
  int looks = 0;  // it asks again and again
  (void)world.run([&] { return (met = world.engine(rank).take_answer()).has_value() || ++looks == 5000; });
  return met;
}

TEST(NextRound, IsWhatAnOlderLifeIsIn) {
  for (const std::uint64_t site : {kHere, kThere}) {
    SecondVersion world;
    (void)next_life(world, 1);
    world.engine(1).ask_next({5, kHere});
    EXPECT_EQ(hears(world, 1), std::nullopt) << "rank 0 computes";
    EXPECT_TRUE(world.engine(1).asking());
    ASSERT_EQ(world.engine(1).describe_waits().size(), 1u);
    EXPECT_NE(world.engine(1).describe_waits()[0].find("waits for rank 0 to say which round"), std::string::npos);
    Sum a(world, 0, "", 1, 3000, site);
    ASSERT_EQ(hears(world, 1), site == kHere);
    Sum b(world, 1, "", 2, 3000, site);
    ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
  }
}

TEST(NextRound, IsNoneWhereAnOlderLifeHasEndedTheVersion) {
  SecondVersion world;
  (void)next_life(world, 1);
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), std::nullopt);
  const std::uint64_t model = 6;
  ASSERT_TRUE(world.checkpoints(0).take(std::as_bytes(std::span(&model, 1)), nullptr).ok());
  EXPECT_EQ(hears(world, 1), false);
  // Or its program.
  SecondVersion other;
  (void)next_life(other, 1);
  other.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(other, 1), std::nullopt);
  other.engine(0).end_rounds();
  EXPECT_EQ(hears(other, 1), false);
}

// What the log has of it was made, whoever is left.
TEST(NextRound, IsWhatTheLogHas) {
  SecondVersion world;
  Sum a(world, 0, "", 1, 3000, kThere), b(world, 1, "", 2, 3000, kThere);
  ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
  for (const int lost : {1, 0}) {
    (void)next_life(world, lost);
    world.engine(lost).ask_next({kHere});
    EXPECT_EQ(hears(world, lost), false) << "rank " << lost;
    Sum again(world, lost, "", 77, 3000, kThere);
    ASSERT_TRUE(world.run([&] { return again.gives(3); }));
  }
}

TEST(NextRound, IsMadeWhereAllAskAndNobodyKnows) {
  SecondVersion world;
  (void)next_life(world, 0);
  world.engine(0).ask_next({kHere});
  EXPECT_EQ(hears(world, 0), std::nullopt) << "rank 1 is not new";
  world.kill(1);
  world.next_generation({1});
  EXPECT_EQ(hears(world, 0), std::nullopt) << "rank 1 has not loaded";
  load_all(world, {1});
  EXPECT_EQ(hears(world, 0), std::nullopt) << "rank 1 computes";
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), true);
  EXPECT_EQ(hears(world, 0), std::nullopt) << "rank 1 has not begun it";
  Sum b(world, 1, "", 2, 3000, kHere);
  EXPECT_EQ(hears(world, 0), true);
  Sum a(world, 0, "", 1, 3000, kHere);
  ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
}

// Each would make its own, and a version with two different rounds of a number would be committed.
TEST(NextRound, IsAGapWhereNewProcessesAskForDifferentCalls) {
  SecondVersion world;
  (void)next_life(world, 0);
  world.engine(0).ask_next({kHere});
  (void)next_life(world, 1);
  world.engine(1).ask_next({kThere});
  EXPECT_EQ(hears(world, 0), std::nullopt);
  EXPECT_EQ(hears(world, 1), std::nullopt);
  ASSERT_FALSE(world.gaps.empty());
  EXPECT_NE(world.gaps[0].find("no rank knows which call is round 1.0"), std::string::npos) << world.gaps[0];
  EXPECT_TRUE(world.gap_renumbers);
}

// Rank 0 was told that the round is another one, and who told it is lost: rank 1 must hear the same.
TEST(NextRound, WhatWasHeardStaysTrue) {
  SecondVersion world;
  (void)next_life(world, 0);
  world.engine(0).ask_next({kHere});
  {
    Sum lost(world, 1, "", 2, 3000, kThere);
    EXPECT_EQ(hears(world, 0), false);
    world.kill(1);
  }
  world.next_generation({1});
  load_all(world, {1});
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), false);
  // Also where both ask again: two set-up rounds follow each other.
  world.engine(0).ask_next({kHere});
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 0), false);
  EXPECT_EQ(hears(world, 1), false);
  Sum a(world, 0, "", 1, 3000, kThere), b(world, 1, "", 2, 3000, kThere);
  ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
}

// A sum of nothing and forty more, so that nobody remembers the first: by these ranks together, or from the log.
void make_rounds(World& world, const std::vector<int>& ranks) {
  for (int n = 0; n <= 40; n++) {
    std::vector<std::unique_ptr<Sum>> sums;
    for (const int r : ranks) {
      sums.push_back(std::make_unique<Sum>(world, r, "", 1, n == 0 ? 0 : 3, n == 0 ? kThere : 5));
    }
    ASSERT_TRUE(world.run([&] { return std::ranges::all_of(sums, [](auto& s) { return s->gives(2); }); })) << n;
  }
}

// Seen in its log's records alone, and those of a round without bytes nobody fetches: each who replays it logs it
// again, or they go with the segments of the dead.
TEST(NextRound, OfNoBytesIsKnownAfterItsMakersAreGone) {
  SecondVersion world;
  make_rounds(world, {0, 1});
  (void)next_life(world, 0);
  make_rounds(world, {0});
  (void)world.run([&] { return false; });
  world.next_generation({});
  ASSERT_TRUE(world.log(0).attached().empty()) << "nothing is needed of the dead life's";
  world.kill_host(1);
  world.next_generation({1});
  load_all(world, {1});
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), false);
  make_rounds(world, {1});
  EXPECT_EQ(world.gaps, std::vector<std::string>());
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// I7: more was lost than there are copies. The process that asks must not do so for ever, while the others wait for it.
TEST(NextRound, ThatNobodyKnowsAnyMoreIsAGap) {
  SecondVersion world;
  make_rounds(world, {0, 1});
  (void)next_life(world, 1);
  for (int r = 0; r < 2; r++) world.log(r).drop_below(world.engine(r).version().next());
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), std::nullopt);
  ASSERT_EQ(world.gaps.size(), 1u);
  EXPECT_NE(world.gaps[0].find("no host holds anything of round 1.0"), std::string::npos) << world.gaps[0];
  EXPECT_TRUE(world.gap_renumbers);
  // So is one of a version that the others have ended.
  SecondVersion other;
  make_rounds(other, {0, 1});
  (void)next_life(other, 1);
  const std::uint64_t model = 6;
  ASSERT_TRUE(other.checkpoints(0).take(std::as_bytes(std::span(&model, 1)), nullptr).ok());
  for (int r = 0; r < 2; r++) other.log(r).drop_below(other.engine(1).version().next());
  other.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(other, 1), std::nullopt);
  EXPECT_EQ(other.gaps.size(), 1u);
}

TEST(SetupRounds, AnotherCallUnderTheNameIsADesync) {
  World world({2, 2, {0, 0}, schedule::Algorithm::kAuto, 4096});
  Sum a(world, 0, "schema", 1), b(world, 1, "schema", 2);
  ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
  Sum other(world, 0, "schema", 1, 17);
  EXPECT_FALSE(world.run([&] { return other.call.finished.load(); }));
  ASSERT_FALSE(world.failures.empty());
  EXPECT_NE(world.failures[0].find("set-up round \"schema\""), std::string::npos) << world.failures[0];
}

TEST(SetupRounds, AreBounded) {
  World world({1, 1, {0}, schedule::Algorithm::kAuto, 4096});
  for (std::size_t n = 0; n < limits::kMaxSetups; n++) {
    Sum s(world, 0, "n" + std::to_string(n), 1, 1);
    ASSERT_TRUE(s.submitted.ok()) << s.submitted.describe();
    ASSERT_TRUE(world.run([&] { return s.gives(1); }));
  }
  Sum more(world, 0, "more", 1, 1);
  EXPECT_EQ(more.submitted.code(), Code::kExhausted);
  EXPECT_NE(more.submitted.describe().find("at most 1024"), std::string::npos) << more.submitted.describe();
  Sum known(world, 0, "n5", 9, 1);
  EXPECT_TRUE(world.run([&] { return known.gives(1); })) << "those that are known go on";
}

}  // namespace
}  // namespace warren::worker::recovering

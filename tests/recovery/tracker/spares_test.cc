// Workers beyond the world's size: who waits, who is called, and when not.
#include "recovery/decide/spares.h"

#include <gtest/gtest.h>

#include "recovery/base/limits.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A job of `world_size` ranks, all of which wait as spares when they find no place.
class Job : public TrackerScript {
 public:
  explicit Job(std::uint32_t world_size, bool logs = false, std::uint32_t replicas = 2)
      : TrackerScript(logs, replicas), world_size_(world_size), replicas_(replicas) {}

  [[nodiscard]] wire::Join join_of(const std::string& worker, const std::string& host) const {
    wire::Join j = test::join(worker, host, world_size_, replicas_);
    j.set_waits(true);
    return j;
  }
  std::string say(std::uint64_t life, const wire::Join& join) {
    wire::Envelope e = promised(life);
    *e.mutable_join() = join;
    return send(std::move(e));
  }
  std::string joins(const std::string& worker, std::uint64_t life, const std::string& host) {
    return say(life, join_of(worker, host));
  }
  // Workers w0, w1 and so on join from these hosts, in lives 10, 11 and so on.
  void all_join(const std::vector<std::string>& hosts) {
    for (std::size_t i = 0; i < hosts.size(); ++i) (void)joins("w" + std::to_string(i), 10 + i, hosts[i]);
  }
  std::string waits(const std::string& worker, std::uint64_t life, const std::string& host) {
    wire::Join j = join_of(worker, host);
    j.set_spare(true);
    return say(life, j);
  }
  std::string answers(const std::string& worker, std::uint64_t life, const std::string& host,
                      std::uint64_t generation) {
    wire::Join j = join_of(worker, host);
    j.set_called(generation);
    return say(life, j);
  }
  // Lets workers say something, and a second pass, this many times. Returns the effects of the seconds.
  std::string each_second(int seconds, auto say_something) {
    std::string text;
    for (int second = 0; second < seconds; ++second) {
      say_something();
      text += pass(1000);
    }
    return text;
  }
  [[nodiscard]] TrackerMachine::View view() { return machine().view(TimeMs{now()}); }

 private:
  std::uint32_t world_size_, replicas_;
};

// Ranks 0 and 1 on hosts a and b, in generation 1; w2 waits on host c, or on another.
void begin(Job& t, const std::string& spare_host = "c") {
  ASSERT_TRUE(has(t.waits("w2", 12, spare_host), "12 <- Welcome as a spare\n"));
  (void)t.joins("w0", 10, "a");
  ASSERT_TRUE(has(t.joins("w1", 11, "b"), "10 <- Plan generation 1 w0=10 w1=11\n"));
}

// Rank 1 is lost after begin(), and rank 0 has stopped.
void begin_and_lose_rank_1(Job& t) {
  begin(t);
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1);
}

TEST(Spares, TakeAPlaceOfTheirHostThenOfTheirDomainThenAny) {
  const std::vector<FreePlace> places = {{"a", "x"}, {"b", "x"}, {"c", "y"}, {"e", "z", true}, {"f", "f"}};
  const std::vector<IdleSpare> spares = {{"q", "q", 2}, {"a", "x", 9}, {"a", "x", 5}, {"g", "x", 4}, {"h", "q", 1}};
  using Chosen = std::vector<std::optional<std::size_t>>;
  // Who has waited longest goes where nobody is nearer. Nobody of e is there.
  EXPECT_EQ(choose_spares(places, spares), (Chosen{2, 3, 4, std::nullopt, 0}));
  EXPECT_EQ(choose_spares(places, {}), Chosen(5));
  EXPECT_TRUE(choose_spares({}, spares).empty());
}

TEST(Spares, OfOtherHostsComeFirstWhereAHostMayBeWhatWasSlow) {
  const std::vector<FreePlace> slow = {{"a", "x", false, true}};
  using Chosen = std::vector<std::optional<std::size_t>>;
  const std::vector<IdleSpare> own = {{"a", "x", 1}}, near = {{"a", "x", 1}, {"q", "q", 2}, {"b", "x", 3}},
                               far = {{"a", "x", 1}, {"r", "r", 3}, {"q", "q", 2}};
  EXPECT_EQ(choose_spares(slow, own), Chosen{0});
  EXPECT_EQ(choose_spares(slow, near), Chosen{2});
  EXPECT_EQ(choose_spares(slow, far), Chosen{2}) << "who has waited longest";
  // Others' own come first; and who has looked early is followed by its host's.
  EXPECT_EQ(choose_spares(std::vector<FreePlace>{{"a", "x", false, true}, {"q", "q"}}, far), (Chosen{1, 2}));
  EXPECT_EQ(choose_spares(std::vector<FreePlace>{{"a", "x", true, true}}, near), Chosen{0});
}

TEST(Spares, AreWithinReachWhileFewerDomainsAreMissingThanThereAreCopies) {
  const std::map<std::string, std::string> four = {{"a", "a"}, {"b", "b"}, {"c", "c"}, {"d", "d"}};
  EXPECT_TRUE(within_reach(four, {"a", "b", "c", "e"}, {}, 2));
  EXPECT_FALSE(within_reach(four, {"a", "b", "e", "f"}, {}, 2));
  EXPECT_TRUE(within_reach(four, {"a", "b"}, {}, 3));
  // Fewer domains than copies: one copy in each.
  EXPECT_TRUE(within_reach({{"a", "a"}, {"b", "b"}}, {"b"}, {}, 3));
  EXPECT_FALSE(within_reach({{"a", "a"}, {"b", "b"}}, {}, {}, 3));
  EXPECT_FALSE(within_reach({{"a", "a"}}, {"b"}, {}, 1));
  // A domain of two hosts is missing with one of them: it may be the one that holds the piece.
  EXPECT_FALSE(within_reach({{"a", "x"}, {"b", "x"}}, {"b"}, {}, 1));
  EXPECT_TRUE(within_reach({{"a", "x"}, {"b", "x"}, {"c", "y"}}, {"b", "c"}, {}, 2));
  EXPECT_FALSE(within_reach({{"a", "x"}, {"b", "x"}, {"c", "y"}}, {"b"}, {}, 2));
  EXPECT_TRUE(within_reach(four, {}, {}, 0));
  // What a plan has left counts until it is obsolete.
  EXPECT_FALSE(within_reach(four, {"a", "b", "c"}, {"x"}, 2));
  EXPECT_TRUE(within_reach({{"a", "a"}, {"c", "c"}}, {"a", "c"}, {"b"}, 2));
  EXPECT_FALSE(within_reach({{"a", "a"}, {"c", "c"}}, {"a"}, {"b"}, 2));
}

TEST(Spares, ASpareTakesTheLostRanksPlaceAtOnceAndTheLostOneWaitsInTurn) {
  Job t(2);
  begin(t);
  EXPECT_TRUE(has(t.give_up(11, 1), "10 <- Pause generation 2"));
  // Only now all have stopped: what its host holds can be told.
  EXPECT_TRUE(has(t.report(10, 2, 1, {position(1, 3)}), "12 <- Called generation 2 stale\n"));
  EXPECT_EQ(t.waits("w2", 12, "c"), "12 <- Called generation 2 stale\n") << "while it looks, it says that it is there";
  EXPECT_EQ(t.view().spares.front().called_for, Rank(1));
  const std::string planned = t.answers("w2", 12, "c", 2);
  EXPECT_TRUE(has(planned, "10 <- Plan generation 2 w0=10 (as before) w2=12 1.3\n")) << planned;
  EXPECT_EQ(t.joins("w1", 13, "b"), "13 <- Welcome as a spare\n");
  EXPECT_EQ(t.view().spares_used, 1U);
  ASSERT_EQ(t.view().spares.size(), 1U);
  EXPECT_EQ(t.view().spares.front().worker_id, "w1");

  // Not needed: it hears so when all have finalized.
  (void)t.finalize(10, 2);
  EXPECT_TRUE(has(t.finalize(12, 2), "13 <- Refused 12: job j is finished\n"));
  EXPECT_TRUE(has(t.waits("w1", 13, "b"), "13 <- Refused 12")) << "or when it asks again";
}

TEST(Spares, WhoHasAPlaceAlreadyIsNotASpare) {
  Job t(2);
  (void)t.joins("w0", 10, "a");
  EXPECT_EQ(t.waits("w1", 11, "b"), "11 <- Welcome as a spare\n");
  EXPECT_TRUE(has(t.joins("w1", 12, "b"), "10 <- Plan generation 1 w0=10 w1=12\n"));
  EXPECT_TRUE(t.view().spares.empty());
  // A process that a launcher numbers as a spare has taken a place, and dies: it gets it back by being called for it.
  EXPECT_TRUE(has(t.waits("w1", 13, "b"), "10 <- Pause generation 2"));
  EXPECT_TRUE(has(t.report(10, 2, 1), "13 <- Called generation 2\n"));
  EXPECT_TRUE(has(t.answers("w1", 13, "b", 2), "Plan generation 2 w0=10 (as before) w1=13\n"));
}

TEST(Spares, ThoseThatFollowAreToldOfCommitsAndWhoHoldsThem) {
  Job t(2);
  begin(t);
  std::uint64_t run = 10;
  const auto waits = [&](std::uint64_t version, std::uint64_t generation) {
    wire::Join j = t.join_of("w2", "c");
    j.set_spare(true);
    j.mutable_followed()->set_version(version);
    j.mutable_followed()->set_generation(generation);
    j.mutable_followed()->set_run(generation == 0 ? 0 : run);
    return t.say(12, j);
  };
  EXPECT_EQ(waits(0, 0), "12 <- Welcome as a spare\n") << "nothing is committed";
  EXPECT_EQ(t.view().spares.front().followed, std::nullopt);
  const auto commit = [&](std::uint64_t version, std::uint64_t other) {
    (void)t.vote(10, version);
    EXPECT_TRUE(has(t.vote(other, version), "Committed " + std::to_string(version)));
  };
  commit(2, 11);
  EXPECT_EQ(waits(0, 0), "12 <- Welcome as a spare, follow 2 timeline 0 of generation 1: w0=10 w1=11\n");
  EXPECT_EQ(waits(0, 0), "12 <- Welcome as a spare\n") << "the plan is on its way";
  EXPECT_EQ(waits(0, 1), "12 <- Welcome as a spare, follow 2 timeline 0 of generation 1\n") << "it has the plan";
  EXPECT_EQ(waits(2, 1), "12 <- Welcome as a spare\n");
  EXPECT_EQ(t.view().spares.front().followed, Version(2));
  EXPECT_EQ(t.waits("w2", 12, "c"), "12 <- Welcome as a spare\n") << "who does not follow";
  // Rank 1 has a new life.
  EXPECT_TRUE(has(t.joins("w1", 21, "b"), "10 <- Pause generation 2"));
  EXPECT_TRUE(has(t.report(10, 2, 2), "Plan generation 2"));
  EXPECT_EQ(waits(2, 1), "12 <- Welcome as a spare\n") << "nothing new";
  commit(3, 21);
  EXPECT_EQ(waits(2, 1), "12 <- Welcome as a spare, follow 3 timeline 0 of generation 2: w0=10 w1=21\n");
  EXPECT_EQ(waits(3, 2), "12 <- Welcome as a spare\n");
  // What it holds is of a run of the job that is no more.
  run = 9;
  EXPECT_EQ(waits(3, 2), "12 <- Welcome as a spare\n") << "it was told a moment ago";
  std::string later;
  for (int i = 0; i < 25; i++) later += t.pass_alive(1000, {10, 21}, 2) + waits(3, 2);
  EXPECT_TRUE(has(later, "follow 3 timeline 0 of generation 2: w0=10 w1=21\n")) << later;
}

// A look is at all ranks: with thousands of them, and many spares, each word would cost as much.
TEST(Spares, ThatSayTheyAreThereHaveTheTrackerLookAtNothingWhileTheJobRuns) {
  Job t(2);
  const auto looks_now = [&] {
    EXPECT_EQ(t.view().spares.size(), 1U);
    EXPECT_EQ(t.waits("w2", 12, "c"), "12 <- Welcome as a spare\n");
    return t.machine().next_deadline()->value <= t.now();
  };
  (void)t.waits("w2", 12, "c");
  (void)t.joins("w0", 10, "a");
  (void)t.pass(2101);
  EXPECT_FALSE(looks_now()) << "there are no places yet";
  (void)t.joins("w1", 11, "b");
  (void)t.pass(2101);
  EXPECT_FALSE(looks_now());
  (void)t.give_up(11, 1);
  EXPECT_FALSE(looks_now()) << "not all have stopped";
  EXPECT_TRUE(has(t.report(10, 2, 1), "12 <- Called generation 2 stale\n"));
}

TEST(Spares, TheSpareOfTheLostRanksHostIsCalled) {
  Job t(2);
  (void)t.waits("w2", 12, "c");
  (void)t.waits("w3", 13, "b");
  t.all_join({"a", "b"});
  (void)t.give_up(11, 1);
  EXPECT_TRUE(has(t.report(10, 2, 1), "13 <- Called generation 2\n"));
}

TEST(Spares, WhoseLinksAllLostAndWhoAloneDoesNotAnswerIsFencedSoonAfterTheOthersHaveAnswered) {
  Job t(3);
  (void)t.waits("w3", 13, "a");
  t.all_join({"a", "a", "a"});
  (void)t.pass(500);
  (void)t.link_broken(10, 1, 2, 12);
  (void)t.link_broken(11, 1, 2, 12);
  EXPECT_FALSE(has(t.pass(9), "Pause"));
  EXPECT_TRUE(has(t.pass(1), "10 <- Pause generation 2"));
  // However long it takes until the others have heard it.
  EXPECT_FALSE(has(t.pass(400), "drop 12"));
  (void)t.report(10, 2, 1);
  (void)t.pass(100);
  (void)t.report(11, 2, 1);
  EXPECT_FALSE(has(t.pass(19), "drop 12"));
  const std::string fenced = t.pass(1);
  EXPECT_TRUE(has(fenced, "drop 12\n")) << fenced;
  EXPECT_TRUE(has(fenced, "13 <- Called generation 2\n")) << fenced;
  // It was alive: its launcher may start it again, as a spare.
  wire::Envelope late = from_worker(12);
  late.mutable_report()->set_generation(2);
  late.mutable_report()->set_version(1);
  EXPECT_TRUE(has(t.send(late), "12 <- Refused 7"));
}

// All have closed their links: of the second one nothing was known when the generation was ended.
TEST(Spares, WhoDiesBesideAnotherIsFencedOnceItsProcessIsSeenToHaveGone) {
  Job t(4, true);
  (void)t.waits("w4", 14, "a");
  (void)t.waits("w5", 15, "a");
  t.all_join({"a", "a", "a", "a"});
  (void)t.link_broken(10, 1, 3, 13);
  (void)t.link_broken(11, 1, 3, 13);
  EXPECT_TRUE(has(t.pass(10), "10 <- Pause generation 2"));
  EXPECT_EQ(t.gone(10, 1, 2, 12), "") << "its data path runs still";
  (void)t.report(10, 2, 1);
  (void)t.report(11, 2, 1);
  EXPECT_FALSE(has(t.pass(500), "drop 12"));
  // A link that was closed says nothing; nor does a word of another generation, or of another life.
  EXPECT_EQ(t.link_broken(10, 1, 2, 12), "");
  EXPECT_EQ(t.gone(10, 2, 2, 12), "");
  EXPECT_EQ(t.gone(10, 1, 2, 99), "");
  EXPECT_EQ(t.gone(10, 1, 1, 11), "") << "it has answered";
  const std::string fenced = t.gone(10, 1, 2, 12);
  EXPECT_TRUE(has(fenced,
                  "log link_broken: rank 0 (worker w0 on host a) has looked for rank 2 (worker w2 on host a): "
                  "refused\n"))
      << fenced;
  EXPECT_TRUE(has(fenced, "drop 12\n")) << fenced;
  EXPECT_TRUE(has(fenced, "drop 13\n")) << fenced;
  EXPECT_TRUE(has(fenced, "14 <- Called generation 2\n") && has(fenced, "15 <- Called generation 2\n")) << fenced;
  EXPECT_EQ(t.gone(11, 1, 2, 12), "");
}

// Its answer may be on its way.
TEST(Spares, WhoseProcessIsSaidToHaveGoneIsGivenTheTimeOfAnySuspect) {
  Job t(3);
  (void)t.waits("w3", 13, "a");
  t.all_join({"a", "a", "a"});
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1);
  EXPECT_EQ(t.gone(10, 1, 2, 12), "");
  EXPECT_EQ(t.gone(10, 1, 2, 12), "");
  EXPECT_FALSE(has(t.pass(19), "drop 12"));
  EXPECT_TRUE(has(t.report(12, 2, 1), "13 <- Called generation 2\n")) << "for rank 1";
}

TEST(Spares, WhoOwesNoAnswerOrWhoseLinksHoldIsNoSuspect) {
  Job t(3);
  (void)t.waits("w3", 13, "a");
  t.all_join({"a", "a", "a"});
  (void)t.link_broken(10, 1, 1, 11);
  (void)t.link_broken(11, 1, 0, 10);
  (void)t.pass(10);
  (void)t.report(10, 2, 1);
  // Nobody has lost a link to rank 2: it may take its time.
  (void)t.report(11, 2, 1);
  EXPECT_EQ(t.pass(900), "");
  EXPECT_TRUE(has(t.report(12, 2, 1), "Plan generation 2 w0=10 (as before) w1=11 (as before) w2=12 (as before)\n"));
}

TEST(Spares, WhoIsHeardIsGivenTimeAndWithoutASpareARoundTimeout) {
  for (const bool spare : {true, false}) {
    Job t(3);
    if (spare) (void)t.waits("w3", 13, "a");
    t.all_join({"a", "a", "a"});
    (void)t.link_broken(10, 1, 2, 12);
    (void)t.link_broken(11, 1, 2, 12);
    (void)t.pass(spare ? 10 : 50);
    (void)t.report(10, 2, 1);
    (void)t.report(11, 2, 1);
    (void)t.pass(15);
    (void)t.beat(12, 1);
    EXPECT_FALSE(has(t.pass(19), "drop 12")) << spare;
    EXPECT_EQ(has(t.pass(1), "drop 12"), spare);
  }
}

TEST(Spares, ASilentSpareIsNotCountedOnUntilItIsHeardAgain) {
  Job t(2, true);
  begin(t);
  const std::string lost = t.pass_alive(5000, {10, 11}, 1);
  EXPECT_TRUE(has(lost, "log spare_lost: spare w2 on host c")) << lost;
  EXPECT_TRUE(has(lost, "drop 12\n"));
  EXPECT_TRUE(t.view().spares.empty());
  EXPECT_TRUE(has(t.waits("w2", 12, "c"), "12 <- Welcome as a spare\n"));
  // Nor is one for good that goes silent while it takes a place.
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1);
  EXPECT_TRUE(has(t.give_up(12, 0), "log spare_left"));
  EXPECT_TRUE(t.view().spares.empty());
}

TEST(Spares, ASilentTakerComesBackAsASpare) {
  Job t(3);
  (void)t.waits("w3", 13, "a");
  t.all_join({"a", "a", "a"});
  (void)t.give_up(11, 1);
  (void)t.give_up(12, 2);
  (void)t.report(10, 2, 1);
  (void)t.answers("w3", 13, "a", 2);
  EXPECT_EQ(t.view().waiting_for.size(), 2U) << "one more place is free, and nobody there for it";
  const std::string text = t.each_second(6, [&] { (void)t.report(10, 2, 1); });
  EXPECT_TRUE(has(text, "drop 13\n")) << text;
  EXPECT_TRUE(has(t.waits("w3", 13, "a"), "13 <- Called generation 2\n"));
}

TEST(Spares, ASpareThatDiesWhileItIsCalledIsPassedOver) {
  Job t(2);
  (void)t.waits("w3", 13, "c");
  begin(t);
  (void)t.give_up(11, 1);
  EXPECT_TRUE(has(t.report(10, 2, 1), "13 <- Called generation 2 stale\n"));
  (void)t.waits("w2", 12, "c");
  EXPECT_TRUE(has(t.pass(2000), "12 <- Called generation 2 stale\n"));
  // It was only slow: the other is called now.
  EXPECT_EQ(t.answers("w3", 13, "c", 2), "13 <- Welcome as a spare, called in generation 2\n");
  EXPECT_TRUE(has(t.answers("w2", 12, "c", 2), "Plan generation 2 w0=10 (as before) w2=12\n"));
}

TEST(Spares, WhoComesBackItselfKeepsItsPlace) {
  Job t(2);
  begin_and_lose_rank_1(t);
  const std::string planned = t.joins("w1", 13, "b");
  EXPECT_TRUE(has(planned, "Plan generation 2 w0=10 (as before) w1=13\n")) << planned;
  EXPECT_EQ(t.answers("w2", 12, "c", 2), "12 <- Welcome as a spare, called in generation 2\n");
  // Likewise where the spare has answered already, and others are missing still.
  Job u(3);
  (void)u.waits("w3", 13, "a");
  u.all_join({"a", "a", "a"});
  (void)u.give_up(11, 1);
  (void)u.give_up(12, 2);
  EXPECT_TRUE(has(u.report(10, 2, 1), "13 <- Called generation 2\n"));
  (void)u.answers("w3", 13, "a", 2);
  EXPECT_TRUE(has(u.joins("w1", 14, "a"), "13 <- Welcome as a spare, called in generation 2\n"));
  EXPECT_TRUE(has(u.pass(1000), "13 <- Called generation 2\n")) << "for the other place";
  EXPECT_TRUE(has(u.answers("w3", 13, "a", 2), "Plan generation 2 w0=10 (as before) w1=14 w3=13\n"));
}

// What is called for one interrupt is not said to the next: rounds may have run between the two (I1).
TEST(Spares, WhatASpareHasSeenBeforeTheRanksRanAgainDoesNotCount) {
  Job t(2);
  begin_and_lose_rank_1(t);
  (void)t.joins("w1", 13, "b");  // generation 2
  (void)t.give_up(13, 2);
  EXPECT_TRUE(has(t.report(10, 3, 1), "12 <- Called generation 3 stale\n"));
  EXPECT_EQ(t.answers("w2", 12, "c", 2), "12 <- Welcome as a spare, called in generation 2\n");
  EXPECT_EQ(t.waits("w2", 12, "c"), "12 <- Called generation 3 stale\n");
  EXPECT_TRUE(has(t.answers("w2", 12, "c", 3), "Plan generation 3 w0=10 (as before) w2=12\n"));
}

// A new life of a rank of host b has looked at b's memory before another rank of b was lost, which may have completed a
// round since. A spare of another host would not know of it.
TEST(Spares, WhereALifeOfTheHostHasLookedTooEarlyOnlyThatHostsOwnTakeItsPlaces) {
  Job t(3);
  (void)t.waits("w3", 13, "c");
  t.all_join({"a", "b", "b"});
  (void)t.joins("w1", 14, "b");  // generation 2: it was started again
  (void)t.report(10, 2, 1);
  EXPECT_FALSE(has(t.give_up(12, 1), "Called"));
  EXPECT_FALSE(has(t.pass(1000), "Called"));
  EXPECT_TRUE(has(t.waits("w4", 15, "b"), "15 <- Called generation 2\n"));
  EXPECT_TRUE(has(t.answers("w4", 15, "b", 2), "Plan generation 2 w0=10 (as before) w1=14 w4=15\n"));

  // It joins when the spare has been called, or has answered.
  for (const bool answered : {false, true}) {
    Job u(3);
    (void)u.waits("w3", 13, "c");
    u.all_join({"a", "b", "b"});
    (void)u.give_up(11, 1);
    (void)u.give_up(12, 2);
    EXPECT_TRUE(has(u.report(10, 2, 1), "13 <- Called generation 2 stale\n"));
    if (answered) (void)u.answers("w3", 13, "c", 2);
    // w3 was called for rank 1.
    const std::string joined = u.joins("w2", 14, "b");
    EXPECT_EQ(has(joined, "13 <- Welcome as a spare, called in generation 2\n"), answered);
    EXPECT_FALSE(has(joined, "Plan"));
    EXPECT_FALSE(has(u.answers("w3", 13, "c", 2), "Plan"));
    EXPECT_TRUE(has(u.joins("w1", 16, "b"), "Plan generation 2 w0=10 (as before) w1=16 w2=14\n"));
  }
}

TEST(Spares, AfterARollbackPlacesAreKeptForARoundTimeoutAndLongerWhereTheCheckpointWouldBeOutOfReach) {
  Job t(2, true, 1);
  begin(t);
  EXPECT_TRUE(has(t.round_failed(10, 1, Code::kDesync, "here a, there b"), "11 <- Interrupt generation 2"));
  (void)t.stopped(10, 2);
  (void)t.stopped(11, 2);
  wire::Join w0 = t.join_of("w0", "a");
  w0.mutable_logged()->set_run(10);
  w0.mutable_logged()->add_lives(10);
  (void)t.say(20, w0);
  const std::string text = t.each_second(12, [&] {
    (void)t.waits("w2", 12, "c");
    (void)t.say(20, w0);
  });
  EXPECT_FALSE(has(text, "Called")) << text;
  EXPECT_TRUE(has(text, "out of reach on the machines of those who are missing")) << text;
  EXPECT_TRUE(has(t.view().waits.front(), "spares are not used"));
  EXPECT_TRUE(has(t.joins("w1", 21, "b"), "Plan generation 2 w0=20 w1=21 timeline 1"));

  // Two copies: one machine may be missing, but its worker has a round timeout to come back.
  Job u(2);
  begin(u);
  (void)u.round_failed(10, 1, Code::kDesync, "here a, there b");
  (void)u.stopped(10, 2);
  (void)u.stopped(11, 2);
  w0 = u.join_of("w0", "a");
  w0.mutable_logged()->set_run(10);
  w0.mutable_logged()->add_lives(10);
  (void)u.say(20, w0);
  const std::string called = u.each_second(4, [&] {
    (void)u.waits("w2", 12, "c");
    (void)u.joins("w0", 20, "a");
  });
  EXPECT_FALSE(has(called, "Called"));
  (void)u.waits("w2", 12, "c");
  (void)u.joins("w0", 20, "a");
  EXPECT_TRUE(has(u.pass(1000), "12 <- Called generation 2 stale\n"));
  EXPECT_TRUE(has(u.answers("w2", 12, "c", 2), "Plan generation 2 w0=20 w2=12 timeline 1\n"));
}

// A rollback, and the worker that had rank 1 is one that its launcher starts as a spare.
TEST(Spares, WhoHasAPlaceIsCalledForItAtOnceAlsoAfterARollback) {
  Job t(2);
  begin_and_lose_rank_1(t);
  (void)t.answers("w2", 12, "c", 2);
  (void)t.round_failed(10, 2, Code::kDesync, "here a, there b");
  (void)t.stopped(10, 3);
  (void)t.stopped(12, 3);
  EXPECT_EQ(t.joins("w1", 13, "b"), "13 <- Welcome as a spare\n");
  (void)t.joins("w0", 20, "a");
  EXPECT_TRUE(has(t.waits("w2", 22, "c"), "22 <- Called generation 3\n"));
  EXPECT_TRUE(has(t.answers("w2", 22, "c", 3), "Plan generation 3 w0=20 w2=22 timeline 1\n"));
}

// Where nothing is logged there is nothing to be reached, and all start again.
TEST(Spares, WithoutALogASpareComesInAfterARoundTimeout) {
  Job t(2, false, 0);
  begin(t);
  (void)t.give_up(11, 1);
  (void)t.stopped(10, 2);
  (void)t.joins("w0", 20, "a");
  const std::string text = t.each_second(6, [&] {
    (void)t.waits("w2", 12, "c");
    (void)t.joins("w0", 20, "a");
  });
  EXPECT_TRUE(has(text, "12 <- Called generation 2 stale\n")) << text;
  EXPECT_TRUE(has(t.answers("w2", 12, "c", 2), "Plan generation 2 w0=20 w2=12\n"));
}

TEST(Spares, APlaceOfAWorkerThatWouldNotWaitInTurnIsKeptForARoundTimeout) {
  Job t(2);
  (void)t.waits("w2", 12, "b");
  (void)t.joins("w0", 10, "a");
  (void)t.TrackerScript::join("w1", 11, 2, "b");
  (void)t.give_up(11, 1);
  EXPECT_FALSE(has(t.report(10, 2, 1), "Called"));
  const std::string text = t.each_second(6, [&] {
    (void)t.waits("w2", 12, "b");
    (void)t.report(10, 2, 1);
  });
  EXPECT_TRUE(has(text, "12 <- Called generation 2\n")) << text;
}

TEST(Spares, ARestartedTrackerHearsOfThemAgainAndDecidesNothingByThem) {
  Job t(2);
  begin(t);
  (void)t.give_up(11, 1);
  t.restart(false);
  EXPECT_TRUE(t.view().spares.empty());
  (void)t.waits("w2", 12, "c");
  (void)t.waits("w3", 13, "c");
  EXPECT_EQ(t.pass(6000), "");
  (void)t.waits("w4", 14, "c");
  wire::Envelope report = t.promised(10);
  report.mutable_report()->set_generation(2);
  report.mutable_report()->set_version(1);
  (void)t.send(report);
  (void)t.waits("w2", 12, "c");
  EXPECT_TRUE(t.view().spares.empty()) << "of two members one has promised";
  (void)t.joins("w1", 21, "b");
  (void)t.waits("w2", 12, "c");
  EXPECT_EQ(t.view().spares.size(), 1U);
}

TEST(Spares, ANewerLifeOfASpareReplacesTheOlder) {
  Job t(2);
  begin(t);
  const std::string text = t.waits("w2", 13, "c");
  EXPECT_TRUE(has(text, "12 <- Refused 7: a newer life of worker w2")) << text;
  EXPECT_TRUE(has(text, "13 <- Welcome as a spare\n"));
  EXPECT_TRUE(has(t.waits("w2", 12, "c"), "12 <- Refused 7"));
}

TEST(Spares, OnlySoManyWait) {
  Job t(2);
  for (std::size_t i = 0; i < limits::kMaxSpares; ++i) {
    (void)t.waits("s" + std::to_string(i), 1000 + i, "c");
  }
  EXPECT_TRUE(has(t.waits("t", 10, "c"), "10 <- Refused 3: 1024 spares of job j wait already"));
}

// Two processes end within one recovery, and both machines are up: nothing may get out of reach by what is chosen.
TEST(Spares, WhatAPlanHasLeftCountsAsLostUntilTheNextCommit) {
  for (const bool restarted : {false, true}) {
    Job t(3, true);
    (void)t.waits("w3", 13, "d");
    (void)t.waits("w4", 14, "e");
    t.all_join({"a", "b", "c"});
    (void)t.give_up(11, 1);
    (void)t.report(10, 2, 1, {position(1, 3)});
    (void)t.report(12, 2, 1, {position(1, 3)});
    ASSERT_TRUE(has(t.answers("w3", 13, "d", 2), "Plan generation 2"));
    (void)t.waits("w1", 21, "b");
    if (restarted) {
      t.restart();
      (void)t.waits("w4", 14, "e");
    }
    // w3 has loaded nothing yet, and c's process dies.
    (void)t.give_up(12, 2);
    (void)t.report(10, 3, 1, {position(1, 3)});
    const std::string text = t.report(13, 3, 1, {});
    EXPECT_FALSE(has(text, "Called")) << text;
    EXPECT_TRUE(has(t.joins("w2", 32, "c"), "Plan generation 3"));
    // What is committed now was stored without b.
    for (const std::uint64_t life : {10, 13, 32}) (void)t.vote(life, 2, {position(1, 4, true)});
    EXPECT_TRUE(t.view().committed.has_value());
    (void)t.waits("w4", 14, "e");
    (void)t.give_up(32, 3);
    (void)t.report(10, 4, 2, {});
    EXPECT_TRUE(has(t.report(13, 4, 2, {}), "14 <- Called generation 4 stale\n"));
  }
}

TEST(Spares, WhatALeftHostHoldsIsStaleAlsoWhenNobodyHasSurvived) {
  Job t(3, true);
  (void)t.waits("w3", 13, "d");
  t.all_join({"a", "b", "c"});
  (void)t.give_up(11, 1);
  (void)t.report(10, 2, 1, {position(1, 3)});
  (void)t.report(12, 2, 1, {position(1, 3)});
  (void)t.answers("w3", 13, "d", 2);
  (void)t.waits("w1", 22, "b");
  for (const std::uint64_t life : {10, 13, 12}) (void)t.vote(life, 2, {position(1, 4, true)});
  (void)t.give_up(10, 2);
  (void)t.report(12, 3, 2, {position(2, 7)});
  (void)t.give_up(12, 3);
  (void)t.give_up(13, 3);
  const auto back = [&](const std::string& worker, std::uint64_t life, const std::string& host, std::uint64_t old) {
    wire::Join j = t.join_of(worker, host);
    j.mutable_logged()->set_run(10);
    j.mutable_logged()->add_lives(old);
    *j.mutable_logged()->add_positions() = position(2, 7);
    return t.say(life, j);
  };
  std::string text;
  for (int second = 0; second < 7; ++second) {
    (void)back("w0", 30, "a", 10);
    (void)back("w2", 32, "c", 12);
    text += t.waits("w1", 22, "b") + t.pass(1000);
  }
  EXPECT_TRUE(has(text, "22 <- Called generation 3 stale\n")) << text;
}

TEST(Spares, WhoHasLookedTooEarlyLooksAgainWhereNobodyElseMayTakeThePlace) {
  Job t(3, true);
  (void)t.waits("w3", 13, "c");
  t.all_join({"a", "b", "b"});
  (void)t.joins("w1", 14, "b");
  (void)t.report(10, 2, 1);
  // Rank 2 of b ends, and nobody of b is there for it but w1, which has looked before.
  std::string text = t.give_up(12, 1);
  for (int second = 0; second < 8 && !has(text, "14 <- Welcome as a spare"); ++second) {
    (void)t.report(10, 2, 1);
    text += t.joins("w1", 14, "b") + t.waits("w3", 13, "c") + t.pass(1000);
  }
  EXPECT_TRUE(has(text, "14 <- Welcome as a spare\n")) << text;
  // It begins anew, and is called for its own place; the other one is anybody's now.
  text = t.waits("w1", 15, "b") + t.waits("w3", 13, "c") + t.pass(1000);
  EXPECT_TRUE(has(text, "15 <- Called generation 2\n")) << text;
  text += t.answers("w1", 15, "b", 2) + t.waits("w3", 13, "c") + t.pass(1000);
  EXPECT_TRUE(has(text, "13 <- Called generation 2")) << text;
  EXPECT_TRUE(has(t.answers("w3", 13, "c", 2), "Plan generation 2 w0=10 (as before) w1=15 w3=13"));
}

TEST(Spares, WhoHasFoundTooLittleIsSentBackAndKeepsNobodyOut) {
  Job t(2, true);
  t.all_join({"a", "b"});
  (void)t.waits("w2", 12, "b");
  (void)t.round_failed(10, 1, Code::kDesync, "here a, there b");
  (void)t.stopped(10, 2);
  (void)t.stopped(11, 2);
  std::string text;
  for (int second = 0; second < 6; ++second) {
    text += t.joins("w0", 20, "a") + t.waits("w2", 12, "b") + t.pass(1000);
  }
  ASSERT_TRUE(has(text, "12 <- Called generation 2\n")) << text;
  // Neither host holds anything.
  text = t.answers("w2", 12, "b", 2);
  EXPECT_TRUE(has(text, "12 <- Welcome as a spare")) << text;
  EXPECT_FALSE(has(text, "Plan"));
  EXPECT_TRUE(has(t.view().waits.front(), "spares are not used"));
  text.clear();
  for (int second = 0; second < 3; ++second) {
    text += t.joins("w0", 20, "a") + t.waits("w2", 12, "b") + t.pass(1000);
  }
  EXPECT_FALSE(has(text, "Called")) << "in vain again: " << text;
  // Who gives those machines up starts a worker that is no spare.
  wire::Join stranger = t.join_of("x", "c");
  stranger.set_waits(false);
  EXPECT_TRUE(has(t.say(30, stranger), "30 <- Welcome 2"));
  text.clear();
  for (int second = 0; second < 6; ++second) {
    text += t.joins("w0", 20, "a") + t.say(30, stranger) + t.pass(1000);
  }
  EXPECT_TRUE(has(text, "Plan generation 2 w0=20 x=30")) << text;
}

TEST(Spares, ThoseThatWereCalledMakeNoMajorityEither) {
  Job t(3, true);
  t.all_join({"a", "b", "c"});
  t.restart(false);
  std::string text;
  for (int second = 0; second < 8; ++second) {
    text += t.answers("w3", 13, "a", 1) + t.answers("w4", 14, "b", 1) + t.pass(1000);
  }
  EXPECT_FALSE(has(text, "Interrupt")) << text;
  EXPECT_EQ(t.machine().state(), TrackerMachine::State::kRunning);
  EXPECT_TRUE(t.view().spares.empty()) << "it decides nothing";
}

// Found with three spares by seed 21279: a member that had promised another tracker was fenced, a spare took its place,
// the job was finished, and it asked for ever.
TEST(Spares, WhoWasFencedAndObeysAnotherTrackerIsToldSoAfterTheEndToo) {
  Job t(2);
  begin_and_lose_rank_1(t);
  ASSERT_TRUE(has(t.answers("w2", 12, "c", 2), "Plan generation 2 w0=10 (as before) w2=12"));
  (void)t.finalize(10, 2);
  ASSERT_TRUE(has(t.finalize(12, 2), "Finished"));
  wire::Envelope load = from_worker(11);
  load.set_term(7);
  load.set_receiver(4711);
  load.mutable_load();
  EXPECT_TRUE(has(t.send(load), "11 <- Refused"));
  load.set_sender(99);
  load.set_term(17);
  EXPECT_EQ(t.send(load), "") << "of a life that this job did not end nothing is known";
}

}  // namespace
}  // namespace warren::test

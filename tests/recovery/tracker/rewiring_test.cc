#include "recovery/tracker/rewiring.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace warren::test {
namespace {

constexpr std::int64_t kAfterMs = 1000, kPauseMs = 60'000;

// Four ranks on a host each, in their first lives.
wire::Plan plan() {
  wire::Plan p;
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    wire::Member& m = *p.add_members();
    m.set_host_id("h" + std::to_string(rank));
    m.set_incarnation(10 + rank);
  }
  return p;
}
Verdict slow(std::int32_t a, std::int32_t b) {
  Verdict v;
  v.blame = Blame::kSlowLink;
  v.rank = Rank(a);
  v.peer = Rank(b);
  return v;
}
// The plan after `before`, with the ways that `rewiring` chooses. `lost`: these ranks have a new life in it.
wire::Plan follow(Rewiring& rewiring, const wire::Plan& before, TimeMs now, const std::vector<int>& lost = {}) {
  wire::Plan next = before;
  next.clear_detours();
  for (const int rank : lost) next.mutable_members(rank)->set_incarnation(100 + static_cast<std::uint64_t>(rank));
  for (const Rewiring::Choice& c : rewiring.choose(before, next, now, kPauseMs)) {
    if (c.kind != Rewiring::Choice::Kind::kRewired) continue;
    wire::Detour& d = *next.add_detours();
    d.set_a(c.pair.a);
    d.set_b(c.pair.b);
    d.mutable_relays()->Add(c.relays.begin(), c.relays.end());
  }
  return next;
}
// Looks at `now` at links that have been slow since 0.
Rewiring::Look look(Rewiring& rewiring, const wire::Plan& p, const std::vector<Verdict>& found, TimeMs now) {
  std::vector<StragglerWatch::Standing> standing;
  for (const Verdict& v : found) standing.push_back({v, TimeMs{0}});
  return rewiring.look(p, standing, found, now, kAfterMs, kPauseMs);
}
// A plan in which the bytes between 1 and 2 go by way of others, as decided at 1 s.
wire::Plan rewired(Rewiring& rewiring) {
  const wire::Plan first = plan();
  EXPECT_EQ(look(rewiring, first, {slow(1, 2)}, TimeMs{1000}).changes.size(), 1u);
  return follow(rewiring, first, TimeMs{1000});
}

TEST(Rewiring, ALinkThatStaysSlowGoesByWayOfOthers) {
  Rewiring rewiring;
  const wire::Plan first = plan();
  EXPECT_TRUE(look(rewiring, first, {slow(1, 2)}, TimeMs{999}).changes.empty());
  const wire::Plan next = rewired(rewiring);
  ASSERT_EQ(next.detours_size(), 1);
  EXPECT_TRUE(Rewiring::takes_detour(next, {1, 2}));
  EXPECT_GT(next.detours(0).relays_size(), 0);
  EXPECT_EQ(rewiring.not_before(), TimeMs{1000 + kPauseMs});
}

TEST(Rewiring, AnotherLinkWaitsForThePause) {
  Rewiring rewiring;
  const wire::Plan next = rewired(rewiring);
  EXPECT_TRUE(look(rewiring, next, {slow(0, 3)}, TimeMs{2000}).changes.empty());
  EXPECT_EQ(look(rewiring, next, {slow(0, 3)}, TimeMs{1000 + kPauseMs}).changes.size(), 1u);
}

TEST(Rewiring, WhatDidNotHelpIsUndoneAndNeverTriedAgainBetweenTheseLives) {
  Rewiring rewiring;
  const wire::Plan next = rewired(rewiring);
  const Rewiring::Look second = look(rewiring, next, {slow(1, 2)}, TimeMs{2000});
  ASSERT_EQ(second.changes.size(), 1u);
  EXPECT_TRUE(second.changes[0].undone);
  const wire::Plan straight = follow(rewiring, next, TimeMs{2000});
  EXPECT_EQ(straight.detours_size(), 0);
  const TimeMs later{2000 + 2 * kPauseMs};
  EXPECT_TRUE(look(rewiring, straight, {slow(1, 2)}, later).changes.empty());
  EXPECT_EQ(rewiring.obstacle(straight, {1, 2}, {}), "by way of others they were as slow");
  // A new life at one end: nothing is known of its links.
  const wire::Plan other = follow(rewiring, straight, later, {2});
  EXPECT_TRUE(rewiring.hopeless().empty());
  EXPECT_EQ(look(rewiring, other, {slow(1, 2)}, later).changes.size(), 1u);
}

TEST(Rewiring, AnObstacleIsToldOnce) {
  Rewiring rewiring;
  const wire::Plan p = plan();
  // Rank 1 has two slow links: what they share is slow.
  const std::vector<Verdict> found = {slow(0, 1), slow(1, 2)};
  const Rewiring::Look first = look(rewiring, p, found, TimeMs{1000});
  EXPECT_TRUE(first.changes.empty());
  ASSERT_EQ(first.obstructed.size(), 2u);
  EXPECT_NE(first.obstructed[0].why.find("rank 1 has 2 slow links"), std::string::npos);
  EXPECT_TRUE(look(rewiring, p, found, TimeMs{2000}).obstructed.empty());
  (void)look(rewiring, p, {}, TimeMs{3000});
  EXPECT_EQ(look(rewiring, p, found, TimeMs{4000}).obstructed.size(), 2u);
}

TEST(Rewiring, ADetourWhoseConnectionsBreakIsTriedOnceMore) {
  Rewiring rewiring;
  wire::Plan p = rewired(rewiring);
  rewiring.note_broken({1, 2});
  p = follow(rewiring, p, TimeMs{2000});
  EXPECT_EQ(p.detours_size(), 0);
  EXPECT_TRUE(rewiring.hopeless().empty());
  EXPECT_EQ(look(rewiring, p, {slow(1, 2)}, TimeMs{2000 + kPauseMs}).changes.size(), 1u);
  p = follow(rewiring, p, TimeMs{2000 + kPauseMs});
  ASSERT_EQ(p.detours_size(), 1);
  rewiring.note_broken({1, 2});
  p = follow(rewiring, p, TimeMs{3000 + kPauseMs});
  EXPECT_EQ(p.detours_size(), 0);
  EXPECT_TRUE(rewiring.hopeless().contains({1, 2}));
}

TEST(Rewiring, ADetourBreaksWithItsRelayAndIsKept) {
  Rewiring rewiring;
  const wire::Plan p = rewired(rewiring);
  rewiring.note_broken({1, 2});
  const auto relay = static_cast<int>(p.detours(0).relays(0));
  EXPECT_EQ(follow(rewiring, p, TimeMs{2000}, {relay}).detours_size(), 1);
}

TEST(Rewiring, AnUnusableLinkChangesItsWayWithTheNextPlan) {
  Rewiring rewiring;
  const wire::Plan first = plan();
  rewiring.change_with_next_plan({0, 2});
  EXPECT_TRUE(Rewiring::takes_detour(follow(rewiring, first, TimeMs{5}), {0, 2}));
}

TEST(Rewiring, TextsNameEightRanks) {
  EXPECT_EQ(text_of_ranks({3}), "rank 3");
  EXPECT_EQ(text_of_ranks({3, 4}), "ranks 3, 4");
  EXPECT_EQ(text_of_ranks({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

}  // namespace
}  // namespace warren::test

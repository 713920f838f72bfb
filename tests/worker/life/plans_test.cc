// What a plan says to one of its members.
#include "worker/life/plans.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace warren::worker {
namespace {

// Ranks 0 to 5, two on each of the hosts a, b and c; rank 3 is absent.
wire::Plan a_plan() {
  wire::Plan p;
  p.mutable_settings()->set_streams(4);
  p.mutable_settings()->set_algorithm("auto");
  for (std::uint32_t r = 0; r < 6; r++) {
    wire::Member& m = *p.add_members();
    m.set_rank(r);
    m.set_host_id(std::string(1, static_cast<char>('a' + r / 2)));
    m.set_absent(r == 3);
  }
  wire::Detour& d = *p.add_detours();
  d.set_a(1);
  d.set_b(2);
  for (const std::uint32_t relay : {4u, 5u}) d.add_relays(relay);
  return p;
}

TEST(Plans, BothEndsOfADetourHaveAStreamByEachRelay) {
  const std::vector<Rank> relays = {Rank(4), Rank(5)};
  EXPECT_EQ(ways_of(a_plan(), Rank(1))[2].relays, relays);
  EXPECT_EQ(ways_of(a_plan(), Rank(1))[2].streams, 2u);
  EXPECT_EQ(ways_of(a_plan(), Rank(2))[1].relays, relays);
  EXPECT_EQ(ways_of(a_plan(), Rank(2))[1].streams, 2u);
  for (const int other : {0, 4}) {
    for (const Way& way : ways_of(a_plan(), Rank(other))) EXPECT_TRUE(way.relays.empty());
  }
}

TEST(Plans, OtherLinksGoAsEver) {
  const auto ways = ways_of(a_plan(), Rank(2));
  ASSERT_EQ(ways.size(), 6u);
  EXPECT_TRUE(ways[0].relays.empty());
  EXPECT_EQ(ways[0].streams, 4u);
  EXPECT_FALSE(ways[0].within_host);
  EXPECT_FALSE(ways[3].within_host) << "nobody is there";
  EXPECT_TRUE(ways_of(a_plan(), Rank(4))[5].within_host);
  EXPECT_EQ(ways_of(a_plan(), Rank(4))[5].streams, 1u) << "within a host";
}

void give(wire::Member& m, std::uint32_t cores, std::uint32_t first, bool maps = true) {
  m.mutable_traits()->set_cores(cores);
  m.mutable_traits()->set_first_core(first);
  m.mutable_traits()->set_maps(maps);
}

TEST(Plans, AHostHasTheCoresOfAllItsRanks) {
  wire::Plan p = a_plan();
  const auto cores = [&] {
    std::vector<std::uint32_t> all;
    for (const schedule::Host& host : engine_plan(p, Rank(0)).shared) all.push_back(host.cores);
    return all;
  };
  using Cores = std::vector<std::uint32_t>;
  EXPECT_EQ(cores(), (Cores{0, 0, 0})) << "nobody has said anything";
  // Both may run on all.
  for (wire::Member& m : *p.mutable_members()) give(m, 8, 0);
  EXPECT_EQ(cores(), (Cores{8, 8, 8}));
  // Each is bound to one; the one that is absent has none.
  for (int r = 0; r < 6; r++) give(*p.mutable_members(r), 1, static_cast<std::uint32_t>(r % 2));
  EXPECT_EQ(cores(), (Cores{2, 1, 2}));
  p.mutable_members(3)->set_absent(false);
  EXPECT_EQ(cores(), (Cores{2, 2, 2}));
  // Of two that begin at one core, the larger set has the smaller in it.
  give(*p.mutable_members(4), 4, 3);
  give(*p.mutable_members(5), 6, 3);
  EXPECT_EQ(cores(), (Cores{2, 2, 6}));
  p.mutable_members(2)->mutable_traits()->set_cores(0);
  EXPECT_EQ(cores(), (Cores{2, 0, 6})) << "one cannot tell";
}

TEST(Plans, AHostMapsMemoryWhereAllItsRanksDo) {
  wire::Plan p = a_plan();
  const auto maps = [&] {
    std::vector<bool> all;
    for (const schedule::Host& host : engine_plan(p, Rank(0)).shared) all.push_back(host.maps);
    return all;
  };
  EXPECT_EQ(maps(), (std::vector<bool>{true, true, true})) << "nobody has said anything";
  for (wire::Member& m : *p.mutable_members()) give(m, 2, 0);
  give(*p.mutable_members(3), 2, 0, false);
  EXPECT_EQ(maps(), (std::vector<bool>{true, true, true})) << "who is absent has no say";
  give(*p.mutable_members(5), 2, 0, false);
  EXPECT_EQ(maps(), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(engine_plan(p, Rank(0)).shared, engine_plan(p, Rank(5)).shared);
}

TEST(Plans, AHostHasGpusWhereAllItsRanksDo) {
  wire::Plan p = a_plan();
  const auto gpus = [&] {
    std::vector<bool> all;
    for (const schedule::Host& host : engine_plan(p, Rank(0)).shared) all.push_back(host.gpus);
    return all;
  };
  EXPECT_EQ(gpus(), (std::vector<bool>{false, false, false})) << "nobody has said anything";
  for (wire::Member& m : *p.mutable_members()) m.mutable_traits()->set_gpu(true);
  p.mutable_members(3)->mutable_traits()->set_gpu(false);
  EXPECT_EQ(gpus(), (std::vector<bool>{true, true, true})) << "who is absent has no say";
  p.mutable_members(5)->mutable_traits()->set_gpu(false);
  EXPECT_EQ(gpus(), (std::vector<bool>{true, true, false}));
}

TEST(Plans, WhoServesIsAPeerBeyondTheWorld) {
  wire::Plan p = a_plan();
  wire::Member& left = *p.add_servers();
  left.set_rank(1);
  left.set_incarnation(9);
  left.set_host_id("d");
  left.set_domain_id("e");
  const Replayer::Plan replay = replay_plan(p, Rank(0));
  ASSERT_EQ(replay.peers.size(), 6u) << "five that are there, and one";
  const Replayer::Peer& peer = replay.peers.back();
  EXPECT_EQ(peer.rank, Rank(6));
  EXPECT_EQ(peer.life, Incarnation(9));
  EXPECT_EQ(peer.host_id, "d");
  EXPECT_EQ(peer.domain_id, "e");
  EXPECT_TRUE(peer.server);
  EXPECT_FALSE(replay.peers.front().server);
}

TEST(Plans, ASpareIsBeyondThemAndOfNoHost) {
  wire::Plan p = a_plan();
  p.add_servers()->set_incarnation(9);
  const Replayer::Plan follow = follow_plan(p, Incarnation(77));
  EXPECT_TRUE(follow.follows);
  ASSERT_EQ(follow.peers.size(), 7u);
  EXPECT_EQ(follow.peers.back().life, Incarnation(77));
  EXPECT_EQ(follow.peers.back().rank, follow.self);
  EXPECT_EQ(follow.self, Rank(7));
  EXPECT_EQ(follow.peers.back().host_id, "");
}

}  // namespace
}  // namespace warren::worker

// The bytes of a slow link go by way of other ranks: which, when, and when they go straight again.
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <utility>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Four ranks in a ring, each on a host of its own, or as told. A round timeout of 5 s: a look a second, over 10 s.
class Ring : public TrackerScript {
 public:
  explicit Ring(std::vector<std::string> hosts = {"a", "b", "c", "d"}, bool rewire = true, std::uint32_t replicas = 2,
                bool reorders = false)
      : TrackerScript(true, replicas),
        hosts_(std::move(hosts)),
        rewire_(rewire),
        reorders_(reorders),
        replicas_(replicas) {
    for (std::size_t rank = 0; rank < hosts_.size(); ++rank) lives_.push_back(10 + rank);
    for (std::size_t rank = 0; rank < hosts_.size(); ++rank) (void)join_as(rank);
  }
  std::string join_as(std::size_t rank) {
    wire::Envelope e = promised(lives_[rank]);
    wire::Join& j = *e.mutable_join();
    j = test::join("w" + std::to_string(rank), hosts_[rank], size(), replicas_);
    j.mutable_settings()->set_rewire(rewire_);
    j.mutable_settings()->set_reorders(reorders_);
    return send(std::move(e));
  }
  // A second in which all are heard, and these links (from, to) are slow.
  std::string second(const std::set<std::pair<std::uint32_t, std::uint32_t>>& slow = {{1, 2}}) {
    std::string text;
    for (std::uint32_t rank = 0; rank < size(); ++rank) {
      wire::Envelope e = from_worker(lives_[rank]);
      wire::Heartbeat& h = *e.mutable_heartbeat();
      h.set_generation(generation_);
      h.set_beat(++beat_);
      wire::Activity& a = *h.mutable_activity();
      a.set_window_ms(10'000);
      a.set_idle_ms(8500);
      a.set_moved_bytes(2'000'000);
      a.set_replaying(replays_ == rank);
      const std::uint32_t before = (rank + size() - 1) % size(), after = (rank + 1) % size();
      if (size() == 2) {
        add_link(a, after, slow.contains({rank, after}), slow.contains({after, rank}));
      } else {
        for (const std::uint32_t peer : std::set{before, after}) {
          add_link(a, peer, peer == after && slow.contains({rank, peer}),
                   peer == before && slow.contains({peer, rank}));
        }
      }
      text += send(std::move(e));
    }
    return text + pass(1000);
  }
  std::string seconds(int n, const std::set<std::pair<std::uint32_t, std::uint32_t>>& slow = {{1, 2}}) {
    std::string text;
    for (int i = 0; i < n; ++i) text += second(slow);
    return text;
  }
  // All stop, and connect again.
  std::string stop() {
    ++generation_;
    std::string text;
    for (const std::uint64_t life : lives_) text += report(life, generation_, version_, {position(version_, 3)});
    return text;
  }
  // All stop, and connect again; the ranks have begun these versions.
  std::string stop_in(const std::vector<std::uint64_t>& versions) {
    ++generation_;
    std::string text;
    for (std::size_t rank = 0; rank < lives_.size(); ++rank) {
      text += report(lives_[rank], generation_, versions[rank], {position(versions[rank], 3)});
    }
    return text;
  }
  // A rank dies and comes back.
  std::string replace(std::size_t rank) {
    const std::uint64_t peer = (rank + 1) % size(), other = (rank + 2) % size();
    (void)link_broken(lives_[peer], generation_, static_cast<std::uint32_t>(rank), lives_[rank]);
    (void)link_broken(lives_[other], generation_, static_cast<std::uint32_t>(rank), lives_[rank]);
    (void)pass(1000);
    ++generation_;
    (void)give_up(lives_[rank], generation_, "dead");
    for (std::size_t r = 0; r < lives_.size(); ++r) {
      if (r != rank) (void)report(lives_[r], generation_, version_, {position(version_, 3)});
    }
    lives_[rank] += 20;
    return join_as(rank);
  }
  // One loses its link to another, and all live on.
  std::string breaks(std::size_t rank, std::uint32_t peer) {
    std::string text = link_broken(lives_[rank], generation_, peer, lives_[peer]);
    text += pass(1000);
    return text += stop();
  }
  void moves(std::size_t rank, const std::string& host) { hosts_[rank] = host; }
  void replays(std::optional<std::uint32_t> rank) { replays_ = rank; }
  [[nodiscard]] std::string next() {
    const auto v = machine().view(TimeMs{now()});
    return v.verdicts.empty() ? "" : v.verdicts.front().verdict.next;
  }
  // "1-2 by 0 3" for each, as the newest plan has them.
  [[nodiscard]] std::string detours() {
    std::string text;
    for (const wire::Detour& d : machine().view(TimeMs{now()}).detours) {
      text += (text.empty() ? "" : ", ") + std::to_string(d.a()) + "-" + std::to_string(d.b()) + " by";
      for (const std::uint32_t relay : d.relays()) text += " " + std::to_string(relay);
    }
    return text;
  }
  // "3: 0 1 3 2" for each, as the newest plan has them.
  [[nodiscard]] std::string orders() {
    std::string text;
    for (const wire::RingOrder& o : machine().view(TimeMs{now()}).orders) {
      text += (text.empty() ? "" : ", ") + std::to_string(o.from_version()) + ":";
      for (const std::uint32_t rank : o.ranks()) text += " " + std::to_string(rank);
    }
    return text;
  }
  // All have stored this version.
  void commit(std::uint64_t version) {
    for (const std::uint64_t life : lives_) (void)vote(life, version, {position(version - 1, 3, true)});
    EXPECT_EQ(machine().view(TimeMs{now()}).committed, Version(version));
    version_ = version;
  }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(hosts_.size()); }

 private:
  static void add_link(wire::Activity& a, std::uint32_t peer, bool blocked, bool awaited) {
    wire::LinkActivity& l = *a.add_links();
    l.set_peer(peer);
    l.set_awaited_ms(awaited ? 8000 : 100);
    l.set_blocked_ms(blocked ? 8000 : 100);
    for (const std::uint64_t bytes : {1'000'000u}) {
      l.set_sent_bytes(bytes);
      l.set_received_bytes(bytes);
      l.set_window_sent_bytes(bytes);
      l.set_window_received_bytes(bytes);
    }
    l.set_usual_bytes_per_s(10'000'000);
  }
  std::vector<std::string> hosts_;
  const bool rewire_, reorders_;
  const std::uint32_t replicas_;
  std::vector<std::uint64_t> lives_;
  std::uint64_t generation_ = 1, beat_ = 0, version_ = 1;
  std::optional<std::uint32_t> replays_;
};

// Until the bytes of 1 -> 2 go by way of others.
std::string go_around(Ring& t) {
  const std::string text = t.seconds(13);
  EXPECT_TRUE(has(text, "Pause generation 2")) << text;
  return text + t.stop();
}

TEST(Rewire, ALinkThatIsSlowForAWindowIsGoneAround) {
  Ring t;
  std::string text = t.seconds(3);
  EXPECT_TRUE(has(text, "Next: its bytes go by way of ranks 0, 3 in 8.0 s\n")) << text;
  text = t.seconds(7);
  EXPECT_EQ(t.next(), "its bytes go by way of ranks 0, 3 in 1.0 s") << text;
  EXPECT_FALSE(has(text, "Pause"));
  text = t.second() + t.second();
  EXPECT_TRUE(
      has(text,
          "log interrupted: generation 1 of job j is over: the link between rank 1 (worker w1 on host b) and rank 2 "
          "(worker w2 on host c) has been slow for 10.0 s: its bytes go by way of others; the ranks stop, "
          "connect again and go on\n"))
      << text;
  EXPECT_EQ(t.detours(), "") << "not before they have stopped";
  text = t.stop();
  EXPECT_TRUE(
      has(text,
          "log rewired: from generation 2 on the bytes between rank 1 (worker w1 on host b) and rank 2 (worker w2 on "
          "host c) go by way of ranks 0, 3\n"))
      << text;
  EXPECT_EQ(t.detours(), "1-2 by 0 3");
}

TEST(Rewire, WhereItIsSwitchedOffItIsSaidAndNoMore) {
  for (const bool nothing_logged : {false, true}) {
    Ring t({"a", "b", "c", "d"}, nothing_logged, nothing_logged ? 0 : 2);
    const std::string text = t.seconds(60);
    EXPECT_TRUE(has(text, "Next: nothing but this report: bytes take the same way\n")) << text;
    EXPECT_FALSE(has(text, "Pause")) << text;
  }
}

TEST(Rewire, WhereNoOtherWayIsThatIsSaidOnce) {
  Ring two({"a", "b", "a", "b"});
  std::string text = two.seconds(40);
  EXPECT_FALSE(has(text, "Pause")) << text;
  const std::string said = "take the same way, which has been slow for 10.0 s: there is no third host\n";
  EXPECT_TRUE(has(text, said)) << text;
  EXPECT_EQ(text.find("log not_rewired"), text.rfind("log not_rewired"));
  EXPECT_EQ(two.next(), "its bytes take the same way: there is no third host");
}

TEST(Rewire, WhoseLinksAreAllSlowIsNotHelpedByOthers) {
  Ring t({"a", "b", "c", "d", "e", "f"});
  const std::string text = t.seconds(40, {{0, 1}, {1, 2}});
  EXPECT_FALSE(has(text, "Pause")) << text;
  EXPECT_TRUE(has(text, "rank 1 has 2 slow links: what all of them share is slow\n")) << text;
}

TEST(Rewire, NotWhileARankReplays) {
  Ring t;
  t.replays(3);
  EXPECT_FALSE(has(t.seconds(30), "Pause"));
  t.replays({});
  EXPECT_TRUE(has(t.second(), "Pause"));
}

TEST(Rewire, WhatDoesNotHelpIsUndoneAndNotTriedAgain) {
  Ring t;
  (void)go_around(t);
  std::string text = t.seconds(3);
  EXPECT_TRUE(has(text, "Next: bytes that go by way of others go straight again in 8.0 s\n")) << text;
  text = t.seconds(10);
  EXPECT_TRUE(has(text, "has been slow for 10.0 s by way of others, too: its bytes go straight again; the ranks stop"))
      << text;
  (void)t.stop();
  EXPECT_EQ(t.detours(), "");
  text = t.seconds(300);
  EXPECT_FALSE(has(text, "Pause")) << text;
  EXPECT_EQ(t.next(), "its bytes take the same way: by way of others they were as slow");
  // Another life, another machine perhaps.
  (void)t.replace(2);
  EXPECT_TRUE(has(t.seconds(13), "Pause"));
}

TEST(Rewire, AnotherLinkWaitsForTenWindows) {
  Ring t({"a", "b", "c", "d", "e", "f"});
  (void)go_around(t);
  EXPECT_EQ(t.detours(), "1-2 by 0 3 4 5");
  const std::set<std::pair<std::uint32_t, std::uint32_t>> other = {{4, 5}};
  std::string text = t.seconds(98, other);
  EXPECT_FALSE(has(text, "Pause")) << text;
  EXPECT_TRUE(has(t.next(), "its bytes go by way of ranks 0, 1, 2, 3 in ")) << t.next();
  text = t.seconds(4, other);
  EXPECT_TRUE(has(text, "Pause")) << text;
  (void)t.stop();
  EXPECT_EQ(t.detours(), "1-2 by 0 3 4 5, 4-5 by 0 1 2 3");
}

TEST(Rewire, ADetourStaysForTheLivesAtItsEnds) {
  Ring t;
  (void)go_around(t);
  (void)t.replace(3);
  EXPECT_EQ(t.detours(), "1-2 by 0 3") << "a relay is what it is in any life";
  (void)t.replace(1);
  EXPECT_EQ(t.detours(), "") << "the new life's link is another one";
}

// Its relay cannot reach the other end, or has no descriptors left: all lives go on, and would stop again and again.
TEST(Rewire, ADetourThatDoesNotComeUpIsGivenUp) {
  Ring t;
  (void)go_around(t);
  EXPECT_EQ(t.detours(), "1-2 by 0 3");
  std::string text = t.breaks(1, 2);
  EXPECT_TRUE(has(text, "go straight: by way of ranks 0, 3 its connections broke\n")) << text;
  EXPECT_EQ(t.detours(), "");
  // Once may have been chance.
  text = t.seconds(98);
  EXPECT_FALSE(has(text, "Pause")) << text;
  text = t.seconds(4);
  EXPECT_TRUE(has(text, "Pause")) << text;
  (void)t.stop();
  EXPECT_EQ(t.detours(), "1-2 by 0 3");
  (void)t.breaks(1, 2);
  EXPECT_EQ(t.detours(), "");
  text = t.seconds(300);
  EXPECT_FALSE(has(text, "Pause")) << text;
  EXPECT_EQ(t.next(), "its bytes take the same way: by way of ranks 0, 3 its connections broke");
  (void)t.replace(2);
  EXPECT_TRUE(has(t.seconds(200), "Pause"));
}

TEST(Rewire, ADetourEndsWithTheLastRelay) {
  Ring t({"a", "b", "c"});
  (void)go_around(t);
  EXPECT_EQ(t.detours(), "1-2 by 0");
  t.moves(0, "b");
  (void)t.replace(0);
  EXPECT_EQ(t.detours(), "");
}

TEST(Rewire, ATrackerThatIsStartedAgainKeepsTheWays) {
  Ring t;
  (void)go_around(t);
  t.restart();
  EXPECT_EQ(t.detours(), "1-2 by 0 3");
  (void)t.replace(3);
  EXPECT_EQ(t.detours(), "1-2 by 0 3");
}

// Nobody else hears why, and the next plan is made without.
TEST(Rewire, ATrackerThatDiesBeforeThePlanJudgesAnew) {
  Ring t;
  EXPECT_TRUE(has(t.seconds(13), "Pause generation 2"));
  t.restart();
  (void)t.stop();
  EXPECT_EQ(t.detours(), "");
  EXPECT_TRUE(has(t.seconds(13), "Pause generation 3"));
  (void)t.stop();
  EXPECT_EQ(t.detours(), "1-2 by 0 3");
}

// --- With leave to change bits

TEST(Reorder, TheRingGoesAroundTheLinkFromAVersionOnThatNobodyHasBegun) {
  Ring t({"a", "b", "c", "d"}, true, 2, true);
  std::string text = t.seconds(3);
  EXPECT_TRUE(has(text,
                  "Next: its bytes go by way of ranks 0, 3 in 8.0 s, and two checkpoints later the ring goes past "
                  "it in another order\n"))
      << text;
  t.commit(2);
  text = t.seconds(10);
  EXPECT_TRUE(has(text, "Pause generation 2")) << text;
  EXPECT_EQ(t.orders(), "") << "not before they have stopped";
  text = t.stop();
  EXPECT_TRUE(has(text,
                  "log reordered: from version 3 on the ring goes past the link between rank 1 (worker w1 on host b) "
                  "and rank 2 (worker w2 on host c) in another order of hosts, and allreduces by it round otherwise\n"))
      << text;
  // Version 2 is committed, 3 begun; 4, which is 3 to programs, cannot be.
  EXPECT_EQ(t.orders(), "4: 0 1 3 2");
  EXPECT_EQ(t.detours(), "1-2 by 0 3") << "until then, and for what is no ring";
}

// While a tracker was away rank 1 has taken versions that nobody has committed, and has begun rounds of the newest.
TEST(Reorder, FromBeyondWhatRanksHaveBegunWithoutTheTracker) {
  Ring t({"a", "b", "c", "d"}, true, 2, true);
  t.commit(2);
  (void)t.seconds(13);
  (void)t.stop_in({2, 6, 5, 5});
  EXPECT_EQ(t.orders(), "7: 0 1 3 2");
}

TEST(Reorder, OfAJobWithoutACheckpoint) {
  Ring t({"a", "b", "c", "d"}, true, 2, true);
  (void)go_around(t);
  EXPECT_EQ(t.orders(), "3: 0 1 3 2");
}

TEST(Reorder, NotWithoutLeaveNorWhereNoOrderIsBetter) {
  Ring no;
  (void)go_around(no);
  EXPECT_EQ(no.orders(), "");
  Ring three({"a", "b", "c"}, true, 2, true);
  std::string text = three.seconds(3);
  EXPECT_TRUE(has(text, "Next: its bytes go by way of rank 0 in 8.0 s\n")) << text;
  (void)go_around(three);
  EXPECT_EQ(three.orders(), "");
}

// Every plan of the job has it, whoever is new, and whatever the tracker has lost but its disk.
TEST(Reorder, AnOrderStays) {
  Ring t({"a", "b", "c", "d"}, true, 2, true);
  (void)go_around(t);
  const std::string order = "3: 0 1 3 2";
  (void)t.replace(3);
  EXPECT_EQ(t.orders(), order);
  (void)t.replace(1);
  EXPECT_EQ(t.detours(), "");
  EXPECT_EQ(t.orders(), order) << "also when its reason has gone: another one would be another change of bits";
  t.restart();
  EXPECT_EQ(t.orders(), order);
  t.commit(2);
  t.commit(3);
  (void)t.replace(2);
  EXPECT_EQ(t.orders(), order);
}

TEST(Reorder, TheNextOneWaitsUntilTheLastIsInForce) {
  Ring t({"a", "b", "c", "d", "e", "f"}, true, 2, true);
  (void)go_around(t);
  const std::string first = t.orders();
  EXPECT_TRUE(has(first, "3: ")) << first;
  // Between ranks 4 and 5, neighbours in both.
  const std::set<std::pair<std::uint32_t, std::uint32_t>> other = {{4, 5}};
  EXPECT_TRUE(has(t.seconds(102, other), "Pause"));
  (void)t.stop();
  EXPECT_EQ(t.detours(), "1-2 by 0 3 4 5, 4-5 by 0 1 2 3");
  EXPECT_EQ(t.orders(), first);
  // Committed is the one before; the next plan is made for another reason.
  t.commit(2);
  (void)t.replace(0);
  EXPECT_EQ(t.orders(), first);
  t.commit(3);
  (void)t.replace(0);
  EXPECT_EQ(t.orders().find(first + ", 5: "), 0u) << t.orders();
  const std::string second = t.orders().substr(first.size() + 2);
  t.commit(4);
  (void)t.replace(0);
  EXPECT_EQ(t.orders(), first + ", " + second);
  t.commit(5);
  (void)t.replace(0);
  EXPECT_EQ(t.orders(), second) << "no rank computes a round of version 4 any more";
}

}  // namespace
}  // namespace warren::test

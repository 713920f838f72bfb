// Who is to blame, from what ranks tell. Each case is a table of testimonies over a window of ten seconds.
#include "recovery/decide/verdict.h"

#include <gtest/gtest.h>

#include <deque>

#include "recovery/base/limits.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

constexpr std::uint64_t kMb = 1'000'000;

// In hundredths of the window.
struct Link {
  std::uint32_t peer = 0;
  std::uint32_t awaited = 0, blocked = 0;
  std::uint64_t sent = 10 * kMb, received = 10 * kMb;  // in the window
  std::uint64_t sent_before = 100 * kMb, received_before = 100 * kMb;
  std::uint32_t quiet_ms = 10;
  std::uint64_t usual = 0;
};
struct Told {
  std::uint32_t outside = 0, idle = 0, held = 0;
  std::vector<Link> links;
  std::int64_t silent_ms = 200;
  std::uint64_t replayed = 0;
  bool replaying = false;
  bool finalizing = false;
  std::vector<wire::CurrentRound> rounds = {};
  std::uint32_t window_ms = 10'000;
  std::int64_t longest_gap_ms = 0;
  std::string host = {};
};

class Job {
 public:
  explicit Job(const std::vector<Told>& ranks) {
    for (const Told& told : ranks) {
      wire::Activity& a = activities_.emplace_back();
      const auto part = [&](std::uint32_t hundredths) { return told.window_ms / 100 * hundredths; };
      a.set_window_ms(told.window_ms);
      a.set_outside_ms(part(told.outside));
      a.set_idle_ms(part(told.idle));
      a.set_held_ms(part(told.held));
      a.set_replayed_rounds(told.replayed);
      a.set_replaying(told.replaying);
      std::uint64_t moved = 0;
      for (const Link& link : told.links) {
        wire::LinkActivity& l = *a.add_links();
        l.set_peer(link.peer);
        l.set_window_sent_bytes(link.sent);
        l.set_window_received_bytes(link.received);
        l.set_sent_bytes(link.sent_before + link.sent);
        l.set_received_bytes(link.received_before + link.received);
        l.set_awaited_ms(part(link.awaited));
        l.set_blocked_ms(part(link.blocked));
        l.set_quiet_ms(link.quiet_ms);
        l.set_usual_bytes_per_s(link.usual);
        moved += link.sent + link.received;
      }
      a.set_moved_bytes(moved);
      wire::Envelope e = from_worker(1);
      e.mutable_heartbeat()->set_generation(1);
      e.mutable_heartbeat()->set_beat(1);
      *e.mutable_heartbeat()->mutable_activity() = a;
      const std::string bytes = encode(e, Side::kWorker);
      EXPECT_TRUE(decode_envelope(std::as_bytes(std::span(bytes.data(), bytes.size())), Side::kWorker).ok())
          << "a worker could tell this";
      told_.push_back(told);
    }
  }

  std::vector<Testimony> testimonies() const {
    std::vector<Testimony> all;
    for (std::size_t i = 0; i < told_.size(); ++i) {
      const Told& t = told_[i];
      all.push_back({Rank(static_cast<std::int32_t>(i)), t.finalizing, t.silent_ms, t.longest_gap_ms, 41, t.rounds,
                     &activities_[i], t.host});
    }
    return all;
  }
  std::vector<Verdict> verdicts() const {
    return find_stragglers(testimonies(), straggler_limits(10'000),
                           [](Rank r) { return "rank " + std::to_string(r.value) + " (w)"; });
  }
  // "slow_link 1>2, hung 3"
  std::string blamed() const {
    std::string text;
    for (const Verdict& v : verdicts()) {
      text += (text.empty() ? "" : ", ") + std::string(to_string(v.blame)) + " " + std::to_string(v.rank.value) +
              (v.peer == kNoRank ? "" : ">" + std::to_string(v.peer.value));
    }
    return text;
  }
  std::string reason() const {
    const auto all = verdicts();
    return all.empty() ? "" : all.front().reason;
  }

 private:
  std::vector<Told> told_;
  std::deque<wire::Activity> activities_;
};

// A ring of four: each gets bytes from the one before it and sends to the one after it.
struct RingRank {
  std::uint32_t outside = 0, idle = 0, held = 0;
  std::uint32_t awaited = 0;  // the bytes of the one before
  std::uint32_t blocked = 0;  // for the one after
};
std::vector<Told> ring(const std::vector<RingRank>& ranks) {
  std::vector<Told> all;
  const auto n = static_cast<std::uint32_t>(ranks.size());
  for (std::uint32_t i = 0; i < n; ++i) {
    const RingRank& r = ranks[i];
    Link before{(i + n - 1) % n, r.awaited, 0};
    before.sent = before.sent_before = 0;
    Link after{(i + 1) % n, 0, r.blocked};
    after.received = after.received_before = 0;
    std::vector<Link> links = {before, after};
    if (links[1].peer < links[0].peer) std::swap(links[0], links[1]);
    Told& told = all.emplace_back();
    told.outside = r.outside;
    told.idle = r.idle;
    told.held = r.held;
    told.links = links;
  }
  return all;
}

// Four ranks that are alike, or all of them but rank 2.
std::vector<RingRank> alike(const RingRank& all) {
  return {all, all, all, all};
}
std::vector<RingRank> alike_but_rank_2(const RingRank& others, const RingRank& rank_2) {
  return {others, others, rank_2, others};
}

TEST(Verdict, RingOfFour) {
  struct Case {
    const char* what;
    std::vector<RingRank> ranks;
    const char* blamed;
  };
  const Case cases[] = {
      {"all compute", alike({90, 5, 0, 4, 1}), ""},
      {"the network is full everywhere", alike({5, 90, 0, 80, 70}), ""},
      {"rank 2 computes, its victims wait one behind the other",
       {{10, 88, 0, 85, 2}, {10, 88, 0, 80, 2}, {97, 1, 0, 1, 0}, {10, 88, 0, 86, 2}},
       "slow_rank 2"},
      {"rank 2 is slow in rounds",
       {{5, 90, 0, 85, 2}, {5, 90, 0, 80, 30}, {5, 2, 0, 1, 1}, {5, 90, 0, 86, 2}},
       "slow_rank 2"},
      {"rank 2 does not run",
       {{10, 85, 0, 80, 2}, {10, 85, 0, 80, 2}, {12, 4, 80, 4, 0}, {10, 85, 0, 84, 2}},
       "slow_rank 2"},
      {"rank 2 hardly gets the CPU", alike_but_rank_2({20, 75, 0, 70, 2}, {35, 15, 30, 14, 0}), "slow_rank 2"},
      {"no rank runs much: the machine is busy", alike_but_rank_2({10, 45, 42, 42, 2}, {12, 4, 60, 4, 0}), ""},
      {"bytes of 1 come slowly to 2",
       {{5, 92, 0, 90, 1}, {5, 93, 0, 91, 92}, {5, 93, 0, 92, 1}, {5, 92, 0, 91, 1}},
       "slow_link 1>2"},
      {"two slow ranks",
       {{95, 2, 0, 1, 1}, {10, 88, 0, 85, 1}, {95, 2, 0, 1, 1}, {10, 88, 0, 85, 1}},
       "slow_rank 0, slow_rank 2"},
      {"a wait of less than two fifths", alike_but_rank_2({60, 38, 0, 37, 1}, {97, 1, 0, 1, 0}), ""},
      {"the program of 2 computes as long as the others', and its successor waits for something else",
       {{90, 8, 0, 4, 4}, {90, 8, 0, 4, 4}, {92, 8, 0, 4, 4}, {50, 48, 0, 45, 1}},
       ""},
  };
  for (const Case& c : cases) EXPECT_EQ(Job(ring(c.ranks)).blamed(), c.blamed) << c.what;
}

TEST(Verdict, TheReasonHasTheNumbersOfBothEnds) {
  std::vector<Told> slow = ring({{10, 88, 0, 85, 2}, {10, 88, 0, 80, 2}, {97, 1, 0, 1, 0}, {10, 88, 0, 86, 2}});
  slow[3].rounds = {round(17, 8, {2}, 2300)};
  const auto rank = Job(slow).verdicts();
  ASSERT_EQ(rank.size(), 1u);
  EXPECT_EQ(
      rank[0].reason,
      "rank 2 (w) holds up rank 3, which has waited for it for 8.6 s of the last 10.0 s, and waits itself for 1 % "
      "of its time: its program was outside of calls for 97 %, those of the others for 10 % (median); it has not "
      "entered round p.17");
  EXPECT_EQ(rank[0].victims, 1u);
  EXPECT_EQ(rank[0].waited_ms, 8600);
  slow[2].rounds = {round(17, 8, {}, 100)};
  EXPECT_EQ(Job(slow).reason().find("has not entered"), std::string::npos);

  std::vector<Told> link = ring({{5, 92, 0, 90, 1}, {5, 93, 0, 91, 92}, {5, 93, 0, 90, 1}, {5, 92, 0, 91, 1}});
  link[2].links[0].usual = 80 * kMb;
  EXPECT_EQ(
      Job(link).reason(),
      "bytes of rank 1 (w) come slowly to rank 2 (w): of the last 10.0 s the one had bytes that did not leave for 92 "
      "%, the other waited for them for 90 %; they came at 1111 kB/s, usually at 80 MB/s; on the other links between "
      "hosts both ends wanted for 1 % (median)");
}

// A group of two sends much, and the others have little to send.
TEST(Verdict, ALinkThatHasMoreToCarryIsNotSlow) {
  std::vector<Told> r = ring({{5, 92, 0, 3, 1}, {5, 93, 0, 4, 92}, {5, 93, 0, 92, 1}, {5, 92, 0, 4, 1}});
  r[1].links[1].sent = r[2].links[0].received = 900 * kMb;
  for (const std::size_t i : {0u, 1u, 3u}) {
    for (Link& l : r[i].links) {
      if (l.received != 0) l.received = kMb;
    }
  }
  EXPECT_EQ(Job(r).blamed(), "");
  // Ten times as long for each byte.
  for (const std::size_t i : {0u, 1u, 3u}) {
    for (Link& l : r[i].links) {
      if (l.received != 0) l.received = 900 * kMb;
    }
  }
  EXPECT_EQ(Job(r).blamed(), "slow_link 1>2");
}

TEST(Verdict, LinksBetweenHostsAreComparedWithEachOther) {
  std::vector<Told> six = ring({{5, 92, 0, 90, 1},
                                {5, 92, 0, 90, 1},
                                {5, 93, 0, 91, 92},
                                {5, 93, 0, 92, 1},
                                {5, 92, 0, 91, 1},
                                {5, 92, 0, 91, 90}});
  EXPECT_EQ(Job(six).blamed(), "slow_link 2>3, slow_link 5>0");
  for (std::size_t i = 0; i < six.size(); ++i) six[i].host = i < 3 ? "a" : "b";
  EXPECT_EQ(Job(six).blamed(), "") << "the network is slower than memory";
}

TEST(Verdict, WhatBacksUpBehindASlowLinkIsNotSlow) {
  std::vector<Told> r = ring({{5, 92, 0, 80, 60},
                              {5, 93, 0, 61, 92},
                              {5, 93, 0, 92, 60},
                              {5, 92, 0, 62, 1},
                              {5, 92, 0, 80, 1},
                              {5, 92, 0, 80, 1},
                              {5, 92, 0, 80, 1}});
  EXPECT_EQ(Job(r).blamed(), "slow_link 1>2");
  r[1].links[1].blocked = 70;
  EXPECT_EQ(Job(r).blamed(), "slow_link 0>1, slow_link 1>2, slow_link 2>3") << "all are alike";
}

// The root of a star has four times the work of a leaf, and all leaves wait for it.
TEST(Verdict, ABottleneckOfTheAlgorithmIsNoStraggler) {
  std::vector<Told> star(5);
  star[0].outside = 2;
  star[0].idle = 8;
  for (std::uint32_t leaf = 1; leaf < 5; ++leaf) {
    star[0].links.push_back({leaf, 2, 1});
    star[leaf].outside = 2;
    star[leaf].idle = 75;
    star[leaf].links.push_back({0, 70, 5});
  }
  EXPECT_EQ(Job(star).blamed(), "");
  // It has the same bytes to move, and takes far longer for each than they do.
  for (std::uint32_t leaf = 1; leaf < 5; ++leaf) star[leaf].idle = 95;
  EXPECT_EQ(Job(star).blamed(), "slow_rank 0");
}

TEST(Verdict, TwoRanksAreJudgedByTheirLinksOwnHistory) {
  const auto pair = [](std::uint64_t usual) {
    std::vector<Told> two(2);
    two[0] = {.idle = 95, .links = {{1, 5, 90}}};
    two[1] = {.idle = 95, .links = {{0, 92, 5}}};
    two[1].links[0].usual = usual;
    return Job(two).blamed();
  };
  EXPECT_EQ(pair(0), "");  // nothing to compare with
  EXPECT_EQ(pair(2 * kMb), "");
  EXPECT_EQ(pair(30 * kMb), "slow_link 0>1");
}

TEST(Verdict, BytesThatDoNotArriveAreTheLinksFault) {
  // They fit into the kernel's buffers: nobody is blocked.
  std::vector<Told> r = ring({{2, 97, 0, 95, 0}, {2, 97, 0, 95, 0}, {2, 97, 0, 95, 0}, {2, 97, 0, 95, 0}});
  for (Told& t : r) {
    for (Link& l : t.links) l.sent = l.received = 0;
  }
  EXPECT_EQ(Job(r).blamed(), "");
  r[1].links[1].sent_before += 5000;
  EXPECT_EQ(Job(r).blamed(), "slow_link 1>2");
  EXPECT_NE(Job(r).reason().find("5000 bytes that were sent before have not arrived; none came"), std::string::npos);
  // Sent within the window: they may be on their way.
  r[1].links[1].sent_before -= 5000;
  r[1].links[1].sent = 5000;
  EXPECT_EQ(Job(r).blamed(), "");
}

// Each has sent what the other does not read, as that is in another round: calls in opposite order.
TEST(Verdict, RanksThatWaitForEachOtherInDifferentRoundsHaveNoSlowLink) {
  std::vector<Told> two(2);
  two[0] = {.idle = 95, .links = {{1, 92, 90}}};
  two[1] = {.idle = 95, .links = {{0, 92, 90}}};
  two[0].links[0].usual = two[1].links[0].usual = 30 * kMb;
  EXPECT_EQ(Job(two).blamed(), "slow_link 0>1, slow_link 1>0");
  two[0].rounds = {round(1, 8, {1}, 9000)};
  two[1].rounds = {round(1, 8, {0}, 9000)};
  EXPECT_EQ(Job(two).blamed(), "slow_link 0>1, slow_link 1>0") << "in one round";
  two[1].rounds[0].set_group(7);
  EXPECT_EQ(Job(two).blamed(), "");
}

// A rank of a ring ends a round when it has what comes to it. Bytes that it still sends may be on their way for long
// while the rank is in the next round. CI saw a link of 100 Mbit/s named after two minutes: its sender was ahead in
// most looks.
TEST(Verdict, ALinkIsSlowThoughItsSenderIsARoundAhead) {
  std::vector<Told> two(2);
  two[0] = {.idle = 95, .links = {{1, 5, 90}}, .rounds = {round(9, 8, {1}, 100)}};
  two[1] = {.idle = 95, .links = {{0, 92, 5}}, .rounds = {round(8, 8, {0}, 100)}};
  two[1].links[0].usual = 30 * kMb;
  EXPECT_EQ(Job(two).blamed(), "slow_link 0>1");
  two[1].rounds.push_back(round(10, 8, {0}, 100));
  EXPECT_EQ(Job(two).blamed(), "slow_link 0>1") << "of two rounds it has left one behind";
  two[1].rounds.pop_back();
  for (const auto& set_apart :
       {+[](wire::CurrentRound& r) { r.set_group(7); }, +[](wire::CurrentRound& r) { r.set_version(3); },
        +[](wire::CurrentRound& r) { r.set_timeline(3); }}) {
    two[0].rounds = {round(9, 8, {1}, 100)};
    set_apart(two[0].rounds[0]);
    EXPECT_EQ(Job(two).blamed(), "") << "of another group, version or timeline nothing follows";
  }
  two[0].rounds = {round(kSetupBit + 5, 8, {1}, 100)};
  two[1].rounds = {round(kSetupBit + 4, 8, {0}, 100)};
  two[0].rounds[0].set_version(0);
  two[1].rounds[0].set_version(0);
  EXPECT_EQ(Job(two).blamed(), "") << "set-up rounds have no order";
}

TEST(Verdict, ARankOverWhoseLinksNothingMovesIsCutOff) {
  std::vector<Told> r = ring({{2, 96, 0, 95, 1}, {2, 96, 0, 95, 94}, {2, 96, 0, 95, 94}, {2, 96, 0, 95, 1}});
  for (const std::size_t i : {1u, 2u, 3u}) {
    for (Link& l : r[i].links) {
      if (i == 2 || l.peer == 2) l.sent = l.received = 0;
    }
  }
  EXPECT_EQ(Job(r).blamed(), "cut_off 2");
  EXPECT_NE(Job(r).reason().find("is heard by the tracker, and over none of its links, to 2 ranks"), std::string::npos);
}

TEST(Verdict, Silence) {
  struct Case {
    const char* what;
    std::int64_t silent_ms, longest_gap_ms;
    std::uint32_t quiet_ms;
    const char* blamed;
  };
  const Case cases[] = {
      {"two heartbeats are missing", 2900, 0, 2900, ""},
      {"three are", 3000, 0, 2900, "hung 2"},
      {"its heartbeats were that far apart before", 3500, 2000, 3400, ""},
      {"and farther by now", 4000, 2000, 3900, "hung 2"},
      {"its own history does not excuse it for ever", 8000, 60'000, 7900, "hung 2"},
      {"its bytes still come", 5000, 0, 100, "cut_off 2"},
      {"its last bytes came just after its last heartbeat", 5000, 0, 3500, "hung 2"},
  };
  for (const Case& c : cases) {
    std::vector<Told> r = ring({{5, 90, 0, 85, 1}, {5, 90, 0, 85, 1}, {5, 90, 0, 85, 1}, {5, 90, 0, 85, 1}});
    r[2].silent_ms = c.silent_ms;
    r[2].longest_gap_ms = c.longest_gap_ms;
    for (Link& l : r[3].links) l.quiet_ms = c.quiet_ms;
    for (Link& l : r[1].links) l.quiet_ms = 9000;
    EXPECT_EQ(Job(r).blamed(), c.blamed) << c.what;
    r[2].finalizing = true;
    EXPECT_EQ(Job(r).blamed(), "") << c.what << ", and it has nothing left to do";
  }
}

TEST(Verdict, WhoReplaysIsJudgedByItsReplay) {
  std::vector<Told> r = ring({{10, 88, 0, 85, 2}, {10, 88, 0, 80, 2}, {97, 1, 0, 1, 0}, {10, 88, 0, 86, 2}});
  r[2].replaying = true;
  r[2].replayed = 40;
  EXPECT_EQ(Job(r).blamed(), "");
  r[2].replayed = 0;
  EXPECT_EQ(Job(r).blamed(), "");  // large results come
  for (Link& l : r[2].links) l.sent = l.received = 0;
  EXPECT_EQ(Job(r).blamed(), "slow_rank 2");
  EXPECT_NE(Job(r).reason().find("its replay of logged rounds has not moved for 10.0 s"), std::string::npos);
}

TEST(Verdict, WhoHasToldTooLittleIsNotJudged) {
  std::vector<Told> r = ring({{10, 88, 0, 85, 2}, {10, 88, 0, 80, 2}, {97, 1, 0, 1, 0}, {10, 88, 0, 86, 2}});
  r[2].window_ms = 4900;
  EXPECT_EQ(Job(r).blamed(), "");
  r[2].window_ms = 5000;
  EXPECT_EQ(Job(r).blamed(), "slow_rank 2");
  r[2].finalizing = true;
  EXPECT_EQ(Job(r).blamed(), "");
}

TEST(Verdict, LimitsFollowFromTheRoundTimeout) {
  const StragglerLimits usual = straggler_limits(10'000);
  EXPECT_EQ(usual.heartbeat_ms, 1000);
  EXPECT_EQ(usual.sample_ms, 100);
  EXPECT_EQ(usual.window_ms, 10'000);
  EXPECT_EQ(usual.suspect_ms, 3000);
  for (const std::int64_t timeout_ms :
       {limits::kMinRoundTimeoutMs, std::int64_t{700}, std::int64_t{60'000}, limits::kMaxRoundTimeoutMs}) {
    const StragglerLimits l = straggler_limits(timeout_ms);
    EXPECT_LT(l.suspect_ms, timeout_ms);
    EXPECT_LE(l.sample_ms, l.heartbeat_ms);
    EXPECT_LT(suspect_after_ms(l, 10 * timeout_ms), timeout_ms) << "suspicion comes before the loss";
    EXPECT_EQ(suspect_after_ms(l, 0), l.suspect_ms);
  }
}

TEST(ExplainWaits, FollowsTheChainToItsEnd) {
  std::vector<Told> r(5);
  r[0].rounds = {round(17, 8, {1}, 2300)};
  r[1].rounds = {round(17, 8, {4}, 1000)};
  r[2].rounds = {round(17, 8, {1, 3}, 900)};
  r[3].rounds = {round(17, 8, {}, 900)};
  const auto explain = [&] {
    std::string text;
    for (const std::string& line : explain_waits(Job(r).testimonies(), straggler_limits(10'000))) text += line + "\n";
    return text;
  };
  EXPECT_EQ(explain(),
            "round p.17: rank 0 has waited 2.3 s for rank 1, which waits for rank 4, which has not entered it (its "
            "program computes; 41 rounds finished)\n");
  r[4].silent_ms = 3400;
  EXPECT_NE(explain().find("rank 4, which has not been heard for 3.4 s"), std::string::npos);
  r[4].silent_ms = 0;
  r[4].rounds = {round(16, 8, {}, 0)};
  EXPECT_NE(explain().find("rank 4, which has not entered it (it is in round p.16; 41 rounds finished)"),
            std::string::npos);
  r[4].rounds = {round(17, 8, {0}, 0)};
  EXPECT_NE(explain().find("which waits for rank 4, which waits for rank 0: they wait for each other"),
            std::string::npos);
  r[2].rounds[0].set_waited_ms(5000);
  EXPECT_NE(explain().find("rank 2 has waited 5.0 s for rank 3, which is in it and waits for nobody"),
            std::string::npos);
  r[3].rounds.clear();
  r[3].finalizing = true;
  EXPECT_NE(explain().find("rank 3, which has called finalize"), std::string::npos);
}

Verdict verdict(Blame blame, std::int32_t rank) {
  Verdict v;
  v.blame = blame;
  v.rank = Rank(rank);
  return v;
}

TEST(StragglerWatch, SaysEachChangeOnce) {
  StragglerWatch watch;
  std::int64_t now = 0;
  std::string said;
  const auto look = [&](const std::vector<Verdict>& found) {
    now += 1000;
    for (const auto& change : watch.look(found, TimeMs{now})) {
      said += std::string(change.begins ? "+" : "-") + to_string(change.verdict.blame) +
              (change.begins ? "" : " " + std::to_string(change.stood_ms)) + " ";
    }
  };
  const Verdict slow = verdict(Blame::kSlowRank, 1), hung = verdict(Blame::kHung, 2);
  look({slow});
  look({slow});
  EXPECT_EQ(said, "") << "twice is chance";
  look({});
  look({slow});
  look({slow});
  look({slow});
  EXPECT_EQ(said, "+slow_rank ");
  EXPECT_NE(watch.against(Rank(1)), nullptr);
  for (int i = 0; i < 4; ++i) look({});
  look({slow});
  for (int i = 0; i < 4; ++i) look({});
  EXPECT_EQ(said, "+slow_rank ") << "it flaps";
  ASSERT_EQ(watch.standing().size(), 1u);
  look({});
  EXPECT_EQ(said, "+slow_rank -slow_rank 12000 ");
  look({hung});
  EXPECT_EQ(said, "+slow_rank -slow_rank 12000 +hung ") << "a silence has its own limit";
  look({});
  EXPECT_EQ(said, "+slow_rank -slow_rank 12000 +hung -hung 1000 ");
  look({hung});
  watch.forget();
  EXPECT_TRUE(watch.standing().empty());
}

}  // namespace
}  // namespace warren::test

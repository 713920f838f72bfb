// Calls that wait for each other: which ranks may be said to be stuck for good, and which never.
#include "recovery/decide/deadlock.h"

#include <gtest/gtest.h>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

constexpr std::int64_t kTimeoutMs = 5000;
constexpr std::uint64_t kG = 7, kH = 8;  // groups

wire::CurrentRound call_in(std::uint64_t group, std::uint64_t sequence, std::vector<std::uint32_t> waiting_for = {},
                           Collective collective = Collective::kAllreduce) {
  wire::CurrentRound r = round(sequence, 8, waiting_for, 0);
  r.set_group(group);
  r.set_collective(static_cast<std::uint32_t>(collective));
  return r;
}

// `came`: messages that have come from that rank.
wire::CurrentRound receive(std::uint32_t from, std::uint64_t came = 0) {
  wire::CurrentRound r = round(0, came, {from}, 0);
  r.set_collective(static_cast<std::uint32_t>(Collective::kPoint));
  r.set_root(3);
  return r;
}

// A rank that has said for six seconds that it is blocked.
struct Rank6 {
  std::vector<wire::CurrentRound> calls;
  std::map<std::uint64_t, std::uint64_t> begun = {};  // rounds, by group
  std::map<std::uint32_t, std::uint64_t> sent = {};   // messages of the world, by peer
  bool says = true, leaving = false, finalizing = false, complete = false;
  std::uint64_t blocked_ms = 6000;
  std::int64_t age_ms = 0;
};

std::string deadlock(const std::vector<Rank6>& ranks) {
  std::vector<wire::Blocked> blocked(ranks.size());
  std::vector<RankReport> reports;
  for (std::size_t i = 0; i < ranks.size(); i++) {
    const Rank6& r = ranks[i];
    blocked[i].set_blocked_ms(r.blocked_ms);
    blocked[i].set_complete(r.complete);
    for (const auto& c : r.calls) *blocked[i].add_calls() = c;
    for (const auto& [group, rounds] : r.begun) {
      blocked[i].add_begun()->set_group(group);
      blocked[i].mutable_begun()->rbegin()->set_rounds(rounds);
    }
    for (const auto& [peer, messages] : r.sent) {
      wire::SentMessages& s = *blocked[i].add_sent();
      s.set_peer(peer);
      s.set_messages(messages);
      s.set_leaving(r.leaving);
    }
    RankReport report;
    report.rank = Rank(static_cast<int>(i));
    report.finalizing = r.finalizing;
    report.age_ms = r.age_ms;
    if (r.says) report.blocked = &blocked[i];
    reports.push_back(report);
  }
  return find_deadlock(reports, kTimeoutMs, [](Rank r) { return "rank " + std::to_string(r.value) + " (w)"; })
      .value_or("");
}

TEST(Deadlock, RanksThatReceiveFromEachOtherAreNamedWithTheirCalls) {
  EXPECT_EQ(deadlock({{{receive(1)}}, {{receive(0)}}}),
            "calls wait for each other in a circle and cannot end: rank 0 (w) waits in recv (tag 3) for rank 1; rank 1 "
            "(w) waits in recv (tag 3) for rank 0");
}

TEST(Deadlock, GroupsThatAreCalledInOppositeOrderAreACircle) {
  const std::string found =
      deadlock({{{call_in(kG, 0, {1})}, {{kG, 1}, {kH, 0}}}, {{call_in(kH, 0, {0})}, {{kG, 0}, {kH, 1}}}});
  EXPECT_NE(found.find("rank 0 (w) waits in allreduce(f32, sum, count 8) in round p.0 of group 7 for rank 1"),
            std::string::npos)
      << found;
}

// A ring in which neighbours of the one that is missing wait for ranks that are in the round.
TEST(Deadlock, WhoeverIsInTheRoundWaitsForTheRankThatIsNot) {
  EXPECT_NE(deadlock({{{call_in(kG, 0, {3})}, {{kG, 1}, {kH, 0}}},
                      {{call_in(kG, 0, {0})}, {{kG, 1}, {kH, 0}}},
                      {{call_in(kH, 0, {1})}, {{kG, 0}, {kH, 1}}},
                      {{call_in(kH, 0, {2})}, {{kG, 0}, {kH, 1}}}}),
            "");
}

// A rank in the first round of a group that it makes.
Rank6 makes(std::uint64_t group, std::vector<std::uint32_t> waiting_for) {
  Rank6 rank{{call_in(group, 0, std::move(waiting_for))}, {{0, 0}, {group, 1}}};
  rank.complete = true;
  return rank;
}

// warren_group: nobody tells a rank of the groups that it has not made.
TEST(Deadlock, GroupsThatTheirMembersMakeInOtherOrdersAreACircle) {
  EXPECT_NE(deadlock({makes(11, {1}), makes(12, {2}), makes(13, {0})}), "");
  // Rank 1 is in the round of rank 0, and waits for rank 2.
  const std::string found = deadlock({makes(11, {1}), makes(11, {2}), makes(12, {0})});
  EXPECT_NE(found.find("rank 0 (w) waits in allreduce(f32, sum, count 8) in round p.0 of group b for rank 2"),
            std::string::npos)
      << found;
}

TEST(Deadlock, AGroupThatWasDestroyedOrMayHaveBeenFreesThoseInIt) {
  std::vector<Rank6> ranks = {makes(11, {1}), makes(12, {2}), makes(13, {0})};
  ranks[1].begun[11] = 1;
  EXPECT_EQ(deadlock(ranks), "") << "its part is on its way";
  ranks[1].begun.erase(11);
  ranks[1].complete = false;
  EXPECT_EQ(deadlock(ranks), "") << "not all groups are told of";
}

TEST(Deadlock, ThoseWhoWaitForACircleAreNotInIt) {
  const std::string found = deadlock({{{call_in(0, 4)}, {{0, 5}}}, {{receive(2)}, {{0, 4}}}, {{receive(1)}, {{0, 4}}}});
  EXPECT_EQ(found.find("rank 0"), std::string::npos) << found;
  EXPECT_NE(found.find("rank 1 (w) waits in recv (tag 3) for rank 2"), std::string::npos) << found;
}

TEST(Deadlock, ACollectiveAgainstAReceiveIsACircle) {
  EXPECT_NE(deadlock({{{call_in(0, 4)}, {{0, 5}}}, {{receive(0)}, {{0, 4}}}}), "");
}

TEST(Deadlock, ABroadcastNeedsItsRootAlone) {
  const auto broadcast = call_in(kG, 0, {1}, Collective::kBroadcast);
  EXPECT_NE(deadlock({{{broadcast}, {{kG, 1}}}, {{receive(0)}, {{kG, 0}}}}), "");
  // Its root may return before others have entered.
  EXPECT_EQ(deadlock({{{call_in(kG, 0, {}, Collective::kBroadcast)}, {{kG, 1}}}, {{receive(0)}, {{kG, 0}}}}), "");
}

// ---- no false alarm

TEST(Deadlock, ARankThatMayStillCallSomethingFreesAllThatNeedIt) {
  EXPECT_EQ(deadlock({{{receive(1)}}, {{receive(0)}, {}, {}, false}}), "");
  EXPECT_EQ(deadlock({{{receive(1)}}, {{receive(2)}}, {{receive(0)}, {}, {}, false}}), "");
  EXPECT_EQ(deadlock({{{receive(1)}}, {{receive(0)}, {}, {}, true, false, true}}), "") << "it has called finalize";
}

TEST(Deadlock, ACallThatMayEndFreesItsRankWhateverItsOtherCallsWaitFor) {
  // Rank 0 also waits in a round that rank 2, which computes, will enter.
  EXPECT_EQ(deadlock({{{receive(1), call_in(kG, 0, {2})}, {{kG, 1}}}, {{receive(0)}}, {{}, {{kG, 0}}, {}, false}}), "");
}

TEST(Deadlock, AMessageThatIsOnItsWayFreesItsReceiver) {
  EXPECT_EQ(deadlock({{{receive(1, 4)}}, {{receive(0)}, {}, {{0, 5}}}}), "") << "four of five have come";
  EXPECT_NE(deadlock({{{receive(1, 5)}}, {{receive(0)}, {}, {{0, 5}}}}), "");
  EXPECT_EQ(deadlock({{{receive(1, 5)}}, {{receive(0)}, {}, {{0, 5}}, true, true}}), "") << "one has not left";
}

TEST(Deadlock, ARankThatHasBegunTheRoundHasItsPartOnTheWay) {
  EXPECT_EQ(deadlock({{{call_in(kG, 0, {1})}, {{kG, 1}, {kH, 0}}}, {{call_in(kH, 0, {0})}, {{kG, 1}, {kH, 1}}}}), "");
  EXPECT_EQ(deadlock({{{call_in(kG, 0, {1})}, {{kG, 1}}}, {{call_in(kG, 0, {0})}, {{kG, 1}}}}), "");
}

TEST(Deadlock, ARankThatHasNotMadeTheGroupOrIsBeyondItIsNotKnownToBeMissing) {
  EXPECT_EQ(deadlock({{{call_in(kG, 0, {1})}, {{kG, 1}}}, {{receive(0)}, {}}}), "");
  EXPECT_EQ(deadlock({{{call_in(kG, 0, {1})}, {{kG, 1}}}, {{receive(0)}, {{kG, 9}}}}), "");
}

TEST(Deadlock, ASetUpRoundHasNoPlaceAmongTheOthers) {
  EXPECT_EQ(deadlock({{{call_in(kG, kSetupBit | 1, {1})}, {{kG, 0}}}, {{receive(0)}, {{kG, 0}}}}), "");
}

TEST(Deadlock, AnEmptyAllreduceMayEndWithoutTheOthers) {
  wire::CurrentRound empty = call_in(kG, 0, {});
  empty.set_count(0);
  EXPECT_EQ(deadlock({{{empty}, {{kG, 1}}}, {{receive(0)}, {{kG, 0}}}}), "");
}

TEST(Deadlock, AllMustHaveBeenBlockedAtOneMomentForTheWholeTimeout) {
  const auto after = [](std::uint64_t a_ms, std::uint64_t b_ms, std::int64_t a_age_ms, std::int64_t b_age_ms) {
    Rank6 a{{receive(1)}}, b{{receive(0)}};
    a.blocked_ms = a_ms;
    b.blocked_ms = b_ms;
    a.age_ms = a_age_ms;
    b.age_ms = b_age_ms;
    return deadlock({a, b}) != "";
  };
  EXPECT_TRUE(after(5000, 5000, 0, 0));
  EXPECT_FALSE(after(4999, 9000, 0, 0));
  EXPECT_TRUE(after(5000, 9000, 400, 0));
  EXPECT_FALSE(after(5000, 5399, 400, 0)) << "400 ms ago the second one had been blocked for 4999 ms";
  EXPECT_TRUE(after(5000, 5400, 400, 0));
  EXPECT_FALSE(after(50'000, 50'000, 5000, 0)) << "the first one is not heard any more";
}

TEST(Deadlock, TheTrackerTellsAllRanks) {
  TrackerScript t;
  (void)t.join("w0", 10, 3);
  (void)t.join("w1", 11, 3);
  (void)t.join("w2", 12, 3);
  const auto say = [&](std::uint64_t life, const std::vector<wire::CurrentRound>& calls) {
    wire::Envelope e = from_worker(life);
    wire::Heartbeat& h = *e.mutable_heartbeat();
    h.set_generation(1);
    h.set_beat(1);
    if (!calls.empty()) h.mutable_blocked()->set_blocked_ms(kTimeoutMs);
    for (const auto& call : calls) *h.mutable_blocked()->add_calls() = call;
    (void)t.send(std::move(e));
  };
  say(10, {receive(1)});
  say(11, {receive(0)});
  say(12, {});
  const std::string text = t.pass(1000);
  for (const char* life : {"10", "11", "12"}) {
    EXPECT_NE(text.find(std::string(life) + " <- Interrupt generation 2 code 6: calls wait for each other in a circle"),
              std::string::npos)
        << text;
  }
}

TEST(Deadlock, RanksOutsideTheWorldAreNobody) {
  EXPECT_EQ(deadlock({{{receive(9)}}, {{call_in(kG, 0, {9})}, {{kG, 1}}}}), "");
}

}  // namespace
}  // namespace warren::test

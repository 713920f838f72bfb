// Who is asked, what counts, and when nobody needs to be asked again.
#include "worker/replay/inquiry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace warren::worker {
namespace {

using Sends = std::vector<Replayer::Send>;

constexpr RoundId kRound{Timeline(2), kWorldGroup, Version(5), Sequence(7)};

Incarnation life(std::int32_t rank, std::uint64_t generation = 1) {
  return Incarnation(1000 * generation + static_cast<std::uint64_t>(rank));
}
// Rank 0 of so many; those from `fresh` on are new.
Replayer::Plan plan(std::int32_t size, std::uint64_t generation = 1, std::int32_t fresh = INT32_MAX) {
  Replayer::Plan p;
  p.generation = Generation(generation);
  p.self = Rank(0);
  p.timeout_ms = 10'000;
  for (std::int32_t r = 0; r < size; ++r) p.peers.push_back({Rank(r), life(r), "h", "h", r >= fresh});
  return p;
}
Fingerprint sum() {
  Fingerprint f;
  f.collective = Collective::kAllreduce;
  f.type = DataType::kF64;
  f.op = ReduceOp::kSum;
  f.count = 3;
  f.site = 77;
  return f;
}

struct Asker {
  Inquiry inquiry;
  Sends sends;
  TimeMs now{100};

  void install(const Replayer::Plan& p) { inquiry.install(p, now, sends); }
  void ask() { inquiry.ask(kRound, {70, 77}, now, sends); }
  // The next requests, once their time has come.
  Sends wait() {
    sends.clear();
    now = inquiry.next_deadline().value();
    inquiry.on_tick(now, sends);
    return sends;
  }
  void answer(const Replayer::Send& s, RoundWord word) {
    const Fingerprint f = sum();
    const auto reply = answer_to(s.request, word, word == RoundWord::kRound ? &f : nullptr);
    ASSERT_TRUE(validate(reply, Payloads::kApart).ok());
    inquiry.on_reply(s.to, reply);
  }
};

TEST(Inquiry, AsksTheOthersUntilOneCanTell) {
  Asker a;
  a.install(plan(3));
  EXPECT_TRUE(a.sends.empty());
  EXPECT_EQ(a.inquiry.next_deadline(), std::nullopt);
  a.ask();
  ASSERT_EQ(a.sends.size(), 2u);
  for (const Replayer::Send& s : a.sends) {
    ASSERT_TRUE(validate(s.request).ok()) << validate(s.request).describe();
    EXPECT_TRUE(s.request.asks());
    EXPECT_EQ(s.request.receiver(), life(s.to.value).value);
    EXPECT_EQ(s.request.first_sequence(), 7u);
    EXPECT_EQ(s.request.version(), 5u);
    EXPECT_EQ(s.request.timeline(), 2u);
    EXPECT_THAT(s.request.sites(), testing::ElementsAre(70, 77));
  }
  for (const Replayer::Send& s : Sends(a.sends)) a.answer(s, RoundWord::kLater);
  EXPECT_EQ(a.inquiry.answer(), std::nullopt);
  EXPECT_EQ(a.inquiry.describe(), "ranks 1, 2");
  // More and more seldom, and never for ever.
  std::int64_t before = 0;
  for (int i = 0; i < 20; ++i) {
    const TimeMs from = a.now;
    ASSERT_EQ(a.wait().size(), 2u);
    const std::int64_t pause = a.now - from;
    EXPECT_GE(pause, before);
    EXPECT_LE(pause, 250);
    before = pause;
  }
  a.answer(a.sends[1], RoundWord::kRound);
  ASSERT_NE(a.inquiry.answer(), std::nullopt);
  EXPECT_EQ(a.inquiry.answer()->word, RoundWord::kRound);
  EXPECT_EQ(a.inquiry.answer()->round, sum());
  EXPECT_EQ(a.inquiry.next_deadline(), std::nullopt);
  a.answer(a.sends[0], RoundWord::kOver);
  EXPECT_EQ(a.inquiry.answer()->word, RoundWord::kRound) << "the first word stands";
}

TEST(Inquiry, WhereAllAskTheSameThatIsTheAnswer) {
  Asker a;
  a.install(plan(4));
  a.ask();
  const Sends first = a.sends;
  a.answer(first[0], RoundWord::kAsks);
  a.answer(first[1], RoundWord::kAsks);
  const Sends again = a.wait();
  ASSERT_EQ(again.size(), 1u) << "who asks the same need not be asked again";
  EXPECT_EQ(a.inquiry.describe(), "rank 3");
  a.answer(first[2], RoundWord::kAsks);  // an answer that is late
  ASSERT_NE(a.inquiry.answer(), std::nullopt);
  EXPECT_EQ(a.inquiry.answer()->word, RoundWord::kAsks);
}

TEST(Inquiry, WhereSomeArePastItAndNobodyKnowsItThatIsTheAnswer) {
  Asker a;
  a.install(plan(4));
  a.ask();
  const Sends first = a.sends;
  a.answer(first[0], RoundWord::kGone);
  a.answer(first[1], RoundWord::kAsks);
  EXPECT_EQ(a.inquiry.answer(), std::nullopt) << "rank 3 may know";
  EXPECT_EQ(a.inquiry.describe(), "rank 3");
  const Sends again = a.wait();
  ASSERT_EQ(again.size(), 1u);
  a.answer(again[0], RoundWord::kAsks);
  ASSERT_NE(a.inquiry.answer(), std::nullopt);
  EXPECT_EQ(a.inquiry.answer()->word, RoundWord::kGone);
  // Its log may have been elsewhere.
  Asker b;
  b.install(plan(3));
  b.ask();
  b.answer(b.sends[0], RoundWord::kGone);
  b.answer(b.sends[1], RoundWord::kRound);
  ASSERT_NE(b.inquiry.answer(), std::nullopt);
  EXPECT_EQ(b.inquiry.answer()->word, RoundWord::kRound);
}

TEST(Inquiry, WhereSomeAskForAnotherCallNobodyKnows) {
  Asker a;
  a.install(plan(4));
  a.ask();
  const Sends first = a.sends;
  a.answer(first[0], RoundWord::kOther);
  a.answer(first[1], RoundWord::kAsks);
  EXPECT_EQ(a.inquiry.answer(), std::nullopt) << "rank 3 may know";
  a.answer(first[2], RoundWord::kAsks);
  ASSERT_NE(a.inquiry.answer(), std::nullopt);
  EXPECT_EQ(a.inquiry.answer()->word, RoundWord::kGone) << "two that decided would make different rounds";
}

TEST(Inquiry, AWorldOfOneNeedsNobody) {
  Asker a;
  a.install(plan(1));
  a.ask();
  EXPECT_TRUE(a.sends.empty());
  ASSERT_NE(a.inquiry.answer(), std::nullopt);
  EXPECT_EQ(a.inquiry.answer()->word, RoundWord::kAsks);
}

TEST(Inquiry, WhatCameInAnOlderGenerationDoesNotCount) {
  Asker a;
  a.install(plan(3, 1));
  a.ask();
  const Sends old = a.sends;
  a.answer(old[0], RoundWord::kAsks);
  a.inquiry.suspend();
  EXPECT_EQ(a.inquiry.next_deadline(), std::nullopt);
  a.answer(old[1], RoundWord::kRound);
  a.sends.clear();
  a.install(plan(3, 2));
  EXPECT_EQ(a.sends.size(), 2u) << "it is asked again";
  a.answer(old[1], RoundWord::kRound);
  a.answer(a.sends[1], RoundWord::kAsks);
  EXPECT_EQ(a.inquiry.answer(), std::nullopt) << "rank 1 has said nothing in this generation";
  a.answer(a.sends[0], RoundWord::kAsks);
  EXPECT_NE(a.inquiry.answer(), std::nullopt);
}

TEST(Inquiry, AnswersToAnotherQuestionOrOfAnotherLifeAreDropped) {
  Asker a;
  a.install(plan(2));
  a.ask();
  const Replayer::Send first = a.sends[0];
  a.inquiry.cancel();
  EXPECT_EQ(a.inquiry.next_deadline(), std::nullopt);
  a.sends.clear();
  a.ask();
  a.answer(first, RoundWord::kOver);
  EXPECT_EQ(a.inquiry.answer(), std::nullopt);
  Replayer::Send other = a.sends[0];
  other.request.set_receiver(life(1, 9).value);
  a.answer(other, RoundWord::kOver);
  EXPECT_EQ(a.inquiry.answer(), std::nullopt);
  a.answer(a.sends[0], RoundWord::kOver);
  EXPECT_EQ(a.inquiry.answer()->word, RoundWord::kOver);
}

// Older lives first; few at a time, and all in the end.
TEST(Inquiry, InALargeWorldFewAreAskedAtOnce) {
  Asker a;
  a.install(plan(1000, 1, 500));
  a.ask();
  ASSERT_EQ(a.sends.size(), 16u);
  for (const Replayer::Send& s : a.sends) EXPECT_LT(s.to.value, 500);
  std::set<std::int32_t> asked;
  for (const Replayer::Send& s : a.sends) asked.insert(s.to.value);
  for (int i = 0; i < 62; ++i) {
    for (const Replayer::Send& s : a.wait()) asked.insert(s.to.value);
  }
  EXPECT_EQ(asked.size(), 999u);
}

}  // namespace
}  // namespace warren::worker

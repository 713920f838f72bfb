// Ranks that hold up the others leave their places to spares: who is asked, when, and who never.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
int count_of(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// What rank 1 does, for which rank 0 waits.
enum class Does { kAsTheOthers, kComputes, kReplays, kSendsSlowly, kIsCutOff };

// Two ranks, w0 and w1, on hosts a and b, or four, with w8 and w9 on y and z. A round timeout of 5 s: a look a second,
// over 10 s.
class Job : public TrackerScript {
 public:
  explicit Job(std::uint64_t replace_after_ms = 5000, bool waits = true, std::uint32_t replicas = 2,
               std::uint32_t size = 2)
      : TrackerScript(true, replicas),
        replace_after_ms_(replace_after_ms),
        waits_(waits),
        replicas_(replicas),
        size_(size) {}

  std::string say(const std::string& worker, std::uint64_t life, const std::string& host, bool spare,
                  std::uint64_t called = 0) {
    wire::Envelope e = promised(life);
    wire::Join& j = *e.mutable_join();
    j = test::join(worker, host, size_, replicas_);
    j.mutable_settings()->set_replace_after_ms(replace_after_ms_);
    j.mutable_settings()->set_min_workers(min_workers_);
    j.mutable_settings()->set_grace_ms(min_workers_ == 0 ? 0 : 60'000);
    j.set_waits(waits_ || spare);
    j.set_spare(spare);
    j.set_called(called);
    if (spare) spares_[worker] = {life, host};
    if (called != 0) spares_.erase(worker);
    return send(std::move(e));
  }
  void begin() {
    (void)say("w0", 10, "a", false);
    if (size_ == 4) {
      (void)say("w8", 18, "y", false);
      (void)say("w9", 19, "z", false);
    }
    ASSERT_TRUE(has(say("w1", 11, "b", false), "10 <- Plan generation 1 w0=10 w1=11"));
  }
  // A second in which all that live are heard, and then the tracker looks.
  std::string second(Does what = Does::kComputes) {
    std::string text;
    for (std::uint32_t rank = 0; rank < size_; ++rank) {
      if (rank != silent_) text += beat_of(rank, what);
    }
    for (const auto& [worker, spare] : std::map(spares_)) (void)say(worker, spare.first, spare.second, true);
    return text + pass(1000);
  }
  std::string seconds(int n, Does what = Does::kComputes) {
    std::string text;
    for (int i = 0; i < n; ++i) text += second(what);
    return text;
  }
  // Until it is asked, and has heard it.
  void ask() {
    const std::string text = seconds(7);
    ASSERT_TRUE(has(text, " leave generation " + std::to_string(generation_))) << text;
    draining_ = true;
    (void)second();
  }
  // Rank 1 leaves, and all others have stopped.
  std::string leave() {
    (void)give_up(lives_[1], generation_, "asked");
    draining_ = false;
    return report(lives_[0], ++generation_, 1, {position(1, 3)});
  }
  // Before it begins.
  void shrinks_to(std::uint32_t min_workers) { min_workers_ = min_workers; }
  // Rank 1 leaves, and the others of four have stopped.
  std::string leave_for_good() {
    std::string text = give_up(lives_[1], generation_, "asked");
    draining_ = false;
    silent_ = 1;
    ++generation_;
    for (const std::uint32_t rank : {0u, 2u, 3u}) text += report(lives_[rank], generation_, 1, {position(1, 3)});
    return text;
  }
  std::string commit(std::uint64_t version) {
    std::string text;
    for (const std::uint32_t rank : {0u, 2u, 3u}) {
      text += vote(lives_[rank], version, {position(version - 1, 3, true)}, 1);
    }
    return text;
  }
  void now_is(std::uint64_t rank, std::uint64_t life) { lives_[rank] = life; }
  void falls_silent(std::uint32_t rank) { silent_ = rank; }
  void drains(bool yes) { draining_ = yes; }
  void goes(const std::string& spare) { spares_.erase(spare); }
  [[nodiscard]] std::string next() {
    const auto v = machine().view(TimeMs{now()});
    return v.verdicts.empty() ? "" : v.verdicts.front().verdict.next;
  }
  std::uint64_t generation() const { return generation_; }

 private:
  std::string beat_of(std::uint32_t rank, Does what) {
    wire::Envelope e = from_worker(lives_[rank]);
    wire::Heartbeat& h = *e.mutable_heartbeat();
    h.set_generation(generation_);
    h.set_beat(++beat_);
    const bool all_well = what == Does::kAsTheOthers;
    wire::Activity& a = *h.mutable_activity();
    a.set_window_ms(10'000);
    a.set_outside_ms(1000);
    a.set_idle_ms(8900);
    if (what == Does::kIsCutOff) {
      for (std::uint32_t peer = 0; peer < size_; ++peer) {
        if (peer == rank) continue;
        wire::LinkActivity& to = *a.add_links();
        to.set_peer(peer);
        if (rank != 1 && peer != 1) continue;
        to.set_awaited_ms(8800);
        to.set_blocked_ms(8800);
      }
      return send(std::move(e));
    }
    wire::LinkActivity& l = *a.add_links();
    l.set_peer(rank == 0 ? 1 : 0);
    if (rank == 0 && !all_well) {
      *h.add_rounds() = round(3, 8, {1}, 900);
      l.set_awaited_ms(8800);
      l.set_usual_bytes_per_s(what == Does::kSendsSlowly ? 1'000'000 : 0);
    }
    if (rank == 1 && (what == Does::kComputes || what == Does::kReplays)) {
      a.set_outside_ms(what == Does::kReplays ? 0 : 9800);
      a.set_idle_ms(100);
      a.set_replaying(what == Does::kReplays);
    }
    if (rank == 1 && what == Does::kSendsSlowly) l.set_blocked_ms(8800);
    if (rank == 1 && draining_) {
      h.mutable_draining()->set_left_ms(4000);
      h.mutable_draining()->set_reason("asked");
    }
    return send(std::move(e));
  }

  const std::uint64_t replace_after_ms_;
  const bool waits_;
  const std::uint32_t replicas_, size_;
  std::uint32_t silent_ = 99;
  std::uint64_t generation_ = 1, beat_ = 0;
  std::uint32_t min_workers_ = 0;
  std::uint64_t lives_[4] = {10, 11, 18, 19};
  bool draining_ = false;
  std::map<std::string, std::pair<std::uint64_t, std::string>> spares_;
};

TEST(Replace, ARankIsAskedToLeaveWhenItsTimeIsUpAndUntilItHasHeard) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  std::string text = t.seconds(3);
  EXPECT_TRUE(has(text, "log straggler: slow_rank: rank 1")) << text;
  EXPECT_TRUE(has(text, "Next: it is replaced by spare w2 in 3.0 s\n")) << text;
  EXPECT_EQ(t.next(), "it is replaced by spare w2 in 3.0 s");
  text = t.seconds(2);
  EXPECT_FALSE(has(text, "leave") || has(text, "replace_asked")) << text;
  text = t.second();
  EXPECT_TRUE(
      has(text,
          "log replace_asked: rank 1 (worker w1 on host b) is asked to leave within 5.0 s, and spare w2 on host "
          "c takes its place: slow_rank for 5.0 s\n"))
      << text;
  EXPECT_EQ(t.next(), "it was asked to leave, and spare w2 on host c takes its place");
  for (int i = 0; i < 2; ++i) {
    text = t.second();
    EXPECT_TRUE(
        has(text,
            " leave generation 1 within 5000 ms: the tracker found it slow_rank for 5.0 s, and spare w2 on host c "
            "takes its place\n"))
        << "until it is known to have heard: " << text;
    EXPECT_EQ(count_of(text, "leave generation"), 1) << "nobody else is asked";
    EXPECT_FALSE(has(text, "replace_asked"));
  }
  t.drains(true);
  text = t.second();
  EXPECT_FALSE(has(text, "leave generation")) << text;
  EXPECT_TRUE(has(text,
                  "log rank_drains: rank 1 (worker w1 on host b) has been told to leave (asked) and does so "
                  "within 4000 ms; spare w2 on host c takes its place\n"))
      << text;
  EXPECT_EQ(t.next(), "it leaves, and spare w2 on host c takes its place");
  EXPECT_TRUE(t.machine().view(TimeMs{t.now()}).members[1].replaced);
  text = t.leave();
  EXPECT_TRUE(has(t.transcript(), "rank 1 (worker w1 on host b) has left as it was asked to (asked)"));
  EXPECT_TRUE(has(text, "12 <- Called generation 2")) << text;
  text = t.say("w2", 12, "c", false, 2);
  EXPECT_TRUE(has(text, "10 <- Plan generation 2 w0=10 (as before) w2=12 1.3\n")) << text;
  EXPECT_EQ(t.machine().view(TimeMs{t.now()}).preemptions, 0u);
  EXPECT_TRUE(has(t.say("w1", 13, "b", false), "13 <- Welcome as a spare\n"));
}

TEST(Replace, WithoutTheSettingItIsSaidAndNoMore) {
  Job t(0);
  (void)t.say("w2", 12, "c", true);
  t.begin();
  const std::string text = t.seconds(60);
  EXPECT_TRUE(has(text, "Next: nothing but this report: all wait for it\n")) << text;
  EXPECT_FALSE(has(text, "leave generation") || has(text, "replace_asked"));
}

TEST(Exclude, WithoutASpareTheJobGoesOnWithoutTheRank) {
  Job t(5000, true, 2, 4);
  t.shrinks_to(3);
  t.begin();
  std::string text = t.seconds(7);
  EXPECT_TRUE(has(text, "Next: the job goes on without it in 3.0 s\n")) << text;
  EXPECT_TRUE(has(text, " is asked to leave within 5.0 s, and the job goes on without it: slow_rank for 5.0 s\n"))
      << text;
  EXPECT_TRUE(has(text,
                  " leave generation 1 within 5000 ms: the tracker found it slow_rank for 5.0 s, and the job goes on "
                  "without it\n"))
      << text;
  t.drains(true);
  EXPECT_TRUE(has(t.second(), "; the job goes on without it\n"));
  // Nobody waits for the grace time, a minute.
  text = t.leave_for_good();
  EXPECT_TRUE(has(text, "Plan generation 2")) << text;
  EXPECT_TRUE(t.machine().view(TimeMs{t.now()}).members[1].absent);
  // Its next life waits, and longer than until the next commit.
  EXPECT_TRUE(has(t.say("w1", 13, "b", false), "13 <- Welcome as a spare\n"));
}

TEST(Exclude, NotWhereNoFewerAreAllowed) {
  Job t(5000, true, 2, 4);
  t.shrinks_to(4);
  t.begin();
  const std::string text = t.seconds(60);
  EXPECT_FALSE(has(text, "leave generation")) << text;
  EXPECT_TRUE(
      has(text, "is not replaced: no spare is ready, and the job has no more than the 4 workers that it needs\n"))
      << text;
}

TEST(Exclude, ASpareComesFirst) {
  Job t(5000, true, 2, 4);
  t.shrinks_to(2);
  (void)t.say("w2", 12, "c", true);
  t.begin();
  EXPECT_TRUE(has(t.seconds(7), "and spare w2 on host c takes its place"));
}

// Whoever was excluded is no spare for others, and comes in when ten windows are over.
TEST(Exclude, WhoWasExcludedStaysOutForTenWindows) {
  Job t(5000, true, 2, 4);
  t.shrinks_to(2);
  t.begin();
  t.ask();
  (void)t.leave_for_good();
  (void)t.say("w1", 13, "b", true);
  EXPECT_FALSE(has(t.commit(2), "Pause")) << "it would come in now";
  (void)t.seconds(101, Does::kAsTheOthers);
  (void)t.say("w1", 13, "b", true);
  EXPECT_TRUE(has(t.commit(3), "worker w1 comes in"));
}

TEST(Replace, ALinkIsNotARank) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  const std::string text = t.seconds(30, Does::kSendsSlowly);
  EXPECT_TRUE(has(text, "slow_link: bytes of rank 1")) << text;
  EXPECT_FALSE(has(text, "leave generation") || has(text, "replace_asked")) << text;
  EXPECT_EQ(t.next(), "nothing but this report: bytes take the same way");
}

// Said once, with the reason.
void stays(Job& t, const std::string& why, Does what = Does::kComputes) {
  const std::string text = t.seconds(30, what);
  EXPECT_EQ(count_of(text,
                     "log not_replaced: rank 1 (worker w1 on host b) holds up the others for 5.0 s and is not "
                     "replaced: " +
                         why + "\n"),
            1)
      << text;
  EXPECT_EQ(t.next(), "it is not replaced: " + why);
  EXPECT_FALSE(has(text, "leave generation") || has(text, "replace_asked")) << text;
}

TEST(Replace, WhoseDataNetworkIsCutOffIsAskedAsWell) {
  Job t(5000, true, 2, 4);
  (void)t.say("w2", 12, "c", true);
  t.begin();
  const std::string text = t.seconds(7, Does::kIsCutOff);
  EXPECT_TRUE(has(text, "log straggler: cut_off: rank 1")) << text;
  EXPECT_TRUE(has(text, "Next: it is replaced by spare w2 in 5.0 s\n")) << text;
  EXPECT_TRUE(has(text, "11 <- HeartbeatReply 26 leave generation 1 within 5000 ms")) << text;
}

TEST(Replace, WhoIsNotHeardIsLostAsEver) {
  Job t(1000, true, 2, 4);
  (void)t.say("w2", 12, "c", true);
  t.begin();
  t.falls_silent(1);
  const std::string text = t.seconds(5, Does::kAsTheOthers);
  EXPECT_TRUE(has(text, "log straggler: hung: rank 1")) << text;
  EXPECT_TRUE(has(text, "it counts as lost after 5.0 s of silence")) << text;
  EXPECT_FALSE(has(text, "replace_asked") || has(text, "not_replaced")) << text;
}

TEST(Replace, WithoutASpareItStays) {
  Job t;
  t.begin();
  stays(t, "no spare is ready");
  // The first that comes is enough.
  (void)t.say("w2", 12, "c", true);
  EXPECT_TRUE(has(t.second(), "log replace_asked: rank 1"));
}

TEST(Replace, ASpareThatIsSilentIsNotCountedOn) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  (void)t.seconds(3);
  // It is on the list of spares still when the time is up.
  t.goes("w2");
  stays(t, "no spare is ready");
}

TEST(Replace, WhoReplaysStays) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  stays(t, "it replays what it has missed", Does::kReplays);
}

TEST(Replace, WhoLeavesAnywayIsNotAsked) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  t.drains(true);
  stays(t, "it leaves already");
}

TEST(Replace, WhoseLauncherKnowsNoSparesStays) {
  Job t(5000, false);
  (void)t.say("w2", 12, "c", true);
  t.begin();
  stays(t, "its worker was started without WARREN_SPARES");
}

TEST(Replace, WhatIsLoggedStaysInReach) {
  Job t(5000, true, 1);
  (void)t.say("w2", 12, "c", true);
  t.begin();
  stays(t, "without its machine, what was logged and committed might be out of reach");
  // A spare of that machine is.
  (void)t.say("w3", 13, "b", true);
  EXPECT_TRUE(has(t.second(), "and spare w3 on host b takes its place"));
}

TEST(Replace, ASpareOfAnotherHostComesFirst) {
  Job t;
  (void)t.say("w2", 12, "b", true);
  (void)t.say("w3", 13, "c", true);
  t.begin();
  t.ask();
  EXPECT_TRUE(has(t.transcript(), "spare w3 on host c takes its place"));
  EXPECT_TRUE(has(t.leave(), "13 <- Called generation 2"));
}

TEST(Replace, WhoRecoversBeforeItHasHeardMayStay) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  EXPECT_TRUE(has(t.seconds(6), "log replace_asked: rank 1"));
  std::string text = t.seconds(5, Does::kAsTheOthers);
  EXPECT_TRUE(has(text, "log replace_withdrawn: rank 1")) << text;
  text = t.seconds(2, Does::kAsTheOthers);
  EXPECT_FALSE(has(text, "leave generation")) << text;
  stays(t, "one rank is replaced in 100.0 s at most");
}

TEST(Replace, TheNextOneHasTime) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  (void)t.say("w3", 13, "d", true);
  t.begin();
  t.ask();
  (void)t.leave();
  (void)t.say("w2", 12, "c", false, 2);
  t.now_is(1, 12);
  // A commit: the host that was left counts no longer.
  (void)t.vote(10, 2, {position(1, 3, true)});
  (void)t.vote(12, 2, {position(1, 3, true)});
  const std::int64_t planned = t.now();
  std::string text;
  while (!has(text, "replace_asked") && t.now() < planned + 200'000) text += t.second();
  EXPECT_TRUE(has(text, "log replace_asked: rank 1 (worker w2 on host c)")) << text;
  EXPECT_EQ(t.now() - planned, 100'000);
  EXPECT_EQ(count_of(text, "log not_replaced"), 1);
}

TEST(Replace, ItsNextLifeDoesNotGetThePlaceThatASpareGets) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  t.ask();
  (void)t.give_up(11, 1);
  // Sooner than the others have stopped, and than the spare has looked.
  EXPECT_EQ(t.say("w1", 13, "b", false).substr(0, 15), "log spare_waits");
  EXPECT_TRUE(has(t.report(10, 2, 1, {position(1, 3)}), "12 <- Called generation 2"));
  EXPECT_FALSE(has(t.say("w1", 13, "b", true), "Called"));
  const std::string text = t.say("w2", 12, "c", false, 2);
  EXPECT_TRUE(has(text, "Plan generation 2 w0=10 (as before) w2=12 1.3\n")) << text;
}

// It is silent, or looks at its host for ever.
TEST(Replace, ItsNextLifeGetsThePlaceThatNoSpareTakes) {
  for (const bool looks : {false, true}) {
    Job t;
    (void)t.say("w2", 12, "c", true);
    t.begin();
    t.ask();
    (void)t.leave();
    (void)t.say("w1", 13, "b", false);
    const std::int64_t left = t.now();
    std::string text;
    while (!has(text, "13 <- Called generation 2") && t.now() < left + 10'000) {
      text += t.pass(1000) + t.report(10, 2, 1, {position(1, 3)}) + t.say("w1", 13, "b", true);
      if (looks) text += t.say("w2", 12, "c", true);
    }
    EXPECT_TRUE(has(text, "13 <- Called generation 2")) << text;
    EXPECT_EQ(t.now() - left, looks ? 5000 : 4000) << "a round timeout, or since the spare was heard last";
    text = t.say("w1", 13, "b", false, 2);
    EXPECT_TRUE(has(text, "Plan generation 2 w0=10 (as before) w1=13 1.3\n")) << text;
  }
}

TEST(Replace, ANewLifeIsNotAskedWhatTheOldOneWas) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  EXPECT_TRUE(has(t.seconds(6), "log replace_asked: rank 1"));
  // It has not heard, and its generation ends for another reason.
  (void)t.link_broken(10, 1, 1, 11);
  (void)t.pass(50);
  (void)t.report(10, 2, 1, {position(1, 3)});
  std::string text = t.report(11, 2, 1, {position(1, 3)});
  EXPECT_TRUE(has(text, "11 <- Plan generation 2 w0=10 (as before) w1=11 (as before) 1.3\n")) << text;
  wire::Envelope e = from_worker(11);
  e.mutable_heartbeat()->set_generation(2);
  e.mutable_heartbeat()->set_beat(100);
  EXPECT_EQ(t.send(e), "11 <- HeartbeatReply 100\n");
}

TEST(Replace, WhoLeavesInTheNextGenerationLeavesToASpareStill) {
  Job t;
  (void)t.say("w2", 12, "c", true);
  t.begin();
  t.ask();
  (void)t.link_broken(10, 1, 1, 11);
  (void)t.pass(50);
  (void)t.report(11, 2, 1, {position(1, 3)});
  EXPECT_TRUE(has(t.report(10, 2, 1, {position(1, 3)}), "Plan generation 2"));
  (void)t.give_up(11, 2);
  (void)t.say("w1", 13, "b", false);
  EXPECT_TRUE(has(t.report(10, 3, 1, {position(1, 3)}), "12 <- Called generation 3"));
}

}  // namespace
}  // namespace warren::test

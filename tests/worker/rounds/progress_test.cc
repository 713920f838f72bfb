// What a heartbeat says of the last seconds, from looks at the board.
#include "worker/rounds/progress.h"

#include <gtest/gtest.h>

#include "recovery/base/limits.h"

namespace warren::worker {
namespace {

constexpr std::int64_t kSampleMs = 100;

class Looks : public ::testing::Test {
 protected:
  Looks() {
    board_.open_links(4);
    reporter_.sample(board_, TimeMs{now_});
  }
  // So many looks, then a heartbeat.
  wire::Activity beat(int looks = 10) {
    for (int i = 1; i < looks; ++i) {
      now_ += kSampleMs;
      reporter_.sample(board_, TimeMs{now_});
    }
    now_ += kSampleMs;
    return reporter_.read(board_, TimeMs{now_}).activity.value();
  }
  void begin_round(std::vector<RoundBoard::Waited> waits) {
    board_.begin(0, {Timeline(0), kWorldGroup, Version(0), Sequence(3)}, {});
    board_.waits(0, waits);
  }

  RoundBoard board_;
  ProgressReporter reporter_{kSampleMs};
  std::int64_t now_ = 5000;
};

TEST_F(Looks, AProgramIsOutsideOfCallsSinceTheLookAfterItsLastOne) {
  (void)beat();
  EXPECT_EQ(reporter_.outside_since(), TimeMs{5100});
  begin_round({});
  (void)beat();
  EXPECT_EQ(reporter_.outside_since(), std::nullopt) << "it is at work in a round";
  board_.end(0);
  (void)beat();
  const auto since = reporter_.outside_since();
  EXPECT_EQ(since, TimeMs{7100});
  board_.rounds_finished = 1;  // one that no look has seen
  (void)beat(1);
  EXPECT_EQ(reporter_.outside_since(), std::nullopt);
  (void)beat();
  EXPECT_GT(reporter_.outside_since(), since);
  board_.asleep = 1;  // it waits for a commit
  (void)beat();
  EXPECT_EQ(reporter_.outside_since(), std::nullopt);
}

TEST_F(Looks, SayHowLongWhatIsShownAsBlockedHasBeenSo) {
  EXPECT_FALSE(reporter_.read(board_, TimeMs{6000}).blocked);
  const auto shown = std::make_shared<const wire::Blocked>();
  board_.show_blocked(shown);
  EXPECT_EQ(reporter_.read(board_, TimeMs{7000}).blocked->blocked_ms(), 0u);
  EXPECT_EQ(reporter_.read(board_, TimeMs{9000}).blocked->blocked_ms(), 2000u);
  board_.show_blocked(std::make_shared<const wire::Blocked>());
  EXPECT_EQ(reporter_.read(board_, TimeMs{9500}).blocked->blocked_ms(), 0u) << "something has moved meanwhile";
  EXPECT_EQ(reporter_.read(board_, TimeMs{9700}).blocked->blocked_ms(), 200u);
  reporter_.restart();
  EXPECT_EQ(reporter_.read(board_, TimeMs{9900}).blocked->blocked_ms(), 0u) << "in another generation";
  board_.show_blocked(nullptr);
  EXPECT_FALSE(reporter_.read(board_, TimeMs{9950}).blocked);
}

TEST_F(Looks, TellWhatTheTimeWentTo) {
  const wire::Activity outside = beat();
  EXPECT_EQ(outside.window_ms(), 1000u);
  EXPECT_EQ(outside.outside_ms(), 1000u);
  EXPECT_EQ(outside.links_size(), 0);
  begin_round({{Rank(1), true, false}, {Rank(3), true, true}});
  const wire::Activity busy = beat();
  EXPECT_EQ(busy.window_ms(), 2000u);
  EXPECT_EQ(busy.outside_ms(), 1000u);
  EXPECT_EQ(busy.idle_ms(), 0u);
  board_.asleep = 1;
  const wire::Activity idle = beat();
  EXPECT_EQ(idle.window_ms(), 3000u);
  EXPECT_EQ(idle.idle_ms(), 1000u);
  ASSERT_EQ(idle.links_size(), 2);
  EXPECT_EQ(idle.links(0).peer(), 1u);
  EXPECT_EQ(idle.links(0).awaited_ms(), 1000u);
  EXPECT_EQ(idle.links(0).blocked_ms(), 0u);
  EXPECT_EQ(idle.links(1).peer(), 3u);
  EXPECT_EQ(idle.links(1).awaited_ms(), 1000u);
  EXPECT_EQ(idle.links(1).blocked_ms(), 1000u);
  EXPECT_EQ(idle.held_ms(), 0u);
}

// A peer that two rounds wait for was waited for once.
TEST_F(Looks, CountATimeOnce) {
  begin_round({{Rank(1), true, false}});
  board_.begin(1, {Timeline(0), GroupId(7), Version(0), Sequence(3)}, {});
  board_.waits(1, std::vector<RoundBoard::Waited>{{Rank(1), true, false}});
  board_.asleep = 2;
  const wire::Activity a = beat();
  EXPECT_EQ(a.links(0).awaited_ms(), 1000u);
  EXPECT_EQ(a.idle_ms(), 1000u);
}

// A sleeper that was woken and has no core waits for nobody.
TEST_F(Looks, ASleeperWithoutACoreIsHeldUp) {
  begin_round({{Rank(1), true, true}});
  board_.asleep = 1;
  for (int i = 0; i < 9; i++) {
    reporter_.had_no_core(70);
    beat(1);
  }
  reporter_.had_no_core(500);  // some of it was before the look before
  const wire::Activity a = beat(1);
  EXPECT_EQ(a.window_ms(), 1000u);
  EXPECT_EQ(a.idle_ms(), 270u);
  EXPECT_EQ(a.links(0).awaited_ms(), 270u);
  EXPECT_EQ(a.links(0).blocked_ms(), 270u);
  EXPECT_EQ(a.held_ms(), 730u);
  board_.asleep = 0;
  for (int i = 0; i < 10; i++) {
    reporter_.had_no_core(70);
    beat(1);
  }
  const wire::Activity busy = beat(1);
  EXPECT_EQ(busy.held_ms(), 0u) << "at work it has more of it, the more it has to do";
  EXPECT_EQ(busy.idle_ms(), 0u);
}

// Of rounds that are too short to be shown.
TEST_F(Looks, WhatIsCarriedOutAtOnceIsNoTimeOutside) {
  board_.at_once = true;
  EXPECT_EQ(beat().outside_ms(), 0u);
  board_.at_once = false;
  EXPECT_EQ(beat().outside_ms(), 1000u);
}

TEST_F(Looks, AProcessThatDidNotRunSaysSo) {
  (void)beat();
  now_ += 4000;
  const wire::Activity a = beat();
  EXPECT_EQ(a.window_ms(), 6000u);
  EXPECT_EQ(a.held_ms(), 4100u - 2 * kSampleMs);
  EXPECT_EQ(a.outside_ms(), 6000u - a.held_ms());
}

TEST_F(Looks, ForgetWhatIsOlderThanTheWindow) {
  for (int i = 0; i < 3; ++i) (void)beat();
  begin_round({});
  for (std::int64_t i = 0; i < limits::kHeartbeatsPerWindow; ++i) (void)beat();
  const wire::Activity a = beat();
  EXPECT_EQ(a.window_ms(), 10'000u);
  EXPECT_EQ(a.outside_ms(), 0u);
}

TEST_F(Looks, CountBytesByLinkInTheWindowAndInTheGeneration) {
  board_.sent(Rank(2), 1000);
  board_.received(Rank(2), 300);
  const wire::Activity first = beat();
  ASSERT_EQ(first.links_size(), 1);
  EXPECT_EQ(first.links(0).window_sent_bytes(), 1000u);
  EXPECT_EQ(first.links(0).window_received_bytes(), 300u);
  EXPECT_EQ(first.moved_bytes(), 1300u);
  EXPECT_EQ(first.links(0).quiet_ms(), 900u);
  for (std::int64_t i = 0; i < limits::kHeartbeatsPerWindow; ++i) (void)beat();
  board_.sent(Rank(2), 10);
  const wire::Activity a = beat();
  EXPECT_EQ(a.links(0).window_sent_bytes(), 10u);
  EXPECT_EQ(a.links(0).sent_bytes(), 1010u);
  EXPECT_EQ(a.links(0).window_received_bytes(), 0u);
  EXPECT_EQ(a.links(0).received_bytes(), 300u);
  EXPECT_EQ(a.links(0).quiet_ms(), 11'900u);
  board_.open_links(4);
  reporter_.restart();
  EXPECT_FALSE(reporter_.read(board_, TimeMs{now_}).activity.has_value()) << "nothing of this generation is known yet";
  board_.sent(Rank(2), 5);
  const wire::Activity next = beat();
  EXPECT_EQ(next.links(0).sent_bytes(), 5u);
  EXPECT_EQ(next.window_ms(), 1000u);
}

TEST_F(Looks, TellWhatIsDoneByWayOfTheGpu) {
  board_.gpu_readers = 3;
  RoundBoard::add(board_.inputs_lent, 5);
  RoundBoard::add(board_.finals_from_gpus, 6);
  RoundBoard::add(board_.rounds_exchanged, 7);
  const wire::GpuCounters gpu = reporter_.read(board_, TimeMs{now_}).gpu;
  EXPECT_EQ(gpu.readers(), 3u);
  EXPECT_EQ(gpu.inputs_lent(), 5u);
  EXPECT_EQ(gpu.finals_from_gpus(), 6u);
  EXPECT_EQ(gpu.rounds_exchanged(), 7u);
}

TEST_F(Looks, RememberALinksUsualRate) {
  begin_round({{Rank(1), true, false}});
  board_.asleep = 1;
  board_.received(Rank(1), 50'000);
  EXPECT_EQ(beat().links(0).usual_bytes_per_s(), 50'000u);
  board_.received(Rank(1), 10);
  EXPECT_GT(beat().links(0).usual_bytes_per_s(), 49'000u) << "one heartbeat makes no custom";
  board_.open_links(4);
  reporter_.restart();
  reporter_.sample(board_, TimeMs{now_});
  EXPECT_GT(beat().links(0).usual_bytes_per_s(), 49'000u) << "nor does a generation end one";
}

TEST(LooksAtMany, NameTheLinksThatWereWaitedForLongest) {
  RoundBoard board;
  board.open_links(100);
  ProgressReporter reporter(kSampleMs);
  reporter.sample(board, TimeMs{0});
  for (std::int32_t peer = 0; peer < 100; ++peer) board.sent(Rank(peer), 1 + static_cast<std::uint64_t>(peer));
  board.begin(0, {Timeline(0), kWorldGroup, Version(0), Sequence(0)}, {});
  board.waits(0, std::vector<RoundBoard::Waited>{{Rank(5), true, false}, {Rank(70), false, true}});
  board.asleep = 1;
  const auto a = reporter.read(board, TimeMs{kSampleMs}).activity.value();
  ASSERT_EQ(static_cast<std::size_t>(a.links_size()), limits::kMaxLinksPerHeartbeat);
  std::int64_t last = -1;
  int waited = 0;
  for (const wire::LinkActivity& l : a.links()) {
    EXPECT_GT(l.peer(), last);
    last = l.peer();
    waited += l.awaited_ms() + l.blocked_ms() > 0;
  }
  EXPECT_EQ(waited, 2);
  EXPECT_EQ(a.moved_bytes(), 5050u) << "of all of them";
}

}  // namespace
}  // namespace warren::worker

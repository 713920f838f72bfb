#include "worker/life/dead_segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace warren::worker {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 10;

RecordKey round_key(std::uint64_t version, std::uint64_t sequence, std::uint32_t timeline = 0) {
  return {RecordKind::kRound, {Timeline(timeline), kWorldGroup, Version(version), Sequence(sequence)}};
}

RecordInfo info_of(std::uint64_t total) {
  RecordInfo info;
  info.fingerprint.collective = Collective::kAllreduce;
  info.total_bytes = total;
  return info;
}

std::vector<std::byte> bytes_of(const RecordKey& key, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::byte> bytes;
  for (std::uint64_t at = begin; at < end; at++) {
    bytes.push_back(static_cast<std::byte>(at * 7 + key.round.sequence.value * 31 + key.round.version.value));
  }
  return bytes;
}

struct Life {
  explicit Life(std::uint64_t id) : self(id), memory(heap_segment(kBytes)) {
    log = std::move(HostLog::create(self, memory)).value();
    reader = log->reader();
  }
  [[nodiscard]] Status publish(const RecordKey& key, std::uint64_t begin, std::uint64_t end,
                               std::uint64_t total = 100) const {
    return log->publish(key, info_of(total), begin, bytes_of(key, begin, end));
  }
  [[nodiscard]] bool reads(const RecordKey& key, std::uint64_t begin, std::uint64_t end) const {
    std::vector<std::byte> out(end - begin);
    return reader->read(key, begin, out) && out == bytes_of(key, begin, end);
  }

  Incarnation self;
  std::shared_ptr<SegmentMemory> memory;
  std::unique_ptr<HostLog> log;
  std::unique_ptr<HostLogReader> reader;
};

// Rank 1's life on a host with one living mate, and what the dead have left there.
class DeadSegmentsTest : public ::testing::Test {
 protected:
  DeadSegmentsTest() { attach(mate_); }
  void attach(const Life& other) {
    ASSERT_TRUE(self_.log->attach(other.self, other.memory->bytes(), other.memory).ok());
    segments_.attached(other.self, other.memory->bytes(), other.memory);
  }
  Life& dead() {
    dead_.push_back(std::make_unique<Life>(100 + dead_.size()));
    return *dead_.back();
  }
  // Looks, and forgets as the owner does. A round has been computed since the look before, unless told not.
  std::vector<Incarnation> look(bool first = true, bool computed = true) {
    const std::vector<Incarnation> living = {mate_.self, self_.self};
    if (computed) ++computed_;
    const auto looked = segments_.look(horizon_, living, first, computed_, *self_.log, *self_.reader);
    taken_over_ = looked.taken_over;
    more_ = looked.more;
    std::vector<Incarnation> gone;
    for (const auto& g : looked.gone) {
      EXPECT_TRUE(g.over);
      self_.log->detach(g.life);
      gone.push_back(g.life);
    }
    return gone;
  }

  Life self_{1}, mate_{2};
  std::vector<std::unique_ptr<Life>> dead_;
  DeadSegments segments_;
  DeadSegments::Horizon horizon_;
  std::uint64_t computed_ = 0;
  Status taken_over_;
  bool more_ = false;
};

using Lives = std::vector<Incarnation>;

TEST_F(DeadSegmentsTest, StayAsLongAsSomethingLiesInThemAlone) {
  const Life& d = dead();
  ASSERT_TRUE(d.publish(round_key(0, 3), 0, 60).ok());
  ASSERT_TRUE(d.publish(round_key(0, 4), 20, 50).ok());
  attach(d);
  EXPECT_EQ(look(), Lives());
  ASSERT_TRUE(self_.publish(round_key(0, 3), 0, 40).ok());
  ASSERT_TRUE(mate_.publish(round_key(0, 3), 30, 60).ok());
  EXPECT_EQ(look(), Lives());
  ASSERT_TRUE(mate_.publish(round_key(0, 4), 20, 49).ok());
  EXPECT_EQ(look(), Lives()) << "a byte is missing";
  ASSERT_TRUE(mate_.publish(round_key(0, 4), 49, 50).ok());
  EXPECT_EQ(look(), Lives{d.self});
  EXPECT_EQ(look(), Lives());
}

// Which round it was is not known elsewhere; without it the rounds after it would be behind a gap.
TEST_F(DeadSegmentsTest, StayForARoundWithoutBytes) {
  const Life& d = dead();
  ASSERT_TRUE(d.publish(round_key(0, 3), 0, 0, 0).ok());
  attach(d);
  EXPECT_EQ(look(), Lives());
  ASSERT_TRUE(mate_.publish(round_key(0, 4), 0, 0, 0).ok());
  EXPECT_EQ(look(), Lives());
  ASSERT_TRUE(mate_.publish(round_key(0, 3), 0, 0, 0).ok());
  EXPECT_EQ(look(), Lives{d.self});
}

TEST_F(DeadSegmentsTest, WhatIsObsoleteKeepsNone) {
  horizon_ = {Timeline(2), Version(5), Timeline(1)};
  const auto state = [](RecordKind kind, std::uint64_t version, std::uint32_t timeline) {
    return RecordKey{kind, {Timeline(timeline), kWorldGroup, Version(version), Sequence(0)}};
  };
  const auto goes = [&](const RecordKey& key) {
    const Life& d = dead();
    EXPECT_TRUE(d.publish(key, 0, 100).ok());
    attach(d);
    return look() == Lives{d.self};
  };
  EXPECT_TRUE(goes(round_key(4, 0, 2)));
  EXPECT_TRUE(goes(round_key(0, 0, 1))) << "the preamble before a rollback";
  EXPECT_TRUE(goes(round_key(6, 0, 1))) << "undone";
  EXPECT_TRUE(goes(state(RecordKind::kGlobal, 4, 1)));
  EXPECT_TRUE(goes(state(RecordKind::kGlobal, 5, 2)));
  EXPECT_TRUE(goes(state(RecordKind::kLocal, 6, 1)));
  EXPECT_TRUE(goes(state(RecordKind::kMessage, 4, 2)));
  EXPECT_FALSE(goes(state(RecordKind::kMessage, 5, 2)));
  EXPECT_FALSE(goes(round_key(5, 0, 2)));
  EXPECT_FALSE(goes(round_key(0, 0, 2)));
  EXPECT_FALSE(goes(state(RecordKind::kGlobal, 5, 1)));
  EXPECT_FALSE(goes(state(RecordKind::kLocal, 6, 2)));
  EXPECT_FALSE(goes(round_key(5, 0, 3))) << "2 is the oldest timeline of which rounds were kept";
  EXPECT_FALSE(goes(state(RecordKind::kGlobal, 6, 3)));
}

TEST_F(DeadSegmentsTest, SetUpRoundsAreTakenOverForThemselves) {
  const RecordKey setup{RecordKind::kSetup, {Timeline(0), kWorldGroup, kPreamble, Sequence(kSetupBit | 7)}};
  const Life& d = dead();
  ASSERT_TRUE(d.publish(setup, 0, 100).ok());
  ASSERT_TRUE(d.publish(round_key(0, 3), 0, 100).ok());
  ASSERT_TRUE(mate_.publish(setup, 20, 30).ok());
  attach(d);
  const std::vector<Incarnation> living = {mate_.self, self_.self};
  ASSERT_TRUE(segments_.take_over_setups(living, *self_.log, *self_.reader).ok());
  Ranges rest(0, 20);
  rest.add(30, 100);
  EXPECT_EQ(self_.reader->held_by(setup, std::vector{self_.self}), rest);
  EXPECT_TRUE(self_.reader->held_by(round_key(0, 3), std::vector{self_.self}).empty());
  ASSERT_TRUE(segments_.take_over_setups(living, *self_.log, *self_.reader).ok()) << "again: nothing to do";
  self_.log->detach(d.self);
  EXPECT_TRUE(self_.reads(setup, 0, 100));
}

// Those that were begun again in the job's timeline, or never were, keep no segment open, and are not taken over.
TEST_F(DeadSegmentsTest, SetUpRoundsOfTimelinesThatWereUndoneKeepNone) {
  const auto setup = [](std::uint32_t timeline, std::uint64_t name) {
    return RecordKey{RecordKind::kSetup, {Timeline(timeline), kWorldGroup, kPreamble, Sequence(kSetupBit | name)}};
  };
  horizon_.timeline = Timeline(2);
  horizon_.setups = {Timeline(2), {setup(0, 7).round, setup(1, 8).round}};
  const Life &undone = dead(), &done = dead(), &now = dead();
  ASSERT_TRUE(undone.publish(setup(1, 7), 0, 100).ok());
  ASSERT_TRUE(undone.publish(setup(0, 9), 0, 100).ok());
  ASSERT_TRUE(done.publish(setup(1, 8), 0, 100).ok());
  ASSERT_TRUE(done.publish(setup(1, 9), 0, 100).ok());
  ASSERT_TRUE(now.publish(setup(2, 9), 0, 100).ok());
  for (const Life* life : {&undone, &done, &now}) attach(*life);
  EXPECT_EQ(look(), Lives{undone.self});
  ASSERT_TRUE(segments_.take_over_setups(Lives{mate_.self, self_.self}, *self_.log, *self_.reader).ok());
  EXPECT_EQ(look(), (Lives{done.self, now.self}));
  EXPECT_TRUE(self_.reads(setup(1, 8), 0, 100));
  EXPECT_TRUE(self_.reads(setup(2, 9), 0, 100));
  EXPECT_FALSE(self_.reader->info(setup(1, 9)).value().has_value());
}

// After a rollback everybody is new, and all that there is of the checkpoint is what the dead have left.
TEST_F(DeadSegmentsTest, CheckpointsStayUntilItIsKnownWhatIsCommitted) {
  const Life& d = dead();
  ASSERT_TRUE(d.publish({RecordKind::kGlobal, {Timeline(0), kWorldGroup, Version(3), Sequence(0)}}, 0, 100).ok());
  attach(d);
  horizon_.timeline = Timeline(1);
  EXPECT_EQ(look(), Lives());
  horizon_.committed = Version(3);
  EXPECT_EQ(look(), Lives());
  horizon_.committed_timeline = Timeline(1);
  EXPECT_EQ(look(), Lives{d.self});
}

TEST_F(DeadSegmentsTest, AreTakenOverWhenTheyAreTooMany) {
  const RecordKey empty{RecordKind::kLocal, {Timeline(0), kWorldGroup, Version(2), Sequence(1)}},
      barrier = round_key(0, 90);
  Lives all;
  for (std::uint64_t i = 0; i <= DeadSegments::kMostLeft; i++) {
    EXPECT_EQ(look(), Lives());
    const Life& d = dead();
    ASSERT_TRUE(d.publish(round_key(0, i), 10, 90).ok());
    if (i == 2) {
      ASSERT_TRUE(d.publish(empty, 0, 0, 0).ok());
      ASSERT_TRUE(d.publish(barrier, 0, 0, 0).ok());
    }
    attach(d);
    all.push_back(d.self);
  }
  EXPECT_EQ(look(false), Lives()) << "another rank of the host does it";
  EXPECT_EQ(look(), all);
  EXPECT_TRUE(taken_over_.ok());
  for (std::uint64_t i = 0; i <= DeadSegments::kMostLeft; i++) EXPECT_TRUE(self_.reads(round_key(0, i), 10, 90));
  EXPECT_TRUE(self_.reader->info(empty).value().has_value());
  EXPECT_TRUE(self_.reader->recorded_by(barrier, Lives{self_.self}));
  // Nothing twice.
  EXPECT_EQ(self_.reader->held_by(round_key(0, 1), Lives{self_.self}), Ranges(10, 90));
}

TEST_F(DeadSegmentsTest, AreTakenOverByAnyRankInTheEnd) {
  for (std::uint64_t i = 0; i <= 2 * DeadSegments::kMostLeft; i++) {
    EXPECT_EQ(look(false), Lives());
    const Life& d = dead();
    ASSERT_TRUE(d.publish(round_key(0, i), 10, 90).ok());
    attach(d);
  }
  EXPECT_EQ(look(false), Lives()) << "the last one has died since the look before";
  EXPECT_EQ(look(false).size(), 2 * DeadSegments::kMostLeft + 1);
}

// A host's ranks have all died, and their next lives are planned: all that they need lies with the dead, until each
// has replayed and logged its part of it.
TEST_F(DeadSegmentsTest, ThoseThatDiedTogetherWaitForTheReplay) {
  constexpr std::uint64_t kDead = 2 * DeadSegments::kMostLeft + 1;
  for (std::uint64_t i = 0; i < kDead; i++) {
    const Life& d = dead();
    ASSERT_TRUE(d.publish(round_key(0, i), 10, 90).ok());
    attach(d);
  }
  const std::uint64_t before = self_.log->bytes_held();
  for (const bool first : {true, false}) {
    EXPECT_EQ(look(first, true), Lives()) << "seen for the first time";
    // Generations and commits, while ranks replay.
    EXPECT_EQ(look(first, false), Lives());
    EXPECT_EQ(look(first, false), Lives());
    EXPECT_EQ(self_.log->bytes_held(), before) << "nothing was copied";
    if (first) {
      // As after the death of this process: nobody knows more than at the first look.
      segments_ = {};
      for (const auto& d : dead_) segments_.attached(d->self, d->memory->bytes(), d->memory);
      segments_.attached(mate_.self, mate_.memory->bytes(), mate_.memory);
    }
  }
  for (std::uint64_t i = 1; i < kDead; i++) ASSERT_TRUE(mate_.publish(round_key(0, i), 0, 100).ok());
  EXPECT_EQ(look().size(), kDead - 1) << "the replay has made them superfluous";
  EXPECT_TRUE(self_.reader->held_by(round_key(0, 1), Lives{self_.self}).empty());
  EXPECT_EQ(look(), Lives()) << "few may stay";
}

// Lives that end again and again before a round is computed must not gather without bound either.
TEST_F(DeadSegmentsTest, WithoutARoundTheyAreTakenOverInTheEnd) {
  for (std::uint64_t i = 0; i <= DeadSegments::most_waiting(2); i++) {
    EXPECT_EQ(look(true, false), Lives());
    const Life& d = dead();
    ASSERT_TRUE(d.publish(round_key(0, i), 10, 90).ok());
    attach(d);
  }
  EXPECT_EQ(look(true, false).size(), DeadSegments::most_waiting(2) + 1);
  EXPECT_TRUE(taken_over_.ok());
}

// Whoever waits for the owner of the data path does not wait for all of it.
TEST_F(DeadSegmentsTest, AreTakenOverASliceAtATime) {
  constexpr std::uint64_t kTotal = 12'000;
  for (std::uint64_t i = 0; i < 8; i++) {
    const Life& d = dead();
    ASSERT_TRUE(d.publish(round_key(0, i), 0, kTotal, kTotal).ok());
    attach(d);
  }
  EXPECT_EQ(look(), Lives());
  std::size_t gone = look().size();
  EXPECT_TRUE(more_ && taken_over_.ok());
  EXPECT_GE(gone, 2u);
  EXPECT_LE(gone, 3u) << "an eighth of the log at a time";
  while (more_) gone += look(true, false).size();
  EXPECT_TRUE(taken_over_.ok());
  EXPECT_GE(gone, 4u);
  for (std::uint64_t i = 0; i < 8; i++) EXPECT_TRUE(self_.reads(round_key(0, i), 0, kTotal)) << i;
}

TEST_F(DeadSegmentsTest, StayWhereThereIsNoRoomForWhatTheyHold) {
  std::uint64_t filled = 0;
  while (self_.log->bytes_held() <= kBytes / 2) ASSERT_TRUE(self_.publish(round_key(1, filled++), 0, 100).ok());
  const std::uint64_t before = self_.log->bytes_held();
  for (std::uint64_t i = 0; i <= DeadSegments::kMostLeft; i++) {
    const Life& d = dead();
    ASSERT_TRUE(d.publish(round_key(0, i), 10, 90).ok());
    attach(d);
  }
  EXPECT_EQ(look(), Lives());
  EXPECT_EQ(look(), Lives());
  EXPECT_EQ(taken_over_.code(), Code::kExhausted);
  EXPECT_FALSE(more_);
  EXPECT_EQ(self_.log->bytes_held(), before) << "the other half is for rounds to come";
  for (std::uint64_t i = 0; i <= DeadSegments::kMostLeft; i++) EXPECT_TRUE(self_.reads(round_key(0, i), 10, 90));
}

// Where a disk takes what the log has no room for.
TEST_F(DeadSegmentsTest, AreTakenOverIntoALogThatSpills) {
  std::uint64_t filled = 0;
  while (self_.log->bytes_held() <= kBytes / 2) ASSERT_TRUE(self_.publish(round_key(1, filled++), 0, 100).ok());
  self_.log->spill_by([] { return Status(Code::kTimeout, "the disk is slow"); });
  for (std::uint64_t i = 0; i <= DeadSegments::kMostLeft; i++) {
    const Life& d = dead();
    ASSERT_TRUE(d.publish(round_key(0, i), 10, 90).ok());
    attach(d);
  }
  EXPECT_EQ(look(), Lives());
  EXPECT_EQ(look().size(), DeadSegments::kMostLeft + 1);
  EXPECT_TRUE(taken_over_.ok());
}

// It has rounds of the same names, and must not pass for this run's.
TEST_F(DeadSegmentsTest, WhatAnotherRunHasLeftGoesAndIsNotTakenOver) {
  self_.log->belong(70);
  mate_.log->belong(70);
  for (std::uint64_t i = 0; i <= DeadSegments::kMostLeft; i++) {
    const Life& d = dead();
    d.log->belong(60);
    ASSERT_TRUE(d.publish(round_key(0, i), 10, 90).ok());
    attach(d);
  }
  EXPECT_EQ(look().size(), dead_.size());
  EXPECT_TRUE(taken_over_.ok());
  EXPECT_FALSE(self_.reads(round_key(0, 0), 10, 90));
}

// A life that has joined and waits for its first plan has logged nothing; its launcher is to keep its segment.
TEST_F(DeadSegmentsTest, OneThatWasNeverAMemberMayBeAlive) {
  const Life& waiting = dead();
  attach(waiting);
  const auto looked = [&](const Lives& living) {
    return segments_.look(horizon_, living, true, computed_, *self_.log, *self_.reader).gone;
  };
  const auto gone = looked({mate_.self, self_.self});
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].life, waiting.self);
  EXPECT_FALSE(gone[0].over);
  self_.log->detach(waiting.self);
  attach(waiting);
  EXPECT_TRUE(looked({mate_.self, self_.self, waiting.self}).empty());
  const auto later = looked({mate_.self, self_.self});
  ASSERT_EQ(later.size(), 1u);
  EXPECT_TRUE(later[0].over);
}

}  // namespace
}  // namespace warren::worker

#include "worker/replay/done_reader.h"

#include <gtest/gtest.h>

#include "tests/worker/replay/net.h"

namespace warren::worker::replaytest {
namespace {

// Rounds 0 to 4 of version 4, of which three are done, a checkpoint that is committed and the next one, and two set-up
// rounds, of which one is.
class DoneReaders : public ::testing::Test {
 protected:
  DoneReaders() {
    for (std::uint64_t s = 0; s < 5; ++s) host_.life(0).publish(round_key(s), 100);
    for (const std::uint64_t version : {4u, 5u}) {
      for (const RecordKind kind : {RecordKind::kGlobal, RecordKind::kLocal}) {
        host_.life(0).publish({kind, {Timeline(1), kWorldGroup, Version(version), Sequence(0)}}, 100);
      }
    }
    for (const std::uint64_t name : {7u, 8u}) host_.life(0).publish(setup_key(name), 100);
    plan_.set_timeline(1);
    wire::Position& p = *plan_.add_frontier();
    p.set_version(4);
    p.set_rounds(3);
    plan_.set_committed(true);
    plan_.set_committed_version(4);
    plan_.set_committed_timeline(1);
    for (const std::uint64_t name : {7u, 8u}) {
      wire::Setup& s = *plan_.add_setups();
      s.set_name(kSetupBit | name);
      s.set_timeline(1);
      s.set_done(name == 7);
    }
    reader_.emplace(*host_.life(0).reader, plan_);
  }
  static RecordKey setup_key(std::uint64_t name) {
    return {RecordKind::kSetup, {Timeline(1), kWorldGroup, kPreamble, Sequence(kSetupBit | name)}};
  }
  [[nodiscard]] bool shows(const RecordKey& key) {
    const auto info = reader_->info(key);
    std::vector<std::byte> bytes(100);
    const bool read = reader_->read(key, 0, bytes);
    const Incarnation life = host_.life(0).self;
    const std::span<const Incarnation> live(&life, 1);
    EXPECT_EQ(read, info.ok() && info.value().has_value());
    EXPECT_EQ(read, reader_->held(key) == Ranges(0, 100));
    EXPECT_EQ(read, reader_->held_by(key, live) == Ranges(0, 100));
    EXPECT_EQ(read, reader_->recorded_by(key, live));
    return read;
  }

  Net host_{{}};
  wire::Plan plan_;
  std::optional<DoneReader> reader_;
};

TEST_F(DoneReaders, WhatIsDoneIsShownAndNothingElse) {
  for (std::uint64_t s = 0; s < 5; ++s) EXPECT_EQ(shows(round_key(s)), s < 3) << s;
  EXPECT_FALSE(shows(round_key(0, 5)));
  for (const RecordKind kind : {RecordKind::kGlobal, RecordKind::kLocal}) {
    EXPECT_TRUE(shows({kind, {Timeline(1), kWorldGroup, Version(4), Sequence(0)}}));
    EXPECT_FALSE(shows({kind, {Timeline(1), kWorldGroup, Version(5), Sequence(0)}}));
    EXPECT_FALSE(shows({kind, {Timeline(0), kWorldGroup, Version(4), Sequence(0)}}));
  }
  EXPECT_TRUE(shows(setup_key(7)));
  EXPECT_FALSE(shows(setup_key(8)));
  EXPECT_FALSE(shows({RecordKind::kMessage, {Timeline(1), GroupId(1), Version(4), Sequence(0)}}));
  EXPECT_EQ(reader_->setup_rounds(10), std::vector{setup_key(7)});
  EXPECT_TRUE(reader_->newest_rounds().empty()) << "the newest of version 4 is not done";
}

// A rollback gives the same numbers to other rounds; and some keep the names of older timelines.
TEST_F(DoneReaders, ARoundIsDoneUnderTheNameThatThePlanGivesIt) {
  EXPECT_TRUE(shows(round_key(1)));
  plan_.set_timeline(2);
  DoneReader later(*host_.life(0).reader, plan_);
  EXPECT_FALSE(later.info(round_key(1)).value().has_value()) << "the plan speaks of timeline 2";
  wire::Kept& k = *plan_.add_kept();
  k.set_version(4);
  k.set_timeline(1);
  k.set_rounds(2);
  DoneReader kept(*host_.life(0).reader, plan_);
  EXPECT_TRUE(kept.info(round_key(1)).value().has_value());
  EXPECT_FALSE(kept.info(round_key(2)).value().has_value());
}

TEST_F(DoneReaders, ListsAsManyAsThereAre) {
  const auto rounds = [&](std::uint64_t first, std::uint64_t end, std::size_t limit) {
    std::vector<std::uint64_t> found;
    for (const RecordKey& key : reader_->list(RecordKind::kRound, Timeline(1), kWorldGroup, Version(4), Sequence(first),
                                              Sequence(end), limit)) {
      found.push_back(key.round.sequence.value);
    }
    return found;
  };
  EXPECT_EQ(rounds(0, 10, 100), (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(rounds(0, 10, 2), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(rounds(1, 10, 1), (std::vector<std::uint64_t>{1}));
  EXPECT_TRUE(rounds(3, 10, 1).empty());
  // What is not done stands before what is.
  plan_.mutable_setups(0)->set_done(false);
  plan_.mutable_setups(1)->set_done(true);
  DoneReader second(*host_.life(0).reader, plan_);
  const auto keys = second.list(RecordKind::kSetup, Timeline(1), kWorldGroup, kPreamble, Sequence(kSetupBit),
                                Sequence(UINT64_MAX), 1);
  EXPECT_EQ(keys, std::vector{setup_key(8)});
}

}  // namespace
}  // namespace warren::worker::replaytest

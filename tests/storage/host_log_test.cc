#include "storage/host_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "recovery/base/limits.h"
#include "storage/segment.h"
#include "tests/sanitized.h"
#include "tests/storage/record_info.h"

namespace warren {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kSmall = std::size_t{256} << 10;

RecordKey round_key(std::uint64_t version, std::uint64_t sequence, std::uint32_t timeline = 0,
                    GroupId group = kWorldGroup) {
  return {RecordKind::kRound, {Timeline(timeline), group, Version(version), Sequence(sequence)}};
}

RecordInfo info_of(std::uint64_t total, std::uint64_t count = 7) {
  return record_info(total, count, DataType::kF32, ReduceOp::kSum);
}

// What byte `at` of a key's result is.
std::byte byte_of(const RecordKey& key, std::uint64_t at) {
  const std::uint64_t mixed = (key.round.version.value * 31 + key.round.sequence.value + at / 8) * 0x9e3779b97f4a7c15;
  return static_cast<std::byte>(mixed >> (8 * (at % 8)));
}
std::vector<std::byte> bytes_of(const RecordKey& key, std::uint64_t begin, std::uint64_t size) {
  std::vector<std::byte> bytes(size);
  for (std::uint64_t i = 0; i < size; ++i) bytes[i] = byte_of(key, begin + i);
  return bytes;
}

struct Life {
  explicit Life(std::uint64_t id, std::size_t bytes = kSmall) : self(id), memory(heap_segment(bytes)) {
    auto made = HostLog::create(self, memory);
    EXPECT_TRUE(made.ok()) << made.status().describe();
    log = std::move(made).value();
    reader = log->reader();
  }
  Status publish(const RecordKey& key, std::uint64_t total, std::uint64_t begin, std::uint64_t size) const {
    return log->publish(key, info_of(total), begin, bytes_of(key, begin, size));
  }
  Status attach(const Life& other) const { return log->attach(other.self, other.memory->bytes(), other.memory); }
  [[nodiscard]] bool reads(const RecordKey& key, std::uint64_t begin, std::uint64_t size) const {
    std::vector<std::byte> out(size);
    return reader->read(key, begin, out) && out == bytes_of(key, begin, size);
  }

  Incarnation self;
  std::shared_ptr<SegmentMemory> memory;
  std::unique_ptr<HostLog> log;
  std::unique_ptr<HostLogReader> reader;
};

// So that what has not changed since the version before is found, whatever was logged between: with the cut where an
// extent ends, and all after it moved by that, next to nothing was.
TEST(HostLog, StatesAreCutAlikeWhereverTheyLie) {
  constexpr std::uint64_t kBegin = 1000, kBytes = (std::uint64_t{5} << 20) + 77, kGrid = std::uint64_t{64} << 10;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> cuts;
  for (const std::uint64_t before : {0, 100, 70'000, 1'000'000}) {
    const Life a(1, std::size_t{32} << 20);
    if (before != 0) {
      ASSERT_TRUE(a.publish(round_key(3, 0), before, 0, before).ok());
    }
    const RecordKey state{RecordKind::kGlobal, round_key(3, 0).round};
    ASSERT_TRUE(a.publish(state, kBegin + kBytes, kBegin, kBytes).ok());
    EXPECT_EQ(a.reader->held(state), Ranges(kBegin, kBegin + kBytes));
    std::vector<std::byte> out(kBytes);
    EXPECT_TRUE(a.reader->read(state, kBegin, out));
    EXPECT_EQ(out, bytes_of(state, kBegin, kBytes));
    std::vector<std::pair<std::uint64_t, std::uint64_t>> now;
    const auto view = SegmentView::open(a.memory->bytes(), a.self).value();
    (void)view.for_each_record([&](std::uint32_t, std::uint64_t, const SegmentView::Record& r) {
      if (r.key.kind == RecordKind::kGlobal) now.emplace_back(r.first_byte, r.payload_bytes);
      return true;
    });
    std::ranges::sort(now);
    for (const auto& [at, size] : now) EXPECT_TRUE((at + size) % kGrid == 0 || at + size == kBegin + kBytes) << at;
    if (cuts.empty()) cuts = now;
    EXPECT_EQ(now, cuts) << before;
  }
  EXPECT_GT(cuts.size(), kBytes / kGrid);
  // A small log has extents that are smaller than such pieces: nothing is left free there.
  const Life small(1);
  const RecordKey state{RecordKind::kLocal, round_key(3, 0).round};
  ASSERT_TRUE(small.publish(round_key(3, 0), 100, 0, 100).ok());
  ASSERT_TRUE(small.publish(state, 200'000, 0, 200'000).ok());
  EXPECT_EQ(small.reader->held(state), Ranges(0, 200'000));
}

// Up to a sixteenth of it was left free for the sake of that.
TEST(HostLog, TwoVersionsOfStatesTakeNearlyAllOfTheLog) {
  const Life a(1, std::size_t{128} << 20);  // 31 extents of some 4 MiB
  RecordKey state{RecordKind::kGlobal, round_key(3, 0).round};
  for (const auto& [version, extents] : {std::pair(3, 15), std::pair(4, 16)}) {
    const std::vector<std::byte> payload(static_cast<std::size_t>(extents) * (3950 << 10));
    state.round.version = Version(static_cast<std::uint64_t>(version));
    const Status s = a.log->publish(state, info_of(payload.size()), 0, payload);
    ASSERT_TRUE(s.ok()) << s.describe();
  }
}

TEST(HostLogTest, ReadsWhatItPublished) {
  const Life life(11);
  const RecordKey key = round_key(1, 4);
  EXPECT_FALSE(life.reader->info(key).value().has_value());
  EXPECT_TRUE(life.reader->held(key).empty());
  ASSERT_TRUE(life.publish(key, 1000, 0, 400).ok());
  ASSERT_TRUE(life.publish(key, 1000, 600, 400).ok());
  EXPECT_EQ(*life.reader->info(key).value(), info_of(1000));
  Ranges held(0, 400);
  held.add(600, 1000);
  EXPECT_EQ(life.reader->held(key), held);
  for (const std::uint64_t begin : {0, 50, 399, 400, 600, 999}) {
    for (const std::uint64_t end : {50, 399, 400, 401, 600, 601, 1000, 2000}) {
      EXPECT_EQ(life.reader->held_within(key, begin, end), held.intersect(begin, std::max(begin, end)));
    }
  }
  EXPECT_TRUE(life.reads(key, 100, 300));
  EXPECT_TRUE(life.reads(key, 700, 300));
  EXPECT_FALSE(life.reads(key, 100, 301));
  ASSERT_TRUE(life.publish(key, 1000, 300, 350).ok());
  EXPECT_EQ(life.reader->held(key), Ranges(0, 1000));
  EXPECT_TRUE(life.reads(key, 0, 1000));
  std::byte beyond[2];
  EXPECT_FALSE(life.reader->read(key, 999, beyond));
  EXPECT_FALSE(life.reader->read(key, 5000, beyond));
}

TEST(HostLogTest, ARecordWithoutBytesIsOne) {
  const Life life(11);
  const RecordKey key = round_key(1, 0);
  ASSERT_TRUE(life.publish(key, 0, 0, 0).ok());
  EXPECT_EQ(life.reader->info(key).value()->total_bytes, 0u);
  EXPECT_TRUE(life.reader->held(key).empty());
  EXPECT_TRUE(life.reader->read(key, 0, {}));
  EXPECT_THAT(life.reader->list(RecordKind::kRound, Timeline(0), kWorldGroup, Version(1), Sequence(0), Sequence(9), 9),
              ElementsAre(key));
}

#ifndef WARREN_TESTS_TSAN
TEST(HostLogTest, WhatIsWrittenWhereItWillLieIsARecord) {
  const Life life(11, std::size_t{16} << 20);
  const RecordKey key = round_key(1, 4);
  constexpr std::size_t kPiece = 50'000;
  std::uint64_t pieces = 0;
  // Over several extents, between records that are copied.
  for (; pieces < 40; ++pieces) {
    ASSERT_TRUE(life.publish(round_key(1, 5), 1'000'000, pieces * 100, 100).ok());
    const std::span<std::byte> room = life.log->room(key, kPiece);
    ASSERT_EQ(room.size(), kPiece);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(room.data()) % 32, 0u);
    std::ranges::copy(bytes_of(key, pieces * kPiece, kPiece), room.begin());
    // Not before it is published.
    ASSERT_EQ(life.reader->held(key), Ranges(0, pieces * kPiece));
    LogPlace place;
    life.log->publish_room(key, info_of(40 * kPiece), pieces * kPiece, kPiece, &place);
    ASSERT_TRUE(place.known());
    ASSERT_EQ(life.memory->bytes().data() + place.at, room.data());
  }
  EXPECT_TRUE(life.reads(key, 0, 40 * kPiece));
  EXPECT_TRUE(life.reads(round_key(1, 5), 0, 4000));
  // Room that is not published is nobody's, and the next record goes there.
  const std::span<std::byte> unused = life.log->room(key, kPiece);
  std::ranges::fill(unused, std::byte{0xff});
  ASSERT_TRUE(life.publish(round_key(1, 6), 100, 0, 100).ok());
  EXPECT_TRUE(life.reads(round_key(1, 6), 0, 100));
  EXPECT_EQ(life.reader->held(key), Ranges(0, 40 * kPiece));
}

TEST(HostLogTest, ThereIsNoRoomForWhatIsLargeOrWhereTheLogIsFull) {
  const Life life(11, std::size_t{1} << 20);
  EXPECT_TRUE(life.log->room(round_key(1, 0), 30'000).empty()) << "an extent has 32 KiB";
  const std::uint64_t held = life.log->bytes_held();
  EXPECT_EQ(life.log->room(round_key(1, 0), 4'000).size(), 4'000u);
  EXPECT_EQ(life.log->bytes_held(), held + (std::uint64_t{32} << 10));
  std::uint64_t sequence = 0;
  while (life.publish(round_key(1, sequence), 4'000, 0, 4'000).ok()) ++sequence;
  EXPECT_TRUE(life.log->room(round_key(1, sequence), 4'000).empty());
  life.log->drop_below(Version(2));
  EXPECT_EQ(life.log->room(round_key(2, 0), 4'000).size(), 4'000u);
}
#endif

TEST(HostLogTest, AResultIsPutTogetherFromTheSegmentsOfTheHost) {
  const Life a(11), b(12), c(13);
  ASSERT_TRUE(a.attach(b).ok());
  ASSERT_TRUE(a.attach(c).ok());
  EXPECT_THAT(a.log->attached(), ElementsAre(b.self, c.self));
  const RecordKey key = round_key(2, 9);
  ASSERT_TRUE(a.publish(key, 900, 0, 300).ok());
  ASSERT_TRUE(b.publish(key, 900, 300, 300).ok());
  EXPECT_FALSE(a.reads(key, 0, 900));
  ASSERT_TRUE(c.publish(key, 900, 600, 300).ok());
  EXPECT_TRUE(a.reads(key, 0, 900));
  EXPECT_TRUE(a.reads(key, 299, 302));
  EXPECT_FALSE(b.reads(key, 0, 900));
  const Incarnation living[] = {a.self, c.self};
  Ranges expected(0, 300);
  expected.add(600, 900);
  EXPECT_EQ(a.reader->held_by(key, living), expected);
  const RecordKey barrier = round_key(2, 10);
  const Incarnation others[] = {b.self};
  ASSERT_TRUE(c.publish(barrier, 0, 0, 0).ok());
  EXPECT_TRUE(a.reader->recorded_by(barrier, living));
  EXPECT_FALSE(a.reader->recorded_by(barrier, others));
  a.log->detach(c.self);
  EXPECT_FALSE(a.reader->recorded_by(barrier, living));
  EXPECT_EQ(a.reader->held(key), Ranges(0, 600));
  EXPECT_FALSE(a.reads(key, 0, 900));
}

// Else the memory of the dead would stay for as long as some reader has nothing to do.
TEST(HostLogTest, AReaderThatDoesNotLookKeepsNothingMapped) {
  const Life a(11), b(12);
  const RecordKey key = round_key(1, 0);
  ASSERT_TRUE(b.publish(key, 100, 0, 100).ok());
  bool unmapped = false;
  std::shared_ptr<const void> keeper(b.memory.get(), [&](const void*) { unmapped = true; });
  ASSERT_TRUE(a.log->attach(b.self, b.memory->bytes(), std::move(keeper)).ok());
  ASSERT_TRUE(a.reads(key, 0, 100));
  EXPECT_FALSE(unmapped);
  a.log->detach(b.self);
  EXPECT_TRUE(unmapped);
  EXPECT_FALSE(a.reads(key, 0, 100));
}

TEST(HostLogTest, AttachRefusesWhatIsNotThatLifesSegment) {
  const Life a(11), b(12);
  EXPECT_EQ(a.log->attach(Incarnation(13), b.memory->bytes(), b.memory).code(), Code::kCorrupt);
  EXPECT_EQ(a.log->attach(a.self, a.memory->bytes(), a.memory).code(), Code::kInvalidArgument);
  const auto rubbish = heap_segment(kSmall);
  EXPECT_EQ(a.log->attach(Incarnation(13), rubbish->bytes(), rubbish).code(), Code::kCorrupt);
  EXPECT_EQ(a.log->attach(b.self, b.memory->bytes().first(kSmall / 2), b.memory).code(), Code::kCorrupt);
  EXPECT_EQ(a.log->attach(b.self, b.memory->bytes().first(100), b.memory).code(), Code::kCorrupt);
  // Another format version, named.
  std::byte* version = b.memory->bytes().data() + 8;
  *version = std::byte{99};
  const Status s = a.log->attach(b.self, b.memory->bytes(), b.memory);
  EXPECT_EQ(s.code(), Code::kRefused);
  EXPECT_THAT(s.describe(), HasSubstr("format 99"));
  *version = std::byte{kSegmentFormat};
  EXPECT_TRUE(a.attach(b).ok());
  EXPECT_TRUE(a.attach(b).ok()) << "again";
  EXPECT_THAT(a.log->attached(), ElementsAre(b.self));
}

// A job that begins anew gives its rounds the names that its old self's had.
TEST(HostLogTest, SegmentsOfAnotherRunAreNotRead) {
  const Life here(1), mate(2), dead(3), old(4), fresh(5);
  mate.log->belong(70);
  dead.log->belong(70);
  old.log->belong(60);
  ASSERT_TRUE(mate.publish(round_key(1, 0), 8, 0, 8).ok());
  ASSERT_TRUE(dead.publish(round_key(1, 1), 8, 0, 8).ok());
  ASSERT_TRUE(old.publish(round_key(1, 2), 8, 0, 8).ok());
  EXPECT_EQ(here.log->attached_run(), 0u);
  ASSERT_TRUE(here.attach(dead).ok() && here.attach(fresh).ok());
  EXPECT_EQ(here.log->attached_run(), 70u);
  ASSERT_TRUE(here.attach(old).ok());
  EXPECT_EQ(here.log->attached_run(), std::nullopt);
  EXPECT_TRUE(here.reads(round_key(1, 2), 0, 8));
  here.log->belong(70);
  here.log->belong(70);
  EXPECT_EQ(here.log->run(), 70u);
  EXPECT_FALSE(here.reads(round_key(1, 2), 0, 8)) << "attached before the run was known";
  ASSERT_TRUE(here.attach(mate).ok() && here.attach(old).ok());
  EXPECT_FALSE(here.reads(round_key(1, 2), 0, 8));
  EXPECT_TRUE(here.reads(round_key(1, 0), 0, 8) && here.reads(round_key(1, 1), 0, 8));
  EXPECT_THAT(here.log->attached(), ElementsAre(dead.self, fresh.self, mate.self));
  // One that was attached before it knew its run.
  fresh.log->belong(70);
  ASSERT_TRUE(fresh.publish(round_key(1, 3), 8, 0, 8).ok());
  EXPECT_TRUE(here.reads(round_key(1, 3), 0, 8));
}

TEST(HostLogTest, RecordsThatContradictEachOtherAreADesync) {
  const Life a(11), b(12);
  ASSERT_TRUE(a.attach(b).ok());
  const RecordKey key = round_key(1, 0);
  ASSERT_TRUE(a.publish(key, 800, 0, 400).ok());
  // The site alone tells people where; it is not compared.
  RecordInfo other_site = info_of(800);
  other_site.fingerprint.site = 77;
  ASSERT_TRUE(b.log->publish(key, other_site, 400, bytes_of(key, 400, 200)).ok());
  EXPECT_TRUE(a.reader->info(key).ok());
  ASSERT_TRUE(b.log->publish(key, info_of(800, 8), 600, bytes_of(key, 600, 200)).ok());
  const auto info = a.reader->info(key);
  ASSERT_FALSE(info.ok());
  EXPECT_EQ(info.status().code(), Code::kDesync);
  EXPECT_THAT(info.status().describe(), HasSubstr("count 8"));
}

TEST(HostLogTest, ListsInOrderAndWithinBounds) {
  const Life life(11);
  for (const std::uint64_t sequence : {5, 1, 9, 3, 7}) {
    ASSERT_TRUE(life.publish(round_key(1, sequence), 8, 0, 8).ok());
  }
  ASSERT_TRUE(life.publish(round_key(2, 4), 8, 0, 8).ok());
  ASSERT_TRUE(life.publish(round_key(1, 4, 0, GroupId(6)), 8, 0, 8).ok());
  ASSERT_TRUE(life.publish(round_key(1, 4, 1), 8, 0, 8).ok());
  const auto list = [&](std::uint64_t first, std::uint64_t end, std::size_t limit) {
    std::vector<std::uint64_t> sequences;
    for (const RecordKey& k : life.reader->list(RecordKind::kRound, Timeline(0), kWorldGroup, Version(1),
                                                Sequence(first), Sequence(end), limit)) {
      sequences.push_back(k.round.sequence.value);
    }
    return sequences;
  };
  EXPECT_THAT(list(0, 100, 100), ElementsAre(1, 3, 5, 7, 9));
  EXPECT_THAT(list(3, 9, 100), ElementsAre(3, 5, 7));
  EXPECT_THAT(list(2, 100, 2), ElementsAre(3, 5));
  EXPECT_THAT(list(9, 3, 100), ElementsAre());
}

TEST(HostLogTest, LongPiecesAreCutToExtents) {
  const Life life(11, std::size_t{1} << 20);
  const RecordKey key = round_key(1, 0);
  const std::uint64_t size = 700'001;
  ASSERT_TRUE(life.publish(key, size + 10, 3, size).ok());
  EXPECT_EQ(life.reader->held(key), Ranges(3, size + 3));
  EXPECT_TRUE(life.reads(key, 3, size));
  EXPECT_TRUE(life.reads(key, 32'000, 40'000));
}

TEST(HostLogTest, OverTheBudgetItSaysWhichFlagAndWhy) {
  const Life life(11);
  std::uint64_t sequence = 0;
  Status s;
  while ((s = life.publish(round_key(1, sequence), 5000, 0, 5000)).ok()) ++sequence;
  EXPECT_EQ(s.code(), Code::kExhausted);
  EXPECT_THAT(s.describe(), HasSubstr("--log_memory_bytes"));
  EXPECT_THAT(s.describe(), HasSubstr("checkpoint is overdue"));
  EXPECT_THAT(s.describe(), HasSubstr("--log_full=suspend"));
  EXPECT_GE(sequence, kSmall / 8192 - 3);
  EXPECT_LE(life.log->bytes_held(), life.log->budget_bytes());
  for (std::uint64_t i = 0; i < sequence; ++i) ASSERT_TRUE(life.reads(round_key(1, i), 0, 5000)) << i;
  life.log->drop_below(Version(2));
  EXPECT_TRUE(life.publish(round_key(2, 0), 5000, 0, 5000).ok());
  EXPECT_TRUE(life.reads(round_key(2, 0), 0, 5000));
}

bool needs_nothing(const RecordKey&) {
  return false;
}

TEST(HostLogTest, AFullLogGivesUpItsOldestResultsAndSaysSo) {
  const Life life(11), mate(12);
  ASSERT_TRUE(mate.attach(life).ok());
  int told = 0;
  life.log->give_up_but(needs_nothing);
  life.log->watch({{}, [&told] { ++told; }});
  std::uint64_t sequence = 0;
  for (; told == 0; ++sequence) ASSERT_TRUE(life.publish(round_key(1, sequence), 5000, 0, 5000).ok());
  EXPECT_LE(life.log->bytes_held(), life.log->budget_bytes() * 3 / 4) << "half of it went";
  EXPECT_FALSE(life.reader->info(round_key(1, 0)).value().has_value());
  EXPECT_TRUE(life.reader->held(round_key(1, 0)).empty());
  for (std::uint64_t i = sequence - kSmall / 8192 / 3; i < sequence; ++i) {
    ASSERT_TRUE(life.reads(round_key(1, i), 0, 5000)) << i;
    ASSERT_TRUE(mate.reads(round_key(1, i), 0, 5000)) << i;
  }
  const GivenUp what{Timeline(0), Version(1)};
  EXPECT_EQ(life.log->gives_up(), what);
  EXPECT_EQ(mate.log->given_up(), what) << "its host knows, whether or not it lives";
  EXPECT_EQ(mate.log->gives_up(), std::nullopt);
  life.log->drop_below(Version(2));
  EXPECT_EQ(life.log->gives_up(), std::nullopt) << "all that is needed is there again";
}

TEST(HostLogTest, StatesSetUpRoundsAndWhatIsUnderWayAreNotGivenUp) {
  const Life life(11);
  const RecordKey setup{RecordKind::kSetup, {Timeline(0), kWorldGroup, Version(0), Sequence(0xfeed)}};
  const RecordKey global{RecordKind::kGlobal, round_key(1, 0).round};
  life.log->give_up_but([](const RecordKey& key) { return key == round_key(1, 3); });
  for (const RecordKey& key : {setup, global}) ASSERT_TRUE(life.publish(key, 5000, 0, 5000).ok());
  for (std::uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(life.publish(round_key(1, i), 5000, 0, 5000).ok()) << i;
  for (const RecordKey& key : {setup, global, round_key(1, 3)}) EXPECT_TRUE(life.reads(key, 0, 5000));
  EXPECT_FALSE(life.reads(round_key(1, 9), 0, 5000));
  // A round that fills the log alone is too large for it.
  life.log->give_up_but([](const RecordKey&) { return true; });
  Status s;
  for (std::uint64_t i = 200; i < 400 && s.ok(); ++i) s = life.publish(round_key(1, i), 5000, 0, 5000);
  EXPECT_EQ(s.code(), Code::kExhausted);
  EXPECT_THAT(s.describe(), HasSubstr("the calls that are under way"));
}

TEST(HostLogTest, ThePreambleIsGivenUpLastAndMissedWhateverIsCommitted) {
  const Life life(11);
  life.log->give_up_but(needs_nothing);
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(life.publish(round_key(0, i), 5000, 0, 5000).ok());
  for (std::uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(life.publish(round_key(1, i), 5000, 0, 5000).ok());
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(life.reads(round_key(0, i), 0, 5000)) << i;
  EXPECT_EQ(life.log->gives_up()->version, Version(1));
  life.log->drop_below(Version(2));
  for (std::uint64_t i = 8; i < 200; ++i) ASSERT_TRUE(life.publish(round_key(0, i), 5000, 0, 5000).ok());
  EXPECT_FALSE(life.reads(round_key(0, 0), 0, 5000));
  EXPECT_EQ(life.log->gives_up()->version, kPreamble);
  life.log->drop_below(Version(3));
  EXPECT_EQ(life.log->gives_up()->version, kPreamble);
  EXPECT_EQ(life.log->given_up()->version, kPreamble);
}

TEST(HostLogTest, ThatALogIsHalfFullIsToldEachTimeThatItComesToBe) {
  const Life life(11);
  int told = 0;
  life.log->watch({[&told] { ++told; }, {}});
  std::uint64_t sequence = 0;
  for (; told == 0; ++sequence) ASSERT_TRUE(life.publish(round_key(1, sequence), 5000, 0, 5000).ok());
  EXPECT_GE(life.log->bytes_held(), life.log->budget_bytes() / 2);
  EXPECT_LE(life.log->bytes_held(), life.log->budget_bytes() * 5 / 8);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(life.publish(round_key(1, sequence++), 5000, 0, 5000).ok());
  EXPECT_EQ(told, 1);
  life.log->drop_below(Version(2));
  for (std::uint64_t i = 0; told == 1; ++i) ASSERT_TRUE(life.publish(round_key(2, i), 5000, 0, 5000).ok());
  EXPECT_EQ(told, 2);
}

TEST(HostLogTest, DropsVersionsButNotThePreambleAndSetUpRounds) {
  const Life a(11), b(12);
  ASSERT_TRUE(a.attach(b).ok());
  const RecordKey preamble = round_key(0, 0);
  const RecordKey setup{RecordKind::kSetup, {Timeline(0), kWorldGroup, Version(0), Sequence(0xfeed)}};
  const RecordKey global{RecordKind::kGlobal, {Timeline(0), kWorldGroup, Version(2), Sequence(0)}};
  const RecordKey keys[] = {preamble, setup, round_key(1, 0), global, round_key(2, 0), round_key(3, 0)};
  for (const RecordKey& k : keys) {
    ASSERT_TRUE(a.publish(k, 100, 0, 50).ok());
    ASSERT_TRUE(b.publish(k, 100, 50, 50).ok());
    ASSERT_TRUE(a.reads(k, 0, 100));
  }
  const std::uint64_t before = a.log->bytes_held();
  a.log->drop_below(Version(3));
  EXPECT_LT(a.log->bytes_held(), before);
  for (const RecordKey& k : {preamble, setup, round_key(3, 0)}) EXPECT_TRUE(a.reads(k, 0, 100));
  // b still holds its half, and is not asked.
  for (const RecordKey& k : {round_key(1, 0), round_key(2, 0), global}) {
    EXPECT_TRUE(a.reader->held(k).empty());
    EXPECT_FALSE(a.reader->info(k).value().has_value());
    EXPECT_EQ(b.reader->held(k), Ranges(50, 100));
    EXPECT_TRUE(a.reader->list(k.kind, Timeline(0), kWorldGroup, k.round.version, Sequence(0), Sequence(9), 9).empty());
  }
  // A reader made later sees the same.
  const auto late = a.log->reader();
  EXPECT_TRUE(late->held(round_key(2, 0)).empty());
  EXPECT_EQ(late->held(round_key(3, 0)), Ranges(0, 100));
}

TEST(HostLogTest, AJobOfManyVersionsStaysWithinItsBudget) {
  const Life a(11), b(12);
  ASSERT_TRUE(b.attach(a).ok());
  const std::uint64_t versions = kThreadSanitized ? 100 : 500;
  for (std::uint64_t v = 1; v < versions; ++v) {
    for (std::uint64_t s = 0; s < 3; ++s) {
      ASSERT_TRUE(a.publish(round_key(v, s), 20'000, 0, 20'000).ok()) << v;
      ASSERT_TRUE(b.reads(round_key(v, s), 0, 20'000)) << v;
    }
    ASSERT_TRUE(v == 1 || b.reads(round_key(v - 1, 2), 0, 20'000)) << v;
    a.log->drop_below(Version(v));
    b.log->drop_below(Version(v));
  }
}

// A writer that never stops reusing its extents, and readers in other threads: what a reader is given is right.
TEST(HostLogTest, ReadersAreNeverFooledByAWriterThatReusesItsMemory) {
  const Life writer(11, std::size_t{1} << 20), mate(12);
  ASSERT_TRUE(mate.attach(writer).ok());
  constexpr std::size_t kWords = 8000;
  constexpr std::uint64_t kBytes = kWords * 8, kRounds = 2, kEnough = 300;
  std::atomic<std::uint64_t> newest{1};
  std::atomic<int> reading{4};
  const auto word_of = [](const RecordKey& k) { return k.round.version.value * kRounds + k.round.sequence.value; };
  const auto read = [&](const HostLog& log) {
    const auto reader = log.reader();
    std::vector<std::uint64_t> out(kWords);
    for (std::uint64_t right = 0, sequence = 0; right < kEnough; sequence = (sequence + 1) % kRounds) {
      const RecordKey key = round_key(newest.load(), sequence);
      if (!reader->read(key, 0, std::as_writable_bytes(std::span(out)))) continue;
      ++right;
      ASSERT_EQ(std::ranges::count(out, word_of(key)), kWords);
    }
    --reading;
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] { read(*writer.log); });
    readers.emplace_back([&] { read(*mate.log); });
  }
  const Life passing(13);  // attached and gone again while they read
  for (std::uint64_t v = 1; reading.load() > 0; ++v) {
    newest = v;
    for (std::uint64_t s = 0; s < kRounds; ++s) {
      const std::vector<std::uint64_t> words(kWords, word_of(round_key(v, s)));
      ASSERT_TRUE(writer.log->publish(round_key(v, s), info_of(kBytes), 0, std::as_bytes(std::span(words))).ok());
    }
    if (v % 4 == 2) mate.log->detach(passing.self);
    ASSERT_TRUE(v % 4 != 0 || mate.attach(passing).ok());
    // Gone while they copy it, and overwritten at once.
    writer.log->drop_below(Version(v + 1));
  }
  for (std::thread& t : readers) t.join();
}

// Counts what is given back.
class CountingSegment final : public SegmentMemory {
 public:
  std::span<std::byte> bytes() override { return memory_->bytes(); }
  void release(std::size_t at, std::size_t size) override {
    ++releases;
    memory_->release(at, size);
  }
  int releases = 0;

 private:
  std::shared_ptr<SegmentMemory> memory_ = heap_segment(kSmall);
};

TEST(HostLogTest, VersionsOfEqualSizeUseTheSamePagesForEver) {
  const auto memory = std::make_shared<CountingSegment>();
  const auto log = std::move(HostLog::create(Incarnation(11), memory)).value();
  const auto version = [&](std::uint64_t v, std::uint64_t rounds) {
    for (std::uint64_t s = 0; s < rounds; ++s) {
      const RecordKey key = round_key(v, s);
      ASSERT_TRUE(log->publish(key, info_of(8000), 0, bytes_of(key, 0, 8000)).ok());
    }
    log->drop_below(Version(v));
  };
  for (std::uint64_t v = 1; v < 100; ++v) version(v, 5);
  EXPECT_EQ(memory->releases, 0);
  version(100, 20);
  for (std::uint64_t v = 101; v < 110; ++v) version(v, 5);
  EXPECT_GT(memory->releases, 10);
  const int before = memory->releases;
  for (std::uint64_t v = 110; v < 200; ++v) version(v, 5);
  EXPECT_EQ(memory->releases, before);
}

// Everything that a reader can be asked, of a segment with anything in it.
void ask_everything(HostLogReader& reader) {
  std::vector<std::byte> out(5000);
  for (const RecordKind kind : {RecordKind::kRound, RecordKind::kSetup, RecordKind::kGlobal}) {
    for (const std::uint64_t version : {0, 1, 2}) {
      for (const RecordKey& k :
           reader.list(kind, Timeline(0), kWorldGroup, Version(version), Sequence(0), Sequence(UINT64_MAX), 1000)) {
        const auto info = reader.info(k);
        const Ranges held = reader.held(k);
        for (const Interval& i : held.intervals()) {
          ASSERT_TRUE(reader.read(k, i.begin, std::span(out).first(std::min<std::uint64_t>(i.end - i.begin, 5000))));
        }
        if (info.ok()) (void)reader.read(k, info.value()->total_bytes - 1, std::span(out).first(2));
      }
    }
  }
}

TEST(HostLogTest, AnyByteOfASegmentMayBeRubbish) {
  std::mt19937_64 random(7);
  const Life victim(11);
  for (std::uint64_t v = 1; v < 3; ++v) {
    for (std::uint64_t s = 0; s < 9; ++s) ASSERT_TRUE(victim.publish(round_key(v, s), 3000, s * 300, s * 60).ok());
  }
  const std::span<std::byte> good = victim.memory->bytes();
  std::size_t refused = 0, lost = 0;
  const std::size_t turns = kThreadSanitized ? 1000 : 3000;
  for (std::size_t i = 0; i < turns; ++i) {
    const auto copy = heap_segment(kSmall);
    std::ranges::copy(good, copy->bytes().begin());
    // Mostly where something stands: the tables, and the first pages of the extents.
    const std::size_t at = i % 2 == 0 ? random() % 1024 : (random() % 12) * 8192 + random() % 3000;
    for (std::size_t n = random() % 9; n-- > 0;) copy->bytes()[at + n] = static_cast<std::byte>(random());
    const Life reader(12);
    if (!reader.log->attach(victim.self, copy->bytes(), copy).ok()) {
      ++refused;
      continue;
    }
    ask_everything(*reader.reader);
    if (reader.reader->held(round_key(1, 8)).empty()) ++lost;
  }
  EXPECT_GT(refused, turns / 60);
  EXPECT_GT(lost, turns / 600);
}

TEST(HostLogTest, NoBitOfARecordsHeaderMayFlip) {
  const Life victim(11), reader(12);
  const RecordKey key = round_key(1, 3);
  ASSERT_TRUE(victim.publish(key, 3000, 0, 1000).ok());
  const std::uint64_t at = segment_layout(kSmall).value().data_at;
  for (std::uint64_t bit = 0; bit < 8 * kRecordHeaderBytes; ++bit) {
    victim.memory->bytes()[at + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ASSERT_TRUE(reader.attach(victim).ok());
    for (const std::uint64_t version : {0, 1}) {
      ASSERT_TRUE(reader.reader
                      ->list(RecordKind::kRound, Timeline(0), kWorldGroup, Version(version), Sequence(0),
                             Sequence(UINT64_MAX), 9)
                      .empty())
          << bit;
    }
    ASSERT_TRUE(reader.reader->held(key).empty()) << bit;
    reader.log->detach(victim.self);
    victim.memory->bytes()[at + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  ASSERT_TRUE(reader.attach(victim).ok());
  EXPECT_TRUE(reader.reads(key, 0, 1000));
}

// A header that is rubbish with the right checksum leads nowhere beyond its extent.
TEST(HostLogTest, NoHeaderLeadsOutOfItsExtent) {
  const Life victim(11);
  const SegmentLayout layout = segment_layout(kSmall).value();
  // The last extent of the segment: what is beyond it is not ours.
  std::uint64_t version = 1;
  for (; version <= layout.extents; ++version) ASSERT_TRUE(victim.publish(round_key(version, 3), 3000, 0, 1000).ok());
  const std::uint64_t at = layout.data_at + (layout.extents - 1) * layout.extent_bytes;
  const std::span<std::byte> header = victim.memory->bytes().subspan(at, kRecordHeaderBytes);
  const std::vector<std::byte> good(header.begin(), header.end());
  std::mt19937_64 random(3);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::ranges::copy(good, header.begin());
    for (std::size_t n = random() % 4 + 1; n-- > 0;) {
      header[12 + random() % 84] = i % 2 == 0 ? std::byte{0xff} : static_cast<std::byte>(random());
    }
    const std::uint32_t sum = record_checksum(header.first<kRecordHeaderBytes>(), victim.self, at, 2);
    std::memcpy(header.data() + kRecordChecksumAt, &sum, sizeof sum);
    const auto view = SegmentView::open(victim.memory->bytes(), victim.self);
    ASSERT_TRUE(view.ok());
    SegmentView::Record record;
    if (view.value().record(layout.extents - 1, 2, 0, record) != SegmentView::Found::kRecord) continue;
    ++accepted;
    ASSERT_LE(record.next, layout.extent_bytes);
    ASSERT_LE(record.payload_at + record.payload_bytes, at + layout.extent_bytes);
    ASSERT_LE(record.first_byte + record.payload_bytes, record.info.total_bytes);
    std::vector<std::byte> out(record.payload_bytes);
    ASSERT_TRUE(view.value().copy(layout.extents - 1, 2, record.payload_at, out));
  }
  EXPECT_GT(accepted, 100);
}

TEST(HostLogTest, MemoryNeedNotBeClean) {
  const auto memory = heap_segment(kMinSegmentBytes);
  const std::uint64_t flag = 2;
  for (std::size_t i = 0; i < kMinSegmentBytes; i += 8) std::memcpy(memory->bytes().data() + i, &flag, 8);
  auto log = HostLog::create(Incarnation(11), memory);
  ASSERT_TRUE(log.ok());
  const auto reader = log.value()->reader();
  for (std::uint64_t s = 0; s < 30; ++s) {
    const RecordKey key = round_key(1, s);
    ASSERT_TRUE(log.value()->publish(key, info_of(900), 0, bytes_of(key, 0, 900)).ok());
    ASSERT_EQ(reader->held(key), Ranges(0, 900));
  }
}

// Nor is a payload of an earlier use that looks like a flag.
TEST(HostLogTest, APayloadThatLooksLikeAFlagIsNone) {
  const Life life(11, kMinSegmentBytes);
  for (std::uint64_t v = 1; v < 50; ++v) {
    // One extent is enough, and is always the same: its stamp is 2v now, and 2v + 2 next time.
    for (std::uint64_t s = 0; s < 5; ++s) {
      ASSERT_TRUE(life.publish(round_key(v, s), 100, 0, 100).ok());
      ASSERT_TRUE(life.reads(round_key(v, s), 0, 100)) << v << " " << s;
    }
    life.log->drop_below(Version(v + 1));
    ++v;
    const std::vector<std::uint64_t> flags(480, 2 * v + 2);
    ASSERT_TRUE(life.log->publish(round_key(v, 0), info_of(flags.size() * 8), 0, std::as_bytes(std::span(flags))).ok());
    life.log->drop_below(Version(v + 1));
  }
}

// What an earlier use of an extent left behind is not taken for a record, wherever the new records end.
TEST(HostLogTest, RecordsOfAnEarlierUseAreGone) {
  const Life life(11, kMinSegmentBytes);
  for (std::uint64_t v = 1; v < 200; ++v) {
    const std::uint64_t rounds = v * 7 % 20 + 1;
    for (std::uint64_t s = 0; s < rounds; ++s) {
      ASSERT_TRUE(life.publish(round_key(v, s), 500, 0, (v * s) % 5 * 100).ok());
    }
    const auto fresh = life.log->reader();
    for (HostLogReader* r : {life.reader.get(), fresh.get()}) {
      std::size_t found = 0;
      for (std::uint64_t version = 1; version <= v + 1; ++version) {
        found += r->list(RecordKind::kRound, Timeline(0), kWorldGroup, Version(version), Sequence(0), Sequence(99), 99)
                     .size();
      }
      ASSERT_EQ(found, rounds) << v;
    }
    life.log->drop_below(Version(v + 1));
  }
}

}  // namespace
}  // namespace warren

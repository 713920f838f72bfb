// What every result store promises, for the one in RocksDB and for its fake; and what only the former can go through.
#include "storage/result_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "storage/fake_result_store.h"
#include "storage/files.h"
#include "storage/result_format.h"
#include "storage/rocks_process.h"
#include "storage/rocks_result_store.h"
#include "storage/write_behind.h"
#include "tests/storage/file_size_limit.h"
#include "tests/storage/permissions.h"
#include "tests/storage/result_batch.h"

namespace warren::storage {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
namespace fs = std::filesystem;

constexpr Incarnation kA(0xa), kB(0xb), kC(0xc);

class Host {
 public:
  virtual ~Host() = default;
  virtual std::unique_ptr<ResultStore> open(Incarnation life, const std::string& worker = "w0") = 0;
};

class FakeHost final : public Host {
 public:
  std::unique_ptr<ResultStore> open(Incarnation life, const std::string& worker) override {
    return std::make_unique<FakeResultStore>(disk_, worker, life);
  }

 private:
  std::shared_ptr<FakeResultDisk> disk_ = std::make_shared<FakeResultDisk>();
};

class RocksHost final : public Host {
 public:
  RocksHost() {
    std::string pattern = fs::temp_directory_path() / "warren-results-XXXXXX";
    base_ = ::mkdtemp(pattern.data());
  }
  ~RocksHost() override { fs::remove_all(base_); }
  RocksHost(const RocksHost&) = delete;
  RocksHost& operator=(const RocksHost&) = delete;

  Result<std::unique_ptr<RocksResultStore>> try_open(Incarnation life, const std::string& worker = "w0",
                                                     std::uint64_t budget = 0) {
    return RocksResultStore::open({data_dir().string(), "team/job", worker, life},
                                  {.disk_bytes = budget, .trial_program = trial_program});
  }
  std::unique_ptr<RocksResultStore> open_rocks(Incarnation life, const std::string& worker = "w0",
                                               std::uint64_t budget = 0) {
    auto store = try_open(life, worker, budget);
    EXPECT_TRUE(store.ok()) << store.status().describe();
    return std::move(store).value();
  }
  std::unique_ptr<ResultStore> open(Incarnation life, const std::string& worker) override {
    return open_rocks(life, worker);
  }
  std::string trial_program = WARREN_STORE_TRIAL_PROGRAM;
  [[nodiscard]] fs::path data_dir() const { return base_ / "data"; }
  [[nodiscard]] fs::path place(Incarnation life, const std::string& worker = "w0") const {
    char name[32];
    std::snprintf(name, sizeof name, "life-%016llx", static_cast<unsigned long long>(life.value));
    return data_dir() / "team%2Fjob" / worker / name;
  }

 private:
  fs::path base_;
};

void put(ResultStore& store, const RecordBatch& batch) {
  const Status s = store.put(batch);
  ASSERT_TRUE(s.ok()) << s.describe();
}
void drop(ResultStore& store, const Horizon& horizon) {
  const Status s = store.drop(horizon);
  ASSERT_TRUE(s.ok()) << s.describe();
}

template <class H>
class ResultStoreContract : public testing::Test {
 protected:
  H host_;
  RecordBatch batch_;
};
using Hosts = testing::Types<FakeHost, RocksHost>;
TYPED_TEST_SUITE(ResultStoreContract, Hosts);

// Whether it is over or not, and for all stores.
TYPED_TEST(ResultStoreContract, WhatIsLeftOutIsReadNoMore) {
  auto lives = this->host_.open(kA, "w0");
  ASSERT_TRUE(lives->note({7, "old"}).ok());
  RecordBatch& b = this->batch_;
  add(b, round_key(0), 1000, 0, 1000);
  add(b, round_key(1), 40, 0, 40);
  put(*lives, b);
  auto other = this->host_.open(kB, "w0");
  const auto reader = other->reader();
  EXPECT_TRUE(reader->held(round_key(0)).covers(0, 1000));
  ASSERT_TRUE(
      other->leave_out([](Incarnation life, const ResultStore::Note& note) { return life == kA && note.text == "new"; })
          .ok());
  EXPECT_TRUE(reader->held(round_key(1)).covers(0, 40));
  ASSERT_TRUE(other
                  ->leave_out([](Incarnation life, const ResultStore::Note& note) {
                    return life == kA && note.run == 7 && note.text == "old";
                  })
                  .ok());
  EXPECT_TRUE(reader->held(round_key(0)).empty());
  EXPECT_THAT(other->notes(), IsEmpty());
  put(*lives, b);  // it does not know, and reads its own
  EXPECT_TRUE(lives->reader()->held(round_key(1)).covers(0, 40));
  auto later = this->host_.open(kC, "w0");
  const Incarnation living[] = {kC};
  later->refresh(living);
  EXPECT_TRUE(later->reader()->held(round_key(1)).empty());
  EXPECT_THAT(later->notes(), IsEmpty());
  EXPECT_THAT(later->report(true).rounds, IsEmpty());
  // It goes when that life is over.
  ASSERT_TRUE(later->note({7, "newest"}).ok());
  drop(*later, {Timeline(0), Version(0), {}});
  lives.reset();
  drop(*later, {Timeline(0), Version(0), {}});
  EXPECT_EQ(later->bytes_on_disk(), 0U);
}

TYPED_TEST(ResultStoreContract, ReadsBackWhatWasPut) {
  auto store = this->host_.open(kA, "w0");
  auto reader = store->reader();
  EXPECT_EQ(reader->info(round_key(0)).value(), std::nullopt);
  RecordBatch& b = this->batch_;
  add(b, round_key(2), 1000, 600, 1000);  // not in order, larger and smaller than what lies in the entry
  add(b, round_key(2), 1000, 0, 100);
  add(b, round_key(0), 40, 0, 40);
  add(b, round_key(1), 0, 0, 0);  // a barrier
  add(b, round_key(1), 0, 0, 0);  // twice
  add(b, state_key(1), 3 << 20, 1 << 20, 3 << 20);
  put(*store, b);

  EXPECT_EQ(reader->info(round_key(2)).value(), info_of(1000));
  EXPECT_EQ(reader->info(round_key(1)).value(), info_of(0));
  EXPECT_EQ(reader->info(round_key(3)).value(), std::nullopt);
  Ranges held(0, 100);
  held.add(600, 1000);
  EXPECT_EQ(reader->held(round_key(2)), held);
  EXPECT_EQ(reader->held(state_key(1)), Ranges(1 << 20, 3 << 20));
  EXPECT_EQ(reader->held(round_key(1)), Ranges());
  for (const std::uint64_t begin : {0, 50, 100, 600, 999}) {
    for (const std::uint64_t end : {50, 100, 101, 600, 601, 1000, 2000}) {
      EXPECT_EQ(reader->held_within(round_key(2), begin, end), held.intersect(begin, std::max(begin, end)));
    }
  }
  constexpr std::uint64_t kMid = 3 << 19;
  EXPECT_EQ(reader->held_within(state_key(1), kMid, kMid + 1), Ranges(kMid, kMid + 1));
  EXPECT_TRUE(holds(*reader, round_key(0), 0, 40));
  EXPECT_TRUE(holds(*reader, round_key(0), 7, 9));
  EXPECT_TRUE(holds(*reader, round_key(2), 650, 1000));
  EXPECT_FALSE(holds(*reader, round_key(2), 50, 101));
  EXPECT_FALSE(holds(*reader, round_key(2), 599, 601));
  EXPECT_TRUE(holds(*reader, state_key(1), (1 << 20) + 3, 3 << 20));
}

TYPED_TEST(ResultStoreContract, PutsOfManyBatchesAndSizesReadAsOne) {
  auto store = this->host_.open(kA, "w0");
  RecordBatch& b = this->batch_;
  constexpr std::uint64_t kTotal = 5'000'000, kPiece = 333'333;
  std::uint64_t n = 0;
  for (std::uint64_t at = 0; at < kTotal; at += kPiece, ++n) {  // each of them alone, with small ones between
    b.clear();
    add(b, round_key(100), kTotal, at, std::min(at + kPiece, kTotal));
    add(b, round_key(n), 8, 0, 8);
    put(*store, b);
  }
  auto reader = store->reader();
  EXPECT_TRUE(holds(*reader, round_key(100), 0, kTotal));
  EXPECT_TRUE(holds(*reader, round_key(100), kPiece - 1, kPiece + 1));
  for (std::uint64_t i = 0; i < n; ++i) EXPECT_TRUE(holds(*reader, round_key(i), 0, 8));
}

TYPED_TEST(ResultStoreContract, ListsByGroupVersionAndRange) {
  auto store = this->host_.open(kA, "w0");
  RecordBatch& b = this->batch_;
  for (const std::uint64_t group : {0ull, 7ull, ~0ull}) {
    for (std::uint64_t version = 1; version <= 2; ++version) {
      for (std::uint64_t s = 0; s < 300; s += 1 + group % 2) {
        add(b, round_key(s, version, group), 2, 0, 1);
        add(b, round_key(s, version, group), 2, 1, 2);
      }
    }
  }
  put(*store, b);
  auto reader = store->reader();
  const auto list = [&](std::uint64_t group, std::uint64_t version, std::uint64_t first, std::uint64_t end,
                        std::size_t limit) {
    return reader->list(RecordKind::kRound, Timeline(1), GroupId(group), Version(version), Sequence(first),
                        Sequence(end), limit);
  };
  EXPECT_THAT(list(0, 1, 298, 1000, 10), ElementsAre(round_key(298), round_key(299)));
  EXPECT_THAT(list(7, 2, 3, 9, 2), ElementsAre(round_key(4, 2, 7), round_key(6, 2, 7)));
  EXPECT_THAT(list(~0ull, 2, 0, 5, 10), SizeIs(3));
  EXPECT_THAT(list(0, 1, 0, 1000, 1000), SizeIs(300));
  EXPECT_THAT(list(3, 1, 0, 1000, 1000), IsEmpty());
  EXPECT_THAT(list(0, 3, 0, 1000, 1000), IsEmpty());
  EXPECT_THAT(list(0, 1, 5, 5, 1000), IsEmpty());
  EXPECT_THAT(list(0, 1, 0, 5, 0), IsEmpty());
}

TYPED_TEST(ResultStoreContract, LaterLivesReadEarlierOnesAndOthersOfTheHost) {
  {
    auto a = this->host_.open(kA, "w0");
    add(this->batch_, round_key(0), 1000, 0, 500);
    put(*a, this->batch_);
    auto b = this->host_.open(kB, "w1");
    this->batch_.clear();
    add(this->batch_, round_key(0), 1000, 400, 1000);
    add(this->batch_, round_key(1), 10, 0, 10);
    put(*b, this->batch_);
  }
  auto c = this->host_.open(kC, "w0");
  auto reader = c->reader();
  EXPECT_TRUE(holds(*reader, round_key(0), 0, 1000));
  EXPECT_TRUE(holds(*reader, round_key(1), 0, 10));
  EXPECT_EQ(reader->held(round_key(0)), Ranges(0, 1000));
  const Incarnation live[] = {kC};
  EXPECT_EQ(reader->held_by(round_key(1), live), Ranges());
  put(*c, one(this->batch_, round_key(1), 10));
  EXPECT_EQ(reader->held_by(round_key(1), live), Ranges(0, 10));
  EXPECT_EQ(reader->held_by(round_key(1), {}), Ranges());
  EXPECT_TRUE(reader->recorded_by(round_key(1), live));
  EXPECT_FALSE(reader->recorded_by(round_key(0), live));
  EXPECT_FALSE(reader->recorded_by(round_key(1), {}));
}

TYPED_TEST(ResultStoreContract, ContradictionsAreTold) {
  { put(*this->host_.open(kA, "w0"), one(this->batch_, round_key(0), 10)); }
  auto store = this->host_.open(kB, "w0");
  put(*store, one(this->batch_, round_key(0), 20));
  const auto info = store->reader()->info(round_key(0));
  EXPECT_EQ(info.status().code(), Code::kDesync);
  EXPECT_THAT(info.status().describe(), HasSubstr("different calls: allreduce(u8, sum, count "));
}

TYPED_TEST(ResultStoreContract, DropsWhatIsObsoleteAndNothingElse) {
  auto store = this->host_.open(kA, "w0");
  RecordBatch& b = this->batch_;
  const auto message = [](std::uint64_t version) {
    RecordKey key = round_key(0, version, 99);
    key.kind = RecordKind::kMessage;
    return key;
  };
  for (std::uint64_t version = 0; version < 5; ++version) {
    add(b, round_key(0, version), 10, 0, 10);
    add(b, message(version), 1000, 0, 1000);
    add(b, state_key(version), 1000, 0, 1000);
  }
  add(b, setup_key(77), 1000, 0, 1000);
  put(*store, b);
  auto reader = store->reader();
  const auto left = [&] {
    std::string out;
    for (std::uint64_t v = 0; v < 5; ++v) {
      if (holds(*reader, round_key(0, v), 0, 10)) out += "r" + std::to_string(v) + " ";
      if (holds(*reader, message(v), 0, 1000)) out += "m" + std::to_string(v) + " ";
      if (holds(*reader, state_key(v), 0, 1000)) out += "s" + std::to_string(v) + " ";
    }
    return out + (holds(*reader, setup_key(77), 0, 1000) ? "setup" : "");
  };
  EXPECT_EQ(left(), "r0 m0 s0 r1 m1 s1 r2 m2 s2 r3 m3 s3 r4 m4 s4 setup");
  drop(*store, {Timeline(1), Version(0), std::nullopt});
  EXPECT_EQ(left(), "r0 m0 s0 r1 m1 s1 r2 m2 s2 r3 m3 s3 r4 m4 s4 setup");
  drop(*store, {Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(3)}});
  EXPECT_EQ(left(), "r0 m0 r2 m2 r3 m3 s3 r4 m4 s4 setup") << "the preamble stays; rounds and states apart";
  drop(*store, {Timeline(2), Version(3), Horizon::Checkpoint{Timeline(1), Version(3)}});
  EXPECT_EQ(left(), "s3 setup") << "a rollback undoes all but the checkpoint that it goes back to";
  put(*store, one(b, round_key(0, 3, 0, 2), 10));
  EXPECT_TRUE(holds(*reader, round_key(0, 3, 0, 2), 0, 10));
  drop(*store, {Timeline(2), Version(4), Horizon::Checkpoint{Timeline(2), Version(4)}});
  EXPECT_EQ(left(), "setup");
  EXPECT_FALSE(holds(*reader, round_key(0, 3, 0, 2), 0, 10));
  put(*store, one(b, round_key(0, 4, 0, 2), 10));
  EXPECT_TRUE(holds(*reader, round_key(0, 4, 0, 2), 0, 10));
}

TYPED_TEST(ResultStoreContract, WhatLastsOfALifeThatIsOverIsTakenOver) {
  {
    auto a = this->host_.open(kA, "w0");
    add(this->batch_, setup_key(5), 300'000, 0, 300'000);
    add(this->batch_, round_key(3, 0), 20, 0, 20);
    add(this->batch_, round_key(0, 1), 20, 0, 20);
    put(*a, this->batch_);
  }
  auto b = this->host_.open(kB, "w1");
  drop(*b, {Timeline(1), Version(1), Horizon::Checkpoint{Timeline(1), Version(1)}});
  const Incarnation live[] = {kB};
  EXPECT_EQ(b->reader()->held_by(setup_key(5), live), Ranges()) << "as long as the rest is needed";
  drop(*b, {Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(2)}});
  EXPECT_EQ(b->reader()->held_by(setup_key(5), live), Ranges(0, 300'000));
  EXPECT_EQ(b->reader()->held_by(round_key(3, 0), live), Ranges(0, 20));
  b.reset();
  auto c = this->host_.open(kC, "w0");
  auto reader = c->reader();
  EXPECT_TRUE(holds(*reader, setup_key(5), 0, 300'000));
  EXPECT_TRUE(holds(*reader, round_key(3, 0), 0, 20));
  EXPECT_FALSE(holds(*reader, round_key(0, 1), 0, 20));
}

// One that was begun again in a new timeline has another name there; those that the plan knows keep theirs.
TYPED_TEST(ResultStoreContract, SetUpRoundsOfTimelinesThatWereUndoneGo) {
  const auto setup = [](std::uint32_t timeline, std::uint64_t name) {
    RecordKey key = setup_key(name);
    key.round.timeline = Timeline(timeline);
    return key;
  };
  {
    auto a = this->host_.open(kA, "w0");
    for (const RecordKey& key : {setup(1, 7), setup(1, 8), setup(2, 8), setup(2, 9), setup(3, 10)}) {
      add(this->batch_, key, 1000, 0, 1000);
    }
    put(*a, this->batch_);
  }
  auto b = this->host_.open(kB, "w1");
  Horizon horizon{Timeline(3), Version(2), Horizon::Checkpoint{Timeline(3), Version(2)}};
  horizon.setups = {Timeline(3), {setup(1, 7).round, setup(2, 8).round}};
  drop(*b, horizon);
  auto reader = b->reader();
  EXPECT_TRUE(holds(*reader, setup(1, 7), 0, 1000));
  EXPECT_FALSE(holds(*reader, setup(1, 8), 0, 1000)) << "another of that name was done";
  EXPECT_TRUE(holds(*reader, setup(2, 8), 0, 1000));
  EXPECT_FALSE(holds(*reader, setup(2, 9), 0, 1000));
  EXPECT_TRUE(holds(*reader, setup(3, 10), 0, 1000)) << "the job's timeline: others may have done it since";
}

TYPED_TEST(ResultStoreContract, ALifeThatIsNotOverIsLeftAlone) {
  auto zombie = this->host_.open(kA, "w0");
  put(*zombie, one(this->batch_, round_key(0), 1000));
  auto b = this->host_.open(kB, "w0");
  EXPECT_TRUE(holds(*b->reader(), round_key(0), 0, 1000)) << "its own predecessor's records are read";
  auto other = this->host_.open(kC, "w1");
  EXPECT_FALSE(holds(*other->reader(), round_key(0), 0, 1000)) << "another worker's that lives are not";
  drop(*b, {Timeline(1), Version(9), Horizon::Checkpoint{Timeline(1), Version(9)}});
  put(*zombie, one(this->batch_, round_key(1), 1000));
  EXPECT_TRUE(holds(*zombie->reader(), round_key(0), 0, 1000));
  EXPECT_TRUE(holds(*zombie->reader(), round_key(1), 0, 1000));
  zombie.reset();
  {
    auto next = this->host_.open(Incarnation(0xe), "w0");
    EXPECT_TRUE(holds(*next->reader(), round_key(0), 0, 1000)) << "nothing of it was removed";
    EXPECT_TRUE(holds(*next->reader(), round_key(1), 0, 1000));
  }
  drop(*b, {Timeline(1), Version(9), Horizon::Checkpoint{Timeline(1), Version(9)}});
  b.reset();
  EXPECT_FALSE(holds(*this->host_.open(Incarnation(0xd), "w0")->reader(), round_key(1), 0, 1000));
}

// A rank of the host comes back elsewhere: what its last life has left there is for the others to read.
TYPED_TEST(ResultStoreContract, WhatOtherLivesHaveLeftIsReadAfterANewLook) {
  const Incarnation fenced_life(0xd);
  auto ended = this->host_.open(kA, "w0"), fenced = this->host_.open(fenced_life, "w1");
  auto here = this->host_.open(kB, "w2"), mate = this->host_.open(kC, "w3");
  auto reader = here->reader();
  EXPECT_FALSE(holds(*reader, round_key(0), 0, 10));
  put(*ended, one(this->batch_, round_key(0), 10));
  put(*fenced, one(this->batch_, round_key(1), 10));
  put(*mate, one(this->batch_, round_key(2), 10));
  ended.reset();
  EXPECT_FALSE(holds(*reader, round_key(0), 0, 10)) << "it has looked before";
  const Incarnation living[] = {kB, kC};
  here->refresh(living);
  EXPECT_TRUE(holds(*reader, round_key(0), 0, 10));
  EXPECT_TRUE(holds(*reader, round_key(1), 0, 10)) << "it does not know yet that it is fenced";
  EXPECT_FALSE(holds(*reader, round_key(2), 0, 10)) << "its own reader serves it";
  mate.reset();
  EXPECT_FALSE(holds(*reader, round_key(2), 0, 10));
  put(*fenced, one(this->batch_, round_key(3), 10));
  fenced.reset();
  const Incarnation alone[] = {kB};
  here->refresh(alone);
  for (const std::uint64_t n : {0u, 1u, 2u, 3u}) EXPECT_TRUE(holds(*reader, round_key(n), 0, 10)) << n;
}

TYPED_TEST(ResultStoreContract, AFinishedJobLeavesNothing) {
  { put(*this->host_.open(kA, "w0"), one(this->batch_, round_key(0), 1000)); }
  auto b = this->host_.open(kB, "w0");
  put(*b, one(this->batch_, round_key(1), 1000));
  ASSERT_TRUE(b->finish().ok());
  b.reset();
  auto c = this->host_.open(kC, "w0");
  auto reader = c->reader();
  EXPECT_EQ(reader->held(round_key(0)), Ranges());
  EXPECT_EQ(reader->held(round_key(1)), Ranges());
}

TYPED_TEST(ResultStoreContract, ReportsWhatIsHeldInRuns) {
  {
    auto a = this->host_.open(kA, "w0");
    for (std::uint64_t s = 0; s < 100; ++s) add(this->batch_, round_key(s), 10, 0, 10);
    add(this->batch_, round_key(100), 1000, 0, 400);
    add(this->batch_, round_key(5, 1, 42), 0, 0, 0);
    add(this->batch_, state_key(1), 900, 300, 600);
    put(*a, this->batch_);
  }
  auto b = this->host_.open(kB, "w0");
  this->batch_.clear();
  add(this->batch_, round_key(100), 1000, 350, 900);
  add(this->batch_, round_key(102), 10, 0, 10);
  RecordKey local = state_key(1);
  local.kind = RecordKind::kLocal;
  local.round.sequence = Sequence(3);
  add(this->batch_, local, 600, 0, 600);
  put(*b, this->batch_);

  HeldRounds world{false, Timeline(1), kWorldGroup, Version(1), {}};
  const std::uint64_t call10 = call_hash(info_of(10).fingerprint);
  world.runs = {{0, 100, 10, call10, Ranges(0, 10)},
                {100, 1, 1000, call_hash(info_of(1000).fingerprint), Ranges(0, 900)},
                {102, 1, 10, call10, Ranges(0, 10)}};
  HeldRounds group{false, Timeline(1), GroupId(42), Version(1), {}};
  group.runs = {{5, 1, 0, call_hash(info_of(0).fingerprint), Ranges()}};
  HeldReport expected;
  expected.rounds = {world, group};
  expected.states = {{Timeline(1), Version(1), std::nullopt, 900, Ranges(300, 600)},
                     {Timeline(1), Version(1), Rank(3), 600, Ranges(0, 600)}};
  EXPECT_EQ(b->report(false), expected);
  EXPECT_EQ(b->report(true), expected);
}

TYPED_TEST(ResultStoreContract, CombinedWithMemoryEachServesWhatTheOtherLacks) {
  auto memory = std::move(HostLog::create(kA, heap_segment(64 << 20))).value();
  auto store = this->host_.open(kA, "w0");
  const auto publish = [&](const RecordKey& key, std::uint64_t total, std::uint64_t begin, std::uint64_t end) {
    ASSERT_TRUE(memory->publish(key, info_of(total), begin, bytes_of(key, begin, end)).ok());
  };
  publish(round_key(0), 1000, 300, 1000);
  publish(round_key(1), 10, 0, 10);
  add(this->batch_, round_key(0), 1000, 0, 500);
  add(this->batch_, round_key(2), 10, 0, 10);
  put(*store, this->batch_);
  auto reader = combined_reader(memory->reader(), store->reader());
  EXPECT_EQ(reader->held(round_key(0)), Ranges(0, 1000));
  EXPECT_TRUE(holds(*reader, round_key(0), 0, 1000));
  EXPECT_TRUE(holds(*reader, round_key(1), 0, 10));
  EXPECT_TRUE(holds(*reader, round_key(2), 0, 10));
  EXPECT_FALSE(holds(*reader, round_key(3), 0, 10));
  EXPECT_EQ(reader->info(round_key(2)).value(), info_of(10));
  EXPECT_EQ(reader->info(round_key(3)).value(), std::nullopt);
  EXPECT_THAT(reader->list(RecordKind::kRound, Timeline(1), kWorldGroup, Version(1), Sequence(0), Sequence(9), 9),
              ElementsAre(round_key(0), round_key(1), round_key(2)));
  EXPECT_THAT(reader->list(RecordKind::kRound, Timeline(1), kWorldGroup, Version(1), Sequence(0), Sequence(9), 2),
              ElementsAre(round_key(0), round_key(1)));
  const Incarnation live[] = {kA};
  EXPECT_EQ(reader->held_by(round_key(0), live), Ranges(0, 1000));
  EXPECT_EQ(reader->held_by(round_key(0), {}), Ranges());
}

class RocksResultStoreTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path place(Incarnation life) const { return host_.place(life); }
  // The directory as RocksDB alone sees it.
  std::vector<std::string> families(Incarnation life) {
    std::vector<std::string> names;
    (void)rocksdb::DB::ListColumnFamilies({}, place(life), &names);
    return names;
  }
  static std::vector<fs::path> tables(const fs::path& directory) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() == ".sst") found.push_back(entry.path());
    }
    std::ranges::sort(found, {}, [](const fs::path& p) { return fs::file_size(p); });
    return found;
  }
  static void flip(const fs::path& file, std::uint64_t at, int bits = 1) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(at));
    const int c = f.get();
    f.seekp(static_cast<std::streamoff>(at));
    f.put(static_cast<char>(c ^ bits));
    ASSERT_TRUE(f.good());
  }

  RocksHost host_;
  RecordBatch batch_;
};

TEST_F(RocksResultStoreTest, NothingIsMadeBeforeTheFirstPut) {
  auto store = host_.open_rocks(kA);
  drop(*store, {Timeline(1), Version(9), std::nullopt});
  (void)store->report(true);
  EXPECT_TRUE(fs::is_empty(host_.data_dir()));
  EXPECT_EQ(store->bytes_on_disk(), 0u);
  put(*store, one(batch_, round_key(0), 10));
  EXPECT_TRUE(fs::exists(place(kA) / "CURRENT"));
}

// Each family costs a checkpoint two synced writes, and its options as much again in processor time.
TEST_F(RocksResultStoreTest, SmallRecordsTakeOneFamilyAndNobodyWritesOptions) {
  {
    auto a = host_.open_rocks(kA);
    put(*a, one(batch_, round_key(0), kMostInlineBytes));
    EXPECT_THAT(families(kA), SizeIs(2)) << "default, and that of the entries";
    put(*a, one(batch_, round_key(1), kMostInlineBytes + 1));
    EXPECT_THAT(families(kA), SizeIs(3));
    EXPECT_TRUE(holds(*a->reader(), round_key(0), 0, kMostInlineBytes));
    EXPECT_TRUE(holds(*a->reader(), round_key(1), 0, kMostInlineBytes + 1));
    put(*a, one(batch_, round_key(0, 2), 1));
    EXPECT_THAT(families(kA), SizeIs(4));
    drop(*a, {Timeline(1), Version(2), std::nullopt});
    EXPECT_THAT(families(kA), SizeIs(2));
  }
  for (const auto& entry : fs::directory_iterator(place(kA))) {
    EXPECT_THAT(entry.path().filename().string(), testing::Not(testing::StartsWith("OPTIONS")));
  }
  auto b = host_.open_rocks(kB);
  EXPECT_TRUE(holds(*b->reader(), round_key(0, 2), 0, 1));
}

TEST_F(RocksResultStoreTest, DroppedVersionsLeaveNoBytesBehind) {
  auto store = host_.open_rocks(kA);
  for (std::uint64_t version = 1; version < 4; ++version) put(*store, one(batch_, round_key(0, version), 4 << 20));
  EXPECT_GE(store->bytes_on_disk(), 12u << 20);
  drop(*store, {Timeline(1), Version(3), std::nullopt});
  EXPECT_LT(store->bytes_on_disk(), 5u << 20);
  EXPECT_GE(store->bytes_on_disk(), 4u << 20);
  std::uint64_t on_disk = 0;
  for (const fs::path& table : tables(place(kA))) on_disk += fs::file_size(table);
  EXPECT_LT(on_disk, 5u << 20);
}

// A state of pieces, whose bytes follow from how often each has changed.
constexpr std::uint64_t kStatePiece = std::uint64_t{1} << 20;
using Changes = std::vector<std::uint64_t>;

std::vector<std::byte> piece_of_state(const Changes& changes, std::size_t piece) {
  return bytes_of(round_key(piece, changes[piece]), 0, kStatePiece);
}

RecordBatch& a_state(RecordBatch& batch, std::uint64_t version, const Changes& changes) {
  batch.clear();
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const auto out = batch.add(state_key(version), info_of(changes.size() * kStatePiece), i * kStatePiece,
                               std::uint32_t{kStatePiece});
    std::ranges::copy(piece_of_state(changes, i), out.begin());
  }
  return batch;
}

// The pieces that are right; what is held and wrong fails.
std::vector<std::size_t> pieces_held(HostLogReader& reader, std::uint64_t version, const Changes& changes) {
  std::vector<std::size_t> right;
  std::vector<std::byte> out(kStatePiece);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (!reader.read(state_key(version), i * kStatePiece, out)) continue;
    EXPECT_EQ(out, piece_of_state(changes, i)) << i;
    right.push_back(i);
  }
  return right;
}

Horizon committed(std::uint64_t version) {
  return {Timeline(1), Version(version), Horizon::Checkpoint{Timeline(1), Version(version)}};
}

TEST_F(RocksResultStoreTest, StatesThatHaveNotChangedAreNotWrittenAgain) {
  constexpr std::uint64_t kLittle = kStatePiece / 4;
  const auto all = ElementsAre(0, 1, 2, 3);
  auto store = host_.open_rocks(kA);
  const auto on_disk = [&] {
    std::uint64_t bytes = 0;
    for (const fs::path& table : tables(place(kA))) bytes += fs::file_size(table);
    return bytes;
  };
  const auto takes = [&](std::uint64_t pieces) {
    EXPECT_GE(store->bytes_on_disk(), pieces * kStatePiece);
    EXPECT_LT(store->bytes_on_disk(), pieces * kStatePiece + kLittle);
  };
  put(*store, a_state(batch_, 1, {0, 0, 0, 0}));
  takes(4);
  put(*store, a_state(batch_, 2, {0, 0, 1, 0}));
  takes(5);
  EXPECT_LT(on_disk(), 5 * kStatePiece + kLittle);
  auto reader = store->reader();
  EXPECT_THAT(pieces_held(*reader, 1, {0, 0, 0, 0}), all);
  EXPECT_THAT(pieces_held(*reader, 2, {0, 0, 1, 0}), all);

  drop(*store, committed(2));
  takes(5);
  EXPECT_EQ(reader->held(state_key(1)), Ranges());
  EXPECT_THAT(pieces_held(*reader, 2, {0, 0, 1, 0}), all);
  EXPECT_THAT(families(kA), testing::IsSupersetOf({"states-1-1-data", "states-1-2-data", "states-1-2-index"}));
  EXPECT_THAT(families(kA), testing::Not(Contains("states-1-1-index")));

  // Nothing has changed: no data at all.
  put(*store, a_state(batch_, 3, {0, 0, 1, 0}));
  drop(*store, committed(3));
  takes(5);
  EXPECT_THAT(families(kA), testing::Not(Contains("states-1-3-data")));
  EXPECT_THAT(pieces_held(*store->reader(), 3, {0, 0, 1, 0}), all);

  // A life that comes later reads it, and so does one that has to open a database with such a family for writing.
  reader.reset();
  store.reset();
  {
    auto other = host_.open_rocks(kB);
    EXPECT_THAT(pieces_held(*other->reader(), 3, {0, 0, 1, 0}), all);
    EXPECT_THAT(other->report(true).states, SizeIs(1));
    EXPECT_THAT(other->take_warnings(), IsEmpty());
  }
  store = host_.open_rocks(kA);
  EXPECT_TRUE(store->prepare().ok());
  drop(*store, committed(3));
  EXPECT_THAT(pieces_held(*store->reader(), 3, {0, 0, 1, 0}), all);
}

// As WriteBehind does: puts once more what the store asks for, and says what that is.
std::vector<std::size_t> complete(ResultStore& store, RecordBatch& batch, std::uint64_t version,
                                  const Changes& changes) {
  std::vector<std::size_t> again;
  batch.clear();
  for (const StatePiece& piece : store.worn(Timeline(1), Version(version))) {
    again.push_back(piece.first_byte / kStatePiece);
    const auto out =
        batch.add(state_key(version), info_of(changes.size() * kStatePiece), piece.first_byte, piece.payload_bytes);
    std::ranges::copy(piece_of_state(changes, again.back()), out.begin());
  }
  put(store, batch);
  return again;
}

TEST_F(RocksResultStoreTest, WhatNoStateRefersToAnyMoreLeavesNoBytes) {
  auto store = host_.open_rocks(kA);
  put(*store, a_state(batch_, 1, {0, 0, 0, 0}));
  EXPECT_THAT(complete(*store, batch_, 1, {0, 0, 0, 0}), IsEmpty());
  put(*store, a_state(batch_, 2, {1, 1, 1, 0}));
  EXPECT_GE(store->bytes_on_disk(), 7 * kStatePiece);
  EXPECT_THAT(complete(*store, batch_, 2, {1, 1, 1, 0}), ElementsAre(3)) << "all of the first would be kept for it";
  EXPECT_THAT(pieces_held(*store->reader(), 2, {1, 1, 1, 0}), SizeIs(4));
  EXPECT_THAT(pieces_held(*store->reader(), 1, {0, 0, 0, 0}), SizeIs(4));
  drop(*store, committed(2));
  EXPECT_LT(store->bytes_on_disk(), 4 * kStatePiece + kStatePiece / 4);
  EXPECT_THAT(families(kA), testing::Not(Contains("states-1-1-data")));
  put(*store, a_state(batch_, 3, {1, 1, 1, 0}));
  EXPECT_THAT(complete(*store, batch_, 3, {1, 1, 1, 0}), IsEmpty());
  drop(*store, committed(3));
  EXPECT_LT(store->bytes_on_disk(), 4 * kStatePiece + kStatePiece / 4);
  EXPECT_THAT(pieces_held(*store->reader(), 3, {1, 1, 1, 0}), SizeIs(4));
  // A version that was undone with its timeline.
  batch_.clear();
  const auto out = batch_.add(state_key(4, 1), info_of(kStatePiece), 0, std::uint32_t{kStatePiece});
  std::ranges::copy(piece_of_state({9}, 0), out.begin());
  put(*store, batch_);
  drop(*store, {Timeline(2), Version(3), Horizon::Checkpoint{Timeline(1), Version(3)}});
  EXPECT_LT(store->bytes_on_disk(), 4 * kStatePiece + kStatePiece / 4);
  EXPECT_THAT(pieces_held(*store->reader(), 3, {1, 1, 1, 0}), SizeIs(4));
}

// Nothing of it may be lost: the entries that are there refer to what is to be left behind.
TEST_F(RocksResultStoreTest, WhatCannotBeWrittenOnceMoreStaysWhereItIs) {
  auto store = host_.open_rocks(kA);
  put(*store, a_state(batch_, 1, {0, 0, 0, 0}));
  put(*store, a_state(batch_, 2, {1, 1, 1, 0}));
  ASSERT_THAT(store->worn(Timeline(1), Version(2)), SizeIs(1));
  batch_.clear();
  const auto out = batch_.add(state_key(2), info_of(4 * kStatePiece), 3 * kStatePiece, std::uint32_t{kStatePiece});
  std::ranges::copy(piece_of_state({1, 1, 1, 0}, 3), out.begin());
  {
    const FileSizeLimit limit(kStatePiece / 2);
    EXPECT_FALSE(store->put(batch_).ok());
  }
  drop(*store, committed(2));
  EXPECT_THAT(pieces_held(*store->reader(), 2, {1, 1, 1, 0}), SizeIs(4));
  // The next version has it anew.
  put(*store, a_state(batch_, 3, {1, 1, 1, 0}));
  EXPECT_THAT(store->worn(Timeline(1), Version(3)), IsEmpty());
  drop(*store, committed(3));
  EXPECT_LT(store->bytes_on_disk(), 4 * kStatePiece + kStatePiece / 4);
  EXPECT_THAT(pieces_held(*store->reader(), 3, {1, 1, 1, 0}), SizeIs(4));
}

// A frozen layer among weights that all change, and what is too small to be kept track of.
TEST_F(RocksResultStoreTest, AFrozenPieceTakesNoMoreRoomThanOthers) {
  constexpr std::uint32_t kSmall = 60'000;
  const RecordKey small{RecordKind::kLocal, state_key(1).round};
  auto store = host_.open_rocks(kA);
  for (std::uint64_t version = 1; version < 6; ++version) {
    const Changes changes{0, version, version, version};
    put(*store, a_state(batch_, version, changes));
    batch_.clear();
    RecordKey key = small;
    key.round.version = Version(version);
    for (std::uint64_t i = 0; i < 3 * kStatePiece / kSmall; ++i) {
      std::ranges::fill(batch_.add(key, info_of(3 * kStatePiece), i * kSmall, kSmall), static_cast<std::byte>(version));
    }
    put(*store, batch_);
    EXPECT_THAT(complete(*store, batch_, version, changes), SizeIs(version == 1 ? 0 : 1));
    EXPECT_LT(store->bytes_on_disk(), 2 * 7 * kStatePiece + kStatePiece / 2) << version;
    drop(*store, committed(version));
    EXPECT_LT(store->bytes_on_disk(), 7 * kStatePiece + kStatePiece / 2) << version;
    std::uint64_t tables_bytes = 0;
    for (const fs::path& table : tables(place(kA))) tables_bytes += fs::file_size(table);
    EXPECT_LT(tables_bytes, 7 * kStatePiece + kStatePiece / 2) << version;
    EXPECT_THAT(pieces_held(*store->reader(), version, changes), SizeIs(4));
  }
}

TEST_F(RocksResultStoreTest, DamageOfWhatHasNotChangedIsFoundOut) {
  {
    auto store = host_.open_rocks(kA);
    put(*store, a_state(batch_, 1, {0, 0, 0, 0}));
    put(*store, a_state(batch_, 2, {0, 0, 1, 0}));
    drop(*store, committed(2));
  }
  flip(tables(place(kA)).back(), 1 * kStatePiece + 1000);
  auto store = host_.open_rocks(kB);
  EXPECT_THAT(pieces_held(*store->reader(), 2, {0, 0, 1, 0}), SizeIs(3));
  EXPECT_THAT(store->take_warnings(), ElementsAre(HasSubstr("its checksum does not hold")));
  // Nothing is left of the data.
  fs::remove(tables(place(kA)).back());
  auto later = host_.open_rocks(kC);
  EXPECT_THAT(pieces_held(*later->reader(), 2, {0, 0, 1, 0}), ElementsAre(2));
  EXPECT_THAT(later->take_warnings(), Contains(HasSubstr("cannot be read")));
}

// By the life that wrote it: the next version does not count on it.
TEST_F(RocksResultStoreTest, WhatWasFoundDamagedIsWrittenAgain) {
  auto store = host_.open_rocks(kA);
  put(*store, a_state(batch_, 1, {0, 0, 0, 0}));
  flip(tables(place(kA)).back(), 1 * kStatePiece + 1000);
  EXPECT_THAT(pieces_held(*store->reader(), 1, {0, 0, 0, 0}), SizeIs(3));
  put(*store, a_state(batch_, 2, {0, 0, 0, 0}));
  EXPECT_THAT(pieces_held(*store->reader(), 2, {0, 0, 0, 0}), SizeIs(4));
}

// After a failure the database is opened again: what it has not any more is written.
TEST_F(RocksResultStoreTest, WhatIsNotThereAnyMoreIsWrittenAgain) {
  auto store = host_.open_rocks(kA);
  put(*store, a_state(batch_, 1, {0, 0}));
  {
    const FileSizeLimit limit(kStatePiece / 2);
    EXPECT_FALSE(store->put(a_state(batch_, 2, {1, 1})).ok());
  }
  put(*store, a_state(batch_, 2, {0, 1}));
  EXPECT_THAT(pieces_held(*store->reader(), 2, {0, 1}), SizeIs(2));
  drop(*store, committed(2));
  EXPECT_THAT(pieces_held(*store->reader(), 2, {0, 1}), SizeIs(2));
  auto other = host_.open_rocks(kB);
  store.reset();
  EXPECT_THAT(pieces_held(*other->reader(), 2, {0, 1}), SizeIs(2));
}

TEST_F(RocksResultStoreTest, LivesThatAreOverGoWithWhatTheyHold) {
  { put(*host_.open_rocks(kA), one(batch_, round_key(0, 1), 1000)); }
  { put(*host_.open_rocks(kB, "w1"), one(batch_, round_key(0, 2), 1000)); }
  auto store = host_.open_rocks(kC);
  drop(*store, {Timeline(1), Version(2), std::nullopt});
  EXPECT_FALSE(fs::exists(place(kA)));
  EXPECT_TRUE(fs::exists(host_.place(kB, "w1")));
  drop(*store, {Timeline(1), Version(3), std::nullopt});
  EXPECT_FALSE(fs::exists(host_.place(kB, "w1")));
}

// A link to itself cannot be opened by anybody, as nothing can where descriptors have run out.
TEST_F(RocksResultStoreTest, ALifeThatDoesNotOpenNowIsLeftToALaterDrop) {
  {
    auto a = host_.open_rocks(kA);
    add(batch_, state_key(2), 300'000, 0, 300'000);
    add(batch_, setup_key(5), 300'000, 0, 300'000);
    put(*a, batch_);
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(place(kA))) {
    const std::string name = entry.path().filename();
    if (name == "CURRENT" || name.starts_with("MANIFEST")) files.push_back(entry);
  }
  ASSERT_THAT(files, SizeIs(2));
  const fs::path saved = host_.data_dir() / "saved";
  const auto keeps_what_does_not_open = [&](ResultStore& store, std::uint64_t version) {
    for (const fs::path& file : files) {
      fs::rename(file, saved);
      fs::create_symlink(file, file);
      drop(store, {Timeline(1), Version(version), Horizon::Checkpoint{Timeline(1), Version(version)}});
      EXPECT_TRUE(fs::exists(place(kA))) << file;
      EXPECT_THAT(store.take_warnings(), ElementsAre(HasSubstr(place(kA).string() + " cannot be read")));
      fs::rename(saved, file);
    }
  };
  auto b = host_.open_rocks(kB, "w1");
  keeps_what_does_not_open(*b, 2);
  drop(*b, {Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(2)}});
  EXPECT_TRUE(holds(*b->reader(), state_key(2), 0, 300'000));
  // It is known by now, and only what lasts of it is left.
  auto c = host_.open_rocks(kC, "w1");
  drop(*c, {Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(2)}});
  keeps_what_does_not_open(*c, 3);
  drop(*c, {Timeline(1), Version(3), Horizon::Checkpoint{Timeline(1), Version(3)}});
  EXPECT_FALSE(fs::exists(place(kA)));
  const Incarnation live[] = {kC};
  EXPECT_EQ(c->reader()->held_by(setup_key(5), live), Ranges(0, 300'000));
}

TEST_F(RocksResultStoreTest, WhatLastsIsTakenOverWholeOrStays) {
  constexpr std::uint64_t kRounds = 12, kBytes = 300'000;
  {
    auto a = host_.open_rocks(kA);
    for (std::uint64_t s = 0; s < kRounds; ++s) put(*a, one(batch_, setup_key(s), kBytes));
    put(*a, one(batch_, setup_key(kRounds), 10));
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(place(kA))) {
    if (entry.path().extension() == ".sst" || entry.path().extension() == ".log") files.push_back(entry);
  }
  ASSERT_THAT(files, SizeIs(2 * kRounds + 1)) << "more tables than are opened to read, and a log";
  const fs::path saved = host_.data_dir() / "saved";
  for (const fs::path& file : files) {
    fs::rename(file, saved);
    fs::create_symlink(file, file);  // nobody can open it
    auto later = host_.open_rocks(kC, "w1");
    drop(*later, {Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(2)}});
    ASSERT_TRUE(fs::exists(place(kA))) << file;
    EXPECT_EQ(later->bytes_on_disk(), 0u) << "nothing of it is written in vain";
    EXPECT_THAT(later->take_warnings(), ElementsAre(HasSubstr(file.string())));
    fs::rename(saved, file);
  }
  auto b = host_.open_rocks(kB);
  drop(*b, {Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(2)}});
  EXPECT_FALSE(fs::exists(place(kA)));
  for (std::uint64_t s = 0; s < kRounds; ++s) EXPECT_TRUE(holds(*b->reader(), setup_key(s), 0, kBytes));
  EXPECT_TRUE(holds(*b->reader(), setup_key(kRounds), 0, 10));
}

TEST_F(RocksResultStoreTest, ALifeThatIsReadTakesFewDescriptors) {
  constexpr std::uint64_t kRounds = 40, kBytes = 300'000;
  {
    auto a = host_.open_rocks(kA);
    for (std::uint64_t s = 0; s < kRounds; ++s) put(*a, one(batch_, round_key(s), kBytes));
  }
  EXPECT_THAT(tables(place(kA)), SizeIs(2 * kRounds));
  auto b = host_.open_rocks(kB);
  auto reader = b->reader();
  for (std::uint64_t s = 0; s < kRounds; ++s) ASSERT_TRUE(holds(*reader, round_key(s), 0, kBytes));
  std::size_t open_tables = 0;
  std::error_code error;
  for (const auto& fd : fs::directory_iterator("/proc/self/fd")) {
    const fs::path file = fs::read_symlink(fd, error);
    open_tables += file.parent_path() == place(kA) && file.extension() == ".sst";
  }
  EXPECT_LE(open_tables, 20u);
}

TEST_F(RocksResultStoreTest, EarlierLivesCountAgainstTheBudget) {
  { put(*host_.open_rocks(kA), one(batch_, round_key(0, 1), 2 << 20)); }
  auto store = host_.open_rocks(kB, "w0", 3 << 20);
  put(*store, one(batch_, round_key(0, 2), 500'000));
  const Status s = store->put(one(batch_, round_key(1, 2), 1 << 20));
  EXPECT_EQ(s.code(), Code::kExhausted);
  EXPECT_THAT(s.describe(), HasSubstr("log_disk_bytes"));
  EXPECT_THAT(s.describe(), HasSubstr("a checkpoint is overdue"));
  EXPECT_FALSE(holds(*store->reader(), round_key(1, 2), 0, 1 << 20));
  drop(*store, {Timeline(1), Version(2), std::nullopt});
  put(*store, one(batch_, round_key(1, 2), 1 << 20));
}

// What frees the budget is a commit, and that needs its checkpoint on disk.
TEST_F(RocksResultStoreTest, OverTheBudgetACheckpointIsMadeDurableAndFreesIt) {
  add(batch_, setup_key(1), 1000, 0, 1000);
  add(batch_, round_key(9, 0), 1000, 0, 1000);
  { put(*host_.open_rocks(kC), batch_); }
  Status durable(Code::kTimeout, "it was not called");
  auto segment = heap_segment(8 << 20);
  auto log = std::move(HostLog::create(kA, segment)).value();
  auto started = WriteBehind::start({.lag_ms = 3'600'000, .retry_ms = 0}, host_.open_rocks(kA, "w0", 2 << 20), kA,
                                    segment, [](const LogEvent&) {});
  ASSERT_TRUE(started.ok()) << started.status().describe();
  const std::unique_ptr<WriteBehind> behind = std::move(started).value();
  const auto publish = [&](const RecordKey& key, std::uint64_t bytes) {
    ASSERT_TRUE(log->publish(key, info_of(bytes), 0, bytes_of(key, 0, bytes)).ok());
  };
  publish(round_key(0), 1 << 20);
  ASSERT_TRUE(behind->sync(60'000).ok());
  publish(round_key(1), 1 << 20);
  ASSERT_EQ(behind->sync(60'000).code(), Code::kExhausted);
  publish(state_key(2), 1 << 20);
  publish(setup_key(2), 1000);
  behind->make_durable(Timeline(1), Version(2), [&](const Status& s) { durable = s; });
  EXPECT_EQ(behind->sync(60'000).code(), Code::kExhausted) << "rounds still do not fit";
  EXPECT_TRUE(durable.ok()) << durable.describe();
  // Nothing of the next version fits before the drop, which takes over what an earlier life has left.
  log->drop_below(Version(2));
  behind->drop({Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(2)}});
  publish(round_key(0, 2), 100'000);
  EXPECT_TRUE(behind->sync(60'000).ok());
  const auto reader = behind->store().reader();
  EXPECT_TRUE(holds(*reader, state_key(2), 0, 1 << 20));
  EXPECT_TRUE(holds(*reader, round_key(0, 2), 0, 100'000));
  const Incarnation live[] = {kA};
  for (const std::uint64_t name : {1u, 2u}) EXPECT_EQ(reader->held_by(setup_key(name), live), Ranges(0, 1000));
  EXPECT_EQ(reader->held_by(round_key(9, 0), live), Ranges(0, 1000));
}

TEST_F(RocksResultStoreTest, OneLifeIsOpenOnce) {
  auto store = host_.open_rocks(kA);
  put(*store, one(batch_, round_key(0), 10));
  auto twin = host_.open_rocks(kA);
  const Status s = twin->prepare();
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_THAT(s.describe(), HasSubstr("another process (process " + std::to_string(::getpid()) + ")"));
  EXPECT_THAT(s.describe(), HasSubstr(place(kA).string()));
  store.reset();
  put(*twin, one(batch_, round_key(1), 10));
  EXPECT_TRUE(holds(*twin->reader(), round_key(0), 0, 10));
}

TEST_F(RocksResultStoreTest, AnUnknownFormatIsRefusedAndLeftAlone) {
  { put(*host_.open_rocks(kA, "w1"), one(batch_, round_key(0), 10)); }
  const fs::path life = host_.place(kA, "w1") / "LIFE";
  std::ofstream(life) << "warren-results-99\nwhatever\n";
  const Status s = host_.try_open(kB).status();
  EXPECT_EQ(s.code(), Code::kRefused);
  EXPECT_THAT(s.describe(), HasSubstr("was written by another version of Warren (format \"warren-results-99\""));
  EXPECT_THAT(s.describe(), HasSubstr(host_.place(kA, "w1").string()));
  EXPECT_THAT(s.describe(), HasSubstr("or remove " + host_.place(kA, "w1").parent_path().parent_path().string()));
  EXPECT_TRUE(fs::exists(host_.place(kA, "w1") / "CURRENT"));
}

TEST_F(RocksResultStoreTest, AFlippedBitInALifesFirstLineIsNotAnotherVersion) {
  { put(*host_.open_rocks(kA), one(batch_, round_key(0), 10)); }
  const fs::path life = place(kA) / "LIFE", saved = host_.data_dir() / "saved";
  fs::copy(life, saved);
  std::uint64_t next = 100;
  for (std::uint64_t at = 0; at < fs::file_size(saved); at += at < 16 ? 1 : 7) {
    fs::copy(saved, life, fs::copy_options::overwrite_existing);
    flip(life, at);
    auto store = host_.try_open(Incarnation(++next));
    ASSERT_TRUE(store.ok()) << at << ": " << store.status().describe();
    EXPECT_TRUE(holds(*store.value()->reader(), round_key(0), 0, 10)) << at;
  }
}

TEST_F(RocksResultStoreTest, ANoteOfAnotherVersionIsRefusedAndADamagedOneIsTold) {
  {
    auto a = host_.open_rocks(kA);
    ASSERT_TRUE(a->note({7, "text"}).ok());
    put(*a, one(batch_, round_key(0), 1000));
  }
  const fs::path note = place(kA) / "LIFE-note", saved = host_.data_dir() / "saved";
  fs::copy(note, saved);
  std::ofstream(note) << "warren-note-1\n0000000000000007\n";
  const Status s = host_.try_open(kB).status();
  EXPECT_EQ(s.code(), Code::kRefused);
  EXPECT_THAT(s.describe(), HasSubstr("warren-note-1"));
  EXPECT_TRUE(fs::exists(note) && fs::exists(place(kA) / "CURRENT"));
  fs::copy(saved, note, fs::copy_options::overwrite_existing);
  flip(note, fs::file_size(note) - 1);
  {
    auto b = host_.open_rocks(kB);
    EXPECT_THAT(b->notes(), IsEmpty());
    EXPECT_THAT(b->take_warnings(), ElementsAre(HasSubstr(note.string() + " is damaged")));
    b->belong(7);
    EXPECT_FALSE(holds(*b->reader(), round_key(0), 0, 1000));
  }
  fs::copy(saved, note, fs::copy_options::overwrite_existing);
  auto c = host_.open_rocks(kC);
  EXPECT_THAT(c->notes(), SizeIs(1));
  c->belong(7);
  EXPECT_TRUE(holds(*c->reader(), round_key(0), 0, 1000));
}

TEST_F(RocksResultStoreTest, ANoteThatCannotBeReadNowPutsNothingAside) {
  {
    auto a = host_.open_rocks(kA);
    ASSERT_TRUE(a->note({7, "text"}).ok());
    put(*a, one(batch_, round_key(0), 1000));
  }
  const fs::path note = place(kA) / "LIFE-note", saved = host_.data_dir() / "saved";
  fs::rename(note, saved);
  fs::create_symlink(note, note);  // as nothing opens where descriptors have run out
  auto b = host_.open_rocks(kB);
  b->belong(7);
  EXPECT_THAT(b->set_others_aside(), IsEmpty());
  EXPECT_FALSE(holds(*b->reader(), round_key(0), 0, 1000)) << "it is of no known run now";
  fs::rename(saved, note);
  b->refresh({});
  EXPECT_TRUE(holds(*b->reader(), round_key(0), 0, 1000));
}

TEST_F(RocksResultStoreTest, ANoteThatCannotBeReadNowMayBeStale) {
  {
    auto a = host_.open_rocks(kA);
    ASSERT_TRUE(a->note({7, "stale"}).ok());
    put(*a, one(batch_, round_key(0), 1000));
  }
  const fs::path note = place(kA) / "LIFE-note", saved = host_.data_dir() / "saved";
  const auto all = [](Incarnation, const ResultStore::Note&) { return true; };
  auto b = host_.open_rocks(kB);
  fs::rename(note, saved);
  fs::create_symlink(note, note);
  const Status s = b->leave_out(all);
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_THAT(s.describe(), HasSubstr(note.string()));
  fs::rename(saved, note);
  ASSERT_TRUE(b->leave_out(all).ok());
  EXPECT_FALSE(holds(*b->reader(), round_key(0), 0, 1000));
}

TEST_F(RocksResultStoreTest, APlaceThatWasBeingMadeOrRemovedHoldsNothing) {
  fs::create_directories(place(kA));
  std::ofstream(place(kA) / "LOCK-life") << "";
  fs::create_directories(place(kB));
  std::ofstream(place(kB) / "LIFE") << "warren-results-5\njob team/job\nworker w0\nprocess 1\n";
  { put(*host_.open_rocks(Incarnation(0xe)), one(batch_, round_key(0), 1000)); }
  fs::rename(place(Incarnation(0xe)) / "LIFE", place(Incarnation(0xe)) / "LIFE-removed");
  fs::remove(place(Incarnation(0xe)) / "CURRENT");
  auto store = host_.open_rocks(kC);
  EXPECT_EQ(store->report(true), HeldReport());
  put(*store, one(batch_, round_key(0), 10));
  drop(*store, {Timeline(1), Version(1), std::nullopt});
  EXPECT_FALSE(fs::exists(place(kB)));
  EXPECT_FALSE(fs::exists(place(Incarnation(0xe))));
  EXPECT_TRUE(fs::exists(place(kA))) << "it may be about to be locked";
  ASSERT_TRUE(store->finish().ok());
  EXPECT_TRUE(fs::is_empty(host_.data_dir()));
  EXPECT_THAT(store->take_warnings(), IsEmpty());
}

// Who makes it would find it locked, and take that for a second process of its life.
TEST_F(RocksResultStoreTest, APlaceThatIsBeingMadeIsNotLockedByOthers) {
  const fs::path made = host_.place(kA, "w1");
  fs::create_directories(made);
  auto store = host_.open_rocks(kB);
  put(*store, one(batch_, round_key(0), 10));
  EXPECT_THAT(store->notes(), IsEmpty());
  EXPECT_THAT(store->report(true).rounds, SizeIs(1));
  drop(*store, {Timeline(1), Version(1), std::nullopt});
  EXPECT_TRUE(fs::is_empty(made));
}

TEST_F(RocksResultStoreTest, AFinishedJobIsSweptByTheLastOfItsWorkers) {
  auto a = host_.open_rocks(kA, "w0"), b = host_.open_rocks(kB, "w1");
  put(*a, one(batch_, round_key(0), 10));
  put(*b, one(batch_, round_key(0), 10));
  ASSERT_TRUE(a->finish().ok());
  const Status late = b->put(one(batch_, round_key(1), 1 << 20));
  EXPECT_EQ(late.code(), Code::kClosed) << late.describe();
  EXPECT_THAT(late.describe(), HasSubstr("the job is finished"));
  auto next = host_.open_rocks(kC, "w0");
  EXPECT_EQ(next->report(true), HeldReport()) << "of a new job of the same name";
  put(*next, one(batch_, round_key(7), 10));
  ASSERT_TRUE(b->finish().ok()) << "the old job's last worker";
  EXPECT_TRUE(holds(*host_.open_rocks(Incarnation(0xd))->reader(), round_key(7), 0, 10));
}

// Bytes that are written then would be lost without a word.
TEST_F(RocksResultStoreTest, ADirectoryThatIsRemovedWhileTheJobRunsIsNotTakenForItsEnd) {
  auto store = host_.open_rocks(kA);
  put(*store, one(batch_, round_key(0), 10));
  fs::remove_all(place(kA).parent_path().parent_path());
  for (const Status& s : {store->note({7, "text"}), store->put(one(batch_, round_key(1), 1 << 20)),
                          store->put(one(batch_, round_key(2), 10))}) {
    EXPECT_EQ(s.code(), Code::kUnavailable) << s.describe();
    EXPECT_THAT(s.describe(), HasSubstr("somebody has removed or renamed it while the job runs"));
    EXPECT_THAT(s.describe(), HasSubstr(place(kA).string()));
  }
}

TEST_F(RocksResultStoreTest, NamesOfJobsAndWorkersStayWithinTheDirectory) {
  EXPECT_EQ(file_name("../a"), "%2E.%2Fa");
  EXPECT_EQ(file_name("."), "%2E");
  EXPECT_EQ(file_name("a.b:c@d-e_f"), "a.b:c@d-e_f");
  EXPECT_EQ(file_name("50%"), "50%25");
  const std::string longer(128, '/');
  EXPECT_LE(file_name(longer).size(), 255u);
  EXPECT_NE(file_name(longer), file_name(longer + "/"));
}

// Damage.

TEST_F(RocksResultStoreTest, AFlippedBitInAPayloadCostsThatRecordAlone) {
  constexpr std::uint64_t kPiece = 200'000;
  {
    auto store = host_.open_rocks(kA);
    for (std::uint64_t s = 0; s < 10; ++s) add(batch_, round_key(s), kPiece, 0, kPiece);
    put(*store, batch_);
  }
  flip(tables(place(kA)).back(), 5 * kPiece + 1000);
  auto store = host_.open_rocks(kB);
  auto reader = store->reader();
  std::vector<std::uint64_t> lost;
  for (std::uint64_t s = 0; s < 10; ++s) {
    EXPECT_EQ(reader->held(round_key(s)), Ranges(0, kPiece));
    if (!holds(*reader, round_key(s), 0, kPiece)) lost.push_back(s);
  }
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(reader->held(round_key(lost[0])), Ranges()) << "from then on it is not held";
  EXPECT_THAT(store->take_warnings(), ElementsAre(HasSubstr("its checksum does not hold")));
  auto verified = host_.open_rocks(kC);
  EXPECT_EQ(verified->report(true).rounds.at(0).runs.at(0).count, lost[0]);
  EXPECT_THAT(verified->take_warnings(), SizeIs(1));
}

TEST_F(RocksResultStoreTest, AnotherCopyIsTakenForADamagedOne) {
  for (const Incarnation life : {kA, kB}) {
    put(*host_.open_rocks(life), one(batch_, round_key(0), 1 << 20));
  }
  flip(tables(place(kA)).back(), 500'000);
  auto store = host_.open_rocks(kC);
  EXPECT_TRUE(holds(*store->reader(), round_key(0), 0, 1 << 20));
  EXPECT_THAT(store->take_warnings(), SizeIs(1));
}

TEST_F(RocksResultStoreTest, ATableThatIsCutShortCostsWhatIsInItAlone) {
  {
    auto store = host_.open_rocks(kA);
    for (std::uint64_t version = 1; version < 4; ++version) {
      put(*store, one(batch_, round_key(0, version), version << 20));
    }
  }
  const fs::path longest = tables(place(kA)).back();
  fs::resize_file(longest, fs::file_size(longest) / 2);
  auto store = host_.open_rocks(kB);
  auto reader = store->reader();
  EXPECT_TRUE(holds(*reader, round_key(0, 1), 0, 1 << 20));
  EXPECT_TRUE(holds(*reader, round_key(0, 2), 0, 2 << 20));
  EXPECT_FALSE(holds(*reader, round_key(0, 3), 0, 3 << 20));
  EXPECT_THAT(store->take_warnings(), SizeIs(1));
  EXPECT_EQ(store->report(true).rounds.size(), 2u);
}

TEST_F(RocksResultStoreTest, ADamagedBlockOfEntriesHidesNothingFarBehindIt) {
  constexpr std::uint64_t kRounds = 5000;
  {
    auto store = host_.open_rocks(kA);
    for (std::uint64_t s = 0; s < kRounds; ++s) add(batch_, round_key(s), 16, 0, 16);
    put(*store, batch_);
  }
  const fs::path table = tables(place(kA)).back();
  for (std::uint64_t at = 0; at < 64; ++at) flip(table, fs::file_size(table) / 4 + at);
  auto store = host_.open_rocks(kB);
  const auto listed = store->reader()->list(RecordKind::kRound, Timeline(1), kWorldGroup, Version(1), Sequence(0),
                                            Sequence(kRounds), kRounds);
  EXPECT_LT(listed.size(), kRounds);
  EXPECT_GT(listed.size(), kRounds / 2);
  EXPECT_EQ(listed.back(), round_key(kRounds - 1));
  EXPECT_EQ(store->report(true).rounds.at(0).runs.size(), 2u);
  EXPECT_THAT(store->take_warnings(), SizeIs(1));
}

// RocksDB 7.8 iterates past it, to what the log holds, as if nothing were missing.
TEST_F(RocksResultStoreTest, ATableOfEntriesThatDoesNotOpenHidesNothingFarBehindIt) {
  constexpr std::uint64_t kTables = 5, kRounds = 3000;
  {
    auto store = host_.open_rocks(kA);
    for (std::uint64_t table = 0; table < kTables; ++table) {
      batch_.clear();
      for (std::uint64_t s = 0; s < kRounds; ++s) add(batch_, round_key(table * kRounds + s), 16, 0, 16);
      put(*store, batch_);
    }
    put(*store, one(batch_, round_key(kTables * kRounds), 16));
  }
  std::vector<fs::path> files = tables(place(kA));
  std::ranges::sort(files);
  ASSERT_THAT(files, SizeIs(kTables));
  fs::resize_file(files[2], 100);
  auto store = host_.open_rocks(kB);
  const auto listed = store->reader()->list(RecordKind::kRound, Timeline(1), kWorldGroup, Version(1), Sequence(0),
                                            Sequence(UINT64_MAX), 2 * kTables * kRounds);
  std::vector<std::uint64_t> held(kTables + 1);
  for (const RecordKey& key : listed) ++held[key.round.sequence.value / kRounds];
  EXPECT_THAT(held, ElementsAre(kRounds, kRounds, 0u, testing::Gt(kRounds / 2), kRounds, 1u));
  EXPECT_THAT(store->take_warnings(), Contains(HasSubstr(place(kA).string() + " is damaged among rounds-1-1")));
}

// Reads all that the life kA has left, in a process of its own. True: that process has died of it.
bool dies_of_reading(RocksHost& host, Incarnation life) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    auto store = host.open_rocks(life);
    (void)store->report(true);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status);
}

// RocksDB 7.8 reads the last number of the block of a table's properties before it looks at the checksum, and its
// highest bit has a meaning: an assertion, which Debian's build keeps, ends the process.
class DeadlyPlaceTest : public RocksResultStoreTest {
 protected:
  void SetUp() override {
    auto store = host_.open_rocks(kA);
    ASSERT_TRUE(store->note({7, "text"}).ok());
    put(*store, one(batch_, round_key(0), 1 << 20));
    store.reset();
    fs::copy(place(kA), copy(), fs::copy_options::recursive);
    tables_ = tables(place(kA));
  }
  // Damages a table such that a process dies of it, and leaves its note. False: no flip does, or this RocksDB has no
  // assertions.
  bool make_deadly(const fs::path& table) {
    for (std::uint64_t back = 80; back < 140; ++back) {
      fs::remove_all(place(kA));
      fs::copy(copy(), place(kA), fs::copy_options::recursive);
      flip(table, fs::file_size(table) - back, 0x80);
      if (dies_of_reading(host_, next_life())) return true;
    }
    return false;
  }
  // Makes the first table deadly for which that is possible.
  bool make_deadly() {
    return std::ranges::any_of(tables_, [this](const fs::path& table) { return make_deadly(table); });
  }
  Incarnation next_life() { return Incarnation(++last_life_); }
  [[nodiscard]] fs::path copy() const { return host_.data_dir() / "copy"; }
  [[nodiscard]] fs::path aside() const {
    return host_.data_dir() / ("team%2Fjob%damaged-" + place(kA).filename().string());
  }
  std::vector<fs::path> tables_;

 private:
  std::uint64_t last_life_ = 100;
};

TEST_F(DeadlyPlaceTest, TheSecondLifePutsItAside) {
  int deadly = 0;
  for (const fs::path& table : tables_) {
    if (!make_deadly(table)) continue;
    deadly++;
    auto store = host_.open_rocks(next_life());
    EXPECT_EQ(store->report(true), HeldReport());
    EXPECT_THAT(store->take_warnings(), Contains(HasSubstr("lies in " + aside().string() + " until you remove it")));
    EXPECT_TRUE(fs::exists(aside() / "CURRENT"));
    EXPECT_FALSE(fs::exists(place(kA)));
    fs::remove_all(aside());
  }
  EXPECT_THAT(deadly, AnyOf(0, 2))
      << "none: this RocksDB has no assertions; else that of the entries, and of the payload";
}

// A commit comes across the place first, and holds its lock.
TEST_F(DeadlyPlaceTest, ACommitPutsItAsideAndDeletesNothing) {
  if (!make_deadly()) return;  // this RocksDB has no assertions
  std::ofstream(place(kA) / "LIFE-opening-life-00000000000000ff") << "";
  auto store = host_.open_rocks(next_life());
  drop(*store, {Timeline(1), Version(5), std::nullopt});
  EXPECT_THAT(store->take_warnings(), Contains(HasSubstr("lies in " + aside().string() + " until you remove it")));
  EXPECT_TRUE(fs::exists(aside() / "CURRENT"));
  EXPECT_THAT(tables(aside()), SizeIs(tables_.size()));
}

// A process that was killed while it opened the database has not died of it: all workers of a host may be killed at
// once, and again.
TEST_F(RocksResultStoreTest, LivesThatWereKilledWhileTheyOpenedAnotherAreForgottenOnceItOpens) {
  { put(*host_.open_rocks(kA), one(batch_, round_key(0), 1000)); }
  for (int killed = 1; killed <= 8; killed *= 2) {
    for (int n = 0; n < killed; ++n) {
      std::ofstream(place(kA) / ("LIFE-opening-life-000000000000000" + std::to_string(n))) << "";
    }
    auto store = host_.open_rocks(Incarnation(100 + static_cast<std::uint64_t>(killed)));
    ASSERT_TRUE(holds(*store->reader(), round_key(0), 0, 1000)) << killed;
    EXPECT_THAT(store->take_warnings(), IsEmpty());
    EXPECT_FALSE(fs::exists(place(kA) / "LIFE-opening-life-0000000000000000"));
  }
}

TEST_F(RocksResultStoreTest, WithoutTheProgramThatTriesItAPlaceIsOpenedAndThatIsTold) {
  { put(*host_.open_rocks(kA), one(batch_, round_key(0), 1000)); }
  std::ofstream(place(kA) / "LIFE-opening-life-00000000000000ff") << "";
  host_.trial_program = "/nowhere/warren_store_trial";
  auto store = host_.open_rocks(kB);
  EXPECT_TRUE(holds(*store->reader(), round_key(0), 0, 1000));
  EXPECT_THAT(store->take_warnings(), ElementsAre(HasSubstr("warren_store_trial could not find out")));
}

// Wherever a bit flips and wherever a file ends: what is read is right, and what is not held is told.
TEST_F(RocksResultStoreTest, NoDamageAnywhereIsServed) {
  constexpr std::uint64_t kRounds = 3000, kLong = 2000;
  {
    auto store = host_.open_rocks(kA);
    for (std::uint64_t s = 0; s < kRounds; ++s) {
      const std::uint64_t total = s % 10 == 0 ? kLong : 16;
      add(batch_, round_key(s), total, 0, total);
    }
    put(*store, batch_);
    put(*store, one(batch_, round_key(kRounds), 16));  // through the write-ahead log
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(place(kA))) {
    const std::string name = entry.path().filename();
    if (name != "LIFE" && name != "LOCK-life" && name != "LOG" && entry.is_regular_file()) files.push_back(entry);
  }
  std::ranges::sort(files);
  const fs::path copy = place(kA).string() + "-copy";
  fs::rename(place(kA), copy);
  std::uint64_t random = 12345, served = 0, whole = 0;
  const auto draw = [&random](std::uint64_t below) {
    random = random * 6364136223846793005 + 1442695040888963407;
    return (random >> 33) % below;
  };
  for (int trial = 0; trial < 60; ++trial) {
    fs::remove_all(place(kA));
    fs::copy(copy, place(kA), fs::copy_options::recursive);
    const fs::path file = place(kA) / files[draw(files.size())].filename();
    const std::uint64_t size = fs::file_size(file);
    if (size == 0) continue;
    const int what = static_cast<int>(draw(3));
    if (what == 0) fs::resize_file(file, draw(size));
    if (what == 1) flip(file, draw(size));
    if (what == 2) fs::remove(file);
    auto store = host_.open_rocks(Incarnation(100 + static_cast<std::uint64_t>(trial)));
    auto reader = store->reader();
    std::uint64_t right = 0;
    for (std::uint64_t s = 0; s <= kRounds; ++s) {
      const std::uint64_t total = s < kRounds && s % 10 == 0 ? kLong : 16;
      std::vector<std::byte> out(total);
      if (!reader->read(round_key(s), 0, out)) continue;
      ASSERT_EQ(out, bytes_of(round_key(s), 0, total)) << file << " " << what;
      ++right;
    }
    served += right;
    whole += right == kRounds + 1;
    const auto warnings = store->take_warnings();
    // The last record's log may be cut: that looks as if its write had never been confirmed.
    EXPECT_TRUE(right >= kRounds || !warnings.empty()) << file << " " << what << ": " << right;
  }
  EXPECT_GT(served, 60 * kRounds / 4) << "damage costs what it hits, more or less";
  EXPECT_GT(whole, 0u);
}

TEST_F(RocksResultStoreTest, AFailedPutIsAStatusAndTheNextOneWorks) {
  auto store = host_.open_rocks(kA);
  put(*store, one(batch_, round_key(0), 1000));
  auto reader = store->reader();
  for (const std::uint64_t total : {200'000u, 4'000'000u}) {  // both ways to the disk
    const FileSizeLimit full(64 << 10);
    const Status s = store->put(one(batch_, round_key(total), total));
    ASSERT_FALSE(s.ok());
    EXPECT_THAT(s.describe(), HasSubstr(place(kA).string()));
    EXPECT_TRUE(holds(*reader, round_key(0), 0, 1000)) << "what is there can be read meanwhile";
    drop(*store, {Timeline(1), Version(1), std::nullopt});
    EXPECT_TRUE(holds(*reader, round_key(0), 0, 1000));
  }
  for (const std::uint64_t total : {200'000u, 4'000'000u}) put(*store, one(batch_, round_key(total), total));
  EXPECT_TRUE(holds(*reader, round_key(0), 0, 1000));
  store.reset();
  auto later = host_.open_rocks(kB);
  reader = later->reader();
  EXPECT_TRUE(holds(*reader, round_key(0), 0, 1000));
  for (const std::uint64_t total : {200'000u, 4'000'000u}) EXPECT_TRUE(holds(*reader, round_key(total), 0, total));
  EXPECT_THAT(later->take_warnings(), IsEmpty());
}

TEST_F(RocksResultStoreTest, WhatIsThereIsReadWhileTheDiskTakesNothing) {
  auto store = host_.open_rocks(kA);
  put(*store, one(batch_, round_key(0), 1 << 20));  // a table
  put(*store, one(batch_, round_key(1), 1000));     // and the log
  auto reader = store->reader();
  {
    const FileSizeLimit full(0);
    for (int n = 0; n < 3; ++n) {  // the write fails, then opening the database to write
      EXPECT_EQ(store->put(one(batch_, round_key(2), 10)).code(), Code::kUnavailable);
      EXPECT_TRUE(holds(*reader, round_key(0), 0, 1 << 20));
      EXPECT_TRUE(holds(*reader, round_key(1), 0, 1000));
    }
    EXPECT_FALSE(store->drop({Timeline(1), Version(2), std::nullopt}).ok());
    EXPECT_TRUE(holds(*reader, round_key(0), 0, 1 << 20)) << "it was not dropped";
  }
  for (const char* reserve : {"RESERVE", "RESERVE-note"}) {
    EXPECT_TRUE(fs::exists(place(kA) / reserve)) << "it was not for want of room";
  }
  put(*store, one(batch_, round_key(2), 10));
  EXPECT_TRUE(holds(*reader, round_key(0), 0, 1 << 20));
  EXPECT_TRUE(holds(*reader, round_key(1), 0, 1000));
  EXPECT_TRUE(holds(*reader, round_key(2), 0, 10));
  EXPECT_THAT(store->take_warnings(), IsEmpty());
}

TEST_F(RocksResultStoreTest, WhatIsOnDiskIsItsOwnersAloneWhateverTheUmask) {
  for (const mode_t mask : {0, 022, 0277}) {
    const Umask umask(mask);
    auto store = host_.open_rocks(Incarnation(100 + mask));
    ASSERT_TRUE(store->note({7, "text"}).ok());
    put(*store, one(batch_, round_key(0), 1 << 20));
    EXPECT_THAT(open_to_others(host_.data_dir()), IsEmpty());
    EXPECT_THAT(open_to_others(place(Incarnation(100 + mask))), IsEmpty());
    EXPECT_THAT(store->take_warnings(), IsEmpty());
  }
}

TEST_F(RocksResultStoreTest, WhatOthersCouldReadIsCorrected) {
  for (const Incarnation life : {kA, kB}) {
    auto store = host_.open_rocks(life);
    ASSERT_TRUE(store->note({life == kA ? 7u : 8u, "text"}).ok());
    put(*store, one(batch_, round_key(0), 1000));
  }
  // As they were made before.
  for (const fs::path& path :
       {host_.data_dir(), place(kA).parent_path().parent_path(), place(kA).parent_path(), place(kA), place(kB)}) {
    fs::permissions(path, fs::perms(0755));
  }
  auto store = host_.open_rocks(kC);
  EXPECT_THAT(store->take_warnings(), ElementsAre(HasSubstr("permissions corrected: other users could read the")));
  store->belong(8);
  const auto aside = store->set_others_aside();
  ASSERT_THAT(aside, SizeIs(1));
  // The data directory itself may be many users'.
  EXPECT_THAT(open_to_others(host_.data_dir()), ElementsAre(host_.data_dir().string()));
  fs::permissions(aside[0], fs::perms(0755));
  EXPECT_THAT(host_.open_rocks(Incarnation(0xd))->take_warnings(), ElementsAre(HasSubstr(aside[0])));
  EXPECT_THAT(open_to_others(aside[0]), IsEmpty());
}

TEST_F(RocksResultStoreTest, ADirectoryThatCannotBeMadeIsAnError) {
  fs::create_directories(host_.data_dir().parent_path());
  std::ofstream(host_.data_dir()) << "a file";
  const Status s = host_.try_open(kA).status();
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_THAT(s.describe(), HasSubstr(host_.data_dir().string()));
}

TEST(RecordFormat, KeysSortAsTheirMembersDo) {
  std::vector<RecordKey> keys;
  for (const std::uint64_t group : {0ull, 0x80ull, ~0ull}) {
    for (const std::uint64_t version : {0ull, 1ull, 256ull}) {
      for (const std::uint64_t s : {0ull, 127ull, 128ull, 65536ull}) keys.push_back(round_key(s, version, group));
    }
  }
  for (const RecordKey& a : keys) {
    for (const RecordKey& b : keys) {
      EXPECT_EQ(a < b, encode_key(a, 5, 5) < encode_key(b, 5, 5));
      EXPECT_EQ(view(encode_key(a, 5, 5)) < view(encode_key(b, 5, 5)), a < b) << "as RocksDB compares them";
    }
  }
}

TEST(RecordFormat, EveryFlippedBitIsFoundOut) {
  const RecordKey key = round_key(3);
  const auto payload = bytes_of(key, 0, 20);
  StoredRecord record{key, info_of(20), 0, 20, checksum_of(payload)};
  record.info.fingerprint.root = -1;
  record.info.fingerprint.site = 0x1234;
  const KeyBytes encoded = encode_key(key, 0, 20);
  const EntryBytes entry = encode_entry(view(encoded), record);
  std::string k(view(encoded)), e(entry.data(), entry.size());
  e.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  const auto decoded = decode_record(k, e);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->key, key);
  EXPECT_EQ(decoded->info, record.info);
  for (std::string* bytes : {&k, &e}) {
    for (std::size_t bit = 0; bit < 8 * bytes->size(); ++bit) {
      (*bytes)[bit / 8] = static_cast<char>((*bytes)[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_FALSE(decode_record(k, e)) << bit;
      (*bytes)[bit / 8] = static_cast<char>((*bytes)[bit / 8] ^ (1 << (bit % 8)));
    }
  }
  EXPECT_FALSE(decode_record(k, e.substr(0, e.size() - 1)));
  EXPECT_FALSE(decode_record(k.substr(1), e));
}

TEST(FakeResultDiskTest, PowerLossTakesWhatWasNotConfirmed) {
  auto disk = std::make_shared<FakeResultDisk>();
  RecordBatch batch;
  {
    FakeResultStore store(disk, "w0", kA);
    ASSERT_TRUE(store.put(one(batch, round_key(0), 10)).ok());
    store.write(one(batch, round_key(1), 10));
    store.write(one(batch, round_key(2), 10));
    EXPECT_FALSE(holds(*store.reader(), round_key(1), 0, 10));
    disk->fail_writes = 1;
    EXPECT_EQ(store.confirm().code(), Code::kExhausted);
  }
  int n = 0;
  disk->crash([&n] { return n++ == 1; });
  FakeResultStore store(disk, "w0", kB);
  EXPECT_TRUE(holds(*store.reader(), round_key(0), 0, 10));
  EXPECT_FALSE(holds(*store.reader(), round_key(1), 0, 10));
  EXPECT_TRUE(holds(*store.reader(), round_key(2), 0, 10));
  ASSERT_TRUE(disk->flip(kA, 0));
  EXPECT_FALSE(holds(*store.reader(), round_key(0), 0, 10));
  EXPECT_THAT(store.take_warnings(), SizeIs(1));
}

// A process may have many communicators open, each with a disk that does not answer.
TEST(RocksProcess, AllThatExitWaitsForHaveBegunToEndAndShareADeadline) {
  constexpr int kBegunLate = 3, kOtherDeadline = 4, kRight = 7;
  const pid_t child = fork();
  if (child == 0) {
    static bool second_has_begun = false;
    static std::chrono::steady_clock::time_point first_deadline;
    if (!prepare_rocks().ok()) _exit(1);
    const CallAtExit first({[] {},
                            [](auto deadline) {
                              first_deadline = deadline;
                              if (!second_has_begun) _exit(kBegunLate);
                            }});
    const CallAtExit second({[] { second_has_begun = true; },
                             [](auto deadline) { _exit(deadline == first_deadline ? kRight : kOtherDeadline); }});
    std::exit(2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kRight);
}

}  // namespace
}  // namespace warren::storage

#include "storage/write_behind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "storage/fake_result_store.h"
#include "storage/host_log.h"
#include "tests/sanitized.h"
#include "tests/storage/result_batch.h"

namespace warren::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Incarnation kSelf(7);
constexpr std::int64_t kLong = 3'600'000, kWait = 60'000;

// One life: its segment, its disk, and the thread between them.
class WriteBehindTest : public testing::Test {
 protected:
  void make_log(std::size_t segment_bytes = 8 << 20) {
    segment_ = heap_segment(segment_bytes);
    log_ = std::move(HostLog::create(kSelf, segment_)).value();
  }
  void start(WriteBehind::Options options, std::size_t segment_bytes = 8 << 20) {
    make_log(segment_bytes);
    write_behind(options);
  }
  void write_behind(WriteBehind::Options options) {
    auto started = WriteBehind::start(options, std::make_unique<FakeResultStore>(disk_, "w0", kSelf), kSelf, segment_,
                                      [this](const LogEvent& e) { note(e); });
    ASSERT_TRUE(started.ok()) << started.status().describe();
    behind_ = std::move(started).value();
  }
  void publish(const RecordKey& key, std::uint64_t total, std::uint64_t begin, std::uint64_t end) {
    ASSERT_TRUE(log_->publish(key, info_of(total), begin, bytes_of(key, begin, end)).ok());
  }
  void publish(const RecordKey& key, std::uint64_t total) { publish(key, total, 0, total); }
  // What the disk holds, once the thread is gone.
  std::vector<RecordKey> on_disk() {
    behind_.reset();
    std::vector<RecordKey> keys;
    const auto found = disk_->lives.find(kSelf.value);
    if (found == disk_->lives.end()) return keys;
    for (const auto& [key, r] : found->second.durable) {
      keys.push_back(r.record.key);
      EXPECT_EQ(r.payload, bytes_of(r.record.key, r.record.first_byte, r.record.end()));
    }
    return keys;
  }
  Status durable(std::uint64_t version) {
    std::promise<Status> done;
    behind_->make_durable(Timeline(1), Version(version), [&](const Status& s) { done.set_value(s); });
    return done.get_future().get();
  }
  void note(const LogEvent& e) {
    const std::lock_guard lock(mutex_);
    events_.push_back(e.name);
    noted_.notify_all();
  }
  std::vector<std::string> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  // CTest ends what never comes.
  std::vector<std::string> await_events(std::size_t count) {
    std::unique_lock lock(mutex_);
    noted_.wait(lock, [&] { return events_.size() >= count; });
    return events_;
  }

  std::shared_ptr<FakeResultDisk> disk_ = std::make_shared<FakeResultDisk>();
  std::shared_ptr<SegmentMemory> segment_;
  std::unique_ptr<HostLog> log_;
  std::mutex mutex_;
  std::condition_variable noted_;
  std::vector<std::string> events_;
  std::unique_ptr<WriteBehind> behind_;  // last: its thread uses the others
};

TEST_F(WriteBehindTest, SyncMakesAllThatWasPublishedDurable) {
  start({kLong});
  publish(round_key(0), 10);
  publish(round_key(1), 0);
  publish(setup_key(9), 3'000'000);
  publish(state_key(1), 100'000);
  ASSERT_TRUE(behind_->sync(kWait).ok());
  EXPECT_EQ(behind_->written_bytes(), 3'100'010u);
  publish(round_key(2), 20);
  ASSERT_TRUE(behind_->sync(kWait).ok());
  EXPECT_EQ(behind_->written_bytes(), 3'100'030u) << "nothing is written twice";
  EXPECT_THAT(on_disk(), testing::IsSupersetOf({round_key(0), round_key(1), round_key(2), setup_key(9), state_key(1)}));
}

TEST_F(WriteBehindTest, ACommitDropsWhatIsNotYetDue) {
  start({kLong});
  for (std::uint64_t v = 1; v < 20; ++v) {
    for (std::uint64_t s = 0; s < 10; ++s) publish(round_key(s, v), 10'000);
    log_->drop_below(Version(v + 1));
    behind_->drop({Timeline(1), Version(v + 1), std::nullopt});
  }
  publish(round_key(0, 20), 10);
  ASSERT_TRUE(behind_->sync(kWait).ok());
  EXPECT_EQ(behind_->written_bytes(), 10u);
  EXPECT_THAT(on_disk(), ElementsAre(round_key(0, 20)));
}

TEST_F(WriteBehindTest, WhatIsOlderThanTheLagIsWritten) {
  start({.lag_ms = 1, .retry_ms = 1});
  // A disk that fails once, so that the first write that nobody has asked for is an event.
  disk_->fail_writes = 1;
  publish(round_key(0), 10);
  EXPECT_THAT(await_events(2), ElementsAre("results_not_written", "results_written"));
  EXPECT_EQ(behind_->written_bytes(), 10u);
  disk_->fail_writes = 1;
  publish(round_key(1), 20);
  (void)await_events(4);
  EXPECT_EQ(behind_->written_bytes(), 30u);
}

TEST_F(WriteBehindTest, MoreThanTheLagInBytesIsWrittenOldestFirst) {
  make_log();
  for (std::uint64_t s = 0; s < 60; ++s) publish(round_key(s), 100'000);
  disk_->fail_writes = 1;
  write_behind({.lag_ms = 4000, .lag_bytes = 1 << 20, .retry_ms = 1});  // extents of 256 KiB
  EXPECT_THAT(await_events(2), ElementsAre("results_not_written", "results_written"));
  EXPECT_GE(behind_->written_bytes(), 4'000'000u);
  const auto keys = on_disk();
  for (std::uint64_t s = 0; s < 30; ++s) EXPECT_THAT(keys, testing::Contains(round_key(s)));
  EXPECT_THAT(keys, testing::Not(testing::Contains(round_key(59)))) << "its extent is not full";
}

TEST_F(WriteBehindTest, ACheckpointIsDurableWithoutTheRoundsAroundIt) {
  start({kLong});
  publish(round_key(0), 10'000);
  publish(state_key(1), 50'000, 0, 20'000);
  publish(round_key(1), 10'000);
  publish(state_key(1), 50'000, 30'000, 50'000);
  publish(state_key(2), 7000);
  ASSERT_TRUE(durable(1).ok());
  EXPECT_EQ(behind_->written_bytes(), 40'000u);
  ASSERT_TRUE(durable(1).ok()) << "again: nothing to do";
  EXPECT_EQ(behind_->written_bytes(), 40'000u);
  publish(state_key(1), 50'000, 20'000, 30'000);
  ASSERT_TRUE(durable(1).ok());
  EXPECT_EQ(behind_->written_bytes(), 50'000u);
  ASSERT_TRUE(behind_->sync(kWait).ok());
  EXPECT_EQ(behind_->written_bytes(), 77'000u) << "the rest, and no state again";
  EXPECT_EQ(on_disk().size(), 6u);
}

TEST_F(WriteBehindTest, ACheckpointIsDurableWithTheSetUpRoundsThatItMayBeMadeOf) {
  start({kLong});
  publish(round_key(0), 10'000);
  publish(setup_key(9), 300);
  publish(state_key(1), 7000);
  ASSERT_TRUE(durable(1).ok());
  EXPECT_EQ(behind_->written_bytes(), 7300u);
  EXPECT_THAT(on_disk(), testing::UnorderedElementsAre(setup_key(9), state_key(1)));
}

TEST_F(WriteBehindTest, ADiskThatFailsIsAnEventAndRecovers) {
  start({.lag_ms = kLong, .retry_ms = 1});
  disk_->fail_writes = 3;
  publish(state_key(1), 1000);
  publish(round_key(0), 10);
  const Status s = behind_->sync(kWait);
  EXPECT_EQ(s.code(), Code::kExhausted);
  EXPECT_THAT(s.describe(), HasSubstr("no space left on the fake disk"));
  ASSERT_TRUE(durable(1).ok()) << "it is tried again";
  EXPECT_THAT(await_events(2), ElementsAre("results_not_written", "results_written"));
  EXPECT_TRUE(behind_->health().ok());
  ASSERT_TRUE(behind_->sync(kWait).ok());
  EXPECT_EQ(behind_->written_bytes(), 1010u);
  EXPECT_THAT(on_disk(), ElementsAre(round_key(0), state_key(1)));
}

// Another worker of the host may have removed what is on disk of the finished job.
TEST_F(WriteBehindTest, AStoreThatIsClosedAsTheJobIsFinishedIsNoEvent) {
  start({.lag_ms = kLong, .retry_ms = 1});
  disk_->failure = {Code::kClosed, "the job is finished"};
  disk_->fail_writes = 1;
  publish(round_key(0), 10);
  EXPECT_EQ(behind_->sync(kWait).code(), Code::kClosed);
  EXPECT_EQ(behind_->health().code(), Code::kClosed);
  behind_.reset();
  EXPECT_THAT(events(), IsEmpty());
}

TEST_F(WriteBehindTest, WhileTheDiskFailsNobodyWaits) {
  start({.lag_ms = kLong, .retry_ms = kLong});
  disk_->fail_writes = 1;
  publish(round_key(0), 10);
  EXPECT_EQ(behind_->sync(kWait).code(), Code::kExhausted);
  EXPECT_EQ(behind_->sync(kWait).code(), Code::kExhausted);
  EXPECT_EQ(behind_->health().code(), Code::kExhausted);
  EXPECT_EQ(disk_->fail_writes, 0u) << "the second was not tried";
  EXPECT_THAT(on_disk(), IsEmpty());
}

TEST_F(WriteBehindTest, ACheckpointThatANewerOneReplacesIsNotAwaited) {
  start({.lag_ms = kLong, .retry_ms = kLong});
  disk_->fail_writes = 1;
  publish(state_key(1), 1000);
  std::promise<Status> done;
  behind_->make_durable(Timeline(1), Version(1), [&](const Status& s) { done.set_value(s); });
  behind_->drop({Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(2)}});
  EXPECT_EQ(done.get_future().get().code(), Code::kClosed);
}

// Memory for a quarter of it; in the order in which it was published, the first leaves first.
TEST_F(WriteBehindTest, AFullLogSpills) {
  start({.lag_ms = kLong, .lag_bytes = UINT64_MAX}, 1 << 20);
  log_->spill_by([this] { return behind_->spill(4, kWait); });
  publish(setup_key(9), 300);
  publish(state_key(1), 7000);
  for (std::uint64_t s = 0; s < 400; ++s) publish(round_key(s), 10'000);
  const RecordKey large = round_key(400);
  publish(large, 3'000'000);  // by itself more than memory holds
  EXPECT_LE(log_->bytes_held(), log_->budget_bytes());
  EXPECT_THAT(events(), ElementsAre("log_spills"));
  const auto memory = log_->reader();
  const auto both = combined_reader(log_->reader(), behind_->store().reader());
  for (std::uint64_t s = 0; s < 400; ++s) {
    EXPECT_TRUE(holds(*both, round_key(s), 0, 10'000)) << s;
  }
  EXPECT_TRUE(holds(*both, large, 0, 3'000'000));
  EXPECT_FALSE(holds(*memory, round_key(20), 0, 10'000));
  EXPECT_FALSE(memory->held(large).empty());
  EXPECT_TRUE(holds(*memory, setup_key(9), 0, 300)) << "others count on it in memory";
  EXPECT_TRUE(holds(*memory, state_key(1), 0, 7000)) << "others count on it in memory";
  // What is dropped leaves both.
  log_->drop_below(Version(2));
  behind_->drop({Timeline(1), Version(2), std::nullopt});
  publish(round_key(0, 2), 10);
  EXPECT_TRUE(holds(*memory, round_key(0, 2), 0, 10));
}

TEST_F(WriteBehindTest, AFullLogSpillsNothingThatIsNotOnDisk) {
  start({.lag_ms = kLong, .lag_bytes = UINT64_MAX, .retry_ms = kLong}, 1 << 20);
  log_->spill_by([this] { return behind_->spill(4, kWait); });
  disk_->fail_writes = 1;
  std::uint64_t s = 0;
  Status status;
  for (; status.ok() && s < 1000; ++s) {
    status = log_->publish(round_key(s), info_of(10'000), 0, bytes_of(round_key(s), 0, 10'000));
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.describe(), HasSubstr("--log_memory_bytes"));
  EXPECT_THAT(status.describe(), HasSubstr("no space left on the fake disk"));
  const auto memory = log_->reader();
  for (std::uint64_t i = 0; i + 1 < s; ++i) EXPECT_TRUE(holds(*memory, round_key(i), 0, 10'000)) << i;
}

TEST_F(WriteBehindTest, CheckpointsAndSetUpRoundsAloneDoNotSpill) {
  start({.lag_ms = kLong}, 1 << 20);
  log_->spill_by([this] { return behind_->spill(4, kWait); });
  Status status;
  for (std::uint64_t s = 0; status.ok() && s < 1000; ++s) {
    const RecordKey key = s % 2 == 0 ? setup_key(s) : state_key(1 + s / 20);
    status = log_->publish(key, info_of(10'000 + s), 0, bytes_of(key, 0, 10'000));
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.describe(), HasSubstr("checkpoints, set-up rounds"));
}

TEST_F(WriteBehindTest, TheEndIsToldToWhoWaits) {
  start({.lag_ms = kLong, .retry_ms = kLong});
  disk_->fail_writes = 1;
  publish(state_key(1), 1000);
  std::promise<Status> done;
  behind_->make_durable(Timeline(1), Version(1), [&](const Status& s) { done.set_value(s); });
  EXPECT_EQ(behind_->sync(kWait).code(), Code::kExhausted);
  ASSERT_TRUE(behind_->finish().ok());
  EXPECT_EQ(done.get_future().get().code(), Code::kClosed);
  EXPECT_EQ(behind_->sync(kWait).code(), Code::kClosed);
  EXPECT_EQ(durable(1).code(), Code::kClosed);
  EXPECT_TRUE(disk_->lives.empty());
}

TEST_F(WriteBehindTest, ANoteIsDurableBeforeWhatFollowsIt) {
  for (const bool fails : {true, false}) {
    start({.lag_ms = kLong, .retry_ms = kLong});
    disk_->fail_writes = fails ? 1 : 0;
    behind_->note({7, "plan"});
    publish(round_key(0), 10);
    EXPECT_EQ(behind_->sync(kWait).ok(), !fails);
    EXPECT_EQ(on_disk().empty(), fails) << "nothing is there without its note";
    EXPECT_EQ(disk_->lives.at(kSelf.value).run, fails ? 0u : 7u);
    EXPECT_EQ(disk_->lives.at(kSelf.value).note, fails ? "" : "plan");
  }
}

// What the store asks for once more is put before the checkpoint counts; where the disk does not take it, it counts all
// the same.
TEST_F(WriteBehindTest, WhatTheStoreAsksForIsPutOnceMore) {
  class AskingStore : public FakeResultStore {
   public:
    using FakeResultStore::FakeResultStore;
    Status put(const RecordBatch& batch) override {
      for (const RecordBatch::Item& item : batch.items()) puts.emplace_back(item.key.kind, item.first_byte);
      return asked && std::exchange(refuses, false) ? Status(Code::kExhausted, "full") : FakeResultStore::put(batch);
    }
    std::vector<StatePiece> worn(Timeline timeline, Version version) override {
      asked = timeline == Timeline(1) && version == Version(2);
      return {{RecordKind::kLocal, Sequence(3), 0, 1000}, {RecordKind::kGlobal, Sequence(0), 500, 500}};
    }
    std::vector<std::pair<RecordKind, std::uint64_t>> puts;
    bool asked = false, refuses = false;
  };
  for (const bool refuses : {false, true}) {
    disk_ = std::make_shared<FakeResultDisk>();
    make_log();
    auto store = std::make_unique<AskingStore>(disk_, "w0", kSelf);
    AskingStore& asking = *store;
    asking.refuses = refuses;
    auto started =
        WriteBehind::start({kLong}, std::move(store), kSelf, segment_, [this](const LogEvent& e) { note(e); });
    ASSERT_TRUE(started.ok());
    behind_ = std::move(started).value();
    const RoundId round{Timeline(1), kWorldGroup, Version(2), Sequence(0)};
    RecordKey local{RecordKind::kLocal, round}, global{RecordKind::kGlobal, round};
    local.round.sequence = Sequence(3);
    publish(local, 1000);
    publish(global, 1000, 0, 500);
    publish(global, 1000, 500, 1000);
    publish(round_key(0), 10);
    EXPECT_TRUE(durable(2).ok());
    EXPECT_TRUE(asking.asked);
    EXPECT_THAT(asking.puts, ElementsAre(std::pair(RecordKind::kLocal, 0), std::pair(RecordKind::kGlobal, 0),
                                         std::pair(RecordKind::kGlobal, 500), std::pair(RecordKind::kLocal, 0),
                                         std::pair(RecordKind::kGlobal, 500)));
    EXPECT_THAT(on_disk(), testing::SizeIs(3));
    EXPECT_THAT(events(), IsEmpty());
  }
}

// A store whose disk hangs until it is let go.
class HangingStore : public ResultStore {
 public:
  explicit HangingStore(std::shared_future<void> go) : go_(std::move(go)) {}
  Status put(const RecordBatch&) override {
    go_.wait();
    return {};
  }
  Status note(const Note&) override { return {}; }
  std::vector<Note> notes() override { return {}; }
  void belong(std::uint64_t) override {}
  std::vector<std::string> set_others_aside() override { return {}; }
  Status leave_out(const Stale&) override { return {}; }
  Status drop(const Horizon&) override { return {}; }
  Status finish() override { return {}; }
  std::uint64_t bytes_on_disk() const override { return 0; }
  std::unique_ptr<HostLogReader> reader() override { return nullptr; }
  void refresh(std::span<const Incarnation>) override {}
  HeldReport report(bool) override { return {}; }
  std::vector<std::string> take_warnings() override { return {}; }

 private:
  std::shared_future<void> go_;
};

TEST_F(WriteBehindTest, NobodyWaitsForEverForADiskThatHangs) {
  make_log();
  std::promise<void> go;
  auto started = WriteBehind::start({kLong}, std::make_unique<HangingStore>(go.get_future().share()), kSelf, segment_,
                                    [](const LogEvent&) {});
  behind_ = std::move(started).value();
  publish(round_key(0), 10);
  EXPECT_EQ(behind_->sync(20).code(), Code::kTimeout);
  go.set_value();
  EXPECT_TRUE(behind_->sync(kWait).ok());
}

class NoRoomForNotes final : public HangingStore {
 public:
  NoRoomForNotes(std::shared_future<void> go, std::atomic<bool>& full, std::atomic<int>& drops)
      : HangingStore(std::move(go)), full_(full), drops_(drops) {}
  Status note(const Note&) override { return full_ ? Status(Code::kExhausted, "full") : Status(); }
  Status drop(const Horizon&) override {
    ++drops_;
    return {};
  }

 private:
  std::atomic<bool>& full_;
  std::atomic<int>& drops_;
};

TEST_F(WriteBehindTest, NothingIsDroppedBeforeTheNoteThatNamesItIsReplaced) {
  make_log();
  std::promise<void> go;
  go.set_value();
  std::atomic<bool> full{true};
  std::atomic<int> drops{0};
  auto started = WriteBehind::start({.lag_ms = kLong, .retry_ms = 0},
                                    std::make_unique<NoRoomForNotes>(go.get_future().share(), full, drops), kSelf,
                                    segment_, [](const LogEvent&) {});
  behind_ = std::move(started).value();
  behind_->note({7, "committed: 2"});
  behind_->drop({Timeline(1), Version(2), Horizon::Checkpoint{Timeline(1), Version(2)}});
  EXPECT_EQ(behind_->sync(kWait).code(), Code::kExhausted);
  EXPECT_EQ(drops, 0) << "a life after this one goes by the note before";
  full = false;
  EXPECT_TRUE(behind_->sync(kWait).ok());
  EXPECT_EQ(drops, 1);
  behind_.reset();  // its thread uses them
}

// Mode sync asks, and looks again when it is woken.
TEST_F(WriteBehindTest, WhatIsAskedForIsToldWhenItIsDurable) {
  make_log();
  std::promise<void> go;
  std::atomic<int> woken{0};
  WriteBehind::Options options{kLong};
  options.synced = [&] {
    ++woken;
    woken.notify_all();
  };
  auto started = WriteBehind::start(options, std::make_unique<HangingStore>(go.get_future().share()), kSelf, segment_,
                                    [](const LogEvent&) {});
  behind_ = std::move(started).value();
  publish(round_key(0), 10);
  const std::uint64_t first = behind_->ask_sync();
  EXPECT_GT(first, behind_->synced());
  EXPECT_EQ(woken, 0);
  std::uint64_t last = first;
  for (std::uint64_t s = 1; s < 100; ++s) {
    publish(round_key(s), 10);
    const std::uint64_t number = behind_->ask_sync();
    EXPECT_GE(number, last);
    last = number;
  }
  EXPECT_LE(last, first + 1) << "one write serves all that wait for it";
  EXPECT_GT(last, behind_->synced());
  go.set_value();
  for (int n = woken; behind_->synced() < last; n = woken) woken.wait(n);
  EXPECT_EQ(behind_->written_bytes(), 1000u);
  // Nobody waits for what ends.
  ASSERT_TRUE(behind_->finish().ok());
  EXPECT_GE(behind_->synced(), behind_->ask_sync());
}

TEST_F(WriteBehindTest, WhatADiskDoesNotTakeIsNotAwaited) {
  std::atomic<int> woken{0};
  WriteBehind::Options options{.lag_ms = kLong, .retry_ms = kLong};
  options.synced = [&] {
    ++woken;
    woken.notify_all();
  };
  start(options);
  disk_->fail_writes = 1;
  for (std::uint64_t s = 0; s < 2; ++s) {  // once it has failed, and while it is not tried again
    publish(round_key(s), 10);
    const std::uint64_t number = behind_->ask_sync();
    for (int n = woken; behind_->synced() < number; n = woken) woken.wait(n);
  }
  EXPECT_EQ(behind_->written_bytes(), 0u);
  EXPECT_EQ(behind_->health().code(), Code::kExhausted);
  behind_.reset();  // its thread may still be in `synced`
}

// A stray write of the program, or a bad bit of memory: what stands behind is found by nobody.
TEST_F(WriteBehindTest, WhatIsDamagedIsNotDurable) {
  start({.lag_ms = kLong});
  const auto damage_one = [&](const RecordKey& key, std::uint64_t bytes) {
    LogPlace place;
    ASSERT_TRUE(log_->publish(key, info_of(bytes), 0, bytes_of(key, 0, bytes), &place).ok());
    ASSERT_TRUE(place.known());
    segment_->bytes()[place.at - kRecordHeaderBytes + kRecordChecksumAt] ^= std::byte{1};
  };
  publish(state_key(1), 7000);
  ASSERT_TRUE(durable(1).ok());
  EXPECT_EQ(behind_->written_bytes(), 7000u);
  damage_one(round_key(0, 2), 100);
  publish(state_key(2), 7000);
  const Status lost = durable(2);
  EXPECT_EQ(lost.code(), Code::kCorrupt) << lost.describe();
  EXPECT_THAT(lost.describe(), HasSubstr("checkpoint 1"));
  EXPECT_THAT(events(), testing::Contains("results_damaged"));
  EXPECT_EQ(behind_->written_bytes(), 7000u) << "what stands behind the damage is not found";
  // Others are not concerned, and a place that is used again is sound.
  publish(state_key(3), 300);
  EXPECT_TRUE(durable(3).ok());
  log_->drop_below(Version(3));
  publish(state_key(4), 300);
  EXPECT_TRUE(durable(4).ok());
  // A checkpoint may be made of set-up rounds.
  damage_one(setup_key(9), 50);
  publish(state_key(5), 300);
  EXPECT_EQ(durable(5).code(), Code::kCorrupt);
}

TEST_F(WriteBehindTest, ASegmentOfAnotherLifeIsRefused) {
  make_log();
  const auto started = WriteBehind::start({}, std::make_unique<FakeResultStore>(disk_, "w0", Incarnation(8)),
                                          Incarnation(8), segment_, [](const LogEvent&) {});
  EXPECT_EQ(started.status().code(), Code::kCorrupt);
}

// A store that looks at each record that is put.
class CheckingStore final : public ResultStore {
 public:
  explicit CheckingStore(std::map<RecordKey, std::uint64_t>& bytes) : bytes_(bytes) {}
  Status put(const RecordBatch& batch) override {
    for (const RecordBatch::Item& item : batch.items()) {
      const auto payload = batch.payload(item);
      EXPECT_TRUE(std::ranges::equal(payload, bytes_of(item.key, item.first_byte, item.first_byte + payload.size())));
      EXPECT_EQ(item.info, info_of(item.info.total_bytes));
      bytes_[item.key] += payload.size();
    }
    return {};
  }
  Status note(const Note&) override { return {}; }
  std::vector<Note> notes() override { return {}; }
  void belong(std::uint64_t) override {}
  std::vector<std::string> set_others_aside() override { return {}; }
  Status leave_out(const Stale&) override { return {}; }
  Status drop(const Horizon&) override { return {}; }
  Status finish() override { return {}; }
  std::uint64_t bytes_on_disk() const override { return 0; }
  std::unique_ptr<HostLogReader> reader() override { return nullptr; }
  void refresh(std::span<const Incarnation>) override {}
  HeldReport report(bool) override { return {}; }
  std::vector<std::string> take_warnings() override { return {}; }

 private:
  std::map<RecordKey, std::uint64_t>& bytes_;
};

// The data path publishes and drops as fast as it can, reusing its memory, while all is written as soon as it is seen.
TEST_F(WriteBehindTest, WhatIsWrittenIsRightWhateverIsDroppedMeanwhile) {
  constexpr std::uint64_t kVersions = kThreadSanitized ? 80 : 400, kRounds = 20;
  const auto total_of = [](std::uint64_t s) { return 1 + s * s * 150; };
  std::map<RecordKey, std::uint64_t> written;
  make_log(2 << 20);
  auto started = WriteBehind::start({kLong}, std::make_unique<CheckingStore>(written), kSelf, segment_,
                                    [this](const LogEvent& e) { note(e); });
  behind_ = std::move(started).value();
  std::atomic<bool> done{false};
  std::thread writer([&] {
    while (!done) EXPECT_TRUE(behind_->sync(kWait).ok());
  });
  for (std::uint64_t v = 1; v <= kVersions; ++v) {
    for (std::uint64_t s = 0; s < kRounds; ++s) publish(round_key(s, v), total_of(s));
    log_->drop_below(Version(v));
  }
  done = true;
  writer.join();
  EXPECT_TRUE(behind_->sync(kWait).ok());
  behind_.reset();
  for (std::uint64_t s = 0; s < kRounds; ++s) EXPECT_EQ(written[round_key(s, kVersions)], total_of(s));
  for (const auto& [key, bytes] : written) EXPECT_LE(bytes, total_of(key.round.sequence.value)) << "none twice";
  EXPECT_THAT(events(), IsEmpty());
}

}  // namespace
}  // namespace warren::storage

#include "worker/disk/sync_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/worker/session/hanging_store.h"
#include "worker/rounds/recall.h"

namespace warren::worker {
namespace {

constexpr Incarnation kSelf(7);

class SyncGateTest : public ::testing::Test {
 protected:
  SyncGateTest() {
    storage::WriteBehind::Options options;
    options.lag_ms = 3'600'000;
    options.synced = [this] {
      ++woken_;
      woken_.notify_all();
    };
    auto store = std::make_unique<HangingStore>(disk_);
    auto writer = storage::WriteBehind::start(options, std::move(store), kSelf, segment_, [](const LogEvent&) {});
    EXPECT_TRUE(writer.ok());
    writer_ = std::move(writer).value();
    gate_ = std::make_unique<SyncGate>(
        *writer_, 1000, [this] { return now_; }, [this](const LogEvent& e) { events_.push_back(e.name); });
    recall_ = std::make_unique<Recall>(
        *log_, [this] { return now_; }, [](Replayer::Send) {});
    recall_->seen_once_in(*gate_);
  }
  ~SyncGateTest() override { disk_->let_go(); }

  std::uint64_t publish() {
    const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, kPreamble, Sequence(published_++)}};
    RecordInfo info;
    info.total_bytes = 8;
    EXPECT_TRUE(recall_->publish(key, info, 0, std::vector<std::byte>(8)).ok());
    return recall_->newest();
  }
  // Where it will lie.
  std::uint64_t publish_in_room() {
    const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, kPreamble, Sequence(published_)}};
    RecordInfo info;
    info.total_bytes = 8;
    const std::span<std::byte> room = recall_->room(key, 8);
    if (room.empty()) return publish();  // under ThreadSanitizer
    std::ranges::fill(room, std::byte{1});
    published_++;
    recall_->publish_room(key, info, 0, 8, nullptr);
    return recall_->newest();
  }
  // The writer has done with this one.
  void await(std::uint64_t number) {
    for (int n = woken_; writer_->synced() < number; n = woken_) woken_.wait(n);
  }

  std::shared_ptr<HangingDisk> disk_ = std::make_shared<HangingDisk>();
  std::shared_ptr<SegmentMemory> segment_ = heap_segment(1 << 20);
  std::unique_ptr<HostLog> log_ = std::move(HostLog::create(kSelf, segment_)).value();
  std::atomic<int> woken_{0};
  std::unique_ptr<storage::WriteBehind> writer_;
  TimeMs now_{5000};
  std::vector<std::string> events_;
  std::unique_ptr<SyncGate> gate_;
  std::unique_ptr<Recall> recall_;
  std::uint64_t published_ = 0;
};

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(SyncGateTest, WhatIsPublishedIsSeenOnceItIsOnDisk) {
  const std::uint64_t first = publish();
  disk_->await_put();
  EXPECT_FALSE(recall_->may_be_seen(first));
  EXPECT_TRUE(recall_->may_be_seen(0));
  const std::uint64_t second = publish_in_room();
  EXPECT_GT(second, first);
  EXPECT_FALSE(recall_->may_be_seen(second));
  EXPECT_EQ(recall_->next_deadline(), TimeMs{6000});
  disk_->let_go();
  await(second);
  EXPECT_TRUE(recall_->may_be_seen(first) && recall_->may_be_seen(second));
  EXPECT_EQ(recall_->next_deadline(), std::nullopt);
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(SyncGateTest, ADiskThatHangsIsToldOnceAndNotAwaitedUntilItWakes) {
  const std::uint64_t first = publish();
  disk_->await_put();
  now_ = now_ + 400;
  const std::uint64_t second = publish();
  now_ = now_ + 599;
  EXPECT_FALSE(recall_->may_be_seen(first));
  EXPECT_THAT(events_, IsEmpty());
  now_ = now_ + 1;
  recall_->on_tick();
  EXPECT_THAT(events_, ElementsAre("sync_late"));
  EXPECT_EQ(recall_->next_deadline(), std::nullopt) << "nothing is due: a loop that asks for it would spin";
  EXPECT_TRUE(recall_->may_be_seen(first) && recall_->may_be_seen(second)) << "rounds go on";
  now_ = now_ + 10'000;
  const std::uint64_t third = publish();
  EXPECT_TRUE(recall_->may_be_seen(third));
  EXPECT_THAT(events_, ElementsAre("sync_late")) << "once";
  // It takes what it had been given, and hangs again.
  disk_->hang_again();
  disk_->await_put();
  await(first);
  const std::uint64_t fourth = publish();
  EXPECT_FALSE(recall_->may_be_seen(fourth));
  EXPECT_EQ(recall_->next_deadline(), now_ + 1000);
  now_ = now_ + 1000;
  EXPECT_TRUE(recall_->may_be_seen(fourth));
  EXPECT_THAT(events_, ElementsAre("sync_late", "sync_late"));
  disk_->let_go();
  await(fourth);
  EXPECT_TRUE(recall_->may_be_seen(fourth));
}

}  // namespace
}  // namespace warren::worker

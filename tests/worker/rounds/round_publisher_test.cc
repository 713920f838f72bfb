#include "worker/rounds/round_publisher.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace warren::worker {
namespace {

constexpr RoundId kPublished{Timeline(1), kWorldGroup, Version(2), Sequence(3)};

struct RoundPublisherTest : testing::Test {
  RoundPublisherTest() {
    call.spec.collective = Collective::kAllreduce;
    call.spec.type = DataType::kU16;
    call.spec.count = values.size();
    call.round = kPublished;
    call.fingerprint = fingerprint_of(call.spec, 0);
  }
  [[nodiscard]] Ranges held() { return recall.reader().held(result_key(kPublished)); }
  // Values [first, first + count).
  [[nodiscard]] Status publish(std::uint64_t first, std::uint64_t count) {
    return publisher.publish(first, count, reinterpret_cast<const std::byte*>(values.data() + first), place);
  }

  std::array<std::uint16_t, 8> values{1, 2, 3, 4, 5, 6, 7, 8};
  std::unique_ptr<HostLog> log =
      std::move(HostLog::create(Incarnation(1), heap_segment(std::size_t{64} << 10))).value();
  Recall recall{*log, [] { return TimeMs(); }, [](const Replayer::Send&) {}};
  RoundPublisher publisher{&recall};
  Call call;
  LogPlace place;
};

TEST_F(RoundPublisherTest, ValuesLieInTheLogUnderTheRoundsName) {
  publisher.begin(call, sizeof values, false);
  ASSERT_TRUE(publish(2, 4).ok());
  EXPECT_EQ(held(), Ranges(4, 12));
  EXPECT_EQ(recall.reader().info(result_key(kPublished)).value()->total_bytes, sizeof values);
  std::array<std::uint16_t, 4> read{};
  ASSERT_TRUE(recall.reader().read(result_key(kPublished), 4, std::as_writable_bytes(std::span(read))));
  EXPECT_EQ(read, (std::array<std::uint16_t, 4>{3, 4, 5, 6}));
}

TEST_F(RoundPublisherTest, WhatTheHostHoldsOfAResumedRoundIsNotPublishedAgain) {
  publisher.begin(call, sizeof values, false);
  ASSERT_TRUE(publish(2, 2).ok());
  const std::uint64_t bytes = log->bytes_held();
  publisher.begin(call, sizeof values, true);
  ASSERT_TRUE(publish(2, 2).ok());
  EXPECT_EQ(log->bytes_held(), bytes);
  ASSERT_TRUE(publish(0, 8).ok());
  EXPECT_EQ(held(), Ranges(0, sizeof values));
  EXPECT_TRUE(publisher.room(8).empty()) << "publish() has to look";
}

TEST_F(RoundPublisherTest, ValuesThatWereWrittenInTheLogNeedNoCopy) {
  publisher.begin(call, sizeof values, false);
  const std::span<std::byte> room = publisher.room(8);
  ASSERT_EQ(room.size(), sizeof values);
  publisher.publish_room(0, 8, place);
  EXPECT_EQ(held(), Ranges(0, sizeof values));
  EXPECT_TRUE(publisher.room(0).empty());
  call.spec.type = DataType::kCustom;
  call.spec.custom_bytes = 2;
  publisher.begin(call, sizeof values, false);
  EXPECT_TRUE(publisher.room(8).empty()) << "a program's function may want them better aligned";
}

TEST_F(RoundPublisherTest, WithoutALogThereIsNoPublisher) {
  EXPECT_EQ(publisher.publisher(), &publisher);
  RoundPublisher none(nullptr);
  EXPECT_EQ(none.publisher(), nullptr);
}

}  // namespace
}  // namespace warren::worker

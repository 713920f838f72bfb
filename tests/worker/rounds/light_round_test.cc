// Rounds that run step by step, and the executor that takes them over at any of them.
#include "worker/rounds/light_round.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "tests/worker/light_transport.h"

namespace warren::worker {
namespace {

constexpr std::uint64_t kCount = 5;
constexpr int kSize = 4;

std::int64_t value(int rank, std::uint64_t i) {
  return rank * 1000 + static_cast<std::int64_t>(i);
}

class Log final : public Publisher {
 public:
  Status publish(std::uint64_t first, std::uint64_t count, const std::byte* values, LogPlace&) override {
    if (full) return {Code::kExhausted, "the log is full"};
    EXPECT_EQ(first, 0u);
    pieces.emplace_back(values, values + count * sizeof(std::int64_t));
    return {};
  }
  bool full = false;
  std::vector<std::vector<std::byte>> pieces;
};

// The root of a star of four; the others are the test.
class Root : public ::testing::Test {
 protected:
  void SetUp() override {
    schedule::Request request;
    request.collective = Collective::kAllreduce;
    request.algorithm = schedule::Algorithm::kStar;
    request.rank = 0;
    request.size = kSize;
    request.count = kCount;
    request.chunk_elements = kCount;
    request.replicas = 2;
    request.hosts = hosts_;
    request.domains = hosts_;
    request.element_bytes = sizeof(std::int64_t);
    prepared_ = std::make_unique<PreparedSchedule>(schedule::make(request).value());
    round_.schedule = prepared_.get();
    round_.generation = Generation(1);
    round_.id = {Timeline(0), kWorldGroup, Version(0), Sequence(3)};
    round_.input = reinterpret_cast<const std::byte*>(buffer_.data());
    round_.output = reinterpret_cast<std::byte*>(buffer_.data());
    round_.reducer = Reducer::make(DataType::kI64, ReduceOp::kSum, kSize).value();
    round_.publisher = &log_;
    begin();
  }
  void begin() {
    for (std::uint64_t i = 0; i < kCount; i++) buffer_[i] = value(0, i);
    log_.pieces.clear();
    transport_ = {};
    executor_.abandon();
    light_.abandon();
    light_.begin(round_);
  }
  // What rank `from` sends.
  void come(int from) {
    std::vector<std::byte> bytes(kCount * sizeof(std::int64_t));
    for (std::uint64_t i = 0; i < kCount; i++) {
      const std::int64_t v = value(from, i);
      std::memcpy(bytes.data() + i * sizeof v, &v, sizeof v);
    }
    transport_.inbox[static_cast<LinkId>(from)].push_back(bytes);
  }
  // Completes what the executor has posted.
  void complete_posts() {
    while (!executor_.done()) {
      const std::optional<Completion> c = transport_.next();
      ASSERT_TRUE(c) << "stuck";
      executor_.on_completion(c->token, c->status);
    }
    EXPECT_FALSE(transport_.next()) << "a step was posted twice";
  }
  void expect_result() {
    std::vector<std::int64_t> sum(kCount);
    for (int r = 0; r < kSize; r++) {
      for (std::uint64_t i = 0; i < kCount; i++) sum[i] += value(r, i);
    }
    EXPECT_EQ(buffer_, sum);
    const auto bytes = std::as_bytes(std::span(sum));
    const std::vector<std::byte> whole(bytes.begin(), bytes.end());
    EXPECT_EQ(log_.pieces, std::vector<std::vector<std::byte>>(1, whole));
    // Each of the others got it once, by whichever way.
    ASSERT_EQ(transport_.sent.size(), 3u);
    for (const auto& [link, frames] : transport_.sent) {
      EXPECT_EQ(frames, std::vector<std::vector<std::byte>>(1, whole)) << "link " << link;
    }
  }

  std::vector<std::uint32_t> hosts_ = std::vector<std::uint32_t>(kSize);
  std::vector<Rank> members_{Rank(0), Rank(1), Rank(2), Rank(3)};
  std::vector<std::int64_t> buffer_ = std::vector<std::int64_t>(kCount);
  std::unique_ptr<PreparedSchedule> prepared_;
  Round round_;
  Log log_;
  testing::LightTransport transport_;
  Executor executor_{transport_, nullptr, kWorldGroup, members_, 6, nullptr};
  LightRound light_{transport_, transport_, executor_, kWorldGroup, members_, 6, nullptr};
};

TEST_F(Root, RunsToItsEndAsMessagesCome) {
  ASSERT_TRUE(LightRound::serves(*round_.schedule, round_.reducer));
  EXPECT_EQ(light_.go(), LightRound::Outcome::kWaits);
  EXPECT_EQ(light_.waits_for(), Rank(1));
  come(2);
  EXPECT_EQ(light_.go(), LightRound::Outcome::kWaits);
  come(1);
  EXPECT_EQ(light_.go(), LightRound::Outcome::kWaits);
  EXPECT_EQ(light_.waits_for(), Rank(3));
  EXPECT_TRUE(log_.pieces.empty());
  EXPECT_TRUE(light_.finals().empty());
  come(3);
  EXPECT_EQ(light_.go(), LightRound::Outcome::kDone);
  EXPECT_FALSE(light_.runs());
  EXPECT_EQ(light_.bytes_sent(), 3 * kCount * sizeof(std::int64_t));
  EXPECT_EQ(transport_.posts, 0u);
  expect_result();
}

// Whatever has been done by then, and whether messages have come or not.
TEST_F(Root, TheExecutorGoesOnFromAnyStep) {
  for (std::size_t calls = 0; calls <= 6; calls++) {
    for (const bool posted : {false, true}) {
      SCOPED_TRACE("after " + std::to_string(calls) + " frames" + (posted ? ", one of them in part" : ""));
      begin();
      if (calls >= 3) {
        for (const int from : {1, 2, 3}) come(from);
      } else {
        for (int from = 1; from <= static_cast<int>(calls); from++) come(from);
      }
      transport_.frames_now = calls;
      transport_.posts_next_send = posted;
      const auto outcome = light_.go();
      if (calls == 6) {
        EXPECT_EQ(outcome, LightRound::Outcome::kDone);
        expect_result();
        continue;
      }
      EXPECT_NE(outcome, LightRound::Outcome::kDone);
      light_.hand_over();
      EXPECT_FALSE(light_.runs());
      EXPECT_FALSE(executor_.done());
      if (calls < 3) {
        for (int from = static_cast<int>(calls) + 1; from <= 3; from++) come(from);
      }
      complete_posts();
      EXPECT_TRUE(executor_.status().ok()) << executor_.status().describe();
      EXPECT_EQ(executor_.bytes_sent(), 3 * kCount * sizeof(std::int64_t));
      expect_result();
    }
  }
}

TEST_F(Root, WhatIsFinalInTheMiddleIsTold) {
  for (const int from : {1, 2, 3}) come(from);
  transport_.frames_now = 4;  // and one of the finals has left
  EXPECT_EQ(light_.go(), LightRound::Outcome::kStuck);
  const auto finals = light_.finals();
  ASSERT_EQ(finals.size(), 1u);
  EXPECT_EQ(finals[0].at, 0u);
  EXPECT_EQ(finals[0].count, kCount);
  light_.hand_over();
  const auto same = executor_.finals();
  ASSERT_EQ(same.size(), 1u);
  EXPECT_EQ(same[0].count, kCount);
}

// The rule on which the log rests (docs/invariants.md, "Finals").
TEST_F(Root, WhatCannotBePublishedIsSeenByNobody) {
  for (const int from : {1, 2, 3}) come(from);
  log_.full = true;
  EXPECT_EQ(light_.go(), LightRound::Outcome::kStuck);
  light_.hand_over();
  EXPECT_TRUE(executor_.done());
  EXPECT_EQ(executor_.status().code(), Code::kExhausted);
  EXPECT_TRUE(transport_.sent.empty());
}

// Another try would combine what is half combined.
TEST_F(Root, AFunctionThatHasFailedIsNotTriedAgain) {
  int calls = 0;
  round_.reducer = Reducer::make(
                       DataType::kCustom, ReduceOp::kCustom, kSize, sizeof(std::int64_t),
                       [](const void*, void*, std::size_t, void* context) -> std::int32_t {
                         return ++*static_cast<int*>(context) == 2 ? 7 : 0;
                       },
                       &calls)
                       .value();
  begin();
  for (const int from : {1, 2, 3}) come(from);
  EXPECT_EQ(light_.go(), LightRound::Outcome::kProgramFailed);
  EXPECT_NE(light_.status().describe().find("the reduction has failed, and returned 7"), std::string::npos)
      << light_.status().describe();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(transport_.sent.empty());
  EXPECT_TRUE(log_.pieces.empty());
  EXPECT_TRUE(light_.finals().empty());
}

TEST_F(Root, ABrokenLinkIsTheExecutorsToReport) {
  come(1);
  transport_.broken = Status(Code::kPeerLost, "gone");
  transport_.frames_now = 1;
  EXPECT_EQ(light_.go(), LightRound::Outcome::kStuck);
  light_.hand_over();
  while (!executor_.done()) {
    const std::optional<Completion> c = transport_.next();
    ASSERT_TRUE(c);
    executor_.on_completion(c->token, c->status);
  }
  EXPECT_EQ(executor_.status().code(), Code::kPeerLost);
  EXPECT_NE(executor_.failed_peer(), kNoRank);
}

TEST_F(Root, LargeMessagesAreNotServed) {
  schedule::Request request;
  request.collective = Collective::kAllreduce;
  request.algorithm = schedule::Algorithm::kStar;
  request.size = 2;
  request.count = LightRound::kMostBytes / sizeof(std::int64_t);
  request.chunk_elements = request.count + 1;
  request.element_bytes = sizeof(std::int64_t);
  const PreparedSchedule most(schedule::make(request).value());
  request.count++;
  const PreparedSchedule more(schedule::make(request).value());
  round_.schedule = &most;
  EXPECT_TRUE(LightRound::serves(*round_.schedule, round_.reducer));
  round_.schedule = &more;
  EXPECT_FALSE(LightRound::serves(*round_.schedule, round_.reducer));
  light_.abandon();
}

}  // namespace
}  // namespace warren::worker

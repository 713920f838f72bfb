#include "worker/session/log_queue.h"

#include <gmock/gmock.h>

#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace warren::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kForever = -1;

std::string taken(LogQueue& queue) {
  const auto line = queue.take(0);
  return line.ok() ? line.value().text : std::string(to_string(line.status().code()));
}

TEST(LogQueue, LinesAreTakenInTheOrderInWhichTheyCame) {
  LogQueue queue(4);
  queue.begin();
  EXPECT_TRUE(queue.put(WARREN_LOG_INFO, "one"));
  EXPECT_TRUE(queue.put(WARREN_LOG_ERROR, "two"));
  const auto first = queue.take(kForever);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first.value().level, WARREN_LOG_INFO);
  EXPECT_EQ(first.value().text, "one");
  EXPECT_EQ(taken(queue), "two");
  EXPECT_EQ(queue.take(0).status().code(), Code::kTimeout);
}

TEST(LogQueue, AFullQueueDropsItsOldestLinesAndSaysHowMany) {
  LogQueue queue(2);
  queue.begin();
  for (const char* line : {"one", "two", "three", "four", "five"}) EXPECT_TRUE(queue.put(WARREN_LOG_INFO, line));
  EXPECT_THAT(taken(queue), HasSubstr("3 log lines are missing here"));
  EXPECT_EQ(taken(queue), "four");
  EXPECT_EQ(taken(queue), "five");
  EXPECT_TRUE(queue.put(WARREN_LOG_INFO, "six"));
  EXPECT_EQ(taken(queue), "six") << "nothing is missing before it";
}

TEST(LogQueue, IsFullByBytesToo) {
  LogQueue queue(LogQueue::kMostLines);
  queue.begin();
  const std::string large(LogQueue::kMostBytes / 2, 'x');
  for (int i = 0; i < 3; i++) EXPECT_TRUE(queue.put(WARREN_LOG_INFO, large));
  EXPECT_THAT(taken(queue), HasSubstr("1 log line is missing here"));
  EXPECT_TRUE(queue.put(WARREN_LOG_INFO, std::string(LogQueue::kMostBytes + 1, 'y')));
  EXPECT_THAT(taken(queue), HasSubstr("2 log lines are missing here"));
  EXPECT_EQ(taken(queue).size(), LogQueue::kMostBytes + 1) << "the newest line is kept";
}

TEST(LogQueue, AThreadThatWaitsGetsWhatComesAndTheEnd) {
  LogQueue queue(8);
  std::vector<std::string> lines;
  std::thread taker([&] {
    for (auto line = queue.take(kForever); line.ok(); line = queue.take(kForever)) lines.push_back(line.value().text);
  });
  // Before and between communicators there are no lines; the first one's begin is none either.
  EXPECT_FALSE(queue.put(WARREN_LOG_INFO, "nobody's"));
  queue.begin();
  EXPECT_TRUE(queue.put(WARREN_LOG_INFO, "one"));
  queue.begin();
  queue.end();
  EXPECT_TRUE(queue.put(WARREN_LOG_INFO, "two"));
  queue.end();
  taker.join();
  EXPECT_THAT(lines, ElementsAre("one", "two"));
  EXPECT_EQ(queue.take(kForever).status().code(), Code::kClosed);
}

// Of which no clock can tell the end.
TEST(LogQueue, TheLongestTimeIsWaitedThrough) {
  for (int i = 0; i < 50; i++) {
    LogQueue queue(8);
    queue.begin();
    std::latch waits(1);
    std::thread taker([&] {
      waits.count_down();
      const auto line = queue.take(INT64_MAX);
      EXPECT_TRUE(line.ok()) << line.status().describe();
    });
    waits.wait();
    for (int yields = 0; yields < 50; yields++) std::this_thread::yield();
    EXPECT_TRUE(queue.put(WARREN_LOG_INFO, "one"));
    taker.join();
  }
}

TEST(LogQueue, WhatIsDivertedIsNotForTheProgramAnyMore) {
  LogQueue queue(2);
  queue.begin();
  for (const char* line : {"one", "two", "three"}) EXPECT_TRUE(queue.put(WARREN_LOG_WARNING, line));
  const std::vector<LogQueue::Line> left = queue.divert();
  ASSERT_EQ(left.size(), 3u);
  EXPECT_THAT(left[0].text, HasSubstr("1 log line is missing"));
  EXPECT_EQ(left[1].text, "two");
  EXPECT_EQ(left[2].text, "three");
  EXPECT_FALSE(queue.put(WARREN_LOG_WARNING, "four"));
  EXPECT_EQ(queue.take(kForever).status().code(), Code::kClosed);
}

}  // namespace
}  // namespace warren::worker

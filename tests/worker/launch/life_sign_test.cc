#include "worker/launch/life_sign.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

namespace warren::worker {
namespace {

LifeSign sign_on(const std::string& descriptor) {
  return LifeSign::from_environment([&](const std::string& name) {
    return name == "WARREN_LIFE_FD" ? std::optional<std::string>(descriptor) : std::nullopt;
  });
}

LifeView view() {
  auto made = LifeView::create();
  EXPECT_TRUE(made.ok()) << made.status().describe();
  return std::move(made).value();
}

TEST(LifeSign, IsSeenOnTheOtherSide) {
  LifeView v = view();
  EXPECT_GE(v.fd(), 3);
  EXPECT_NE(fcntl(v.fd(), F_GETFD) & FD_CLOEXEC, 0);
  const LifeSign sign = sign_on(std::to_string(v.fd()));
  ASSERT_TRUE(sign.shown());
  v.close_descriptor();
  EXPECT_EQ(v.beats(), 0u);
  sign.beat();
  EXPECT_EQ(v.beats(), 1u);
  sign.beat();
  EXPECT_EQ(v.beats(), 2u);
  sign.leave();
  EXPECT_EQ(v.beats(), 0u);
  sign.beat();
  EXPECT_EQ(v.beats(), 1u) << "another job of the same process";
}

TEST(LifeSign, TheLauncherAsksToLeaveAndSeesWhy) {
  LifeView v = view();
  {
    const LifeSign sign = sign_on(std::to_string(v.fd()));
    EXPECT_EQ(sign.leave_by_ms(), 0);
    v.ask_to_leave(12'345);
    EXPECT_EQ(sign.leave_by_ms(), 12'345);
    EXPECT_FALSE(v.has_drained());
    sign.drained();
  }
  EXPECT_TRUE(v.has_drained());
}

TEST(LifeSign, TellsOfWork) {
  LifeView v = view();
  {
    const LifeSign sign = sign_on(std::to_string(v.fd()));
    sign.beat();
    EXPECT_FALSE(v.has_worked());
    sign.worked();
    EXPECT_TRUE(v.has_worked());
  }
  EXPECT_TRUE(v.has_worked()) << "also when the job is left";
}

TEST(LifeSign, TellsHowItsJobEnded) {
  const LifeView v = view();
  LifeSign sign = sign_on(std::to_string(v.fd()));
  EXPECT_FALSE(v.in_unfinished_job());
  sign.beat();
  EXPECT_TRUE(v.in_unfinished_job());
  sign.leave();
  EXPECT_TRUE(v.in_unfinished_job()) << "its communicator is gone, and nobody has said that the job is over";
  sign.finished();
  EXPECT_FALSE(v.in_unfinished_job());
  EXPECT_TRUE(v.cause().ok());
  sign.beat();
  EXPECT_FALSE(v.in_unfinished_job()) << "it beats once more while it lets its caller go";
  const LifeSign second = sign_on(std::to_string(v.fd()));
  second.beat();
  EXPECT_TRUE(v.in_unfinished_job()) << "another communicator of the process, another job";
  sign.ended(Status(Code::kFinished, "the job is finished"), false);
  EXPECT_FALSE(v.in_unfinished_job());
  EXPECT_TRUE(v.cause().ok());
  sign.ended(Status(Code::kDesync, "4 ×\n5 \x1b" + std::string(1000, 'x')), false);
  sign.ended(Status(Code::kClosed, "later"), false);
  EXPECT_EQ(v.cause().code(), Code::kDesync);
  EXPECT_EQ(v.cause().message(), "4 × 5 ?" + std::string(kMostCauseBytes - 8, 'x'));
  EXPECT_FALSE(v.fenced());
}

TEST(LifeSign, TellsWhetherTheProgramIsToBlameForThat) {
  const LifeView v = view();
  auto sign = std::make_unique<LifeSign>(sign_on(std::to_string(v.fd())));
  EXPECT_FALSE(v.fenced());
  sign->ended(Status(Code::kClosed, "given up"), true);
  EXPECT_TRUE(v.fenced());
  sign->ended(Status(Code::kDesync, "later"), false);
  EXPECT_TRUE(v.fenced()) << "the first one stays";
  sign.reset();
  sign = std::make_unique<LifeSign>(sign_on(std::to_string(v.fd())));
  EXPECT_FALSE(v.fenced()) << "the program goes on with another one";
}

// A program that goes on with another communicator has got over what ended the one before.
TEST(LifeSign, ForgetsTheCauseWithTheSignThatSaidItWhereThereIsALaterOne) {
  const LifeView v = view();
  const auto sign = [&] { return std::make_unique<LifeSign>(sign_on(std::to_string(v.fd()))); };
  auto first = sign();
  auto beside = sign();
  first->ended(Status(Code::kDesync, "a"), false);
  beside.reset();
  auto later = sign();
  EXPECT_EQ(v.cause().message(), "a") << "the one that has ended is still there";
  first.reset();
  EXPECT_TRUE(v.cause().ok()) << "the program goes on with the later one";
  later->ended(Status(Code::kPeerLost, "b"), false);
  beside = sign();
  EXPECT_EQ(v.cause().message(), "b");
  beside->ended(Status(Code::kClosed, "c"), false);
  EXPECT_EQ(v.cause().message(), "b") << "the first one stays";
  beside.reset();
  EXPECT_EQ(v.cause().message(), "b") << "another one's end";
  later.reset();
  EXPECT_TRUE(v.cause().ok()) << "one was made since";
  auto last = sign();
  last->ended(Status(Code::kDesync, "d"), false);
  last.reset();
  EXPECT_EQ(v.cause().message(), "d") << "none was made since: it is what has ended the process";
  last = sign();
  EXPECT_TRUE(v.cause().ok()) << "one was made after it had gone";
}

TEST(LifeSign, TellsHowLongItMayBeSilent) {
  const LifeView v = view();
  EXPECT_EQ(v.limit_ms(), 0);
  const LifeSign sign = sign_on(std::to_string(v.fd()));
  sign.limit(1500);
  EXPECT_EQ(v.limit_ms(), 1500);
  for (const std::int64_t never : {std::int64_t{0}, std::int64_t{1}, std::int64_t{-1}, INT64_MAX}) {
    sign.limit(never);
    EXPECT_EQ(v.limit_ms(), 0) << "no round timeout is that";
  }
}

TEST(LifeSign, ThatGoesLeaves) {
  const LifeView v = view();
  {
    LifeSign sign = sign_on(std::to_string(v.fd()));
    sign.beat();
    LifeSign moved = std::move(sign);
    EXPECT_EQ(v.beats(), 1u);
    moved.beat();
    EXPECT_EQ(v.beats(), 2u);
  }
  EXPECT_EQ(v.beats(), 0u);
}

// A program between launcher and worker may close descriptors, and their numbers are taken by others.
TEST(LifeSign, LeavesAloneWhatIsNotTheLaunchers) {
  EXPECT_FALSE(LifeSign::from_environment([](const std::string&) { return std::nullopt; }).shown());
  for (const char* text : {"", "x", "-1", "99999", "99999999999999"}) EXPECT_FALSE(sign_on(text).shown()) << text;
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_FALSE(sign_on(std::to_string(null)).shown());
  // One that looks like a page but may shrink under us, and a sealed one that is something else.
  const LifeView v = view();
  std::array<char, 1024> page{};
  const ssize_t size = pread(v.fd(), page.data(), page.size(), 0);
  ASSERT_GT(size, 0);
  const int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(pwrite(unsealed, page.data(), static_cast<std::size_t>(size), 0), size);
  EXPECT_FALSE(sign_on(std::to_string(unsealed)).shown());
  const int other = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(other, size), 0);
  for (const int fd : {unsealed, other}) {
    ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  }
  EXPECT_TRUE(sign_on(std::to_string(unsealed)).shown()) << "the seals were all that it lacked";
  EXPECT_FALSE(sign_on(std::to_string(other)).shown());
  close(unsealed);
  close(other);
  close(null);
}

TEST(LifeSign, SaysNothingToNobody) {
  const LifeSign sign;
  sign.beat();
  sign.leave();
  EXPECT_FALSE(sign.shown());
}

TEST(LifeWatch, FindsACountThatStandsStill) {
  LifeWatch watch;
  const auto look = [&](std::uint64_t beats, std::int64_t elapsed_ms) {
    return watch.look(beats, elapsed_ms, 1000, 100);
  };
  EXPECT_FALSE(look(7, 100));
  for (int i = 1; i < 10; ++i) EXPECT_FALSE(look(7, 100)) << i;
  EXPECT_TRUE(look(7, 100));
}

TEST(LifeWatch, AnyChangeIsLife) {
  LifeWatch watch;
  const auto look = [&](std::uint64_t beats, std::int64_t elapsed_ms) {
    return watch.look(beats, elapsed_ms, 300, 100);
  };
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_FALSE(look(1 + i / 2, 200)) << "two looks at each count";
}

TEST(LifeWatch, WhoIsInNoJobIsNotWatched) {
  LifeWatch watch;
  const auto look = [&](std::uint64_t beats, std::int64_t elapsed_ms) {
    return watch.look(beats, elapsed_ms, 300, 100);
  };
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(look(0, 100));
  EXPECT_FALSE(look(5, 100));
  EXPECT_FALSE(look(5, 100));
  EXPECT_FALSE(look(5, 100));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(look(0, 100)) << "it has left";
  EXPECT_FALSE(look(5, 100)) << "and begins anew";
}

TEST(LifeWatch, WhatHoldsTheLauncherUpIsNoSilence) {
  LifeWatch watch;
  const auto look = [&](std::uint64_t beats, std::int64_t elapsed_ms) {
    return watch.look(beats, elapsed_ms, 1000, 100);
  };
  EXPECT_FALSE(look(7, 100));
  for (int i = 1; i < 5; ++i) EXPECT_FALSE(look(7, 3'600'000)) << "each counts as two intervals";
  EXPECT_TRUE(look(7, 3'600'000));
  EXPECT_FALSE(look(8, 3'600'000));
  EXPECT_FALSE(look(8, -5)) << "a clock that stood still";
}

}  // namespace
}  // namespace warren::worker

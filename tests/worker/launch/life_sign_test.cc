#include "worker/launch/life_sign.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

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
  const int other = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_FALSE(sign_on(std::to_string(other)).shown()) << "it may shrink under us";
  ASSERT_EQ(ftruncate(other, 16), 0);
  ASSERT_EQ(fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const LifeSign sign = sign_on(std::to_string(other));
  EXPECT_FALSE(sign.shown());
  sign.beat();
  std::uint64_t bytes[2] = {1, 1};
  ASSERT_EQ(pread(other, bytes, sizeof bytes, 0), 16);
  EXPECT_EQ(bytes[0], 0u);
  EXPECT_EQ(bytes[1], 0u);
  close(null);
  close(other);
}

TEST(LifeSign, SaysNothingToNobody) {
  const LifeSign sign;
  sign.beat();
  sign.leave();
  EXPECT_FALSE(sign.shown());
}

TEST(LifeWatch, FindsACountThatStandsStill) {
  LifeWatch watch(1000, 100);
  EXPECT_FALSE(watch.look(7, 100));
  for (int i = 1; i < 10; ++i) EXPECT_FALSE(watch.look(7, 100)) << i;
  EXPECT_TRUE(watch.look(7, 100));
}

TEST(LifeWatch, AnyChangeIsLife) {
  LifeWatch watch(300, 100);
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_FALSE(watch.look(1 + i / 2, 200)) << "two looks at each count";
}

TEST(LifeWatch, WhoIsInNoJobIsNotWatched) {
  LifeWatch watch(300, 100);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(watch.look(0, 100));
  EXPECT_FALSE(watch.look(5, 100));
  EXPECT_FALSE(watch.look(5, 100));
  EXPECT_FALSE(watch.look(5, 100));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(watch.look(0, 100)) << "it has left";
  EXPECT_FALSE(watch.look(5, 100)) << "and begins anew";
}

TEST(LifeWatch, WhatHoldsTheLauncherUpIsNoSilence) {
  LifeWatch watch(1000, 100);
  EXPECT_FALSE(watch.look(7, 100));
  for (int i = 1; i < 5; ++i) EXPECT_FALSE(watch.look(7, 3'600'000)) << "each counts as two intervals";
  EXPECT_TRUE(watch.look(7, 3'600'000));
  EXPECT_FALSE(watch.look(8, 3'600'000));
  EXPECT_FALSE(watch.look(8, -5)) << "a clock that stood still";
}

}  // namespace
}  // namespace warren::worker

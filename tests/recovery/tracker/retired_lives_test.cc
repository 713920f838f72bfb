#include "recovery/tracker/retired_lives.h"

#include <gtest/gtest.h>

#include <string>

namespace warren::test {
namespace {

std::string in_order(const RetiredLives& lives) {
  std::string text;
  for (const Incarnation life : lives.oldest_first()) text += (text.empty() ? "" : " ") + std::to_string(life.value);
  return text;
}

RetiredLives first_lives(std::uint64_t n, std::size_t most) {
  RetiredLives lives;
  for (std::uint64_t life = 1; life <= n; ++life) lives.add(Incarnation(life), most);
  return lives;
}

TEST(RetiredLives, ForgetsTheOldestFirst) {
  EXPECT_EQ(in_order(first_lives(0, 3)), "");
  EXPECT_EQ(in_order(first_lives(3, 3)), "1 2 3");
  const RetiredLives five = first_lives(5, 3);
  EXPECT_EQ(in_order(five), "3 4 5");
  EXPECT_EQ(five.size(), 3u);
  EXPECT_FALSE(five.contains(Incarnation(2)));
  EXPECT_TRUE(five.contains(Incarnation(3)));
  EXPECT_EQ(in_order(first_lives(7, 3)), "5 6 7");
}

TEST(RetiredLives, ALifeRetiresOnce) {
  RetiredLives lives = first_lives(3, 3);
  lives.add(Incarnation(1), 3);
  EXPECT_EQ(in_order(lives), "1 2 3");
}

TEST(RetiredLives, KeepsTheNewestOfASmallerWorld) {
  RetiredLives lives = first_lives(5, 4);
  lives.keep(2);
  EXPECT_EQ(in_order(lives), "4 5");
  EXPECT_FALSE(lives.contains(Incarnation(3)));
  lives.add(Incarnation(6), 2);
  EXPECT_EQ(in_order(lives), "5 6");
  lives.keep(9);
  EXPECT_EQ(in_order(lives), "5 6");
}

}  // namespace
}  // namespace warren::test

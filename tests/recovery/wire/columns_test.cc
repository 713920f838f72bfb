#include "recovery/wire/columns.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>

namespace warren::test {
namespace {

using Numbers = std::vector<std::uint64_t>;

std::size_t expect_round_trip(const Numbers& numbers) {
  const wire::NumberColumn column = column_of(numbers);
  const auto back = numbers_of(column, numbers.size());
  EXPECT_TRUE(back.ok()) << back.status().describe();
  EXPECT_TRUE(back.ok() && back.value() == numbers);
  EXPECT_FALSE(numbers_of(column, numbers.size() + 1).ok() && column.width_bytes() != 0);
  return column.ByteSizeLong();
}

std::size_t expect_round_trip(const std::vector<std::string>& texts) {
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const wire::TextColumn column = column_of(views);
  const auto back = texts_of(column, texts.size(), 128);
  EXPECT_TRUE(back.ok()) << back.status().describe();
  for (std::size_t i = 0; back.ok() && i < texts.size(); ++i) EXPECT_EQ(back.value().at(i), texts[i]);
  return column.ByteSizeLong();
}

TEST(Columns, NumbersComeBack) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const Numbers& numbers : {Numbers{},
                                 {0},
                                 {7},
                                 {kMost},
                                 {0, 0, 0},
                                 {kMost, 0, kMost, 0},
                                 {0, kMost, 1, 1U << 31},
                                 {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                                 {5, 5, 5, 5, 5, 5, 5, 5, 5}}) {
    expect_round_trip(numbers);
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    Numbers numbers;
    const std::size_t count = random() % 300;
    const std::uint64_t most = kMost >> (random() % 64);
    while (numbers.size() < count) {
      // Repeats some of what is there, as plans do.
      const std::size_t from = numbers.empty() ? 0 : random() % numbers.size();
      const bool copies = !numbers.empty() && random() % 3 != 0;
      for (std::uint64_t n = random() % 20; n != 0; --n) {
        numbers.push_back(copies ? numbers[from + (numbers.size() - from) / 2] : random() % most + (most == 0));
      }
    }
    expect_round_trip(numbers);
  }
}

TEST(Columns, NumbersThatRepeatOrCountUpCostNextToNothing) {
  Numbers same, rising, periodic, hosts;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    same.push_back(8);
    rising.push_back(i);
    periodic.push_back(i % 8);
    hosts.push_back(i / 8);
  }
  EXPECT_LE(expect_round_trip(same), 16u);
  EXPECT_LE(expect_round_trip(rising), 16u);
  EXPECT_LE(expect_round_trip(periodic), 24u);
  EXPECT_LE(expect_round_trip(hosts), 32u);
  EXPECT_EQ(expect_round_trip(Numbers(10'000, 0)), 0u);
}

TEST(Columns, NumbersThatDoNotFitAreRefused) {
  const Numbers numbers(20, 300);
  const auto why = [&](const std::function<void(wire::NumberColumn&)>& spoil) {
    wire::NumberColumn column = column_of(numbers);
    spoil(column);
    return numbers_of(column, numbers.size()).status().describe();
  };
  ASSERT_EQ(column_of(numbers).copies_size(), 3);
  EXPECT_EQ(why([](auto&) {}), "");
  EXPECT_EQ(why([](auto& c) { c.set_width_bytes(0); }), "numbers of no width");
  EXPECT_EQ(why([](auto& c) { c.set_width_bytes(9); }), "numbers of 9 bytes");
  EXPECT_EQ(why([](auto& c) { c.mutable_values()->pop_back(); }), "half a number");
  EXPECT_EQ(why([](auto& c) { c.add_copies(1); }), "half a copy");
  EXPECT_EQ(why([](auto& c) { c.clear_copies(); }), "1 numbers, not 20");
  EXPECT_EQ(why([](auto& c) { c.set_copies(1, 4'000'000'000U); }), "4000000001 numbers, not 20");
  EXPECT_EQ(why([](auto& c) { c.set_copies(0, 2); }), "a copy after 2 values of 1");
  EXPECT_EQ(why([](auto& c) { c.set_copies(2, 0); }), "a copy of numbers that are not there");
  EXPECT_EQ(why([](auto& c) { c.set_copies(2, 2); }), "a copy of numbers that are not there");
  EXPECT_EQ(why([](auto& c) { c.set_copies(0, 0); }), "a copy of numbers that are not there");
}

TEST(Columns, TextsComeBack) {
  const std::string zeros(128, '0'), nines(128, '9');
  expect_round_trip(std::vector<std::string>{});
  expect_round_trip({"",
                     "",
                     "0",
                     "00",
                     "000",
                     "1",
                     "01",
                     "10",
                     "a",
                     "a0",
                     "a00",
                     "0a",
                     "a1b2c3d4e5f6g7h8i9j10",
                     zeros,
                     nines,
                     "0" + nines.substr(1),
                     "18446744073709551616",
                     "host09",
                     "host10",
                     "host010",
                     "10.0.0.1",
                     "fe80::1%eth0",
                     "gr\u00fcn7",
                     "7",
                     "a",
                     ""});
  std::mt19937_64 random(11);
  for (int i = 0; i < 500; ++i) {
    std::vector<std::string> texts(random() % 100);
    for (std::string& text : texts) {
      for (std::uint64_t n = random() % 60; n != 0; --n) text += "0019a-\x7f\xc3"[random() % 8];
    }
    expect_round_trip(texts);
  }
}

TEST(Columns, TextsThatCountUpCostNextToNothing) {
  std::vector<std::string> hosts, padded, addresses, domains;
  for (int i = 0; i < 10'000; ++i) {
    hosts.push_back("host" + std::to_string(i / 8));
    padded.push_back("node" + std::to_string(100'000 + i).substr(1) + ".rack7.example");
    addresses.push_back("10.20." + std::to_string(i / 250) + "." + std::to_string(i % 250));
    domains.push_back("everything");
  }
  EXPECT_LE(expect_round_trip(hosts), 100u);
  EXPECT_LE(expect_round_trip(padded), 250u);
  EXPECT_LE(expect_round_trip(addresses), 200u);
  EXPECT_LE(expect_round_trip(domains), 40u);
}

TEST(Columns, TextsThatDoNotFitAreRefused) {
  const std::vector<std::string_view> texts = {"w1", "w2", "w02", "w1"};
  const auto why = [&](const std::function<void(wire::TextColumn&)>& spoil) {
    wire::TextColumn column = column_of(texts);
    spoil(column);
    return texts_of(column, texts.size(), 8).status().describe();
  };
  const auto row = [](std::uint64_t n) { return column_of(Numbers{n}); };
  EXPECT_EQ(why([](auto&) {}), "");
  EXPECT_EQ(why([](auto& c) { c.set_distinct(5); }), "5 different ones of 4");
  EXPECT_EQ(why([](auto& c) { c.set_distinct(2); }), "row 2 of 2");
  EXPECT_EQ(why([](auto& c) { c.set_distinct(1); }), "more patterns than texts");
  EXPECT_EQ(why([](auto& c) { c.clear_patterns(); }), "row 0 of 0");
  EXPECT_EQ(why([](auto& c) { c.set_patterns(0, "123456789"); }), "a pattern of 9 bytes");
  EXPECT_EQ(why([](auto& c) { c.set_patterns(0, "\1.\1"); }), "a pattern has too many numbers");
  EXPECT_EQ(why([](auto& c) { c.set_patterns(0, "w"); }), "3 numbers, not 1");
  EXPECT_EQ(why([](auto& c) { c.set_patterns(0, "w\x12"); }), "a text of 19 bytes");
  EXPECT_EQ(why([&](auto& c) { *c.mutable_pattern_rows() = row(1); }), "1 numbers, not 3");
  EXPECT_EQ(why([&](auto& c) { *c.mutable_rows() = row(1); }), "1 numbers, not 4");
  EXPECT_EQ(why([](auto& c) {
              for (int i = 0; i < 8; ++i) c.add_numbers();
            }),
            "too many numbers in a text");
}

}  // namespace
}  // namespace warren::test
